"""A store that judges records at the time of their requests, in one thread and by one clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.judging.plan_sums import plan_sums
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.model import CountRow, DrainedCounts
from analyzer.kernel.tables.schema import locks, postponed
from analyzer.plan.meters import MINUTE_S, REQUESTS, bucket_start_s
from analyzer.plan.plan import Plan
from gatekeeper.testing import ManualClock
from tests.support.stored_counts import tables_of
from tests.support.upkeep import Upkeep
from tests.support.whole_loop import DatabaseClock


class Request(NamedTuple):
    """Requests of one caller at one moment, and whether a gate had denied them."""

    at_s: int
    caller: str
    amount: int = 1
    resource: str = "/a"
    is_denied: bool = False


class LiveJudgement:
    """An analyzer with its warden, whose flushes come right after the requests that they count."""

    def __init__(self, engine: sa.Engine, clock: ManualClock, plan: Plan) -> None:
        self.engine, self.plan, self._clock = engine, plan, clock
        self._store = SqlStore(engine, "here", random_mark=lambda: "mark")
        self._version = self._store.activate(plan)
        self._upkeep = Upkeep(engine, lambda: "mark")

    @property
    def now_s(self) -> int:
        return self._clock.wall_ns() // 10**9

    def locked(self) -> set[str]:
        """Returns the callers that have a lock now."""
        with self.engine.connect() as db:
            return set(
                db.execute(sa.select(locks.c.key).where(locks.c.until_ms > self.now_s * 1000)).scalars()
            )

    def count(self, request: Request) -> None:
        """Lets the time of a request come, and counts it."""
        self.pass_to(request.at_s)
        slots = [
            table
            for layout in plan_sums(self.plan).slot_layouts
            for table in tables_of(self._rows(request, layout.width_s, [layout.grouping]))
        ]
        tables = tables_of(self._rows(request, MINUTE_S, self.plan.groupings))
        with self._store.transaction() as flush:
            now = flush.check_plan(self.plan, self._version)
            flush.apply(self.plan, self._version, DrainedCounts([], tables, [], slots=slots), now)

    def pass_to(self, at_s: int) -> None:
        """Lets the time pass, and the warden do at each moment what is due."""
        while (due_s := self._due_s()) is not None and due_s <= at_s:
            self._jump(max(due_s, self.now_s))
            before = self._upkeep.end_locks(), self._upkeep.judge_waiting()
            if not before[0] and not before[1].rows:
                break
        self._jump(at_s)

    def _jump(self, at_s: int) -> None:
        self._clock.jump(at_s - self._clock.wall_ns() / 1e9)

    def _due_s(self) -> int | None:
        with self.engine.connect() as db:
            times = [
                db.execute(sa.select(sa.func.min(column))).scalar()
                for column in (locks.c.until_ms, postponed.c.due_ms)
            ]
        return min((-(-at_ms // 1000) for at_ms in times if at_ms is not None), default=None)

    def _rows(self, request: Request, width_s: int, groupings: Iterable[str]) -> Iterator[CountRow]:
        amounts = (0, request.amount) if request.is_denied else (request.amount, 0)
        names = {
            "caller": (request.caller, ""),
            "caller+resource": (request.caller, request.resource),
            "resource": (request.resource, ""),
            "everyone": ("", ""),
        }
        for grouping in groupings:
            at_s = bucket_start_s(request.at_s, width_s)
            yield CountRow(grouping, *names[grouping], REQUESTS.name, width_s, at_s, *amounts)


@contextmanager
def live_judgement(url: str, plan: Plan, begin_s: int) -> Iterator[LiveJudgement]:
    """Opens a migrated, empty database by a clock that begins at `begin_s`."""
    clock = ManualClock(datetime.fromtimestamp(begin_s, UTC))
    database_clock = DatabaseClock(clock)
    database_clock.install()
    engine = open_engine(url)
    try:
        yield LiveJudgement(engine, clock, plan)
    finally:
        engine.dispose()
        database_clock.remove()
