"""States of a database in which transactions meet: made by the product, and restored before each order.

The history gives each transaction something to do: locks that are due, minutes and quarters to roll up, rare
callers to fold, days to prove and to delete, changes of the feed and totals to prune, rejected records that
can be read by now, and a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import psycopg
import sqlalchemy as sa

from analyzer.billing.days.closing import Billing, DayClosing
from analyzer.billing.days.day_rows import add_day
from analyzer.callers.caller_changes import set_callers
from analyzer.counting.gaps import SqlGaps
from analyzer.counting.records.forgotten_callers import ForgottenCallers
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.activation_steps import FillStep, Step, decode_steps
from analyzer.judging.caller_limits import Profile
from analyzer.judging.sql import plans
from analyzer.judging.sql.slots import GENERATION_S
from analyzer.kernel.database.engine import open_engine, writing
from analyzer.kernel.database.installation_secrets import REFERENCES, ensure_secret
from analyzer.kernel.errors import PlanChanged
from analyzer.kernel.jobs.job_runs import LEASE_MS, SqlJobRuns
from analyzer.kernel.jobs.job_schedules import BegunRun, Schedule
from analyzer.kernel.model import (
    CountRow,
    DrainedCounts,
    FactRun,
    Gap,
    Lag,
    Moment,
    Partition,
    PartitionProgress,
    Rejected,
    StatedFacts,
)
from analyzer.kernel.tables.billing_tables import days
from analyzer.kernel.tables.schema import metadata
from analyzer.kernel.tables.schema import plans as plans_table
from analyzer.plan.meters import DAY_S
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.policies import Brake, LoadShare, Quota, Surge
from analyzer.plan.proposals import Agreement
from analyzer.plan.windows import Calendar, Rolling
from gatekeeper.identity import NameDigest
from gatekeeper.model import Cursor
from tests.interleavings.actors import SimulatedClock
from tests.store.flushing import a_row, plan, quota
from tests.store.simulated_analyzers import value_of
from tests.support.servers.postgres import dsn_of
from tests.support.stored_counts import tables_of
from tests.support.upkeep import Upkeep

PARTS = tuple(Partition("cluster", "topic-id", number, "log", "access-log") for number in range(3))
ACME, ANN, BOB, ZED = "api_key:acme", "api_key:ann", "api_key:bob", "api_key:zed"
YVE, MAX = "api_key:yve", "api_key:max"
EXPORT, NEAR, FAR = "/v1/export", "192.0.2.1", "192.0.2.2"
RARE = ("api_key:rare1", "api_key:rare2")

NOW_S = 1_793_622_600  # 2026-11-02 12:30 UTC; no total of October is pruned yet
OLD_DAY_S, FOLDED_DAY_S, MINUTES_DAY_S = (NOW_S - days * DAY_S for days in (12, 7, 4))
MINUTES_KEPT_S, QUARTERS_KEPT_S, DAYS_KEPT_S = 3 * DAY_S, 6 * DAY_S, 11 * DAY_S
TO_MIDNIGHT_MS = 41_400_000

DAILY, MONTHLY = quota(100, "day"), quota(1_000, "month", "monthly")
FIRST_PLAN = plan(DAILY, MONTHLY, quota(9_000, "week", "weekly"))
PLAN = plan(DAILY, MONTHLY)
EMPTIED_WITHIN_S = 10  # a table; a transaction of another test that is open would block forever
JOB, JOB_SCHEDULE, JOB_ROWS = "prune-feed", Schedule(3_600), 7
RUN_OWNER, RUN = "a process", BegunRun(JOB, 1, JOB_SCHEDULE.latest_ms(NOW_S * 1000))
GAP = Gap("retention", 0, 10, "gone")  # in the third partition
START = {PARTS[0]: 52, PARTS[1]: 447, PARTS[2]: 0}  # where the history ends
CURSOR = Cursor(3, "history")  # of a gate that knows it
DAILY_PLAN = plan(DAILY)
FLOOD_PLAN = make_plan([], [], [Surge("flood", 100, Rolling(60))])
# Windows of each caller; acme moves to a zone whose days are those of UTC.
ZONED_PLAN = make_plan([], [], [Quota("daily", 100, Calendar("day", "UTC", ("zone",)))])
ABIDJAN = Profile(zone="Africa/Abidjan")
# The totals of `burst` are shared, and before those of callers in the order of their names.
NOISY_PLAN = make_plan(
    [],
    [],
    [
        Surge("flood", 100, Rolling(60)),
        Surge("burst", 100, Rolling(60), per="address"),
        LoadShare("neighbour", 400_000, 100, Rolling(60), per="caller+resource", hold_s=0, release=250_000),
    ],
)
# Limits by the plans of callers, which records state.
STATED_PLAN = plan(quota(100, "day", plan_limits=(("free", 50), ("pro", 500))))
STRICT_PLAN = plan(quota(60, "day"))
# With room for one new lock: `daily` is older than a day by PACED_PLAN, and young by BRAKED_PLAN.
PACED_PLAN = plan(quota(100, "day", brake=Brake(callers=1)))
BRAKED_PLAN = plan(quota(90, "day", brake=Brake(callers=1)))
SHARED_PLAN = plan(quota(100, "day"), quota(250, "hour", "all", grouping="everyone"))
# Stricter and with another action, a new sum, and one less.
NEW_PLAN = plan(quota(60, "day", action="tag"), quota(40, "hour", "hourly"))

Row = dict[str, Any]
State = dict[str, list[Row]]  # rows by table


class Counted(NamedTuple):
    """The requests that a flush or a retry has counted, and the database's time at which it was judged."""

    part: Partition
    rows: Sequence[CountRow]
    now_ms: int
    slots: Sequence[CountRow] = ()


