"""The health of the connection to Kafka: what is wrong, when to reconnect, what to log.

kafka-python reports few failures as exceptions: with most, `poll()` returns nothing. So the time that was
spent waiting without an answer is measured as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from analyzer.sources.kafka.client import KafkaClient
from analyzer.sources.kafka.connection_errors import (
    ConnectionTrouble,
    FailureCause,
    failure_cause,
    missing_permission,
)
from analyzer.sources.kafka.options import Options

log = logging.getLogger(__name__)

RECONNECT_FIRST_S = 0.5
RECONNECT_MAX_S = 10.0
SILENT_S = 10.0  # a fetch is answered within a fraction of a second, also when there is nothing to read
FAILING_S = 3.0  # where connections report why they fail; a broker that restarts is back by then
IDLE_S_MAX = 20.0  # without a partition, before the group is asked for the reason
LOG_EVERY_S = 60.0


class ConnectionHealth:
    """Follows one connection after another."""

    def __init__(self, uptime_s: Callable[[], float], options: Options, topics: Collection[str]) -> None:
        self._uptime_s = uptime_s
        self._options = options
        self._topics = sorted(topics)
        self._failures = 0
        self._opened_s = float("-inf")
        self._reconnect_s = uptime_s()  # earliest time of the next attempt
        self._answers = 0
        self._logged: FailureCause | None = None
        self._logged_s = float("-inf")
        # Why the last connection was given up, until a broker answers; or why none could be established.
        self.trouble: FailureCause | None = None
        self._is_unconnected = False  # whether no connection could be established
        self.silent_s = 0.0  # spent waiting for records since a broker last answered
        self.idle_s = 0.0  # spent waiting without a partition

    @property
    def wait_s(self) -> float:
        """Seconds until the next attempt to connect; 0.0 when it is due."""
        return max(0.0, self._reconnect_s - self._uptime_s())

    @property
    def connected_s(self) -> float:
        """Seconds since the connection was opened; 0.0 when there is none."""
        return 0.0 if self._reconnect_s > self._opened_s else self._uptime_s() - self._opened_s

    def opened(self) -> None:
        self._opened_s = self._uptime_s()
        self._answers, self.silent_s, self.idle_s = 0, 0.0, 0.0
        if self._is_unconnected:
            self.trouble = None

    def failed(self, error: Exception, *, at_once: bool = False) -> float:
        """Notes that the connection is given up; returns the seconds until the next attempt.

        Exponential back-off; with `at_once` none, because the next attempt uses other options, and no
        trouble.
        """
        if self.connected_s > 2 * RECONNECT_MAX_S:
            self._failures = 0
        pause_s = min(RECONNECT_MAX_S, RECONNECT_FIRST_S * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._is_unconnected = self._reconnect_s > self._opened_s
        self._reconnect_s = self._uptime_s() + (0.0 if at_once else pause_s)
        self.trouble = None if at_once else self._failure_cause(error)
        return self.wait_s

    def _failure_cause(self, error: Exception) -> FailureCause:
        return error.cause if isinstance(error, ConnectionTrouble) else failure_cause([error], self._options)

    def waited(self, seconds: float, answers: int, *, is_reading: bool, is_idle: bool) -> None:
        """Notes a poll of that length; `answers` is the number of answers from brokers so far."""
        if answers != self._answers:
            self._answers, self.silent_s, self.trouble = answers, 0.0, None
        elif is_reading:
            self.silent_s += seconds
        self.idle_s = self.idle_s + seconds if is_idle else 0.0

    def should_check_group(self, session_s: float) -> bool:
        """Whether the member has been without a partition long enough to ask the group for the reason."""
        return self.idle_s >= max(SILENT_S, min(2 * session_s, IDLE_S_MAX))

    def note_no_partition_is_left(self) -> None:
        """Notes that this member has no partition because the others have all of them."""
        self.idle_s, self.trouble = 0.0, None

    def cause(self, connection: KafkaClient | None, polling_since_s: float | None) -> FailureCause | None:
        """Returns what is wrong now. Any thread may ask."""
        polling_s = 0.0 if polling_since_s is None else self._uptime_s() - polling_since_s
        if polling_s >= SILENT_S:
            return FailureCause(
                "hung",
                f"kafka-python's poll() has not returned for {polling_s:.0f} s; if this lasts, "
                "the watchdog ends the process",
            )
        if connection is not None and (forbidden := connection.forbidden()):
            # Without the permission no broker ever answers, which would end an earlier trouble.
            return FailureCause("permission", missing_permission(sorted(forbidden), self._options))
        if self.trouble is not None or connection is None:
            return self.trouble
        if (failures := connection.failures.last) and self.silent_s >= FAILING_S:
            return failure_cause(failures, self._options)
        if self.silent_s >= SILENT_S:
            return FailureCause(
                "away", f"no broker has answered for {self.silent_s:.0f} s; check the brokers and the network"
            )
        return self._missing_topics(connection)

    def _missing_topics(self, connection: KafkaClient) -> FailureCause | None:
        missing = sorted({*self._topics} - {*connection.known()})
        if missing and self.connected_s >= SILENT_S:
            return FailureCause(
                "topic",
                f"the cluster does not have the topic {', '.join(missing)}, or hides it from our user: "
                "create it, or grant READ on it",
            )
        return None

    def report(self, cause: FailureCause | None) -> None:
        """Logs what is wrong: when it begins, when its kind changes, once a minute, and when it ends."""
        now_s, logged = self._uptime_s(), self._logged
        if cause is None:
            if logged is not None:
                log.info("Kafka answers again")
        elif logged is None or logged.kind != cause.kind or now_s - self._logged_s >= LOG_EVERY_S:
            log.error("%s: %s", self.name(cause), self.sentence(cause))
        else:
            return
        self._logged, self._logged_s = cause, now_s

    def name(self, cause: FailureCause) -> str:
        """Returns the name of the problem in /readyz and in the metrics."""
        return "kafka" if cause.kind == "away" else f"kafka-{cause.kind}"

    def sentence(self, cause: FailureCause) -> str:
        servers = self._options.get("bootstrap_servers", "localhost")
        return f"{servers if isinstance(servers, str) else ','.join(servers)}: {cause.sentence}"
