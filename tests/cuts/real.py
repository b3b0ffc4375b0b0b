"""Gates on a real PostgreSQL and on a real `gatelock serve`, both behind lines that are cut and healed at
random; now and then the servers themselves are killed, or stand still."""

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

from analyzer.store.database.migrate import upgrade
from gatekeeper import Gate, SlidingLog
from gatekeeper.sources.sql import FETCH_S, NEXT_POLL_S
from tests.cuts.bound import Answers, Manner, Stretch
from tests.cuts.lines import Database
from tests.cuts.oracle import LIMIT, NO, PASS, PERIOD_S, Moment, Oracle, Slack, Truth
from tests.cuts.simulated import CALLERS, Desk, word_of
from tests.support.plain_http import get
from tests.support.proxy import Proxy
from tests.support.servers.child import Child, free_port
from tests.support.servers.postgres import NativePostgres

ANSWER_S = 0.3  # of a server that is well, on a machine that has other things to do
HEARING_S, DECIDING_S = 0.7, 0.05  # slack, and beyond it what the machine takes from us
GAPS = 2_000  # rounds in which the longest pause is looked for
SQL_STALE_S, HTTP_STALE_S = 2.0, 4.5
CONFIG = '[database]\nurl = "{url}"\n[analyzer]\nhttp = "127.0.0.1:{port}"\n'


class LiveSky(list[Stretch]):
    """How a source was, and is."""

    def becomes(self, answers: Answers, kind: str = "well") -> None:
        now_s = time.monotonic()
        if self:
            self[-1] = self[-1]._replace(end_s=now_s)
        self.append(Stretch(now_s, inf, answers, kind))


class Fault(NamedTuple):
    """What goes wrong, for whom, and whether anything is answered meanwhile."""

    kind: str
    skies: tuple[LiveSky, ...]
    answers: Answers
    begin: Callable[[], object]
    end: Callable[[], object]


