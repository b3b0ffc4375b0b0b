"""Applications of a simulation: each asks its gate, and logs the request with the answer."""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Callable
from math import inf
from typing import Literal

from gatekeeper import Gate
from gatekeeper.clock import PeriodicTask
from gatekeeper.feed import feed_json
from gatekeeper.feed.poller import CEILING_S
from gatekeeper.model import Cursor, SourceError, Update
from tests.simulation.database import SimulatedDatabase, SimulatedSqlSource
from tests.simulation.kafka_log import Expected, Logged
from tests.simulation.policies.plans import address_of
from tests.simulation.scheduler import Process, Scheduler
from tests.support.step_faults import Killed

STALE_AFTER_S = 5.0
HTTP_PACE_S = 0.6  # between the polls of a gate over HTTP
LATE_S = 1.5  # of a late answer
AnswerFault = Literal["lost", "away", "repeated", "cut short", "late"]


class SimulatedTask:
    """A function that is an event again and again."""

    def __init__(self, step: Callable[[], float], process: Process, scheduler: Scheduler) -> None:
        self._step = step
        self._process = process
        self._scheduler = scheduler
        self._is_stopped = False
        self._scheduler.after(0.0, process, "poll", self._run)

    @property
    def alive(self) -> bool:
        return self._process.is_alive and not self._is_stopped

    def stop(self, timeout: float) -> None:
        self._is_stopped = True

    def _run(self) -> None:
        if not self._is_stopped:
            wait_s = self._step()
            self._scheduler.after(max(wait_s, 1e-6), self._process, "poll", self._run)


class SimulatedClock:
    """The clock of one machine, which may be wrong."""

    def __init__(self, scheduler: Scheduler, wall_s: Callable[[], float]) -> None:
        self.skew_s = 0.0
        self.set_back_s = (
            -inf
        )  # uptime: polls that began later give back the locks that were removed as ended
        self.process = Process("")  # whose poller it runs
        self._scheduler = scheduler
        self._wall_s = wall_s

    def wall_ns(self) -> int:
        return round((self._wall_s() + self.skew_s) * 1e9)

    def uptime_s(self) -> float:
        return self._scheduler.uptime_s

    def random(self) -> float:
        return 0.5

    def run(self, step: Callable[[], float], name: str) -> PeriodicTask:
        return SimulatedTask(step, self.process, self._scheduler)

    def set(self, skew_s: float) -> bool:
        """Sets the machine's clock so much ahead of the right time; returns whether that changes it."""
        before, self.skew_s = self.skew_s, skew_s
        if skew_s < before:
            self.set_back_s = self.uptime_s()
        return skew_s != before

    def wait(self, event: threading.Event, timeout: float) -> bool:
        return event.is_set()