def requests(key: str, number: int, at_s: int = NOW_S - 600) -> CountRow:
    """Returns requests of one caller in one minute."""
    return a_row(number, at_s, key)


def for_everyone(*rows: CountRow) -> list[CountRow]:
    """Returns these rows, and those of the grouping `everyone`."""
    return [*rows, *(row._replace(grouping="everyone", key="") for row in rows)]


def of_callers(rows: Iterable[CountRow]) -> list[CountRow]:
    return [row for row in rows if row.grouping == "caller"]


def noisy(key: str, address: str, number: int, slot_s: int) -> tuple[list[CountRow], list[CountRow]]:
    """Returns requests of one caller for one resource in a slot of five seconds: as minutes, and as slots."""
    row = requests(key, number, slot_s)
    minutes = [
        row,
        row._replace(grouping="address", key=address),
        row._replace(grouping="caller+resource", resource=EXPORT),
        row._replace(grouping="resource", key=EXPORT),
    ]
    return minutes, [one._replace(width_s=5, bucket_s=slot_s) for one in minutes]


def count(
    store: SqlStore,
    part: Partition,
    rows: Sequence[CountRow],
    start: int,
    rejected: Sequence[Rejected] = (),
    known: tuple[int, Plan] | None = None,
    *,
    again: bool = True,
    proposed: Plan | None = None,
    slots: Sequence[CountRow] = (),
    behind_s: float = 0.0,
    plans_of: Mapping[str, str] | None = None,
) -> Counted:
    """Flushes `rows` of one partition that is at `start`. Raises PartitionLost, PlanChanged.

    By the plan `known` to the analyzer, with its version; with `again`, by the one in force if this has
    replaced it. A `proposed` plan comes in force with it. The analyzer knows that it is `behind_s`. The
    records state the plans of callers as `plans_of` has them.
    """
    counted = sum(row.value for row in of_callers(rows))
    seen = counted + len(rejected)
    progress = PartitionProgress(part, start, start + seen, seen, counted, dead=len(rejected))
    while True:
        version, plan_in_force = known or store.active_plan()
        named = with_pseudonyms(store._engine, plan_in_force, rows)
        try:
            with store.transaction() as flush:
                flush.move_offsets([progress], {part: Lag(1, behind_s)} if behind_s else {})
                if proposed is None:
                    now = flush.check_plan(plan_in_force, version)
                else:
                    version, now = flush.put_in_force(Agreement(version, plan_in_force, proposed))
                facts = stated_plans(progress, plans_of or {})
                drained = DrainedCounts(
                    [progress], tables_of(sorted(named)), rejected, slots=tables_of(slots), facts=facts
                )
                flush.apply(proposed or plan_in_force, version, drained, now)
        except PlanChanged:
            if not again:
                raise
            known = None
            continue
        return Counted(part, rows, round(now.timestamp() * 1000), slots)


