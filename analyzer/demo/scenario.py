"""The demo in order: calm, a flood, a killed analyzer, a closed gate, calm again."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import sqlalchemy as sa

from analyzer.core.counting.meters import DAY_S
from analyzer.core.delays.delay_bound import FrontLimiter, LockDelay, overshoot_max
from analyzer.demo import guarded_app
from analyzer.demo.live_view import LiveView
from analyzer.demo.load_generator import CALLERS, FLOOD_CONNECTIONS, NOISY, LoadGenerator
from analyzer.demo.processes import TOPIC, WORKERS, DemoProcesses, ProcessNotStarted
from analyzer.demo.results import DemoResults, expected_counts, results_of
from analyzer.store.database.engine import open_engine
from analyzer.store.database.schema import locks, offsets
from analyzer.store.operations.access import tokens
from analyzer.store.reports.usage import UsageQuery, usage_rows

LIMIT = 2_400  # with what limiters refuse, reached some 15 s after the flood begins, behind the restart
CALM_S = 6.0
KILL_AFTER_S = 4.0
COUNTS_AGAIN_WITHIN_S = 30.0
CLOSED_WITHIN_S = 25.0
CLOSED_FOR_S = 8.0
COUNTED_WITHIN_S = 10.0
RECENT_RESPONSES = 500
VISITOR = "demo"  # the name of the token with which a visitor of the pages may act
KEPT_S = 5.0  # responses, while the pages stay open

# The longest that each step from a request to a closed gate takes here; their sum is the delay of a lock.
DELAY = LockDelay(request_s=0.6, shipping_s=0.2, fetch_s=0.3, flush_s=0.3, commit_s=0.5, poll_s=1.0)
BOUND = overshoot_max(
    FrontLimiter(guarded_app.BURST, guarded_app.PERIOD_S, WORKERS), DELAY.total_s, FLOOD_CONNECTIONS
)


@dataclass(slots=True)
class DatabaseFigures:
    """Counts and locks, read from the database as a report would."""

    engine: sa.Engine

    def total(self) -> int:
        """Returns how many requests have been counted."""
        with self.engine.connect() as db:
            return int(
                db.execute(sa.select(sa.func.coalesce(sa.func.sum(offsets.c.counted), 0))).scalar_one()
            )

    def by_caller(self) -> Mapping[str, tuple[int, int]]:
        """Returns admitted and denied requests for each caller."""
        query = UsageQuery("caller", DAY_S, meter="requests")
        found: dict[str, tuple[int, int]] = {}
        for row in usage_rows(self.engine, query):
            value, denied = found.get(row.key, (0, 0))
            found[row.key] = value + row.value, denied + row.denied
        return found

    def locked(self) -> list[str]:
        """Returns the callers with a lock."""
        with self.engine.connect() as db:
            return list(db.execute(sa.select(locks.c.key)).scalars())


async def run_demo(
    view: LiveView, kafka: str | None, database: str | None, *, stays: bool = False
) -> DemoResults:
    """Runs the demo on `kafka` (HOST:PORT) and `database` (a URL), by default on its mock broker and SQLite.

    Usually takes less than a minute. With `stays` the pages and the callers remain afterwards, until an
    interrupt. Raises ProcessNotStarted.
    """
    with tempfile.TemporaryDirectory(prefix="gatelock-demo-") as folder:
        topic = TOPIC if kafka is None else f"gatelock-demo-{uuid.uuid4().hex[:8]}"
        processes = DemoProcesses(Path(folder), LIMIT, kafka, database, topic)
        try:
            view.step(
                "starting "
                + ("a mock Kafka broker, " if kafka is None else "")
                + f"an analyzer, and {WORKERS} processes of a small web application"
            )
            await asyncio.to_thread(processes.start)
            figures = DatabaseFigures(open_engine(processes.database_url))
            try:
                results = await _play(view, processes, figures)
                if stays:
                    await _stay(view, processes, figures.engine)
                return results
            finally:
                figures.engine.dispose()
        finally:
            await asyncio.to_thread(processes.close)


async def _play(view: LiveView, processes: DemoProcesses, figures: DatabaseFigures) -> DemoResults:
    load = LoadGenerator(processes.ports, Random(7))  # noqa: S311 - the times of requests
    generating = asyncio.create_task(load.run())
    showing = asyncio.create_task(_show(view, load, figures))
    view.step(f"{CALLERS} callers send about one request a second; the limit is {LIMIT:,} a day for each")
    await asyncio.sleep(CALM_S)
    view.step(
        f"a lock reaches every gate within {DELAY.total_s:.1f} s; until then the rate limiters admit at most"
        f" {BOUND} requests beyond the limit (computed, before the flood)"
    )
    flood_began_s = time.time()
    load.is_flooding = True
    view.step("a noisy caller starts a flood of requests")
    await asyncio.sleep(KILL_AFTER_S)
    gap_s = await _kill_and_restart_analyzer(view, processes, figures)
    await _wait_until(lambda: _was_refused_by_lock(load), CLOSED_WITHIN_S)
    view.step("the gates are closed for the noisy caller, which continues to send requests")
    await asyncio.sleep(CLOSED_FOR_S)
    load.is_stopped = True
    await generating
    expected = expected_counts(load.responses)
    deadline_s = time.monotonic() + COUNTED_WITHIN_S
    while (counted := await asyncio.to_thread(figures.by_caller)) != expected:
        if time.monotonic() > deadline_s:
            break
        await asyncio.sleep(0.1)
    showing.cancel()
    view.step("all clients have stopped, and the counts are compared with their requests")
    locked = await asyncio.to_thread(figures.locked)
    return results_of(
        load.responses, counted, locked, flood_began_s=flood_began_s, limit=LIMIT, bound=BOUND, gap_s=gap_s
    )


async def _stay(view: LiveView, processes: DemoProcesses, engine: sa.Engine) -> None:
    """Continues with all callers until SIGINT or SIGTERM."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    load = LoadGenerator(processes.ports, Random(8))  # noqa: S311 - the times of requests
    load.is_flooding = True
    generating = asyncio.create_task(load.run())
    token = await asyncio.to_thread(tokens.create, engine, VISITOR, "admin", None, "gatelock demo", "")
    view.step(f"the pages are open until you press Ctrl-C: http://127.0.0.1:{processes.analyzer_port}/")
    view.step(f"to lock and unlock there, sign in with this token: {token}")
    while not ended.is_set():
        load.responses.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), KEPT_S)
    load.is_stopped = True
    await generating


