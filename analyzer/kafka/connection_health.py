"""How a connection to Kafka fares. kafka-python is silent where it should shout: time spent waiting tells."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Protocol

from analyzer.kafka.connection_errors import (
    ConnectionFailures,
    ConnectionTrouble,
    FailureCause,
    cause_of,
    missing_right,
)
from analyzer.kafka.options import Options

log = logging.getLogger(__name__)

RECONNECT_FIRST_S = 0.5
RECONNECT_MAX_S = 10.0
SILENT_S = 10.0  # a fetch is answered within a fraction of a second, also when there is nothing
FAILING_S = 3.0  # so long when connections say why they fail: a broker that starts anew is back by then
IDLE_S_MAX = 20.0  # at most: how long to have no partition before asking whether that is right
LOG_EVERY_S = 60.0


class ConnectionState(Protocol):
    """What there is to see of a connection without asking anybody. Any thread."""

    failures: ConnectionFailures

    def known(self) -> Collection[str]:
        """Topics that the cluster tells us of."""

    def forbidden(self) -> Collection[str]:
        """Topics that we may not read."""


class ConnectionHealth:
    """Notes what goes wrong, when to connect again, and what to say of it."""

    def __init__(self, uptime_s: Callable[[], float], options: Options, topics: Collection[str]) -> None:
        self._uptime_s = uptime_s
        self._options = options
        self._topics = sorted(topics)
        self._failures = 0
        self._opened_s = float("-inf")
        self._opens_s = uptime_s()  # not before
        self._answers = 0
        self._said: FailureCause | None = None
        self._said_s = float("-inf")
        # What the last connection was given up for, until a broker answers; or why there was none.
        self.trouble: FailureCause | None = None
        self._unconnected = False  # whether it is the latter
        self.silent_s = 0.0  # spent waiting for records since a broker last answered
        self.idle_s = 0.0  # ... without having a partition

    @property
    def wait_s(self) -> float:
        """How long to wait before connecting; 0.0 when it is time."""
        return max(0.0, self._opens_s - self._uptime_s())

    @property
    def connected_s(self) -> float:
        """Since when there is a connection; 0.0 when there is none."""
        return 0.0 if self._opens_s > self._opened_s else self._uptime_s() - self._opened_s

    def opened(self) -> None:
        self._opened_s = self._uptime_s()
        self._answers, self.silent_s, self.idle_s = 0, 0.0, 0.0
        if self._unconnected:  # some broker lets us in now
            self.trouble = None

    def failed(self, failed: Exception, *, at_once: bool = False) -> float:
        """The connection is given up; how many seconds to wait before the next one. `at_once`: that one will
        ask for something else, so nothing is wrong yet."""
        if self.connected_s > 2 * RECONNECT_MAX_S:
            self._failures = 0
        pause_s = min(RECONNECT_MAX_S, RECONNECT_FIRST_S * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._unconnected = self._opens_s > self._opened_s
        self._opens_s = self._uptime_s() + (0.0 if at_once else pause_s)
        self.trouble = None if at_once else self._cause_of(failed)
        return self.wait_s

    def _cause_of(self, failed: Exception) -> FailureCause:
        return failed.cause if isinstance(failed, ConnectionTrouble) else cause_of([failed], self._options)

    def waited(self, seconds: float, answers: int, *, reading: bool, idle: bool) -> None:
        """A poll came back after so long; `answers` brokers had answered until then."""
        if answers != self._answers:
            self._answers, self.silent_s, self.trouble = answers, 0.0, None
        elif reading:
            self.silent_s += seconds
        self.idle_s = self.idle_s + seconds if idle else 0.0

    def left_out(self, session_s: float) -> bool:
        """Whether it is time to ask why we have nothing to read."""
        return self.idle_s >= max(SILENT_S, min(2 * session_s, IDLE_S_MAX))

    def spare(self) -> None:
        """It is right that we have nothing to read."""
        self.idle_s, self.trouble = 0.0, None

    def cause(self, connection: ConnectionState | None, polling_since_s: float | None) -> FailureCause | None:
        """What is wrong now, if anything is. Any thread."""
        polling_s = 0.0 if polling_since_s is None else self._uptime_s() - polling_since_s
        if polling_s >= SILENT_S:
            return FailureCause("hung", f"kafka-python's poll() has not come back for {polling_s:.0f} s")
        if connection is not None and (forbidden := connection.forbidden()):
            # Whoever may not read gets no answer that would end an earlier trouble.
            return FailureCause("right", missing_right(sorted(forbidden), self._options))
        if self.trouble is not None or connection is None:
            return self.trouble
        if (failures := connection.failures.last) and self.silent_s >= FAILING_S:
            return cause_of(failures, self._options)
        if self.silent_s >= SILENT_S:
            return FailureCause("away", f"no broker has answered for {self.silent_s:.0f} s")
        return self._topics_that_lack(connection)

    def _topics_that_lack(self, connection: ConnectionState) -> FailureCause | None:
        lacking = sorted({*self._topics} - {*connection.known()})
        if lacking and self.connected_s >= SILENT_S:
            return FailureCause("topic", f"there is no topic {', '.join(lacking)}, or we may not read it")
        return None

    def tell(self, cause: FailureCause | None) -> None:
        """Log what is wrong when it begins, when it turns into something else, once a minute, and its end."""
        now_s, said = self._uptime_s(), self._said
        if cause is None:
            if said is not None:
                log.info("Kafka answers again")
        elif said is None or said.kind != cause.kind or now_s - self._said_s >= LOG_EVERY_S:
            log.error("%s: %s", self.name(cause), self.sentence(cause))
        else:
            return
        self._said, self._said_s = cause, now_s

    def name(self, cause: FailureCause) -> str:
        """Under which name it stands in /readyz and in the metrics."""
        return "kafka" if cause.kind == "away" else f"kafka-{cause.kind}"

    def sentence(self, cause: FailureCause) -> str:
        servers = self._options.get("bootstrap_servers", "localhost")
        return f"{servers if isinstance(servers, str) else ','.join(servers)}: {cause.sentence}"
