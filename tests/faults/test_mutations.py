"""Mutation checks: five promises, each in the situation that needs it, with the promise and without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.flush.pipeline import Pipeline
from analyzer.kernel.database import engine as engines
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.errors import PartitionLost, PlanChanged, StoreAway
from analyzer.kernel.model import Record
from analyzer.kernel.tables.schema import buckets, lock_changes
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.proposals import Agreement
from gatekeeper.sources.sql import SqlSource
from gatekeeper.view.lock_view import EMPTY, LockView, apply
from tests.faults.mutations import MUTATIONS
from tests.store.flushing import at_version, locked, now_s, quota, used
from tests.store.simulated_analyzers import PARTS, PLAN, Analyzer, Killed, empty_tables, value_of

REQUESTS = 2  # of acme in each partition; only both together cross its limit of three
LOCK_MS = 200  # the lock time-out in these tests


@dataclass
class Situation:
    """A database, a log of two partitions, and analyzers of one or both partitions."""

    url: str
    opened: list[sa.Engine]
    plan: Plan = PLAN
    view: LockView = EMPTY

    def engine(self) -> sa.Engine:
        self.opened.append(open_engine(self.url))
        return self.opened[-1]

    def analyzer(self, *numbers: int) -> Analyzer:
        engine = self.engine()
        # In different minutes: in one bucket's row the analyzers would wait for each other.
        times_s = {number: now_s(engine) - 1 - 60 * number for number in numbers}
        log = {
            PARTS[number]: [
                Record(n, at_s * 1000, value_of("acme", at_s * 1000 - 500)) for n in range(REQUESTS)
            ]
            for number, at_s in times_s.items()
        }
        return Analyzer(engine, log, f"of {numbers}")

    def about_to_flush(self, analyzer: Analyzer) -> Pipeline:
        """Starts `analyzer` and lets it count its whole log without storing anything."""
        pipeline = analyzer.start()
        pipeline.flushed_s = float("inf")
        assert pipeline.run_once() is None
        return pipeline

    def poll(self) -> None:
        """Polls the feed, as a gate does."""
        source = SqlSource(self.url)
        self.view = apply(self.view, source.fetch(self.view.at))
        source.close()

    def violations(self) -> list[str]:
        """Returns a sentence for each difference from the expected state."""
        engine = self.engine()
        total = 2 * REQUESTS
        with engine.connect() as db:
            counted = int(db.execute(sa.select(sa.func.sum(buckets.c.value_0))).scalar_one() or 0)
        found = [f"{counted} counted of {total}"] if counted != total else []
        for policy in self.plan.policies:
            at = "api_key:acme", policy.name
            if (at in locked(engine)) != (total >= policy.limit):
                found.append(f"{policy.name}: limit {policy.limit}, {total} used, {sorted(locked(engine))}")
        with engine.connect() as db:
            changes = Counter(map(tuple, db.execute(sa.select(lock_changes.c["op", "key", "policy"]))))
        if twice := [change for change, n in changes.items() if n > 1]:
            found.append(f"published twice: {twice}")
        self.poll()
        if {(lock.key, lock.policy) for lock in self.view} != set(locked(engine)):
            found.append(f"a gate at version {self.view.at} of {at_version(engine)} holds {list(self.view)}")
        if found:
            found.append(f"totals {used(engine)}")
        return found


def at_the_commit_of(analyzer: Analyzer, act: Callable[[], object]) -> None:
    """Calls `act` when everything is written and nothing is committed."""
    sa.event.listen(analyzer.engine, "commit", lambda _connection: act(), once=True)


def two_owners(situation: Situation) -> None:
    """An analyzer is stopped before its flush, another one counts the same records, the first continues."""
    stopped = situation.analyzer(0, 1)
    pipeline = situation.about_to_flush(stopped)
    situation.analyzer(0, 1).run()
    with suppress(PartitionLost):
        pipeline.flush({})
    pipeline.start_over()
    stopped.run()


def killed_between_offset_and_counts(situation: Situation) -> None:
    analyzer = situation.analyzer(0, 1)
    pipeline = situation.about_to_flush(analyzer)

    def die(_db: object, _cursor: object, statement: str, *_rest: Any) -> None:
        if statement.startswith("INSERT INTO buckets"):
            raise Killed

    sa.event.listen(analyzer.engine, "before_cursor_execute", die)
    with suppress(Killed):
        pipeline.flush({})
    situation.analyzer(0, 1).run()


def two_analyzers_cross_a_limit_together(situation: Situation) -> None:
    first, second = situation.analyzer(0), situation.analyzer(1)
    first_pipeline, second_pipeline = situation.about_to_flush(first), situation.about_to_flush(second)

    def flush_too() -> None:
        with suppress(StoreAway):  # it waits for a row until the time-out, and flushes again later
            second_pipeline.flush({})

    at_the_commit_of(first, flush_too)
    first_pipeline.flush({})
    second.run()


def the_plan_changes_in_the_middle_of_a_flush(situation: Situation) -> None:
    """A flush under the old plan is missing from the totals that the new plan summed up from buckets."""
    situation.plan = make_plan([], [], [*PLAN.policies, quota(4, name="new")])
    first, second = situation.analyzer(0), situation.analyzer(1)
    first_pipeline, second_pipeline = situation.about_to_flush(first), situation.about_to_flush(second)

    def activate() -> None:
        with suppress(StoreAway):
            second.store.activate(situation.plan)

    at_the_commit_of(first, activate)
    first_pipeline.flush({})
    activate()
    try:
        second_pipeline.flush({})
    except PlanChanged:
        second_pipeline.start_over()
        second_pipeline.agreement = Agreement.of(*second.store.active_plan())
        second_pipeline.flushed_s = float("-inf")
        assert second_pipeline.run_once() is not None


def a_gate_polls_while_a_lock_is_committed(situation: Situation) -> None:
    situation.analyzer(1).run()
    last = situation.analyzer(0)
    pipeline = situation.about_to_flush(last)
    sa.event.listen(last.engine, "commit", lambda _connection: situation.poll())  # at every one
    pipeline.flush({})


SITUATIONS: dict[str, Callable[[Situation], None]] = {
    "without_compare_and_set": two_owners,
    "offsets_in_a_separate_transaction": killed_between_offset_and_counts,
    "judging_from_sums_of_buckets": two_analyzers_cross_a_limit_together,
    "plan_version_not_agreed": the_plan_changes_in_the_middle_of_a_flush,
    "feed_versions_from_a_sequence": a_gate_polls_while_a_lock_is_committed,
}


@pytest.fixture(scope="module")
def url(postgres: Any, postgres_template: str) -> Iterator[str]:
    url = postgres.new_database(template=postgres_template)
    yield url
    postgres.drop(url)


@pytest.fixture
def situation(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Situation]:
    monkeypatch.setattr(engines, "STATEMENT_MS", LOCK_MS)
    situation = Situation(url, [])
    empty_tables(situation.engine())
    yield situation
    for engine in situation.opened:
        engine.dispose()


@pytest.mark.parametrize("name", MUTATIONS)
def test_with_the_promise_the_state_is_as_expected(name: str, situation: Situation) -> None:
    SITUATIONS[name](situation)
    assert situation.violations() == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_without_the_promise_the_check_fails(
    name: str, situation: Situation, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTATIONS[name](monkeypatch)
    SITUATIONS[name](situation)
    assert situation.violations() != []