class SimulatedLink:
    """A gate's way to its source, with faults of the answers; over HTTP each is written and parsed."""

    def __init__(
        self, database: SimulatedDatabase, scheduler: Scheduler, clock: SimulatedClock, *, is_http: bool
    ) -> None:
        self.faults: list[AnswerFault] = []  # of the next answers
        self.applied: Counter[str] = Counter()  # faults that an answer had
        self.fresh_s = scheduler.uptime_s  # from here on the view must be as fresh as polls make it
        self.failures = 0  # in a row
        self._source = SimulatedSqlSource(database)
        self._scheduler = scheduler
        self._clock = clock
        self._is_http = is_http
        self.earlier: deque[Update] = deque(maxlen=4)  # answers with changes, to repeat
        self._database = database

    def fetch(self, since: Cursor | None) -> Update:
        fault = self._next_fault()
        if fault is None:
            self.failures = 0
        else:
            self.failures += 1
            self.applied[fault] += 1
            self.disturbed(LATE_S if fault == "late" else 0.0)
        if fault == "away":
            raise SourceError("away")
        update = self._source.fetch(since)
        if fault == "lost":
            raise SourceError("lost")
        if fault == "late":
            self._wait(LATE_S)
        if fault == "repeated":
            update = self.earlier[0]
        elif not update.snapshot and update.changes:
            self.earlier.append(update)
        return self._delivered(update, is_whole=fault != "cut short")

    def _next_fault(self) -> AnswerFault | None:
        """Returns the fault of the next answer; a repetition waits until there is something to repeat."""
        if self._scheduler.now_s < self._database.away_until_s:
            return "away"
        at = next((at for at, fault in enumerate(self.faults) if fault != "repeated" or self.earlier), None)
        return None if at is None else self.faults.pop(at)

    def _delivered(self, update: Update, *, is_whole: bool) -> Update:
        if self._is_http:
            text = feed_json.dump(update._replace(next_poll=HTTP_PACE_S)).encode()
            return feed_json.load(text if is_whole else text[: len(text) // 2])
        if not is_whole:
            raise SourceError("half an answer")  # as a database driver reports it
        return update

    def disturbed(self, seconds: float) -> None:
        """Notes a fault that lasts so long: the gate waits longer before it polls again."""
        pause_s = min(CEILING_S, STALE_AFTER_S / 2 * 2.0 ** min(self.failures, 9))
        self.fresh_s = max(self.fresh_s, self._scheduler.uptime_s + seconds + pause_s)

    def _wait(self, seconds: float) -> None:
        process = self._clock.process
        self._scheduler.run_until(self._scheduler.now_s + seconds)
        if not process.is_alive:
            raise Killed

    def close(self) -> None:
        """Has nothing to close."""


class Application:
    """One process of an application, with a gate."""

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        database: SimulatedDatabase,
        wall_s: Callable[[], float],
        *,
        is_http: bool,
    ) -> None:
        self.name = name
        self._scheduler = scheduler
        self.clock = SimulatedClock(scheduler, wall_s)
        self.link = SimulatedLink(database, scheduler, self.clock, is_http=is_http)
        self.wall_s = wall_s
        self.start()

    def start(self) -> None:
        """Starts a new process; a gate begins without knowledge."""
        self.clock.process = Process(self.name)
        self.link.failures = 0
        self.link.disturbed(0.0)
        self.gate = Gate(self.link, stale_after=STALE_AFTER_S, clock=self.clock)
        self.gate.start()

    def restart(self) -> None:
        self.clock.process.die()
        self.start()

    def oldest_s(self) -> float:
        """Returns the highest age that the view may have now; infinite shortly after a fault."""
        return 1.1 * HTTP_PACE_S if self._scheduler.uptime_s > self.link.fresh_s + HTTP_PACE_S else inf

    def request(
        self,
        caller: str,
        resource: str,
        size: int,
        clock_s: float,
        forged: str | None = None,
        weight: int = 1,
        id_: str = "",
    ) -> Logged:
        """Asks the gate, and returns the record that is logged, with the time of a clock that is wrong.

        A record that is `forged` says that a policy of this name denied the request, though no gate did.
        """
        address = address_of(caller, size)
        decision = self.gate.check(f"api_key:{caller}", resource=resource, address=address)
        at_ms = int((self.wall_s() + clock_s) * 1000)
        policy = decision.policy if forged is None or not decision.allowed else forged
        is_denied = forged is not None or not decision.allowed
        return self.record(
            caller, resource, size, at_ms, is_denied=is_denied, policy=policy, weight=weight, id_=id_
        )

    def record(
        self,
        caller: str,
        resource: str,
        size: int,
        at_ms: int,
        *,
        is_denied: bool,
        policy: str = "",
        weight: int = 1,
        id_: str = "",
    ) -> Logged:
        """Returns the record of one request, or of as many as its weight says."""
        address = address_of(caller, size)
        fields = {"ts": at_ms, "key": caller, "path": resource, "bytes": size, "address": address,
                  "status": 429 if is_denied else 200, "policy": policy, "weight": weight}  # fmt: skip
        fields |= {"id": id_} if id_ else {}
        expected = Expected(
            at_ms // 1000, f"api_key:{caller}", resource, size, is_denied, policy, address, weight, id_
        )
        return Logged(json.dumps(fields).encode(), expected)
