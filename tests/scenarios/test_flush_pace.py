"""The pace of flushes: one per interval, and a longer interval for an analyzer that is behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from analyzer.flush.pipeline import FlushPace, Pipeline
from analyzer.judging.judge import NOTHING, Judged
from analyzer.kernel.flush_steps import StepTimes
from analyzer.kernel.model import CounterState, Lag, Partition, Records
from analyzer.plan.plan import Plan
from analyzer.plan.proposals import Agreement
from tests.support.counters import reference_counter
from tests.support.counting import PART, PLAIN, a_record, some_records


class EndlessSource:
    """Gives one record per call, as a log does that is written to all the time; `lag_s` behind its end."""

    def __init__(self, lag_s: float) -> None:
        self.lag_s = lag_s
        self.next = 0

    def take(self, _timeout_s: float) -> Iterator[Records]:
        self.next += 1
        yield some_records(self.next - 1, a_record())

    def lags(self) -> Mapping[Partition, Lag]:
        return {PART: Lag(1, self.lag_s)}

    def positions(self) -> Mapping[Partition, int]:
        return {PART: self.next}

    def stopped(self) -> Mapping[Partition, object]:
        return {}

    def acknowledge(self, _stored: Mapping[Partition, int]) -> None:
        """Ignores the offsets."""


class NullStore:
    """Stores nothing, and is also its own transaction."""

    def counter_state(self, _part: Partition) -> CounterState:
        return CounterState()

    @contextmanager
    def transaction(self) -> Iterator[NullStore]:
        yield self

    def move_offsets(self, _parts: Sequence[Any], _lags: Mapping[Partition, Lag]) -> None:
        """Always succeeds."""

    @property
    def disbelieved(self) -> Mapping[str, int]:
        return {}

    @property
    def denied(self) -> Mapping[tuple[str, str], int]:
        return {}

    @property
    def steps(self) -> StepTimes:
        return StepTimes()

    def check_plan(self, _plan: Any, _version: int) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def apply(self, *_: Any) -> Judged:
        return NOTHING


@pytest.mark.parametrize(
    ("pace", "lag_s", "too_early_s", "due_s"),
    [
        (FlushPace(), 0.0, 0.079, 0.081),  # 0.8 of flush_every_s = 0.1
        (FlushPace(), 1.0, 0.079, 0.081),
        (FlushPace(), 1.1, 0.79, 0.81),  # 0.8 of flush_behind_s = 1.0
        (FlushPace(behind_after_s=0.0), 0.0, 0.079, 0.081),
        (FlushPace(behind_after_s=0.0), 0.1, 0.79, 0.81),
    ],
)
def test_a_flush_is_due_after_four_fifths_of_its_interval(
    pace: FlushPace, lag_s: float, too_early_s: float, due_s: float
) -> None:
    uptime_s = [0.0]
    plan = Plan()
    counter = reference_counter({"log": PLAIN}, plan.groupings, plan.meters)
    pipeline = Pipeline(
        EndlessSource(lag_s), counter, NullStore(), Agreement.of(1, plan), lambda: uptime_s[0], pace
    )
    flushed = []
    for now_s in (0.0, too_early_s, due_s, due_s + too_early_s, due_s + due_s):
        uptime_s[0] = now_s
        flushed.append(pipeline.run_once() is not None)
    assert flushed == [True, False, True, False, True]
