"""The plan in force, and how another one takes its place."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.counting.buckets import newest_event_ms
from analyzer.judging.activation_steps import Step, decode_steps, steps_after, steps_to_judge_again
from analyzer.judging.judge import NOTHING, Judged, JudgedRows
from analyzer.judging.kinds import policy_kind
from analyzer.judging.locks import lock_feed
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql import brake_rows, directory, stored_notices
from analyzer.judging.sql.activation import Activation, StoredPlan, judge_later_windows_again, store_steps
from analyzer.judging.sql.directory import NO_DIRECTORY, DirectoryVersion
from analyzer.kernel.database import signed_rows
from analyzer.kernel.database.audit_log import PLAN_IN_FORCE, record
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.dialects import dialect_of
from analyzer.kernel.database.engine import NowMs, reading
from analyzer.kernel.errors import SchemaBehind
from analyzer.kernel.tables.billing_tables import CUT_UNTIL_S
from analyzer.kernel.tables.schema import plans
from analyzer.plan import catalog
from analyzer.plan.plan import RULES, Plan, UnknownPlan, plan_from
from analyzer.plan.plan_differences import differences, in_words, stopped_text, unenforced
from analyzer.plan.sums import Sum, sum_text
from analyzer.plan.windows import Rolling

LOCK_NOT_AVAILABLE = "55P03"  # SQLSTATE
ACTIVATION_MS = 60_000  # time-out of its statements
# Rows that an activation reads itself; a small installation agrees with its new plan at once.
ACTIVATION_ROWS = 20_000
# The newest bucket may be ahead of the true time by as much: see `SourceMapping.future_ms_max`.
RECORDS_AHEAD_MS = 300_000
PLANS_READ_MAX = 100  # for what an earlier file enforced


class LockedPlan(NamedTuple):
    """The plan in force, which no activation can replace until commit."""

    version: int | None
    at_ms: int  # when it came in force: after a restore, another plan may have the number
    pending: str  # see `decode_steps`
    now_ms: int
    digest: str
    mark: str
    cut_until_s: int = 0  # the end of the last day that is closed, or being closed
    directory: DirectoryVersion = NO_DIRECTORY


NO_PLAN = LockedPlan(None, 0, "", 0, "", "")


class Activated(NamedTuple):
    """The plan in force, and what it brought at once."""

    version: int
    judged: Judged = NOTHING


# The directory's version and the cut of days are read by the statement that locks the plan: each transaction
# that writes another one holds the lock of an activation, and this statement waits for it before it sees any
# row.
LOCK_ACTIVE = (
    sa.select(plans.c.version, plans.c.at_ms, plans.c.pending, NowMs(), plans.c.digest, plans.c.mark)
    .add_columns(CUT_UNTIL_S)
    .add_columns(directory.NEWEST.c.version, directory.NEWEST.c.mark, directory.NEWEST.c.wide)
    .select_from(plans.outerjoin(directory.NEWEST, sa.true()))
    .where(plans.c.active == 1)
    .with_for_update(read=True, of=plans)
)


def lock_active(db: sa.Connection) -> LockedPlan:
    """Returns the plan in force, which no activation can replace until commit, and the database's time."""
    row = db.execute(LOCK_ACTIVE).first()
    # No row: another plan was activated while this statement waited for the row, and it cannot see the new
    # one.
    if row is None:
        return NO_PLAN
    *of_plan, version, mark, wide = row
    locked = LockedPlan(*of_plan)
    return locked if version is None else locked._replace(directory=DirectoryVersion(version, mark, wide))


def is_in_force(db: sa.Connection, locked: LockedPlan, plan: Plan) -> bool:
    """Whether `plan` is the locked one.

    Its number does not say it: after a dump was restored, the next plan gets a number that another one had.
    """
    return locked.digest == plan.digest


def active(db: sa.Connection) -> tuple[int, Plan]:
    """Returns the version in force and its plan. Raises LookupError when there is none; SchemaBehind."""
    row = db.execute(sa.select(plans.c.version, plans.c.body).where(plans.c.active == 1)).first()
    if row is None:
        raise LookupError("no plan is in force yet")
    return row.version, _decoded(row.body)


def hold_forgotten(db: sa.Connection) -> tuple[str, ...]:
    """Returns the references of forgotten callers. No other caller is forgotten until commit."""
    while lock_active(db) == NO_PLAN:
        if not exists(db):
            return ()
    return active(db)[1].forgotten


