"""Gates on a real PostgreSQL and on a real `gatelock serve`, behind proxies that fail at random.

Now and then the servers themselves are killed or stopped.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

import httpx2

from analyzer.kernel.database.migrate import upgrade
from gatekeeper import Gate, SlidingLog
from gatekeeper.sources.sql import FETCH_S, NEXT_POLL_S
from tests.cuts.bound import Answers, Period, SourceTiming
from tests.cuts.faulty_sources import SqlFeed
from tests.cuts.oracle import DENIED, LIMIT, PASS, PERIOD_S, LockHistory, Moment, Oracle, Slack
from tests.cuts.simulated import CALLERS, LockWriter, outcome_of
from tests.support.plain_http import get
from tests.support.proxy import Proxy
from tests.support.servers.child import Child, free_port
from tests.support.servers.postgres import NativePostgres

ANSWER_S = 0.3  # of a working server, on a busy machine
LEARNING_S, DECIDING_S = 0.7, 0.05  # the slack, to which pauses of this process are added
GAPS = 2_000  # the last rounds, of which the longest pause counts
SQL_STALE_S, HTTP_STALE_S = 2.0, 4.5
CONFIG = '[database]\nurl = "{url}"\n[analyzer]\nhttp = "127.0.0.1:{port}"\n'


class LiveTimeline(list[Period]):
    """The timeline of a source, recorded as it happens."""

    def begin(self, answers: Answers, kind: str = "well") -> None:
        now_s = time.monotonic()
        if self:
            self[-1] = self[-1]._replace(end_s=now_s)
        self.append(Period(now_s, inf, answers, kind))


class Fault(NamedTuple):
    """A fault, the timelines that it affects, and whether any fetch is answered meanwhile."""

    kind: str
    timelines: tuple[LiveTimeline, ...]
    answers: Answers
    begin: Callable[[], object]
    end: Callable[[], object]


class Serve(Child):
    """A real `gatelock serve`."""

    def __init__(self, folder: Path, url: str) -> None:
        self.port = free_port()
        (folder / "gatelock.toml").write_text(CONFIG.format(url=url, port=self.port))
        command = [
            sys.executable,
            "-m",
            "analyzer.faces.cli",
            "--config",
            str(folder / "gatelock.toml"),
            "serve",
        ]
        super().__init__(command, folder, parent_death_signal=signal.SIGTERM)

    def begin(self) -> None:
        self.start(ready=self._answers)

    def _answers(self) -> bool:
        try:
            return get(f"http://127.0.0.1:{self.port}/v1/locks", timeout=5).status_code == 200
        except httpx2.HTTPError:
            return False


class Installation:
    """The servers, the proxies in front of them, and the timelines of both sources."""

    def __init__(self, folder: Path, resources: ExitStack) -> None:
        for name in ("postgres", "serve"):
            (folder / name).mkdir(mode=0o755)
        self.postgres = NativePostgres(folder / "postgres")
        self.postgres.start()
        resources.callback(self.postgres.close)
        self.url = self.postgres.new_database()
        upgrade(self.url)
        self.database = SqlFeed(self.url)
        resources.callback(self.database.close)
        self.serve = Serve(folder / "serve", self.url)
        self.serve.begin()
        resources.callback(self.serve.kill)
        self.sql, self.http = Proxy(self.postgres.port), Proxy(self.serve.port)
        resources.callback(self.sql.close)
        resources.callback(self.http.close)
        self.sql_timeline, self.http_timeline = LiveTimeline(), LiveTimeline()
        self.writing = threading.Lock()  # held while the database is down
        for timeline in (self.sql_timeline, self.http_timeline):
            timeline.begin("all")

    @property
    def sql_url(self) -> str:
        return self.url.replace(f":{self.postgres.port}/", f":{self.sql.port}/")

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http.port}"

    def faults(self, random: Random) -> list[Fault]:
        """One fault of each kind."""
        found = []
        for proxy, timeline in ((self.sql, self.sql_timeline), (self.http, self.http_timeline)):
            name, timelines = ("sql" if proxy is self.sql else "http"), (timeline,)
            found += [
                Fault(f"{name} cut", timelines, "some", proxy.cut, proxy.cut),
                Fault(f"{name} away", timelines, "none", proxy.shut, proxy.open),
                Fault(f"{name} silent", timelines, "none", proxy.stall, proxy.flow),
                Fault(f"{name} silent, then cut", timelines, "none", proxy.stall,
                      partial(resume_and_cut, proxy)),
                Fault(f"{name} halved", timelines, "none", proxy.halve, partial(proxy.halve, False)),
                Fault(f"{name} shredded", timelines, "some", partial(proxy.shred, 7), proxy.shred),
                Fault(f"{name} slow", timelines, "some",
                      lambda proxy=proxy: proxy.slow(random.uniform(0.05, 0.6)), partial(proxy.slow, 0.0)),
            ]  # fmt: skip
        both, http = (self.sql_timeline, self.http_timeline), (self.http_timeline,)
        return [
            *found,
            Fault("PostgreSQL killed", both, "none", self.postgres.kill, self._restart_postgres),
            Fault("PostgreSQL stopped", both, "none", self.postgres.pause, self.postgres.resume),
            Fault("serve killed", http, "none", self.serve.kill, self.serve.begin),
            Fault("serve stopped", http, "none", self.serve.pause, self.serve.resume),
        ]

    def _restart_postgres(self) -> None:
        self.postgres.start()
        self.database.close()  # the connections of this process are broken, too

    def inject(self, fault: Fault, until: Callable[[], None]) -> None:
        """Begins the fault, and ends it after `until`. During the transitions anything may be answered."""
        exclusion = self.writing if fault.kind.startswith("PostgreSQL") else ExitStack()
        with exclusion:
            for timeline in fault.timelines:
                timeline.begin("some", fault.kind)
            fault.begin()
            for timeline in fault.timelines:
                timeline.begin(fault.answers, fault.kind)
            until()
            for timeline in fault.timelines:
                timeline.begin("some", fault.kind)
            fault.end()
        for timeline in fault.timelines:
            timeline.begin("all")


def resume_and_cut(proxy: Proxy) -> None:
    proxy.cut()
    proxy.flow()


class WatchedGate(NamedTuple):
    """A gate with its oracle."""

    name: str
    gate: Gate
    oracle: Oracle


class RealRun:
    """A run of some seconds in real time."""

    def __init__(self, seed: int, seconds: float, folder: Path, report: Callable[[str], None]) -> None:
        self._random = Random(seed)
        self._seconds = seconds
        self._folder = folder
        self._report = report
        self._ended = threading.Event()
        self._errors: list[BaseException] = []
        self._gaps: deque[float] = deque([0.0], maxlen=GAPS)
        self.faults: Counter[str] = Counter()
        self.longest_gap_s = 0.0
        self.versions = 0

    def run(self) -> Counter[str]:
        """Returns the number of answers of each kind. Raises AssertionError for the first wrong one."""
        with ExitStack() as resources:
            installation, history = Installation(self._folder, resources), LockHistory()
            writer = LockWriter(installation.database, history, Random(self._random.random()))
            gates = self._start_gates(installation, history, resources)
            threads = [
                threading.Thread(target=self._guarded, args=(work,))
                for work in (lambda: self._write(installation, writer), lambda: self._break(installation))
            ]
            for thread in threads:
                thread.start()
            try:
                self._ask(gates)
            finally:
                self._ended.set()
                for thread in threads:
                    thread.join()
            self.versions = len(history.versions)
        if self._errors:
            raise self._errors[0]
        return sum((watched.oracle.counts for watched in gates), Counter())

    def _start_gates(
        self, installation: Installation, history: LockHistory, resources: ExitStack
    ) -> list[WatchedGate]:
        gates = []
        for url, timeline, timing in (
            (installation.sql_url, installation.sql_timeline,
             SourceTiming(NEXT_POLL_S, ANSWER_S, 0.0, FETCH_S, SQL_STALE_S)),
            # The server polls the database as a gate does, which adds the time-out of that fetch.
            (installation.http_url, installation.http_timeline,
             SourceTiming(0.0, ANSWER_S, HTTP_STALE_S / 6, HTTP_STALE_S / 3 + FETCH_S, HTTP_STALE_S)),
        ):  # fmt: skip
            for on_stale in ("allow", "deny", "limiter"):
                limiter = SlidingLog(LIMIT, PERIOD_S) if on_stale == "limiter" else on_stale
                gate = Gate(url, stale_after=timing.stale_after_s, on_stale=cast(Any, limiter))
                begun_s = time.monotonic()
                resources.callback(gate.close)
                gate.start()
                name = f"{url.partition(':')[0]} {on_stale}"
                gates.append(WatchedGate(name, gate, Oracle(history, timeline, timing, on_stale, begun_s)))
        return gates

    # -- threads ---------------------------------------------------------------------------------

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self._errors.append(error)
            self._ended.set()

    def _write(self, installation: Installation, writer: LockWriter) -> None:
        random = Random(self._random.random())
        while not self._ended.wait(random.choice((0.01, 0.3, 1.0)) * random.random()):
            with installation.writing:
                writer.write(datetime.now(UTC), time.monotonic)

    def _break(self, installation: Installation) -> None:
        random = Random(self._random.random())
        kinds = installation.faults(random)
        due: list[Fault] = []
        pauses_s = (1.0,) * 6 + (3.0,) * 6 + (40.0,)  # now and then for longer than gates need to recover
        while not self._ended.wait(random.uniform(0.1, random.choice(pauses_s))):
            due = due or random.sample(kinds, len(kinds))  # each kind once, before one is repeated
            fault, lasts_s = due.pop(), random.uniform(0.1, random.choice((1.0, 4.0, 9.0)))
            self.faults[fault.kind] += 1
            self._report(f"{fault.kind} for {lasts_s:.1f} s")
            installation.inject(fault, lambda lasts_s=lasts_s: self._ended.wait(lasts_s) and None)

    def _ask(self, gates: list[WatchedGate]) -> None:
        random = Random(self._random.random())
        end_s = last_s = time.monotonic() + self._seconds
        last_s -= self._seconds
        while time.monotonic() < end_s and not self._ended.wait(0.02 * random.random()):
            for watched in random.sample(gates, len(gates)):
                for caller in random.sample(CALLERS, 3):
                    self._ask_one(watched, caller, how=random.random())
            now_s = time.monotonic()
            self._gaps.append(now_s - last_s)
            self.longest_gap_s = max(self.longest_gap_s, now_s - last_s)
            last_s = now_s

    def _ask_one(self, watched: WatchedGate, caller: str, how: float) -> None:
        begin_s, begin_ns = time.monotonic(), time.time_ns()
        age_s = watched.gate.age
        answer = (
            (PASS if watched.gate.allow(caller) else DENIED)
            if how < 0.5
            else outcome_of(watched.gate.check(caller))
        )
        at = Moment(begin_s, time.monotonic(), begin_ns, time.time_ns(), begin_ns)
        gap_s = max(self._gaps)
        slack = Slack(LEARNING_S + 3 * gap_s, DECIDING_S + gap_s)
        wrong = watched.oracle.wrong({caller: answer}, at, slack) or watched.oracle.wrong_age(
            age_s, at, slack
        )
        timeline = ", ".join(
            f"{p.kind} {p.answers} from {p.begin_s:.2f}" for p in watched.oracle.timeline[-4:]
        )
        assert not wrong, f"{watched.name}: {wrong}; slack {slack}; the timeline: {timeline}"
