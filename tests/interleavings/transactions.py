"""The transactions that write, and a few that read, by name: each a function of an `Actor`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from random import Random

from analyzer.billing.audit.audit_outcomes import store_outcome
from analyzer.billing.audit.examined_days import examine_day
from analyzer.billing.days.by_hand import Correction, correct
from analyzer.billing.days.day_rows import stored_days
from analyzer.billing.hand_over.deliveries import Delivery, delivering
from analyzer.billing.reports.usage_amounts import UsagePart
from analyzer.callers.caller_changes import OverrideRequest, add_override, set_callers
from analyzer.callers.forgetting.forget_caller import forget_caller
from analyzer.counting.gaps import RecordedGap, SqlGaps, accept
from analyzer.flush.followed_partitions import retire
from analyzer.flush.rejects import PlanMismatch, RejectFilter, SqlRejects
from analyzer.flush.retry import RejectRetry, without_limits
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.caller_limits import Profile, Subject
from analyzer.judging.locks import locks_by_hand, suspension
from analyzer.judging.sql import plans
from analyzer.judging.sql.braked_policies import release_policy
from analyzer.kernel.database.clock import EPOCH
from analyzer.kernel.database.engine import open_engine, reading, writing
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.errors import CorrectionRefused
from analyzer.kernel.jobs.job_runs import SHARED, SqlJobRuns
from analyzer.kernel.jobs.job_schedules import RunOutcome
from analyzer.kernel.kept_ages import Retention
from analyzer.kernel.model import CountRow, Partition
from analyzer.kernel.tables.billing_tables import days
from analyzer.maintenance.audit import audit
from analyzer.maintenance.failing_jobs import FailingJobs
from analyzer.maintenance.job_runner import Job, JobRunner
from analyzer.plan.meters import DAY_S
from analyzer.plan.plan import Plan
from gatekeeper.model import Update
from tests.interleavings.actors import Actor, TransactionFunction
from tests.interleavings.worlds import (
    ABIDJAN,
    ACME,
    ANN,
    BOB,
    BRAKED_PLAN,
    CURSOR,
    DAILY_PLAN,
    DAYS_KEPT_S,
    FAR,
    FLOOD_PLAN,
    FOLDED_DAY_S,
    GAP,
    JOB,
    JOB_ROWS,
    JOB_SCHEDULE,
    MAX,
    MINUTES_DAY_S,
    MINUTES_KEPT_S,
    NEAR,
    NEW_PLAN,
    NOISY_PLAN,
    NOW_S,
    PACED_PLAN,
    PARTS,
    PLAN,
    QUARTERS_KEPT_S,
    RARE,
    RUN,
    RUN_OWNER,
    SHARED_PLAN,
    START,
    STATED_PLAN,
    STRICT_PLAN,
    TO_MIDNIGHT_MS,
    YVE,
    ZED,
    ZONED_PLAN,
    Counted,
    close_day,
    count,
    for_everyone,
    noisy,
    requests,
)
from tests.store.simulated_analyzers import MAPPING
from tests.support.counters import reference_counter
from tests.support.job_runners import SeenJobs
from tests.support.upkeep import Upkeep

BY_HAND = locks_by_hand.By("operator", "a mistake")

RARE_MAX = 2
LATE_S = (FOLDED_DAY_S, MINUTES_DAY_S)
TOMORROW_S = NOW_S + TO_MIDNIGHT_MS // 1000 + 60
RECORDED = RecordedGap(PARTS[2], GAP, EPOCH, "history", None, None, "", "")


def counting(
    part: Partition,
    *rows: CountRow,
    by: tuple[int, Plan] = (2, PLAN),
    again: bool = True,
    start: int | None = None,
    plans_of: Mapping[str, str] | None = None,
) -> TransactionFunction:
    """A flush; with `again`, by another plan than `by` when that is not in force any more.

    `start` is where the partition is; by default, where the history that all worlds have ends.
    """

    def flush(actor: Actor) -> Counted:
        store = SqlStore(actor.engine, actor.name, actor.mark)
        at = START[part] if start is None else start
        return count(store, part, rows, at, known=by, again=again, plans_of=plans_of)

    return flush


def bursting(part: Partition, number: int, slot_s: int) -> TransactionFunction:
    """A flush of requests of a caller without a history, all in the slot that begins at `slot_s`."""
    row = requests(MAX, number, slot_s)
    slots = [row._replace(width_s=5, bucket_s=slot_s)]

    def flush(actor: Actor) -> Counted:
        store = SqlStore(actor.engine, actor.name, actor.mark)
        return count(store, part, [row], START[part], known=(3, FLOOD_PLAN), slots=slots)

    return flush


def noisy_flush(part: Partition, start: int, *found: tuple[str, str, int]) -> TransactionFunction:
    """A flush of requests of these callers and addresses for the resource that has a noisy neighbour."""
    of_each = [noisy(key, address, number, NOW_S - 5) for key, address, number in found]
    rows, slots = ([row for one in of_each for row in one[at]] for at in (0, 1))

    def flush(actor: Actor) -> Counted:
        store = SqlStore(actor.engine, actor.name, actor.mark)
        return count(store, part, added_up(rows), start, known=(3, NOISY_PLAN), slots=added_up(slots))

    return flush


def added_up(rows: Iterable[CountRow]) -> list[CountRow]:
    """Returns one row for each series and bucket."""
    found: dict[CountRow, int] = {}
    for row in rows:
        at = row._replace(value=0)
        found[at] = found.get(at, 0) + row.value
    return [at._replace(value=value) for at, value in found.items()]


def proposing(part: Partition, plan: Plan, *rows: CountRow) -> TransactionFunction:
    """A flush with which the changed configuration of its analyzer comes in force."""

    def flush(actor: Actor) -> Counted:
        store = SqlStore(actor.engine, actor.name, actor.mark)
        return count(store, part, rows, START[part], proposed=plan)

    return flush


def retry(actor: Actor) -> Counted:
    """Counts the rejected records, which can be read by now."""
    rejects = SqlRejects(actor.engine, actor.mark)
    mappings = without_limits({"log": MAPPING})
    retry_ = RejectRetry(
        rejects, PLAN, ["log"], lambda: reference_counter(mappings, PLAN.groupings, PLAN.meters)
    )
    done = 0
    with suppress(PlanMismatch):  # from here on; what was counted before that stays
        for outcome in retry_.run(RejectFilter(), "operator", "the mapping is corrected"):
            done += not outcome.why
    return Counted(PARTS[0], [requests(ACME, done)] if done else [], NOW_S * 1000)


def activating(plan: Plan) -> TransactionFunction:
    return lambda actor: SqlStore(actor.engine, actor.name, actor.mark).activate(plan)


def pruning(job: str) -> TransactionFunction:
    """Returns a transaction that deletes what is beyond its retention."""
    return lambda actor: upkeep_of(actor).prune(Retention(days_s=DAYS_KEPT_S), (job,))


def run_job(actor: Actor) -> object:
    """An analyzer runs a job of this hour, unless that is done or another one does it."""
    left = [JOB_ROWS]

    def step() -> int:
        pruning("prune-feed")(actor)
        return left.pop() if left else 0

    failing = FailingJobs(SeenJobs(), Random(7))
    job = Job(JOB, step, JOB_SCHEDULE)
    runner = JobRunner([job], SqlJobRuns(actor.engine, actor.name), failing, lambda: 0.0)
    return runner.run(job, lambda _: False)


def keep_run(actor: Actor) -> bool:
    """The keeper of a process extends the lease of a run, whose step is long."""
    return SqlJobRuns(actor.engine, RUN_OWNER).keep_and_store(RUN, JOB_ROWS)


def ending_run(outcome: RunOutcome) -> TransactionFunction:
    """Returns the end of the run of the same process, in the thread of the job."""
    return lambda actor: SqlJobRuns(actor.engine, RUN_OWNER).end(RUN, outcome, JOB_ROWS, "an error")


def hold_lease(actor: Actor) -> bool:
    """A warden takes or extends its lease, and looks whether the clock was ahead."""
    with writing(actor.engine) as db:
        SHARED.is_ahead(db, "warden")
        return SHARED.take(db, "warden", actor.name)


def upkeep_of(actor: Actor) -> Upkeep:
    return Upkeep(actor.engine, actor.mark, owner=actor.name)


def one_step(actor: Actor) -> int:
    """One step of an activation, of two rows."""
    with writing(actor.engine) as db:
        return plans.continue_activation(db, actor.mark, 2).rows


def suspend(actor: Actor) -> object:
    return suspension.suspend(actor.engine, 60_000, "operator", "a mistake", actor.mark)


def resume(actor: Actor) -> bool:
    return suspension.resume(actor.engine, "operator", "corrected", actor.mark)


def overriding(key: str, limit: int) -> TransactionFunction:
    """An operator gives a caller another daily limit."""
    asked = OverrideRequest("limit", Subject("caller", key), "daily", limit)
    return lambda actor: add_override(actor.engine, asked, "operator", "", actor.mark)


def exempting(key: str) -> TransactionFunction:
    """An operator exempts a caller from the surge."""
    asked = OverrideRequest("exempt", Subject("caller", key), "flood")
    return lambda actor: add_override(actor.engine, asked, "operator", "", actor.mark)


def set_plan(actor: Actor) -> object:
    return set_callers(actor.engine, {ANN: Profile("free")}, "operator", "", actor.mark)


def set_tenant(actor: Actor) -> object:
    """An operator states facts about a tenant: those of any caller may change, so all are judged again."""
    shop = Profile("free", zone="Africa/Abidjan")
    return set_callers(actor.engine, {"tenant:shop": shop}, "operator", "", actor.mark)


def set_zone(actor: Actor) -> object:
    """An operator moves acme; the command refills its totals."""
    return set_callers(actor.engine, {ACME: ABIDJAN}, "operator", "", actor.mark, ["zone"])


def clear_lock(actor: Actor) -> object:
    """An operator clears acme's lock, for an hour."""
    of_acme = [locks_by_hand.LockTarget("caller", ACME)]
    return locks_by_hand.clear_locks(actor.engine, of_acme, None, 3_600_000, BY_HAND, actor.mark)


