"""Five promises, each with the moment in which it counts; and the same moment with the promise taken out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.core.judging.plan import Plan, plan_of
from analyzer.core.model import Record
from analyzer.errors import PartitionLost, PlanChanged, StoreAway
from analyzer.pipeline import Pipeline
from analyzer.store.database import engine as engines
from analyzer.store.database.engine import open_engine
from analyzer.store.database.schema import buckets, lock_changes
from gatekeeper.sources.sql import SqlSource
from gatekeeper.view.lock_view import EMPTY, LockView, apply
from tests.faults.mutations import MUTATIONS
from tests.store.flushing import at_version, locked, now_s, quota, used
from tests.store.simulated_analyzers import PARTS, PLAN, Analyzer, Killed, begin_again, value_of

EACH = 2  # requests of acme in each partition; its limit of three is only crossed by both together
LOCK_MS = 200  # how long a row is waited for here


@dataclass
class Moment:
    """A database, a log of two partitions, analyzers of one or both; what one does while another commits."""

    url: str
    opened: list[sa.Engine]
    plan: Plan = PLAN
    view: LockView = EMPTY

    def engine(self) -> sa.Engine:
        self.opened.append(open_engine(self.url))
        return self.opened[-1]

    def analyzer(self, *numbers: int) -> Analyzer:
        engine = self.engine()
        # In minutes of their own: in one bucket's row they would meet, and wait for each other.
        times_s = {number: now_s(engine) - 1 - 60 * number for number in numbers}
        log = {
            PARTS[number]: [Record(n, at_s * 1000, value_of("acme", at_s * 1000 - 500)) for n in range(EACH)]
            for number, at_s in times_s.items()
        }
        return Analyzer(engine, log, f"of {numbers}")

    def taken(self, analyzer: Analyzer) -> Pipeline:
        """It has read and counted all, and is about to store it."""
        pipeline = analyzer.start()
        pipeline.flushed_s = float("inf")
        assert pipeline.run_once() is None
        return pipeline

    def poll(self) -> None:
        """A gate asks what came after its version."""
        source = SqlSource(self.url)
        self.view = apply(self.view, source.fetch(self.view.at))
        source.close()

    def wrong(self) -> list[str]:
        """What differs from the truth."""
        engine = self.engine()
        total = 2 * EACH
        with engine.connect() as db:
            counted = int(db.execute(sa.select(sa.func.sum(buckets.c.value))).scalar_one() or 0)
        found = [f"{counted} counted of {total}"] if counted != total else []
        for policy in self.plan.policies:
            at = "api_key:acme", policy.name
            if (at in locked(engine)) != (total >= policy.limit):
                found.append(f"{policy.name}: limit {policy.limit}, {total} used, {sorted(locked(engine))}")
        with engine.connect() as db:
            told = Counter(map(tuple, db.execute(sa.select(lock_changes.c["op", "key", "policy"]))))
        if twice := [each for each, n in told.items() if n > 1]:
            found.append(f"told twice: {twice}")
        self.poll()
        if {(lock.key, lock.policy) for lock in self.view} != set(locked(engine)):
            found.append(f"a gate at version {self.view.at} of {at_version(engine)} holds {list(self.view)}")
        if found:
            found.append(f"totals {used(engine)}")
        return found


def at_the_commit_of(analyzer: Analyzer, act: Callable[[], object]) -> None:
    """Do something when everything is written and nothing is committed."""
    sa.event.listen(analyzer.engine, "commit", lambda _connection: act(), once=True)


def two_owners(moment: Moment) -> None:
    """One sleeps with what it counted; another one counts the same; it wakes."""
    sleeper = moment.analyzer(0, 1)
    pipeline = moment.taken(sleeper)
    moment.analyzer(0, 1).run()
    with suppress(PartitionLost):
        pipeline.flush({})
    pipeline.start_over()
    sleeper.run()


def killed_between_offset_and_counts(moment: Moment) -> None:
    analyzer = moment.analyzer(0, 1)
    pipeline = moment.taken(analyzer)

    def die(_db: object, _cursor: object, statement: str, *_rest: Any) -> None:
        if statement.startswith("INSERT INTO buckets"):
            raise Killed

    sa.event.listen(analyzer.engine, "before_cursor_execute", die)
    with suppress(Killed):
        pipeline.flush({})
    moment.analyzer(0, 1).run()


def a_limit_that_two_cross_together(moment: Moment) -> None:
    first, second = moment.analyzer(0), moment.analyzer(1)
    ours, theirs = moment.taken(first), moment.taken(second)

    def flush_too() -> None:
        with suppress(StoreAway):  # it waits for a row, longer than it may, and comes again
            theirs.flush({})

    at_the_commit_of(first, flush_too)
    ours.flush({})
    second.run()


def a_plan_that_changes_in_mid_flush(moment: Moment) -> None:
    """Who counts by the old plan is not in the sums of the new one, nor ever asks for them again."""
    moment.plan = plan_of([], [], [*PLAN.policies, quota(4, name="new")])
    first, second = moment.analyzer(0), moment.analyzer(1)
    ours, theirs = moment.taken(first), moment.taken(second)

    def activate() -> None:
        with suppress(StoreAway):
            second.store.activate(moment.plan)

    at_the_commit_of(first, activate)
    ours.flush({})
    activate()
    try:
        theirs.flush({})
    except PlanChanged:
        theirs.start_over()
        theirs.version, theirs.plan = second.store.active_plan()
        theirs.flushed_s = float("-inf")
        assert theirs.run_once() is not None


def a_gate_that_asks_while_a_lock_is_committed(moment: Moment) -> None:
    moment.analyzer(1).run()
    last = moment.analyzer(0)
    pipeline = moment.taken(last)
    sa.event.listen(last.engine, "commit", lambda _connection: moment.poll())  # at every one
    pipeline.flush({})


STORIES: dict[str, Callable[[Moment], None]] = {
    "without_compare_and_set": two_owners,
    "offsets_in_a_transaction_of_their_own": killed_between_offset_and_counts,
    "judging_from_sums_of_buckets": a_limit_that_two_cross_together,
    "plan_version_not_agreed": a_plan_that_changes_in_mid_flush,
    "feed_versions_from_a_sequence": a_gate_that_asks_while_a_lock_is_committed,
}


@pytest.fixture(scope="module")
def url(postgres: Any, postgres_template: str) -> Iterator[str]:
    url = postgres.new_database(template=postgres_template)
    yield url
    postgres.drop(url)


@pytest.fixture
def moment(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Moment]:
    monkeypatch.setattr(engines, "STATEMENT_MS", LOCK_MS)
    moment = Moment(url, [])
    begin_again(moment.engine())
    yield moment
    for engine in moment.opened:
        engine.dispose()


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_moment_passes_unseen(name: str, moment: Moment) -> None:
    STORIES[name](moment)
    assert moment.wrong() == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_without_the_promise_it_is_seen(name: str, moment: Moment, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS[name](monkeypatch)
    STORIES[name](moment)
    assert moment.wrong() != []