def stored(db: sa.Connection) -> StoredPlan | None:
    """Returns the plan in force with the steps that are left; None without one. Raises SchemaBehind."""
    row = db.execute(sa.select(plans).where(plans.c.active == 1)).first()
    if row is None:
        return None
    return StoredPlan(_decoded(row.body), row.version, row.at_ms, decode_steps(row.pending))


def stored_mark(db: sa.Connection, version: int) -> str:
    """Returns the mark of a plan that is stored."""
    return str(db.execute(sa.select(plans.c.mark).where(plans.c.version == version)).scalar_one())


def has_been(db: sa.Connection, version: int, mark: str) -> bool:
    """Whether this plan came in force in the past of this database; False after a restore to before it.

    Old plans are deleted: one that is older than all that are stored has been.
    """
    row = db.execute(sa.select(plans.c.mark).where(plans.c.version == version)).first()
    if row is not None:
        return bool(row.mark == mark)
    return db.execute(sa.select(sa.func.min(plans.c.version) > version)).scalar() in (True, 1)


def enforced_by_rules(db: sa.Connection, digest: str) -> frozenset[str]:
    """Returns the policies that the last plan with these rules enforced; none if it is stored no more."""
    newest = sa.select(plans.c.body).order_by(plans.c.version.desc()).limit(PLANS_READ_MAX)
    for body in db.execute(newest).scalars():
        try:
            plan = plan_from(body)
        except UnknownPlan:  # of another version
            continue
        if plan.parts.get(RULES) == digest:
            return frozenset(unenforced(plan, Plan()))
    return frozenset()


def came_in_force(db: sa.Connection, digest: str, behind: int) -> bool:
    """Whether a plan with this digest came in force behind the version `behind`."""
    statement = sa.select(plans.c.version).where(plans.c.digest == digest, plans.c.version > behind).limit(1)
    return db.execute(statement).first() is not None


def exists(db: sa.Connection) -> bool:
    """Whether a plan is in force."""
    return db.execute(sa.select(plans.c.version).where(plans.c.active == 1)).first() is not None