def set_lock(actor: Actor) -> object:
    """An operator locks acme for an hour."""
    of_acme, effect = [locks_by_hand.LockTarget("caller", ACME)], locks_by_hand.Effect()
    return locks_by_hand.set_locks(actor.engine, of_acme, 3_600_000, effect, BY_HAND, actor.mark)


def accept_gap(actor: Actor) -> None:
    """An operator's decision on the gap of the third partition; the operator has listed it before."""
    accept(actor.engine, RECORDED, 10, "operator", "lost")


def audit_yesterday(actor: Actor) -> None:
    """Audits yesterday and stores the outcome; nothing differs, in any order."""
    # What the snapshot reads is decided where it begins: none of it is a step.
    unwatched = open_engine(actor.engine.url)
    try:
        with reading(unwatched) as db:
            [yesterday] = stored_days(db, days.c.end_s <= NOW_S)
        audited = examine_day(unwatched, yesterday, [DigestKey()])
    finally:
        unwatched.dispose()
    assert list(audited.differences) == []
    store_outcome(actor.engine, audited, actor.name)


def correct_yesterday(actor: Actor) -> object:
    """An operator takes a request of bob away from yesterday."""
    with reading(actor.engine) as db:
        [yesterday] = stored_days(db, days.c.end_s <= NOW_S)
    with suppress(CorrectionRefused):
        asked = Correction("caller", BOB, "", "requests", -1)
        return correct(actor.engine, yesterday, asked, "operator", "a mistake")
    return None