def _was_refused_by_lock(load: LoadGenerator) -> bool:
    recent = load.responses[-RECENT_RESPONSES:]
    return any(response.policy for response in recent if response.caller == NOISY)


async def _kill_and_restart_analyzer(
    view: LiveView, processes: DemoProcesses, figures: DatabaseFigures
) -> float:
    """Returns the seconds from the kill until the new analyzer has counted a request."""
    killed_s = time.monotonic()
    await asyncio.to_thread(processes.kill_analyzer)
    before = await asyncio.to_thread(figures.total)
    view.step("the analyzer is killed (SIGKILL) and started again")
    await asyncio.to_thread(processes.start_analyzer)
    deadline_s = killed_s + COUNTS_AGAIN_WITHIN_S
    while await asyncio.to_thread(figures.total) == before:
        if time.monotonic() > deadline_s:
            raise ProcessNotStarted(processes.failure_of("analyzer"))
        await asyncio.sleep(0.05)
    gap_s = time.monotonic() - killed_s
    view.step(f"the analyzer counts again, {gap_s:.1f} s after it was killed")
    return gap_s


async def _show(view: LiveView, load: LoadGenerator, figures: DatabaseFigures) -> None:
    while True:
        view.show(load.responses, await asyncio.to_thread(figures.total))
        await asyncio.sleep(0.25)


async def _wait_until(condition: Callable[[], bool], within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline_s:
        await asyncio.sleep(0.02)