def with_pseudonyms(engine: sa.Engine, plan: Plan, rows: Sequence[CountRow]) -> Sequence[CountRow]:
    """Returns the rows as a counter names them by a plan that has forgotten callers."""
    if not plan.forgotten:
        return rows
    digest = NameDigest(ensure_secret(engine, REFERENCES))
    keys = ForgottenCallers(plan.forgotten, digest).names_to_count([row.key for row in rows])
    return [row._replace(key=key) for row, key in zip(rows, keys, strict=True)]


def stated_plans(progress: PartitionProgress, plans_of: Mapping[str, str]) -> list[StatedFacts]:
    """Returns the plans that records at the start of `progress` state, by caller."""
    since = Moment(NOW_S * 1000 + progress.part.number, progress.start)
    runs = {caller: [FactRun(name, since, is_first=True)] for caller, name in plans_of.items()}
    return [StatedFacts(progress.part, ("plan",), runs, {})] if runs else []


class History:
    """Makes the state of a world, at moments of the past."""

    def __init__(self, engine: sa.Engine, clock: SimulatedClock) -> None:
        self.counted: list[Counted] = []
        self.engine = engine
        self.store = SqlStore(engine, "history", lambda: "history")
        self.upkeep = Upkeep(engine, lambda: "history")
        self._clock = clock
        self._at = dict.fromkeys(PARTS, 0)

    def at(self, time_s: int) -> None:
        self._clock.now_ms = time_s * 1000

    def count(
        self,
        part: Partition,
        *rows: CountRow,
        rejected: Sequence[Rejected] = (),
        slots: Sequence[CountRow] = (),
        behind_s: float = 0.0,
        plans_of: Mapping[str, str] | None = None,
    ) -> None:
        start = self._at[part]
        counted = count(
            self.store, part, rows, start, rejected, slots=slots, behind_s=behind_s, plans_of=plans_of
        )
        self.counted.append(counted)
        self._at[part] += sum(row.value for row in of_callers(rows)) + len(rejected)

    def make(self) -> None:
        """Makes what every world has."""
        self.at(OLD_DAY_S)
        self.store.activate(FIRST_PLAN)
        for part in PARTS:
            self.store.begin(part, 0)
        callers = ((ACME, 7), (RARE[0], 1), (RARE[1], 2))
        self.count(PARTS[0], *(requests(key, n, OLD_DAY_S) for key, n in callers))
        self.at(FOLDED_DAY_S)
        self.count(PARTS[0], *(requests(key, n, FOLDED_DAY_S) for key, n in callers))
        self.store.activate(PLAN)
        self.at(MINUTES_DAY_S)
        self.count(PARTS[1], requests(ACME, 4, MINUTES_DAY_S), requests(ANN, 3, MINUTES_DAY_S))
        self.at(NOW_S - DAY_S)
        self.count(PARTS[1], requests(BOB, 200, NOW_S - DAY_S))
        self.at(NOW_S - 1_800)
        self.count(PARTS[1], requests(ZED, 120, NOW_S - 2_000))
        self.at(NOW_S)
        while self.upkeep.roll_up(6 * DAY_S, 10 * DAY_S):
            pass
        time_ms = (NOW_S - 600) * 1000
        dead = [
            Rejected(PARTS[0], offset, "bad-caller", value, time_ms, len(value))
            for offset in (20, 21)
            if (value := value_of("acme", time_ms))
        ]
        self.count(PARTS[0], requests(ACME, 30), rejected=dead)
        self.count(PARTS[1], requests(YVE, 120))
        SqlGaps(self.engine, "history").settle({PARTS[2]: GAP})


def judging(history: History) -> None:
    """Puts NEW_PLAN in force, and leaves all its steps to be done: it judges and clears first."""
    rows, plans.ACTIVATION_ROWS = plans.ACTIVATION_ROWS, 0
    try:
        history.store.activate(NEW_PLAN)
    finally:
        plans.ACTIVATION_ROWS = rows


def filling(history: History) -> None:
    """Puts NEW_PLAN in force, and leaves its new sum to be filled, two rows at a time."""
    judging(history)
    with writing(history.engine) as db:
        while not isinstance(_pending(db)[0], FillStep):
            plans.continue_activation(db, lambda: "history", 2)


def filling_begun(history: History) -> None:
    """Puts NEW_PLAN in force, and fills its new sum with the rows of its first caller, acme."""
    filling(history)
    with writing(history.engine) as db:
        plans.continue_activation(db, lambda: "history", 1)


