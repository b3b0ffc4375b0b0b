"""The part of the sinks for Kafka that does not depend on the client: counting acknowledgements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from gatekeeper.requestlog.background_writer import WriteOutcome
from gatekeeper.requestlog.log_record import LogLine

FULL_WRITES_MAX = 5  # writes in a row, within half a second, without room: then the sink reports trouble
IN_FLIGHT_MAX = 10_000  # records in the producer without acknowledgement, about 10 MB


class AcknowledgedSink(ABC):
    """Base of the sinks: gives records to a producer as far as there is room, and reports their outcome.

    A subclass sends (`_send`) and tells how many records of all that were sent are delivered and lost
    (`_settled`).

    Args:
        topic: The topic.
        in_flight: Records that are not acknowledged yet, at most.

    Raises:
        ValueError: `in_flight` is below 1.
    """

    errors: tuple[type[Exception], ...]  # which `_send` raises while the brokers are unavailable

    def __init__(self, topic: str, in_flight: int) -> None:
        if in_flight < 1:
            raise ValueError(f"in_flight: expected at least 1 record, got {in_flight}")
        self._topic = topic
        self._in_flight_max = in_flight
        self._reset()

    def _reset(self) -> None:
        self._producer: Any = None
        self._taken = self._known_delivered = self._known_failed = 0
        self._failure = ""
        self._full_writes = 0

    @abstractmethod
    def _send(self, line: LogLine) -> None:
        """Gives a record to the producer."""

    @abstractmethod
    def _settled(self) -> tuple[int, int]:
        """Returns how many records were delivered and lost so far."""

    def write(self, lines: Sequence[LogLine]) -> WriteOutcome:
        """Gives `lines` to the producer, as far as there is room; reports new acknowledgements."""
        sent, trouble = 0, ""
        room = self._in_flight_max - (self._taken - self._known_delivered - self._known_failed)
        try:
            for line in lines[:room]:
                self._send(line)
                sent += 1
        except self.errors as error:
            trouble = f"Kafka, topic {self._topic}: {error}"
        self._taken += sent
        return self._outcome(sent, trouble, is_full=bool(lines) and not room)

    def _outcome(self, sent: int, trouble: str, *, is_full: bool) -> WriteOutcome:
        delivered, failed = self._settled()
        written, lost = delivered - self._known_delivered, failed - self._known_failed
        self._known_delivered, self._known_failed = delivered, failed
        if lost:
            trouble = trouble or self._failure
        self._full_writes = self._full_writes + 1 if is_full and not written else 0
        if self._full_writes >= FULL_WRITES_MAX:
            trouble = (
                trouble
                or f"Kafka, topic {self._topic}: {self._in_flight_max} records wait for acknowledgement"
            )
        return WriteOutcome(sent, written, lost, trouble)


# Producers of a parent process, which must neither run nor be released in a forked child.
ABANDONED: list[Any] = []
