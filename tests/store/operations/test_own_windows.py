"""Windows of callers: totals and locks compared with what the raw records add up to, through every change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from analyzer.callers import caller_changes
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.caller_limits import Directory, Profile
from analyzer.judging.judge import JudgedRows
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql import plans
from analyzer.judging.sql import refills as refilling
from analyzer.kernel.database.engine import writing
from analyzer.kernel.model import CountRow, DrainedCounts
from analyzer.kernel.tables.schema import locks, notices, refills, totals
from analyzer.plan import catalog, windows
from analyzer.plan.mapping import TENANT
from analyzer.plan.meters import Meter
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Calendar, Window, window_at
from gatekeeper.testing import ManualClock
from tests.oracle.slow_windows import slow_window_at
from tests.store.flushing import ACME, ANN
from tests.store.simulated_analyzers import empty_tables
from tests.support.depth import deeper
from tests.support.stored_counts import tables_of
from tests.support.upkeep import Upkeep
from tests.support.whole_loop import DatabaseClock

BERLIN = "Europe/Berlin"
MONTHLY = Quota("monthly", 20, Calendar("month", BERLIN, ("anchor", "zone")), notify=(500,))
DAILY = Quota("daily", 8, Calendar("day", "UTC", ("zone",)))
WEEKLY = Quota("weekly", 10, Calendar("week", "UTC", ("anchor",)), per="caller+resource")
SIZE = Quota("size", 5, Calendar("month", "UTC", ("anchor", "zone")), meter="largest")
ALL = Quota("all", 20, Calendar("month"))
ORG = "acme"  # a tenant, to which no caller belongs
CONTRACT = Quota("contract", 20, Calendar("month", BERLIN, ("anchor", "zone")), per="tenant")
PLAN = make_plan([], [Meter("largest", "bytes", "max")], [MONTHLY, DAILY, WEEKLY, SIZE, ALL, CONTRACT])
WITHOUT = make_plan(["caller+resource", "tenant"], [Meter("largest", "bytes", "max")], [ALL])
ZONES = [
    "", BERLIN, "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu", "America/St_Johns",
    "America/New_York", "Asia/Beirut", "Pacific/Kiritimati",
]  # fmt: skip
ANCHORS = ["", "2026-01-31", "2024-02-29", "2011-12-30", "2020-06-15", "2026-01-01"]
MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


STARTS = [
    at("2011-12-27T09:58Z"),  # before the 30th of December that Apia did not have
    at("2024-02-27T22:00Z"), at("2026-02-27T22:59Z"), at("2026-03-28T22:00Z"), at("2026-10-24T20:00Z"),
    at("2026-04-04T14:45Z"),  # Lord Howe sets its clocks back by 30 minutes
    at("2026-12-30T23:30Z"),
]  # fmt: skip


class Count(NamedTuple):
    """Requests of a caller, or of a tenant, that are flushed now, and were logged some minutes off."""

    caller: str
    resource: str
    off_min: int
    value: int


class Change(NamedTuple):
    """A change of zone and anchor of one of them; by a command that may be killed before it refills."""

    caller: str
    zone: str
    anchor: str
    killed: bool


class Pass(NamedTuple):
    """Time that passes."""

    seconds: int


class Replace(NamedTuple):
    """The policies leave the plan and return, so that all totals are filled again, row by row."""

    rows: int


Act = Count | Change | Pass | Replace


class Story:
    """A store on a manual clock, and all that was counted in it."""

    def __init__(self, engine: sa.Engine, clock: ManualClock) -> None:
        empty_tables(engine)
        self.engine, self.clock = engine, clock
        self.store = SqlStore(engine, "here")
        self.upkeep = Upkeep(engine, new_mark)
        self.plan = PLAN
        self.profiles: dict[str, Profile] = {}
        self.counted: list[CountRow] = []
        self.store.activate(PLAN)

    @property
    def now_s(self) -> int:
        return self.clock.wall_ns() // 10**9

    def play(self, acts: Sequence[Act]) -> None:
        for act in acts:
            self.do(act)
            self.work()
            self.compare()

    def do(self, act: Act) -> None:
        match act:
            case Count():
                self.count(act)
            case Change():
                profile = Profile(zone=act.zone, anchor=act.anchor)
                self.profiles[act.caller] = profile
                with pytest.MonkeyPatch.context() as patch:
                    if act.killed:
                        patch.setattr(caller_changes, "refill", lambda *_: JudgedRows(0))
                    name = TENANT + ORG if act.caller == ORG else act.caller
                    caller_changes.set_callers(self.engine, {name: profile}, "ann", "", new_mark)
            case Pass():
                self.clock.jump(act.seconds)
            case Replace():
                self.store.activate(WITHOUT)
                with writing(self.engine) as db:
                    plans.activate(db, PLAN, new_mark, rows_max=act.rows)

    def count(self, act: Count) -> None:
        bucket_s = (self.now_s + MINUTE_S * act.off_min) // MINUTE_S * MINUTE_S
        added = [
            CountRow(grouping, act.caller, resource, meter, MINUTE_S, bucket_s, act.value, 0)
            for grouping, resource in (
                [("tenant", "")] if act.caller == ORG else [("caller", ""), ("caller+resource", act.resource)]
            )
            for meter in ("requests", "largest")
        ]
        self.counted += added
        version = self.store.active_plan()[0]
        with self.store.transaction() as tx:
            now = tx.check_plan(self.plan, version)
            tx.apply(self.plan, version, DrainedCounts([], tables_of(added), []), now)

    def work(self) -> None:
        """Does what the warden does, until nothing is left."""
        while self.upkeep.continue_activation():
            pass
        while self.upkeep.refill_totals():
            pass
        while self.upkeep.judge_waiting():
            pass
        self.upkeep.end_locks()
        while self.upkeep.prune():
            pass

    def calendar(self, policy: Quota, caller: str) -> Calendar:
        """Returns the calendar of a caller, by its facts as they were stated."""
        profile, of = self.profiles.get(caller, Profile()), policy.window
        zone = profile.zone if profile.zone and "zone" in of.facts else of.zone
        day = date.fromisoformat(profile.anchor) if profile.anchor and "anchor" in of.facts else None
        first_day: Any = UNSET
        if day is not None:
            first_day = day.weekday() if of.per == "week" else day.day
        return Calendar(of.per, zone, first_day=first_day)

    def window(self, policy: Quota, caller: str, at_s: int) -> Window:
        return window_at(self.calendar(policy, caller), at_s)

    def expected(self, policy: Quota) -> dict[tuple[str, str], tuple[int, Window]]:
        """Returns what each series of a policy has in its open window."""
        now_s, found = self.now_s, dict[tuple[str, str], tuple[int, Window]]()
        for row in self.counted:
            window = self.window(policy, row.key, now_s)
            if (row.grouping, row.meter) != (policy.per, policy.meter):
                continue
            if policy.per == WEEKLY.per and not row.resource:
                continue  # requests without a resource are not judged
            if window.start_s <= row.bucket_s < window.until_s:
                before, _ = found.get((row.key, row.resource), (0, window))
                joined = max(before, row.value) if policy.meter == "largest" else before + row.value
                found[row.key, row.resource] = joined, window
        return found

    def compare(self) -> None:
        """Compares the totals of open windows, and all locks, with what was counted."""
        locked = {}
        with self.engine.connect() as db:
            assert db.execute(sa.select(refills)).all() == []
            for policy in PLAN.policies:
                assert isinstance(policy, Quota)
                expected = self.expected(policy)
                [sum_] = [one for one, of in plan_sums(PLAN).policies_by_sum.items() if policy in of]
                number = catalog.load(db).sum_number(sum_)
                for (key, resource), (used, window) in expected.items():
                    of_series = sa.and_(
                        totals.c.sum == number, totals.c.window_s == window.start_s,
                        totals.c.key == key, totals.c.resource == resource,
                    )  # fmt: skip
                    stored = db.execute(sa.select(totals.c.used).where(of_series)).scalar()
                    assert stored == used, f"{policy.name} of {key} has {stored}, and must have {used}"
                    if used >= policy.limit:
                        locked[policy.name, key, resource] = window.until_s * 1000
            columns = locks.c["policy", "key", "resource", "until_ms"]
            found = {(p, k, r): until_ms for p, k, r, until_ms in db.execute(sa.select(*columns))}
        assert found == locked


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    """The clock of the databases of this test."""
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    database_clock = DatabaseClock(clock)
    database_clock.install()
    yield clock
    database_clock.remove()


@pytest.fixture
def story(clock: ManualClock, new_engine: Callable[[], sa.Engine]) -> Callable[[int], Story]:
    """Begins a story at a time; an earlier one is forgotten."""
    engine = new_engine()

    def begin(start_s: int) -> Story:
        clock.jump(start_s - clock.wall_ns() / 1e9)
        return Story(engine, clock)

    return begin


counts = st.builds(
    Count,
    st.sampled_from([ACME, ANN, ORG]),
    st.sampled_from(["/a", "/b", ""]),
    st.sampled_from([-40_000, -3_000, -1_500, -61, -1, 0, 0, 0, 0, 4]),
    st.integers(1, 12),
)
changes = st.builds(
    Change,
    st.sampled_from([ACME, ANN, ORG]),
    st.sampled_from(ZONES),
    st.sampled_from(ANCHORS),
    st.booleans(),
)
passing = st.builds(
    Pass, st.sampled_from([30, 900, HOUR_S, 5 * HOUR_S, 23 * HOUR_S, 3 * DAY_S, 17 * DAY_S, 29 * DAY_S])
)
acts = st.lists(
    st.one_of(counts, counts, changes, passing, st.builds(Replace, st.integers(0, 9))), max_size=14
)


@settings(max_examples=deeper(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(STARTS), acts)
@example(STARTS[2], [Count(ACME, "/a", 0, 12), Change(ACME, "", "2026-01-31", True), Count(ACME, "/a", 0, 9)])
def test_totals_and_locks_are_those_of_the_callers_windows(
    story: Callable[[int], Story], start_s: int, acts: list[Act]
) -> None:
    story(start_s).play(acts)


# One caller, whose subscription began on the 31st, from January on; another in Lord Howe.
A_YEAR: list[Act] = [
    Change(ACME, "", "2026-01-31", False),
    Change(ANN, "Australia/Lord_Howe", "2026-01-31", False),
    *(
        act
        for _ in range(26)
        for act in (Count(ACME, "/a", 0, 7), Count(ANN, "/b", -200, 5), Pass(14 * DAY_S))
    ),
]
IN_MID_PERIOD: list[Act] = [
    Count(ACME, "/a", -2_000, 7),
    Count(ACME, "/a", -60, 7),
    Count(ACME, "/b", 0, 7),
    Change(ACME, "Asia/Kathmandu", "2020-06-15", True),
    Count(ACME, "/a", 0, 7),
    Change(ACME, BERLIN, "", False),
    Count(ORG, "", -2_000, 7),
    Count(ORG, "", 0, 14),
    Change(ORG, "Asia/Kathmandu", "2020-06-15", True),
    Count(ORG, "", 0, 7),
    Change(ACME, "Pacific/Apia", "2011-12-30", False),
    Replace(2),
    Count(ACME, "/a", 0, 7),
]


@pytest.mark.parametrize(
    "acts",
    [
        pytest.param(A_YEAR, id="a year", marks=pytest.mark.deep("long")),
        pytest.param(IN_MID_PERIOD, id="in mid-period"),
    ],
)
@pytest.mark.parametrize("start_s", [STARTS[0], at("2026-01-30T12:00Z"), STARTS[5]])
def test_stories_on_both_databases(story: Callable[[int], Story], start_s: int, acts: list[Act]) -> None:
    story(start_s).play(acts)


def test_a_threshold_is_noticed_once_in_each_window_of_the_caller(story: Callable[[int], Story]) -> None:
    of = story(at("2026-01-30T12:00Z"))
    of.play([Change(ACME, "", "2026-01-31", False), Count(ACME, "", 0, 11), Count(ACME, "", 0, 1)])
    of.play([Pass(DAY_S), Count(ACME, "", 0, 11), Pass(26 * DAY_S), Count(ACME, "", 0, 1)])
    of.play([Pass(3 * DAY_S), Count(ACME, "", 0, 11)])
    with of.engine.connect() as db:
        found = db.execute(sa.select(notices.c.window_s).order_by(notices.c.window_s)).scalars().all()
    zone = "T00:00+01:00"
    assert found == [at(f"{day}{zone}") for day in ("2025-12-31", "2026-01-31", "2026-02-28")]


def test_the_sentence_names_the_callers_window(story: Callable[[int], Story]) -> None:
    of = story(at("2026-02-10T12:00Z"))
    of.play(
        [Change(ACME, "Asia/Tokyo", "2026-01-31", False), Count(ACME, "", -60, 20), Count(ANN, "", -60, 20)]
    )
    with of.engine.connect() as db:
        found = db.execute(sa.select(locks.c.key, locks.c.detail).where(locks.c.policy == "monthly")).all()
    assert {tuple(row) for row in found} == {
        (ACME, "20 requests per month from day 31 (Asia/Tokyo), 20 counted"),
        (ANN, "20 requests per month (Europe/Berlin), 20 counted"),
    }


def test_no_lock_of_the_old_window_stays(story: Callable[[int], Story]) -> None:
    of = story(at("2026-02-20T12:00Z"))
    of.play([Count(ACME, "", -15 * 24 * 60, 20)])
    assert ("monthly", ACME) in held(of.engine)
    judged = caller_changes.set_callers(
        of.engine, {ACME: Profile(anchor="2026-02-19")}, "ann", "", new_mark, ["anchor"]
    )
    assert len(judged.changes) == 2  # `monthly` and `size` free it; `all` has the calendar's month
    assert held(of.engine) == {("all", ACME)}


def test_a_lock_that_a_flush_has_set_since_the_change_is_not_published_again(
    story: Callable[[int], Story],
) -> None:
    """The refill knows more requests than the flush did, but the lock has the same end."""
    of = story(at("2026-02-20T12:00Z"))
    of.play([Count(ACME, "", -60, 3)])
    of.do(Change(ACME, "Europe/Paris", "", killed=True))
    of.clock.jump(1)
    of.do(Count(ACME, "", 0, 9))
    assert held(of.engine) == {("daily", ACME), ("size", ACME)}
    of.clock.jump(1)
    done = of.upkeep.refill_totals()
    assert (done.rows, list(done.judged.changes)) == (3, [])
    of.work()
    of.compare()


def held(engine: sa.Engine) -> set[tuple[str, str]]:
    with engine.connect() as db:
        return {(policy, key) for policy, key in db.execute(sa.select(locks.c.policy, locks.c.key))}


def without_anchor(patch: pytest.MonkeyPatch) -> None:
    of = Directory.own_calendar
    patch.setattr(Directory, "own_calendar", lambda self, calendar, clock: of(self, calendar, clock & ~0xFF))


def without_zone(patch: pytest.MonkeyPatch) -> None:
    of = Directory.own_calendar
    patch.setattr(Directory, "own_calendar", lambda self, calendar, clock: of(self, calendar, clock & 0xFF))


def clamped_to_28(patch: pytest.MonkeyPatch) -> None:
    right = windows._first_of_month
    patch.setattr(windows, "_first_of_month", lambda of, day: min(right(of, day), day.replace(day=28)))


def not_refilled(patch: pytest.MonkeyPatch) -> None:
    right = refilling.missing
    patch.setattr(refilling, "missing", lambda *given: right(*given)._replace(values={}))


def added_twice(patch: pytest.MonkeyPatch) -> None:
    """Adds the missing amounts twice."""
    right = refilling.missing

    def missing(db: sa.Connection, *given: Any) -> Any:
        found = right(db, *given)
        return found._replace(values={resource: 2 * value for resource, value in found.values.items()})

    patch.setattr(refilling, "missing", missing)


def kept_totals(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(refilling, "begin", lambda *_: set())


@pytest.mark.parametrize(
    "mutate", [without_anchor, without_zone, clamped_to_28, not_refilled, added_twice, kept_totals]
)
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_mistakes_are_found(
    story: Callable[[int], Story],
    monkeypatch: pytest.MonkeyPatch,
    mutate: Callable[[pytest.MonkeyPatch], None],
) -> None:
    with monkeypatch.context() as patch:
        mutate(patch)
        if mutate is clamped_to_28:  # the expectation is built from the same function
            patch.setattr(
                Story, "window", lambda self, *given: slow_window_at(self.calendar(*given[:2]), given[2])
            )
        windows.window_at.cache_clear()
        with pytest.raises(AssertionError):
            story(at("2026-01-30T12:00Z")).play([*IN_MID_PERIOD, *A_YEAR])
    windows.window_at.cache_clear()