def _pending(db: sa.Connection) -> Sequence[Step]:
    pending = sa.select(plans_table.c.pending).where(plans_table.c.active == 1)
    return decode_steps(db.execute(pending).scalar_one())


def one_sum(history: History) -> None:
    """Puts a plan with one sum in force: flushes in different windows share no total."""
    history.store.activate(DAILY_PLAN)


def locked(history: History) -> None:
    """Puts a plan with one sum in force, by which acme is locked."""
    history.store.activate(DAILY_PLAN)
    history.count(PARTS[1], requests(ACME, 150))


def paced(history: History) -> None:
    """Puts a plan in force whose policy is older than a day, with a brake."""
    history.at(NOW_S - 60)
    history.store.activate(PACED_PLAN)
    history.at(NOW_S)


def young(history: History) -> None:
    """Puts a plan in force whose policy is young, with a brake, and that begins no lock."""
    history.at(NOW_S - 60)
    history.store.activate(BRAKED_PLAN)
    history.at(NOW_S)


def braked(history: History) -> None:
    """Has the brake of the young policy act; the warden has not turned its locks to shadow yet."""
    young(history)
    history.count(PARTS[1], requests(MAX, 150), requests(BOB, 150))


def shared(history: History) -> None:
    """Puts a plan in force with a total that all partitions share; its hour begins with 150 requests."""
    history.store.activate(SHARED_PLAN)
    history.count(PARTS[1], *for_everyone(requests(ZED, 150)))


def flooded(history: History) -> None:
    """Puts a plan with a rolling sum in force."""
    history.store.activate(FLOOD_PLAN)


def zoned(history: History) -> None:
    """Puts a plan with windows of callers in force."""
    history.store.activate(ZONED_PLAN)


def moved(history: History) -> None:
    """Has acme's zone changed by a command that was killed before it refilled the totals."""
    zoned(history)
    # The row is new, so that its zone is stored; no zone is among the fields, so that nothing is refilled.
    set_callers(history.engine, {ACME: ABIDJAN}, "operator", "", lambda: "history", ["plan"])


def stated(history: History) -> None:
    """Has records state bob's plan, which waits for the warden."""
    history.store.activate(STATED_PLAN)
    history.count(PARTS[0], requests(ANN, 5), plans_of={BOB: "free"})


def waiting(history: History) -> None:
    """Has totals of callers and of addresses, surges and a share, wait for the warden.

    They were counted by an analyzer that was behind. There are also slots of an earlier generation.
    """
    history.at(NOW_S - 2 * GENERATION_S)
    history.store.activate(NOISY_PLAN)
    for time_s, caller, number, behind_s in (
        (NOW_S - 2 * GENERATION_S, BOB, 1, 0.0),
        (NOW_S - 5, YVE, 150, 400.0),
    ):
        history.at(time_s)
        rows, slots = noisy(caller, NEAR, number, time_s - 5)
        history.count(PARTS[1], *rows, slots=slots, behind_s=behind_s)
    history.at(NOW_S)
    history.count(PARTS[1])


def restored(history: History) -> None:
    """Puts another plan in force under the number of DAILY_PLAN, as after a dump was restored."""
    history.store.activate(STRICT_PLAN)


def due(history: History) -> None:
    """Puts a plan with one sum in force; yesterday is over, and a partition is stopped since."""
    history.store.activate(DAILY_PLAN)
    with writing(history.engine) as db:
        add_day(db, "UTC", NOW_S - DAY_S)


def closed(history: History) -> None:
    """Closes yesterday; some of it has come later."""
    due(history)
    assert close_day(history.engine, "history") == 1
    history.count(PARTS[1], requests(ANN, 3, NOW_S - DAY_S))


def abandoned(history: History) -> None:
    """Has yesterday cut by a process that was killed."""
    due(history)
    with writing(history.engine) as db:
        db.execute(sa.update(days).values(state="closing", groupings="caller"))
        add_day(db, "UTC", NOW_S)
    history.count(PARTS[1], requests(ANN, 3, NOW_S - DAY_S))


