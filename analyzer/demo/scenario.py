"""The demo in order: calm, a flood, a killed analyzer, a closed gate, calm again."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import sqlalchemy as sa

from analyzer.counting.usage import UsageQuery, usage_rows
from analyzer.demo.guarded_app import outside_requests
from analyzer.demo.live_view import LiveView
from analyzer.demo.load_generator import CALLERS, NOISY, LoadGenerator, NoAnswer
from analyzer.demo.processes import PAST_DAYS, POLICY, TOPIC, DemoProcesses, ProcessNotStarted
from analyzer.demo.results import DemoResults, expected_counts, measure_run
from analyzer.demo.traffic_size import TrafficSize, size_for, spin
from analyzer.kernel import tokens
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.tables.schema import locks, offsets
from analyzer.plan.meters import DAY_S

Figures = TypeVar("Figures")
Result = TypeVar("Result")

# How long each part takes on a machine of speed 1; a slow one waits longer where it waits for a condition.
CALM_S = 6.0
KILL_AFTER_S = 4.0
COUNTS_AGAIN_WITHIN_S = 30.0
CLOSED_WITHIN_S = 25.0
CLOSED_FOR_S = 8.0
COUNTED_WITHIN_S = 120.0
STANDSTILL_S = 20.0  # without one more request counted: nothing comes any more
FIGURES_EVERY_S = 0.25
BUSY_S = 60.0  # of a database that others write to
RECENT_RESPONSES = 500
TOKEN_IN_FORCE_S = 2.5  # after it was created: the analyzer reads its tokens again
VISITOR = "demo"  # the name of the token with which a visitor of the pages may act
STAYING_SHARE = 0.5  # of the traffic, while the pages stay open: for hours, beside other work
KEPT_S = 5.0  # responses, while the pages stay open
# The share of its limit that the noisy caller may use while the analyzer is away: a lock that waits for an
# analyzer to start would be late for another reason than the one that the bound of the overshoot is about.
USED_WITHOUT_ANALYZER = 0.7


@dataclass(slots=True)
class DatabaseFigures:
    """Counts and locks, read from the database as a report would."""

    engine: sa.Engine
    topic: str
    past: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # counted before the demo began

    def total(self) -> int:
        """Returns how many requests have been counted."""
        with self.engine.connect() as db:
            counted = sa.select(sa.func.coalesce(sa.func.sum(offsets.c.counted), 0))
            return int(db.execute(counted.where(offsets.c.topic == self.topic)).scalar_one())

    def by_caller(self) -> Mapping[str, tuple[int, int]]:
        """Returns admitted and denied requests for each caller."""
        query = UsageQuery("caller", DAY_S, meter="requests")
        amounts: dict[str, tuple[int, int]] = {}
        for row in usage_rows(self.engine, query):
            value, denied = amounts.get(row.key, (0, 0))
            amounts[row.key] = value + row.value, denied + row.denied
        since = {
            caller: (value - before, denied - denied_before)
            for caller, (value, denied) in amounts.items()
            for before, denied_before in [self.past.get(caller, (0, 0))]
        }
        return {caller: counts for caller, counts in since.items() if any(counts)}

    def locked(self) -> list[str]:
        """Returns the callers with a lock of the daily quota."""
        with self.engine.connect() as db:
            return list(db.execute(sa.select(locks.c.key).where(locks.c.policy == POLICY)).scalars())


async def run_demo(
    view: LiveView, kafka: str | None, database: str | None, *, stays: bool = False
) -> DemoResults:
    """Runs the demo on `kafka` (HOST:PORT) and `database` (a URL), by default on its mock broker and SQLite.

    Takes less than a minute where nothing else runs. With `stays` the pages and the callers remain
    afterwards, until an interrupt. Raises ProcessNotStarted.
    """
    size = size_for(await asyncio.to_thread(spin))
    if size.speed < 1:
        view.step(
            f"this machine has {size.speed:.0%} of the usual speed now: the demo sends less, and waits longer"
        )
    with tempfile.TemporaryDirectory(prefix="gatelock-demo-") as folder:
        topic = TOPIC if kafka is None else f"gatelock-demo-{uuid.uuid4().hex[:8]}"
        processes = DemoProcesses(Path(folder), size, kafka, database, topic, has_past=stays)
        try:
            if stays:
                view.step(f"writing the log of {PAST_DAYS:.0f} days before, which the analyzer counts first")
            view.step(
                "starting "
                + ("a mock Kafka broker, " if kafka is None else "")
                + f"an analyzer, and {size.processes} processes of a small web application"
            )
            await asyncio.to_thread(processes.start)
            if stays:
                await asyncio.to_thread(processes.close_yesterday)
            demo = Demo(view, processes, DatabaseFigures(open_engine(processes.database_url), topic), size)
            try:
                demo.figures.past = await asyncio.to_thread(demo.figures.by_caller)
                return await demo.run(stays=stays)
            finally:
                demo.figures.engine.dispose()
        finally:
            await asyncio.to_thread(processes.close)


@dataclass(slots=True)
class Demo:
    """The parts of the demo, once all processes run."""

    view: LiveView
    processes: DemoProcesses
    figures: DatabaseFigures
    size: TrafficSize

    async def run(self, *, stays: bool) -> DemoResults:
        """Returns the results; with `stays`, after an interrupt, and the counts are those of all the time."""
        load = LoadGenerator(self.processes.ports, Random(7), self.size)  # noqa: S311 - the times of requests
        results = await self._with_load(load, self._play(load))
        if not stays:
            return results
        lighter = self.size._replace(speed=self.size.speed * STAYING_SHARE)
        random = Random(8)  # noqa: S311 - as above
        lighter_load = LoadGenerator(
            self.processes.ports, random, lighter, sent=load.sent.copy(), with_incidents=True
        )
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        await self._with_load(lighter_load, self._stay(lighter_load, ended))
        ended.clear()
        self.view.step(
            "all clients have stopped; what is not counted yet is waited for, until the next Ctrl-C"
        )
        counted = await self._counted(lighter_load, ended)
        sent = await asyncio.to_thread(self._sent, lighter_load)
        return results.with_counts(sent, counted, await asyncio.to_thread(self.processes.lag))

    async def _with_load(self, load: LoadGenerator, part: Coroutine[Any, Any, Result]) -> Result:
        """Runs a part of the demo while the callers send requests. Raises ProcessNotStarted."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(load.run())
                following = tasks.create_task(self._follow(load))
                result = await part
                following.cancel()
        except ExceptionGroup as group:
            for error in group.exceptions:
                if isinstance(error, (ProcessNotStarted, NoAnswer)):
                    raise ProcessNotStarted(str(error)) from group
            raise
        return result

    async def _follow(self, load: LoadGenerator) -> None:
        """Tells the callers, and the view, how many requests are counted."""
        while True:
            load.counted = await self._read(self.figures.total)
            self.view.show(load.responses, load.sent.total(), load.counted)
            await asyncio.sleep(self.size.patience_s(FIGURES_EVERY_S))

    async def _play(self, load: LoadGenerator) -> DemoResults:
        size, view = self.size, self.view
        view.step(
            f"{CALLERS} callers send about one request {_each(size.interval_s)}; "
            f"the limit is {size.limit:,} a day for each"
        )
        await asyncio.sleep(CALM_S)
        view.step(
            f"while an analyzer runs, a lock reaches every gate within {size.delay_s:.1f} s; until then the"
            f" rate limiters admit at most {size.overshoot_bound(size.delay_s):,} requests beyond the limit"
            " (computed, before the flood)"
        )
        flood_began_s = time.time()
        load.is_flooding, load.noisy_left = True, int(size.limit * USED_WITHOUT_ANALYZER)
        view.step("a noisy caller starts a flood of requests")
        await asyncio.sleep(KILL_AFTER_S)
        gap_s = await self._kill_and_restart_analyzer()
        await self._wait_until(lambda: load.backlog < max(CALLERS, size.limit // 10), COUNTED_WITHIN_S)
        load.noisy_left = None
        if await self._wait_until(lambda: _was_refused_by_lock(load), CLOSED_WITHIN_S):
            view.step("the gates are closed for the noisy caller, which continues to send requests")
        else:
            view.step("the gates have not closed for the noisy caller yet: counting is late")
        await asyncio.sleep(CLOSED_FOR_S)
        load.stopped.set()
        await self._wait_until(lambda: load.is_idle, COUNTED_WITHIN_S)
        view.step("all clients have stopped, and the counts are compared with their requests")
        counted = await self._counted(load)
        return measure_run(
            load.responses,
            counted,
            await self._read(self.figures.locked),
            flood_began_s=flood_began_s,
            size=size,
            gap_s=gap_s,
            lag=await asyncio.to_thread(self.processes.lag),
        )

    async def _stay(self, load: LoadGenerator, ended: asyncio.Event) -> None:
        """Continues with all callers until `ended` is set."""
        load.is_flooding = True
        token = await self._read(
            lambda: tokens.create(self.figures.engine, VISITOR, "admin", None, "gatelock demo", "")
        )
        await asyncio.sleep(TOKEN_IN_FORCE_S)
        self.view.step(
            f"the pages are open until you press Ctrl-C: http://127.0.0.1:{self.processes.analyzer_port}/"
        )
        self.view.step(f"alerts are delivered to http://127.0.0.1:{self.processes.alerts_port}/")
        self.view.step(f"to lock and unlock there, sign in with this token: {token}")
        while not ended.is_set():
            load.responses.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), KEPT_S)
        load.stopped.set()

    async def _counted(
        self, load: LoadGenerator, hurry: asyncio.Event | None = None
    ) -> Mapping[str, tuple[int, int]]:
        """Returns the counts, once they equal the requests or none is counted any more."""
        began_s = moved_s = time.monotonic()
        last = -1
        while True:
            sent = await asyncio.to_thread(self._sent, load)
            expected = expected_counts(sent)
            counted = await self._read(self.figures.by_caller)
            total, now_s = sum(map(sum, counted.values())), time.monotonic()
            if total != last:
                last, moved_s = total, now_s
            is_over = now_s - moved_s > self.size.patience_s(STANDSTILL_S)
            is_over |= now_s - began_s > self.size.patience_s(COUNTED_WITHIN_S)
            is_over |= hurry is not None and hurry.is_set()
            if counted == expected or total > sent.total() or is_over:
                return counted
            await asyncio.sleep(self.size.patience_s(FIGURES_EVERY_S))

    def _sent(self, load: LoadGenerator) -> Counter[tuple[str, bool]]:
        """Returns the requests of the demo's clients and of visitors, by caller and by what denied them."""
        return load.sent + outside_requests(self.processes.folder)

    async def _kill_and_restart_analyzer(self) -> float:
        """Returns the seconds from the kill until the new analyzer has counted a request."""
        processes, killed_s = self.processes, time.monotonic()
        await asyncio.to_thread(processes.kill_analyzer)
        total = await self._read(self.figures.total)
        self.view.step("the analyzer is killed (SIGKILL) and started again")
        await asyncio.to_thread(processes.start_analyzer)
        deadline_s = killed_s + self.size.patience_s(COUNTS_AGAIN_WITHIN_S)
        while await self._read(self.figures.total) == total:
            if time.monotonic() > deadline_s or not processes.analyzer_runs:
                raise ProcessNotStarted(processes.failure_text("analyzer"))
            await asyncio.sleep(0.05)
        gap_s = time.monotonic() - killed_s
        self.view.step(f"the analyzer counts again, {gap_s:.1f} s after it was killed")
        return gap_s

    async def _read(self, read: Callable[[], Figures]) -> Figures:
        """Returns what `read` finds in the database; a busy one is asked again."""
        deadline_s = time.monotonic() + self.size.patience_s(BUSY_S)
        while True:
            try:
                return await asyncio.to_thread(read)
            except sa.exc.OperationalError:
                if time.monotonic() > deadline_s:
                    raise
            await asyncio.sleep(FIGURES_EVERY_S)

    async def _wait_until(self, condition: Callable[[], bool], usual_s: float) -> bool:
        """Returns whether the condition holds, once it does or the time is over."""
        deadline_s = time.monotonic() + self.size.patience_s(usual_s)
        while not condition() and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)
        return condition()


def _was_refused_by_lock(load: LoadGenerator) -> bool:
    recent = load.responses[-RECENT_RESPONSES:]
    return any(response.policy for response in recent if response.caller == NOISY)


def _each(interval_s: float) -> str:
    return "a second" if interval_s == 1 else f"each {interval_s:.0f} seconds"
