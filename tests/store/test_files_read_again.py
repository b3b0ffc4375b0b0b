"""Files that running analyzers read again: what comes in force, and that each record is counted once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzer.flush.pipeline import FlushPace
from analyzer.kernel.errors import CannotCount, StoreAway
from analyzer.kernel.tables.schema import offsets, totals
from analyzer.plan.mapping import Condition
from analyzer.plan.meters import Meter
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Calendar
from tests.store.fleet_of_analyzers import BY_NAME, WITH_STATUS, Fleet, FleetAnalyzer, file_of, limit
from tests.store.flushing import quota
from tests.store.simulated_analyzers import empty_tables
from tests.support.depth import deeper
from tests.support.flush_orders import SeededFlushes
from tests.support.stored_counts import stored_counts

YEARLY = Quota("yearly", 1_000, Calendar("year", "UTC"))
ERRORS = Meter("errors", where=(Condition("status", ("400-599",)),))
FILES = (
    limit(500),
    limit(3),
    file_of(quota(500), YEARLY),
    file_of(quota(500), groupings=["everyone"]),
    file_of(quota(2), YEARLY, meters=[ERRORS], sources={"log": WITH_STATUS}),
)
CALLERS = ("ann", "bob")


@pytest.fixture
def fleet(new_engine: Callable[[], sa.Engine]) -> Fleet:
    return Fleet(new_engine)


def counts(fleet: Fleet) -> dict[str, int]:
    """Returns the requests of each caller in the buckets."""
    found: Counter[str] = Counter()
    with fleet.engine.connect() as db:
        for row in stored_counts(db):
            if (row.grouping, row.meter) == ("caller", "requests"):
                found[row.key.removeprefix("api_key:")] += row.value
    return dict(found)


def test_a_running_analyzer_puts_its_edited_file_in_force_with_the_first_record(fleet: Fleet) -> None:
    running = fleet.start("web-1", limit(500))
    fleet.count(running, "ann", 3)
    running.edit(limit(2))
    running.run()
    assert fleet.limit == 500, "nothing was counted by it yet"
    assert "limit 500 to 2" in running.notes[0]
    fleet.count(running, "ann", 1)
    assert (fleet.limit, fleet.version) == (2, 2)
    assert fleet.is_locked("ann")
    assert fleet.stretches() == [(0, 1), (3, 2)]
    assert counts(fleet) == {"ann": 4}


def test_a_file_that_says_the_same_drops_nothing_that_is_counted(fleet: Fleet) -> None:
    running = fleet.start("web-1", limit(500))
    fleet.count(running, "ann", 1)
    pipeline = running.daemon.pipeline
    pipeline.pace = FlushPace(flush_every_s=60.0)
    fleet.give("ann", 1)
    running.run()
    assert pipeline.undrained
    running.edit(limit(500))
    running.daemon.reload()
    assert pipeline.undrained
    running.edit(limit(600))
    running.daemon.reload()
    assert not pipeline.undrained, "it is read again, and counted by the new plan"


def test_an_idle_analyzer_puts_its_edited_file_in_force_after_some_seconds(fleet: Fleet) -> None:
    running = fleet.start("web-1", limit(2))
    fleet.count(running, "ann", 3)
    assert fleet.is_locked("ann")
    running.edit(limit(500))
    running.run(seconds=8.0)
    assert fleet.limit == 2
    running.run(seconds=8.0)
    fleet.end_activation()
    assert fleet.limit == 500
    assert not fleet.is_locked("ann")


def test_a_file_that_is_edited_and_put_back_changes_nothing(fleet: Fleet) -> None:
    running = fleet.start("web-1", limit(500))
    fleet.count(running, "ann", 1)
    running.edit(limit(2))
    running.run()
    running.edit(limit(500))
    fleet.count(running, "ann", 1)
    assert (fleet.limit, fleet.version) == (500, 1)
    for number, version in ((2, 2), (500, 3)):
        running.edit(limit(number))
        fleet.count(running, "ann", 1)
        assert (fleet.limit, fleet.version) == (number, version)
    assert counts(fleet) == {"ann": 4}


def test_a_crash_before_the_first_record_changes_nothing_and_the_next_start_proposes_again(
    fleet: Fleet,
) -> None:
    running = fleet.start("web-1", limit(500))
    fleet.count(running, "ann", 1)
    running.edit(limit(2))
    running.run()
    again = fleet.start("web-1", limit(2))
    assert fleet.limit == 500
    fleet.count(again, "ann", 1)
    assert fleet.limit == 2


def test_a_file_that_all_machines_get_comes_in_force_once(fleet: Fleet) -> None:
    """Each reads it at another moment; those that still have the old one count by the new plan."""
    one, other = fleet.start("web-1", limit(500)), fleet.start("web-2", limit(500), 1)
    one.edit(limit(2))
    fleet.count(one, "ann", 1)
    fleet.count(other, "bob", 3, 1)
    assert fleet.is_locked("bob")
    assert "not in force" in other.notes[0]
    other.edit(limit(2))
    fleet.count(other, "bob", 1, 1)
    assert (fleet.limit, fleet.version) == (2, 2)
    assert not other.notes
    one.edit(limit(500))
    fleet.count(one, "ann", 1)
    other.edit(limit(500))
    fleet.count(other, "bob", 1, 1)
    assert (fleet.limit, fleet.version) == (500, 3)
    assert counts(fleet) == {"ann": 2, "bob": 5}


def test_an_edited_file_of_an_unknown_name_decides_when_it_is_edited_again(fleet: Fleet) -> None:
    """The file that it was started with is declined, as at any start; an edit is a decision."""
    fleet.count(fleet.start("web-1", limit(2)), "ann", 1)
    laptop = fleet.start("laptop", limit(1_000), 1)
    fleet.count(laptop, "bob", 1, 1)
    assert fleet.limit == 2
    laptop.edit(limit(700))
    fleet.count(laptop, "bob", 1, 1)
    assert fleet.limit == 700


def test_a_plan_by_command_is_kept_until_the_file_is_edited(fleet: Fleet) -> None:
    running = fleet.start("web-1", limit(500))
    fleet.count(running, "ann", 1)
    fleet.store.activate(limit(40))
    running.edit(limit(500))
    fleet.count(running, "ann", 1)
    assert fleet.limit == 40, "the file has not changed"
    running.edit(limit(600))
    fleet.count(running, "ann", 1)
    assert fleet.limit == 600


def test_a_corrected_mapping_counts_from_the_next_record_on(fleet: Fleet) -> None:
    running = fleet.start("web-1", limit(500))
    fleet.count(running, "ann", 2)
    running.edit(file_of(quota(500), sources={"log": BY_NAME}))
    named = json.dumps({"ts": fleet.now_ms, "name": "bob"}).encode()
    running.run()
    fleet.give("ann", 1)
    fleet.log(0)[-1] = fleet.log(0)[-1]._replace(value=named)
    running.run()
    assert counts(fleet) == {"ann": 2, "bob": 1}


def test_a_database_that_is_away_while_a_file_is_read_again_delays_it(fleet: Fleet) -> None:
    running = fleet.start("web-1", limit(500))
    fleet.count(running, "ann", 1)
    agree = running.daemon.agree

    def away() -> Any:
        raise StoreAway("it is away")

    running.daemon.agree = away
    running.edit(limit(2))
    running.run()
    assert "database" in running.problems
    running.daemon.agree = agree
    fleet.count(running, "ann", 1)
    fleet.count(running, "ann", 1)
    assert fleet.limit == 2
    assert counts(fleet) == {"ann": 3}


def test_an_analyzer_that_stands_by_tries_a_file_that_was_read_again(fleet: Fleet) -> None:
    running = fleet.start("web-1", limit(500))
    fleet.count(running, "ann", 1)
    agree, running.daemon.agree = running.daemon.agree, cannot_count
    fleet.store.activate(limit(40))
    fleet.give("ann", 1)
    running.run()
    assert "another secret" in running.problems["plan"]
    running.daemon.agree = agree
    running.edit(limit(600))
    running.uptime_s += 0.1
    running.daemon.run_once()
    assert not running.problems
    running.run()
    assert fleet.limit == 600
    assert counts(fleet) == {"ann": 2}


def cannot_count() -> Any:
    raise CannotCount("it has another secret")


Step = tuple[str, int, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("give"), st.integers(0, 1), st.integers(1, 4)),
        st.tuples(st.just("edit"), st.integers(0, 1), st.integers(0, len(FILES) - 1)),
        st.tuples(st.just("run"), st.integers(0, 1), st.integers(1, 3)),
        st.tuples(st.just("kill"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("away"), st.integers(0, 1), st.just(0)),
    ),
    min_size=4,
    max_size=30,
)


class Story:
    """Two analyzers, each with a partition and flushes that are late, whose files are edited."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet, self.seed = fleet, seed
        self.files = [FILES[0], FILES[0]]
        self.given: Counter[str] = Counter()
        self.running = [self._start(number) for number in range(2)]

    def _start(self, number: int) -> FleetAnalyzer:
        self.seed += 1
        flushes = SeededFlushes(self.seed)
        analyzer = self.fleet.start(f"web-{number}", self.files[number], number, flushes=flushes)
        # Files change while something is counted and not stored.
        analyzer.daemon.pipeline.pace = FlushPace(flush_every_s=1.0)
        return analyzer

    def do(self, step: Step) -> None:
        what, number, value = step
        if what == "give":
            self.fleet.give(CALLERS[number], value, number)
            self.given[CALLERS[number]] += value
        elif what == "edit":
            self.files[number] = FILES[value]
            self.running[number].edit(FILES[value])
        elif what == "kill":
            self.running[number] = self._start(number)
        elif what == "away":
            self.running[number].daemon.start_over()
        for _ in range(value if what == "run" else 1):
            self.running[number].uptime_s += 0.3
            self.running[number].daemon.run_once()

    def end(self) -> None:
        """Has everything counted."""
        for analyzer in self.running * 2:
            analyzer.run(seconds=4.0)
            analyzer.daemon.pipeline.collect()
        self.fleet.end_activation()


@given(steps=STEPS, seed=st.integers(0, 1_000))
@settings(
    max_examples=deeper(20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_each_record_is_counted_once_however_files_change(
    new_engine: Callable[[], sa.Engine], steps: list[Step], seed: int
) -> None:
    engine = new_engine()
    empty_tables(engine)
    story = Story(Fleet(lambda: engine), seed)
    for step in steps:
        story.do(step)
    story.end()
    assert counts(story.fleet) == dict(story.given)
    with engine.connect() as db:
        read = db.execute(sa.select(sa.func.sum(offsets.c.seen), sa.func.sum(offsets.c.counted))).one()
        sums: dict[int, Counter[str]] = {}
        for row in db.execute(sa.select(totals).where(totals.c.key != "")):
            sums.setdefault(row.sum, Counter())[row.key.removeprefix("api_key:")] += row.used
    engine.dispose()
    assert (read[0] or 0, read[1] or 0) == (story.given.total(), story.given.total())
    assert all(dict(of_sum) == dict(story.given) for of_sum in sums.values()), "each total has each once, too"