def half_done(history: History) -> None:
    """Has a job begun by a process that was killed before it did anything; its lease has just ended."""
    history.at(NOW_S - LEASE_MS // 1000 - 2)
    assert isinstance(SqlJobRuns(history.engine, "killed").begin(JOB, JOB_SCHEDULE), BegunRun)
    history.at(NOW_S)


def running(history: History) -> None:
    """Has a process in the middle of a run of a job."""
    assert SqlJobRuns(history.engine, RUN_OWNER).begin(JOB, JOB_SCHEDULE) == RUN


def far_ms() -> int:
    """Returns the time of a machine that leaves each decision to the database's clock."""
    return 2 * NOW_S * 1000


def close_day(engine: sa.Engine, name: str) -> int:
    """Has a process close the day that is due; time-outs do not decide about it."""
    billing = Billing(grace_s=0.0)
    # Partitions that are followed have reached their targets.
    closing = DayClosing(engine, billing, lambda parts: dict.fromkeys(parts, 0), lambda: name, far_ms, 0)
    # What the snapshot reads is decided where it begins, while flushes are blocked: none of it is a step.
    closing._snapshots = open_engine(engine.url)
    try:
        return closing.step()
    finally:
        closing._snapshots.dispose()


WORLDS: Mapping[str, Callable[[History], None]] = {
    "usual": lambda _history: None,
    "judging": judging,
    "filling": filling,
    "filling_begun": filling_begun,
    "one_sum": one_sum,
    "locked": locked,
    "paced": paced,
    "young": young,
    "braked": braked,
    "shared": shared,
    "flooded": flooded,
    "waiting": waiting,
    "restored": restored,
    "zoned": zoned,
    "moved": moved,
    "stated": stated,
    "due": due,
    "closed": closed,
    "abandoned": abandoned,
    "half_done": half_done,
    "running": running,
}


class World:
    """A saved state of the database.

    Attributes:
        state: Its rows.
        counted: What was counted in it.
        plan: The plan in force.
        also_reset: Statements for what a mutation has besides the tables.
    """

    def __init__(self, url: str, clock: SimulatedClock, name: str) -> None:
        self.clock = clock
        self.name = name
        self.engine = open_engine(url)
        clock.over(self.engine)
        self._db = psycopg.connect(dsn_of(url), autocommit=True)
        self.also_reset: list[str] = []
        self._changed: set[str] = set()
        try:
            self._make()
        except BaseException:
            self.disconnect()
            raise

    def _make(self) -> None:
        self._db.execute(f"set lock_timeout = '{EMPTIED_WITHIN_S}s'")
        self._db.execute("set session_replication_role = replica")  # triggers keep closed days as they are
        self._empty()
        history = History(self.engine, self.clock)
        history.make()
        WORLDS[self.name](history)
        self.counted = history.counted
        self.plan = history.store.active_plan()[1]
        self.tables = [*metadata.tables]
        self._save()
        self.state = self.read()

    def close(self) -> None:
        """Empties the database, for the next world."""
        try:
            self._empty()
        finally:
            self.disconnect()

    def disconnect(self) -> None:
        self.engine.dispose()
        self._db.close()

    def changed(self, tables: Collection[str]) -> None:
        """Says which tables differ from the saved state, for the next `reset`."""
        self._changed |= {*tables} & {*self.tables}

    def reset(self) -> None:
        """Restores the saved state."""
        statements = [
            f"delete from {table}; insert into {table} select * from {self.name}.{table}"
            for table in sorted(self._changed)
        ]
        if statements:
            self._db.execute(";".join(statements))
        for statement in self.also_reset:
            self._db.execute(statement)
        self._changed = set()
        self.clock.now_ms = NOW_S * 1000

    def read(self) -> State:
        """Returns the rows of every table."""
        parts = (
            f"select '{table}' as t, (select coalesce(json_agg(x), '[]') from {table} x) as r"
            for table in self.tables
        )
        found = self._db.execute(
            f"select json_object_agg(t, r) from ({' union all '.join(parts)}) as found"
        ).fetchone()
        assert found
        state: State = found[0]
        return state

    def _empty(self) -> None:
        self._db.execute(f"drop schema if exists {self.name} cascade")
        for table in metadata.tables:
            kept = "update feed set version = 0, mark = '', pruned_to = 0"
            self._db.execute(kept if table == "feed" else f"delete from {table}")

    def _save(self) -> None:
        self._db.execute(f"create schema {self.name}")
        for table in self.tables:
            saved = f"{self.name}.{table}"
            self._db.execute(f"create table {saved} (like {table} including all)")
            self._db.execute(f"insert into {saved} select * from {table}")