def activate(
    db: sa.Connection,
    plan: Plan,
    random_mark: Callable[[], str],
    who: str = "",
    rows_max: int | None = None,
    reason: str = "",
) -> Activated:
    """Puts `plan` in force for `who`, and begins to make totals and locks agree with it.

    Reads `rows_max` rows for that, ACTIVATION_ROWS by default; `continue_activation` does what is left. The
    plan that is in force already changes nothing. Raises SchemaBehind.
    """
    rows_max = ACTIVATION_ROWS if rows_max is None else rows_max
    block_flushes(db)
    old = db.execute(sa.select(plans).where(plans.c.active == 1)).first()
    earlier = None if old is None else _decoded(old.body)
    if old is not None and earlier is not None and earlier.digest == plan.digest:
        return Activated(int(old.version))
    version, now_ms = _put_in_force(db, plan, 1 if old is None else old.version + 1, random_mark())
    difference = in_words(differences(earlier or Plan(), plan))
    if stopped := unenforced(earlier or Plan(), plan):
        difference += f"; {stopped_text(stopped, lock_feed.enforced_by(db, stopped))}"
    record(db, who, PLAN_IN_FORCE, f"plan {version}", f"{reason}: {difference}" if reason else difference)
    brake_rows.renew(db, earlier or Plan(), now_ms if old is None else old.at_ms, plan, now_ms)
    directory.store_stated(db, plan, now_ms, who, random_mark)
    old_numbers = catalog.load(db)
    numbers = catalog.register(db, plan, plan_sums(plan).all_sums, earlier, version)
    unfinished = decode_steps(old.pending) if old is not None else ()
    sums = plan_sums(plan).numbers(numbers.sum_number)
    kept = {sum_ for sum_, number in sums.items() if old_numbers.sums.get(sum_text(sum_)) == number}
    _end_notices(db, earlier or Plan(), plan, kept, now_ms // 1000)
    # If the clock is ahead of the counts, new totals are filled from the window that these have reached.
    from_s = min(now_ms, newest_event_ms(db, numbers, now_ms) - RECORDS_AHEAD_MS) // 1000
    steps = steps_after(earlier or Plan(), unfinished, plan, sums, kept, from_s)
    activation = Activation(db, StoredPlan(plan, version, now_ms), numbers, now_ms, rows_max)
    activated = Activated(version, _run(db, activation, version, steps, random_mark))
    [row] = signed_rows.rows_of(db, plans, plans.c.version == version)
    signed_rows.sign(db, signed_rows.plan(row))
    return activated


def _end_notices(db: sa.Connection, earlier: Plan, plan: Plan, kept: Collection[Sum], now_s: int) -> None:
    """Ends notices that last of policies that are gone, and of sums that begin again."""
    for policy in earlier.policies:
        sum_ = policy_kind(policy).judged_sum(policy)
        is_judged = sum_ in kept and any(
            judged.name == policy.name for judged in plan_sums(plan).policies_by_sum[sum_]
        )
        if isinstance(sum_.window, Rolling) and not is_judged:
            stored_notices.end_lasting(db, policy.name, sum_text(sum_), now_s)


def continue_activation(db: sa.Connection, random_mark: Callable[[], str], rows_max: int) -> JudgedRows:
    """Brings totals and locks nearer to agreement with the plan; counts rows read. Raises SchemaBehind."""
    nothing = JudgedRows(0)
    if not db.execute(sa.select(plans.c.version).where(plans.c.active == 1, plans.c.pending != "")).first():
        return nothing
    block_flushes(db)
    in_force = stored(db)
    if in_force is None or not in_force.steps:
        return nothing
    numbers = catalog.load(db)
    activation = Activation(db, in_force, numbers, clock_ms(db), rows_max)
    judged = _run(db, activation, in_force.version, in_force.steps, random_mark)
    return JudgedRows(activation.rows, judged, f"plan {in_force.version}")


def judge_again(db: sa.Connection, *, clock_was_ahead: bool) -> Plan | None:
    """Has the steps of the activation judge every total of the windows that are open now.

    A total of a window that has not begun is judged when it grows again.

    Returns the plan in force, None without one. Keeps flushes out until commit. Raises SchemaBehind.
    """
    block_flushes(db)
    in_force = stored(db)
    if in_force is None:
        return None
    plan, unfinished = in_force.plan, in_force.steps
    numbers = plan_sums(plan).numbers(catalog.load(db).sum_number)
    steps = steps_to_judge_again(unfinished, plan, numbers, clock_was_ahead=clock_was_ahead)
    judge_later_windows_again(db, numbers, clock_ms(db) // 1000)
    store_steps(db, in_force.version, steps)
    return plan


def _run(
    db: sa.Connection,
    activation: Activation,
    version: int,
    steps: tuple[Step, ...] | list[Step],
    random_mark: Callable[[], str],
) -> Judged:
    remaining = activation.run(steps)
    if remaining or steps:
        store_steps(db, version, remaining)
    return activation.publish(random_mark())


def block_flushes(db: sa.Connection) -> None:
    """Waits for the flushes that have checked the plan to commit, and blocks all others until commit.

    From here on the buckets are complete. SQLite has one writer anyway.
    """
    dialect = dialect_of(db)
    # The table and not the row: new flushes can take their shared lock on the row while a writer waits for
    # it, so among busy analyzers the writer would never get it. For a table they queue behind the writer.
    dialect.lock_table(db, "plans", "exclusive")
    dialect.set_local(db, {"statement_timeout": ACTIVATION_MS})


def try_block_flushes(db: sa.Connection, wait_ms: int) -> bool:
    """Blocks flushes as `block_flushes` does, unless those in flight take longer than `wait_ms`.

    Others wait for as long as this waits. Returns whether they are blocked.
    """
    dialect = dialect_of(db)
    if dialect.has_one_writer:
        return True
    try:
        with db.begin_nested():
            dialect.set_local(db, {"lock_timeout": wait_ms})
            dialect.lock_table(db, "plans", "exclusive")
    except sa.exc.OperationalError as error:
        if getattr(error.orig, "sqlstate", None) == LOCK_NOT_AVAILABLE:
            return False
        raise
    return True


def _put_in_force(db: sa.Connection, plan: Plan, version: int, mark: str) -> tuple[int, int]:
    """Returns the version and the time."""
    db.execute(sa.update(plans).where(plans.c.active == 1).values(active=0, pending=""))
    row = {
        "version": version, "digest": plan.digest, "body": plan.to_json(), "active": 1, "at_ms": NowMs(),
        "mark": mark,
    }  # fmt: skip
    return version, int(db.execute(sa.insert(plans).values(row).returning(plans.c.at_ms)).scalar_one())


def _decoded(body: str) -> Plan:
    try:
        return plan_from(body)
    except UnknownPlan as error:
        raise SchemaBehind(
            f"the plan in force was written by another version of Gatelock: {error}; upgrade this one"
        ) from error


def plan_in_force(engine: sa.Engine) -> Plan | None:
    """Returns the plan in force; None when there is none yet. Raises StoreAway, SchemaBehind."""
    with reading(engine) as db:
        return active(db)[1] if exists(db) else None
