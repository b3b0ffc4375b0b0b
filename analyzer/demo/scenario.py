"""The story of a demonstration, in order: calm, storm, a kill, a closed gate, calm again."""

from __future__ import annotations

import asyncio
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import sqlalchemy as sa

from analyzer.core.judging.delay_bound import FrontLimiter, LockDelay, overshoot_max
from analyzer.demo import guarded_app
from analyzer.demo.live_view import LiveView
from analyzer.demo.load_generator import NOISY, STORM_CONNECTIONS, LoadGenerator
from analyzer.demo.processes import TOPIC, WORKERS, DemoProcesses, ProcessNotStarted
from analyzer.demo.results import DemoResults, findings_of, truth_of
from analyzer.store.database.engine import open_engine
from analyzer.store.database.schema import buckets, locks, offsets

LIMIT = 1_200
CALM_S = 6.0
KILL_AFTER_S = 4.0
BACK_WITHIN_S = 30.0
CLOSED_WITHIN_S = 25.0
AFTER_S = 8.0
DRAINED_WITHIN_S = 10.0

# What each wait costs at its worst here; the sum is what the bound is computed from.
DELAY = LockDelay(request_s=0.6, shipping_s=0.2, fetch_s=0.3, flush_s=0.3, commit_s=0.5, poll_s=1.0)
BOUND = overshoot_max(
    FrontLimiter(guarded_app.BURST, guarded_app.PERIOD_S, WORKERS), DELAY.total_s, STORM_CONNECTIONS
)


@dataclass(slots=True)
class DatabaseFigures:
    """What the database says, read from outside as any report would."""

    engine: sa.Engine

    def total(self) -> int:
        with self.engine.connect() as db:
            return int(
                db.execute(sa.select(sa.func.coalesce(sa.func.sum(offsets.c.counted), 0))).scalar_one()
            )

    def by_caller(self) -> Mapping[str, tuple[int, int]]:
        summed = [
            sa.cast(sa.func.sum(column), sa.BigInteger) for column in (buckets.c.value, buckets.c.denied)
        ]
        statement = sa.select(buckets.c.key, *summed).where(
            buckets.c.grouping == "caller", buckets.c.meter == "requests"
        )
        with self.engine.connect() as db:
            rows = db.execute(statement.group_by(buckets.c.key))
            return {caller: (int(value), int(denied)) for caller, value, denied in rows}

    def locked(self) -> list[str]:
        with self.engine.connect() as db:
            return list(db.execute(sa.select(locks.c.key)).scalars())


async def tell(view: LiveView, kafka: str | None, database: str | None) -> DemoResults:
    """Run the story from beginning to end; takes less than a minute. Raises StageError."""
    with tempfile.TemporaryDirectory(prefix="gatelock-demo-") as folder:
        topic = TOPIC if kafka is None else f"gatelock-demo-{uuid.uuid4().hex[:8]}"
        stage = DemoProcesses(Path(folder), LIMIT, kafka, database, topic)
        try:
            view.step("starting a broker, an analyzer and four workers of a small web application")
            await asyncio.to_thread(stage.start)
            books = DatabaseFigures(open_engine(stage.database_url))
            try:
                return await _play(view, stage, books)
            finally:
                books.engine.dispose()
        finally:
            await asyncio.to_thread(stage.close)


async def _play(view: LiveView, stage: DemoProcesses, books: DatabaseFigures) -> DemoResults:
    crowd = LoadGenerator(stage.ports, Random(7))  # noqa: S311 - when callers ask
    crowding = asyncio.create_task(crowd.run())
    watching = asyncio.create_task(_watch(view, crowd, books))
    view.step(f"40 callers ask now and then; each may send {LIMIT:,} requests a day")
    await asyncio.sleep(CALM_S)
    view.step(
        f"at most {BOUND} requests can slip through beyond a limit: the limiter in each of {WORKERS} "
        f"workers lets {guarded_app.BURST} a second pass, and a lock takes at most {DELAY.total_s:.1f} s"
    )
    storm_s = time.time()
    crowd.storming = True
    view.step("one caller starts to storm")
    await asyncio.sleep(KILL_AFTER_S)
    gap_s = await _kill_and_restart(view, stage, books)
    await _until(lambda: any(a.policy for a in crowd.answers[-500:] if a.caller == NOISY), CLOSED_WITHIN_S)
    view.step("the gate closed for the noisy caller; it goes on asking")
    await asyncio.sleep(AFTER_S)
    crowd.stopped = True
    await crowding
    truth = truth_of(crowd.answers)
    deadline_s = time.monotonic() + DRAINED_WITHIN_S
    while (counted := await asyncio.to_thread(books.by_caller)) != truth and time.monotonic() < deadline_s:
        await asyncio.sleep(0.1)
    watching.cancel()
    view.step("everything that was asked has been counted")
    locked = await asyncio.to_thread(books.locked)
    return findings_of(crowd.answers, counted, locked, storm_s=storm_s, limit=LIMIT, bound=BOUND, gap_s=gap_s)


async def _kill_and_restart(view: LiveView, stage: DemoProcesses, books: DatabaseFigures) -> float:
    """Seconds from the kill until the new analyzer has counted something."""
    killed_s = time.monotonic()
    await asyncio.to_thread(stage.kill_analyzer)
    before = await asyncio.to_thread(books.total)
    view.step("the analyzer is killed (SIGKILL) and started again")
    await asyncio.to_thread(stage.start_analyzer)
    deadline_s = killed_s + BACK_WITHIN_S
    while await asyncio.to_thread(books.total) == before:
        if time.monotonic() > deadline_s:
            raise ProcessNotStarted(stage.said("analyzer"))
        await asyncio.sleep(0.05)
    gap_s = time.monotonic() - killed_s
    view.step(f"the analyzer counts again, {gap_s:.1f} s after it was killed")
    return gap_s


async def _watch(view: LiveView, crowd: LoadGenerator, books: DatabaseFigures) -> None:
    while True:
        view.show(crowd.answers, await asyncio.to_thread(books.total))
        await asyncio.sleep(0.25)


async def _until(true: Callable[[], bool], within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    while not true() and time.monotonic() < deadline_s:
        await asyncio.sleep(0.02)