class Serve(Child):
    """A real `gatelock serve`, on a port of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.port = free_port()
        (folder / "gatelock.toml").write_text(CONFIG.format(url=url, port=self.port))
        command = [sys.executable, "-m", "analyzer.cli", "--config", str(folder / "gatelock.toml"), "serve"]
        super().__init__(command, folder, last_word=signal.SIGTERM)

    def begin(self) -> None:
        self.start(ready=self._answers)

    def _answers(self) -> bool:
        try:
            return get(f"http://127.0.0.1:{self.port}/v1/locks", timeout=5).status_code == 200
        except httpx2.HTTPError:
            return False


class Place:
    """The servers, the lines to them, and how each of the two was."""

    def __init__(self, folder: Path, held: ExitStack) -> None:
        for name in ("postgres", "serve"):
            (folder / name).mkdir(mode=0o755)
        self.postgres = NativePostgres(folder / "postgres")
        self.postgres.start()
        held.callback(self.postgres.close)
        self.url = self.postgres.new_database()
        upgrade(self.url)
        self.database = Database(self.url)
        held.callback(self.database.close)
        self.serve = Serve(folder / "serve", self.url)
        self.serve.begin()
        held.callback(self.serve.kill)
        self.sql, self.http = Proxy(self.postgres.port), Proxy(self.serve.port)
        held.callback(self.sql.close)
        held.callback(self.http.close)
        self.sql_sky, self.http_sky = LiveSky(), LiveSky()
        self.writing = threading.Lock()  # nobody writes to a database that is down
        for sky in (self.sql_sky, self.http_sky):
            sky.becomes("all")

    @property
    def sql_url(self) -> str:
        return self.url.replace(f":{self.postgres.port}/", f":{self.sql.port}/")

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http.port}"

    def faults(self, random: Random) -> list[Fault]:
        """One of each kind."""
        found = []
        for line, sky in ((self.sql, self.sql_sky), (self.http, self.http_sky)):
            name, skies = ("sql" if line is self.sql else "http"), (sky,)
            found += [
                Fault(f"{name} cut", skies, "some", line.cut, line.cut),
                Fault(f"{name} away", skies, "none", line.shut, line.open),
                Fault(f"{name} silent", skies, "none", line.stall, line.flow),
                Fault(f"{name} silent, then cut", skies, "none", line.stall, lambda line=line: mended(line)),
                Fault(f"{name} halved", skies, "none", line.halve, lambda line=line: line.halve(False)),
                Fault(f"{name} shredded", skies, "some", lambda line=line: line.shred(7), line.shred),
                Fault(f"{name} slow", skies, "some",
                      lambda line=line: line.slow(random.uniform(0.05, 0.6)), partial(line.slow, 0.0)),
            ]  # fmt: skip
        both, http = (self.sql_sky, self.http_sky), (self.http_sky,)
        return [
            *found,
            Fault("PostgreSQL killed", both, "none", self.postgres.kill, self._started_again),
            Fault("PostgreSQL stands still", both, "none", self.postgres.pause, self.postgres.resume),
            Fault("serve killed", http, "none", self.serve.kill, self.serve.begin),
            Fault("serve stands still", http, "none", self.serve.pause, self.serve.resume),
        ]

    def _started_again(self) -> None:
        self.postgres.start()
        self.database.close()  # our own connection is as dead as theirs

    def suffer(self, fault: Fault, until: Callable[[], None]) -> None:
        """Have the fault begin, and end after `until`. What is between well and not is neither."""
        held = self.writing if fault.kind.startswith("PostgreSQL") else ExitStack()
        with held:
            for sky in fault.skies:
                sky.becomes("some", fault.kind)
            fault.begin()
            for sky in fault.skies:
                sky.becomes(fault.answers, fault.kind)
            until()
            for sky in fault.skies:
                sky.becomes("some", fault.kind)
            fault.end()
        for sky in fault.skies:
            sky.becomes("all")


def mended(line: Proxy) -> None:
    line.cut()
    line.flow()


class Watched(NamedTuple):
    name: str
    gate: Gate
    oracle: Oracle


class Story:
    """So many seconds of it; raises AssertionError for the first wrong answer."""

    def __init__(self, seed: int, seconds: float, folder: Path, say: Callable[[str], None]) -> None:
        self._random = Random(seed)
        self._seconds = seconds
        self._folder = folder
        self._say = say
        self._over = threading.Event()
        self._errors: list[BaseException] = []
        self._gaps: deque[float] = deque([0.0], maxlen=GAPS)
        self.faults: Counter[str] = Counter()
        self.longest_gap_s = 0.0
        self.versions = 0

    def run(self) -> Counter[str]:
        """How often what was met."""
        with ExitStack() as held:
            place, truth = Place(self._folder, held), Truth()
            desk = Desk(place.database, truth, Random(self._random.random()))
            watched = self._watched(place, truth, held)
            threads = [
                threading.Thread(target=self._guarded, args=(work,))
                for work in (lambda: self._write(place, desk), lambda: self._break(place))
            ]
            for thread in threads:
                thread.start()
            try:
                self._ask(watched)
            finally:
                self._over.set()
                for thread in threads:
                    thread.join()
            self.versions = len(truth.versions)
        if self._errors:
            raise self._errors[0]
        return sum((each.oracle.tally for each in watched), Counter())

    def _watched(self, place: Place, truth: Truth, held: ExitStack) -> list[Watched]:
        found = []
        for url, sky, manner in (
            (place.sql_url, place.sql_sky, Manner(NEXT_POLL_S, ANSWER_S, 0.0, FETCH_S, SQL_STALE_S)),
            # What the server itself waits for comes on top: it asks the database as a gate does.
            (place.http_url, place.http_sky,
             Manner(0.0, ANSWER_S, HTTP_STALE_S / 6, HTTP_STALE_S / 3 + FETCH_S, HTTP_STALE_S)),
        ):  # fmt: skip
            for on_stale in ("allow", "deny", "limiter"):
                limiter = SlidingLog(LIMIT, PERIOD_S) if on_stale == "limiter" else on_stale
                gate = Gate(url, stale_after=manner.stale_after_s, on_stale=cast(Any, limiter))
                begun_s = time.monotonic()
                held.callback(gate.close)
                gate.start()
                name = f"{url.partition(':')[0]} {on_stale}"
                found.append(Watched(name, gate, Oracle(truth, sky, manner, on_stale, begun_s)))
        return found

    # -- what happens, each in a thread of its own -----------------------------------------------

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told by who waits for it
            self._errors.append(error)
            self._over.set()

    def _write(self, place: Place, desk: Desk) -> None:
        random = Random(self._random.random())
        while not self._over.wait(random.choice((0.01, 0.3, 1.0)) * random.random()):
            with place.writing:
                desk.write(datetime.now(UTC), time.monotonic)

    def _break(self, place: Place) -> None:
        random = Random(self._random.random())
        kinds = place.faults(random)
        waiting: list[Fault] = []
        calms_s = (1.0,) * 6 + (3.0,) * 6 + (40.0,)  # now and then for longer than gates take to come back
        while not self._over.wait(random.uniform(0.1, random.choice(calms_s))):
            waiting = waiting or random.sample(kinds, len(kinds))  # each of them, before one comes again
            fault, lasts_s = waiting.pop(), random.uniform(0.1, random.choice((1.0, 4.0, 9.0)))
            self.faults[fault.kind] += 1
            self._say(f"{fault.kind} for {lasts_s:.1f} s")
            place.suffer(fault, lambda lasts_s=lasts_s: self._over.wait(lasts_s) and None)

    def _ask(self, watched: list[Watched]) -> None:
        random = Random(self._random.random())
        end_s = last_s = time.monotonic() + self._seconds
        last_s -= self._seconds
        while time.monotonic() < end_s and not self._over.wait(0.02 * random.random()):
            for each in random.sample(watched, len(watched)):
                for caller in random.sample(CALLERS, 3):
                    self._ask_one(each, caller, how=random.random())
            now_s = time.monotonic()
            self._gaps.append(now_s - last_s)
            self.longest_gap_s = max(self.longest_gap_s, now_s - last_s)
            last_s = now_s

    def _ask_one(self, each: Watched, caller: str, how: float) -> None:
        begin_s, begin_ns = time.monotonic(), time.time_ns()
        age_s = each.gate.age
        answer = (PASS if each.gate.allow(caller) else NO) if how < 0.5 else word_of(each.gate.check(caller))
        at = Moment(begin_s, time.monotonic(), begin_ns, time.time_ns(), begin_ns)
        gap_s = max(self._gaps)
        slack = Slack(HEARING_S + 3 * gap_s, DECIDING_S + gap_s)
        wrong = each.oracle.wrong({caller: answer}, at, slack) or each.oracle.wrong_age(age_s, at, slack)
        sky = ", ".join(f"{s.kind} {s.answers} from {s.begin_s:.2f}" for s in each.oracle.sky[-4:])
        assert not wrong, f"{each.name}: {wrong}; slack {slack}; the sky: {sky}"
