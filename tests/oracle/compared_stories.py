"""Stories of many callers that are compared with others, played by the whole loop on a real database.

Each second some callers send requests, the analyzer counts and flushes them, and the warden looks. The locks
after each second are compared with those of a slow second judgement, which adds up all requests again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
import pytest
import sqlalchemy as sa

from analyzer.flush.flush_executors import InlineFlushes
from analyzer.kernel.tables.schema import locks
from analyzer.plan.mapping import ResourceField, SourceMapping, TextField, TimeField
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import ComparedLoad
from tests.support.whole_loop import World

START = datetime(2026, 11, 21, 4, 30, tzinfo=UTC)
BEGIN_S = int(START.timestamp())
LOOK_MS = 900  # after the requests of a second
MARGIN = 60  # seconds to which a lock is extended, in the last half of them
SOURCE = SourceMapping(
    time=TimeField(("ts",), "ms"),
    caller=("api_key",),
    fields={
        "api_key": TextField(("key",)),
        "resource": ResourceField(("path",), ("/v1/export", "/v1/search")),
    },
)
Series = tuple[str, str]  # caller and resource
Requests = Mapping[Series, int]  # of each caller and resource, in one second


P = TypeVar("P", bound=ComparedLoad)


def changed(policy: P, **fields: int) -> Callable[[pytest.MonkeyPatch], P]:
    """Returns a mutation that is a change of the policy."""
    return lambda _patch: msgspec.structs.replace(policy, **fields)


def patched(policy: P, module: object, name: str, value: object) -> Callable[[pytest.MonkeyPatch], P]:
    """Returns a mutation that replaces a name of a module; it returns the policy."""

    def patch_it(patch: pytest.MonkeyPatch) -> P:
        patch.setattr(module, name, value)
        return policy

    return patch_it


@contextmanager
def world_of(url: str, policy: ComparedLoad, source: SourceMapping = SOURCE) -> Iterator[World]:
    """Yields a world with a policy in force, at its first second."""
    world = World(url, InlineFlushes(), make_plan([], [], [policy], {"log": source}), START)
    try:
        yield world
    finally:
        world.close()


def locked_by_product(world: World, story: Sequence[Requests]) -> list[set[Series]]:
    """Returns the callers and resources with a lock after each second."""
    found = []
    for requests in story:
        for (key, path), number in requests.items():
            for _ in range(number):
                world.log.write(key=key, path=path)
        world.clock.advance(LOOK_MS / 1000)
        for _ in range(3):  # takes, counts and flushes
            world.daemon.run_once()
        world.jobs.run_once()
        with world.engine.connect() as db:
            rows = db.execute(sa.select(locks.c.key, locks.c.resource)).all()
        found.append({(row.key.removeprefix("api_key:"), row.resource) for row in rows})
        world.clock.advance(1 - LOOK_MS / 1000)
    return found


class SlowSums:
    """Everything that was requested, added up again for each window."""

    def __init__(self, policy: ComparedLoad) -> None:
        self._rolling = policy.window
        self._by_slot: dict[int, Counter[Series]] = {}
        self.now_s = BEGIN_S - 1

    def add(self, requests: Requests) -> None:
        """Adds the requests of the next second."""
        self.now_s += 1
        slot_s = self.now_s // self._rolling.slot_s * self._rolling.slot_s
        self._by_slot.setdefault(slot_s, Counter()).update(requests)

    @property
    def oldest_s(self) -> int:
        """The begin of the oldest slot that the window touches."""
        slot_s, period_s = self._rolling.slot_s, self._rolling.period_s
        first_s = self.now_s - period_s - slot_s + 1
        return next(at_s for at_s in range(first_s, self.now_s + 1) if at_s % slot_s == 0)

    @property
    def span_ms(self) -> int:
        """Milliseconds from the begin of the oldest slot to the look."""
        return (self.now_s - self.oldest_s) * 1000 + LOOK_MS

    def loads(self) -> Counter[Series]:
        """Returns what each series has in the window that ends now."""
        found: Counter[Series] = Counter()
        for slot_s, requests in self._by_slot.items():
            if slot_s + self._rolling.slot_s + self._rolling.period_s > self.now_s:
                found.update(requests)
        return found


class SlowLocks:
    """Holds and locks of all series, by the rules of decision 38."""

    def __init__(self, policy: ComparedLoad) -> None:
        self._hold_s = policy.hold_s
        self._over: dict[Series, int] = {}
        self.until_s: dict[Series, int] = {}

    def end(self, now_s: int) -> None:
        """Removes locks whose time is over."""
        self.until_s = {series: until_s for series, until_s in self.until_s.items() if until_s > now_s}

    def look(self, now_s: int, over: set[Series], released: set[Series]) -> set[Series]:
        """Ends and extends locks; returns the series that are over their mark for as long as the hold."""
        for series in [*self.until_s]:
            if series in released:
                del self.until_s[series]
            elif self.until_s[series] - now_s <= MARGIN // 2:
                self.until_s[series] = now_s + MARGIN
        self._over = {series: self._over.get(series, now_s) for series in over}
        return {series for series, since_s in self._over.items() if now_s - since_s >= self._hold_s}

    def lock(self, now_s: int, series: set[Series]) -> None:
        for one in series:
            self.until_s[one] = now_s + MARGIN
            self._over.pop(one, None)