def forget(actor: Actor) -> object:
    """An operator has bob forgotten."""
    return forget_caller(actor.engine, BOB, "operator", "asked for", actor.mark)


def deliver(actor: Actor) -> bool:
    """A process hands yesterday over; returns whether it was the one that did."""
    with reading(actor.engine) as db:
        [yesterday] = stored_days(db, days.c.end_s <= NOW_S)
    part = UsagePart(yesterday, "caller", "requests", "sum", "frozen")
    with delivering(actor.engine, "the service", "lago", "operator", lambda: actor.name) as record:
        before = record.of(part)
        if before.finished_ms is not None:
            return False
        assert before == Delivery(), "another process is in the middle of it"
        record.trying(part, before)
        record.finished(part, before._replace(events=1))
    return True


def settle(actor: Actor) -> object:
    """The analyzer whose partition is blocked by the gap looks whether it may continue."""
    return SqlGaps(actor.engine, actor.name).settle({PARTS[2]: GAP})


def after(ms: int) -> TransactionFunction:
    """Time passes: no transaction, but what reads the clock comes before or after it."""
    return lambda actor: actor.advance_clock(ms)


def poll(actor: Actor) -> Update:
    """A gate asks for what is new."""
    return actor.gate_source.fetch(CURSOR)


TRANSACTIONS: Mapping[str, TransactionFunction] = {
    # Two that reach acme's limit only together, in different buckets; and a zombie that repeats the first.
    "flush": counting(PARTS[0], requests(ACME, 60), requests(ANN, 60)),
    "flush-other": counting(PARTS[1], requests(ACME, 60, NOW_S - 700), requests(BOB, 5)),
    "flush-zombie": counting(PARTS[0], requests(ACME, 60), requests(ANN, 60)),
    "flush-late": counting(PARTS[1], *(requests(key, 2, s) for s in LATE_S for key in (ACME, *RARE))),
    "flush-new": counting(PARTS[0], requests(ACME, 60), requests(ANN, 60), by=(3, NEW_PLAN)),
    "flush-new-other": counting(
        PARTS[1], requests(ACME, 60, NOW_S - 700), requests(BOB, 5), by=(3, NEW_PLAN)
    ),
    "flush-one": counting(PARTS[0], requests(ACME, 40), by=(3, DAILY_PLAN)),
    "flush-one-other": counting(PARTS[1], requests(ACME, 40, NOW_S - 700), by=(3, DAILY_PLAN)),
    "flush-once": counting(PARTS[0], requests(ACME, 40), by=(3, DAILY_PLAN), again=False),
    "flush-once-other": counting(PARTS[1], requests(ACME, 40, NOW_S - 700), by=(3, DAILY_PLAN), again=False),
    # Each locks another caller; there is room for one.
    "flush-paced": counting(PARTS[0], requests(ANN, 120), by=(3, PACED_PLAN)),
    "flush-paced-other": counting(PARTS[1], requests(BOB, 150, NOW_S - 700), by=(3, PACED_PLAN)),
    "flush-young": counting(PARTS[0], requests(ANN, 120), by=(3, BRAKED_PLAN)),
    "flush-young-other": counting(PARTS[1], requests(BOB, 150, NOW_S - 700), by=(3, BRAKED_PLAN)),
    "apply-brakes": lambda actor: upkeep_of(actor).apply_brakes(),
    "release": lambda actor: release_policy(actor.engine, "daily", "operator", "right", actor.mark),
    "flush-shared": counting(PARTS[0], *for_everyone(requests(ACME, 60)), by=(3, SHARED_PLAN)),
    "flush-shared-other": counting(
        PARTS[1],
        *for_everyone(requests(BOB, 50, NOW_S - 700), requests(ACME, 40)),
        by=(3, SHARED_PLAN),
        start=597,
    ),
    # On either side of a slot's edge; they reach the limit of the surge only together.
    "flush-burst": bursting(PARTS[0], 60, NOW_S - 5),
    "flush-burst-other": bursting(PARTS[1], 60, NOW_S),
    # Of the caller and the address that wait for the warden, and of others for the same resource.
    "flush-noisy": noisy_flush(PARTS[0], START[PARTS[0]], (YVE, NEAR, 10), (BOB, FAR, 30)),
    "flush-noisy-other": noisy_flush(PARTS[1], 598, (ANN, FAR, 30), (ACME, NEAR, 5)),
    "flush-evening": counting(PARTS[0], requests(ACME, 80), by=(3, DAILY_PLAN)),
    "flush-tomorrow": counting(PARTS[1], requests(ACME, 150, TOMORROW_S), by=(3, DAILY_PLAN)),
    "flush-proposing": proposing(PARTS[0], NEW_PLAN, requests(ACME, 60), requests(ANN, 60)),
    "flush-proposing-other": proposing(PARTS[1], STRICT_PLAN, requests(ACME, 60, NOW_S - 700)),
    "heartbeat": counting(PARTS[1]),
    "activate": activating(NEW_PLAN),
    "activate-strict": activating(STRICT_PLAN),
    "activation-step": one_step,
    "end-locks": lambda actor: upkeep_of(actor).end_locks(),
    "judge-waiting": lambda actor: upkeep_of(actor).judge_waiting(),
    "job": run_job,
    "begin-run": lambda actor: SqlJobRuns(actor.engine, actor.name).begin(JOB, JOB_SCHEDULE),
    "keep-run": keep_run,
    "end-run": ending_run("done"),
    "fail-run": ending_run("failed"),
    "empty-slots": lambda actor: upkeep_of(actor).empty_slots(),
    "exempt": exempting(YVE),
    "retry": retry,
    "prune": pruning("prune-feed"),
    "prune-totals": pruning("prune-totals"),
    "prune-rejected": pruning("prune-rejected"),
    "prune-locks": pruning("prune-locks"),
    "roll-up": lambda actor: upkeep_of(actor).roll_up(MINUTES_KEPT_S, QUARTERS_KEPT_S),
    "fold": lambda actor: upkeep_of(actor).fold(RARE_MAX, MINUTES_KEPT_S),
    "delete-days": pruning("prune-buckets"),
    "repair-totals": lambda actor: upkeep_of(actor).repair_totals(),
    "prove-day": lambda actor: upkeep_of(actor).prove_day(),
    "close-day": lambda actor: close_day(actor.engine, actor.name),
    "correct": correct_yesterday,
    "audit-day": audit_yesterday,
    "deliver": deliver,
    "forget": forget,
    "flush-yesterday": counting(
        PARTS[0], requests(ACME, 5, NOW_S - DAY_S), requests(BOB, 1, NOW_S - DAY_S), by=(3, DAILY_PLAN)
    ),
    "flush-yesterday-other": counting(
        PARTS[1], requests(BOB, 2, NOW_S - DAY_S - 60), requests(YVE, 4), by=(3, DAILY_PLAN)
    ),
    "audit": lambda actor: audit(actor.engine),
    "override": overriding(ACME, 50),
    "override-higher": overriding(ZED, 500),
    "override-first": overriding(BOB, 50),
    "override-none": overriding(BOB, 0),
    "flush-first": counting(PARTS[1], requests(BOB, 60), by=(3, DAILY_PLAN)),
    # Of bob, whose plan waits for the warden; and two that state another one.
    "flush-stated": counting(PARTS[1], requests(BOB, 60), by=(3, STATED_PLAN)),
    "flush-stating": counting(
        PARTS[0], requests(BOB, 60), by=(3, STATED_PLAN), start=57, plans_of={BOB: "pro"}
    ),
    "flush-stating-other": counting(
        PARTS[1], requests(BOB, 30), by=(3, STATED_PLAN), plans_of={BOB: "free", ANN: "pro"}
    ),
    "apply-facts": lambda actor: upkeep_of(actor).apply_facts(),
    "flush-zed": counting(PARTS[0], requests(ZED, 60), by=(3, DAILY_PLAN)),
    "set-plan": set_plan,
    "set-tenant": set_tenant,
    "set-zone": set_zone,
    "refill": lambda actor: upkeep_of(actor).refill_totals(),
    "flush-zoned": counting(PARTS[0], requests(ACME, 60), by=(3, ZONED_PLAN)),
    "flush-zoned-other": counting(PARTS[1], requests(ACME, 40, NOW_S - 700), by=(3, ZONED_PLAN)),
    "clear-lock": clear_lock,
    "set-lock": set_lock,
    "suspend": suspend,
    "resume": resume,
    "accept-gap": accept_gap,
    "settle-gap": settle,
    "begin": lambda actor: SqlStore(actor.engine, actor.name).begin(PARTS[2], 5),
    "finish": lambda actor: SqlStore(actor.engine, actor.name).finish(PARTS),
    "retire": lambda actor: retire(actor.engine, "log", "operator", "gone"),
    "lease": hold_lease,
    "poll": poll,
    "midnight": after(TO_MIDNIGHT_MS),
    "hours": after(3 * 3_600_000),
}
