"""What both request logs have: a sink, the writer in front of it, and what can be asked of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from gatekeeper.adapters.admission_control import RequestIdentity
from gatekeeper.clock import Clock
from gatekeeper.requestlog.background_writer import CLOSE_S, BackgroundWriter, LogSink
from gatekeeper.requestlog.file import FileSink
from gatekeeper.requestlog.log_record import LogEntry

BUFFER = 10_000  # records: some seconds of a busy process, some 10 MB
CLOSE_SLOWLY_S = 2.0  # within a server's own time to end

R = TypeVar("R")

logger = logging.getLogger("gatekeeper")


class LogMiddleware:
    """A request log, as far as whoever watches it is concerned."""

    def __init__(self, to: Path | str | LogSink, buffer: int, clock: Clock) -> None:
        self.clock = clock
        sink = FileSink(to) if isinstance(to, Path | str) else to
        self._writer = BackgroundWriter(sink, buffer=buffer, clock=clock)
        self.put: Callable[[LogEntry], None] = self._writer.put

    @property
    def written(self) -> int:
        """Records that this process has written: to the file, or with Kafka's acknowledgement."""
        return self._writer.written

    @property
    def dropped(self) -> int:
        """Records of this process that nobody will find in the log, because there was no room to wait in."""
        return self._writer.dropped

    @property
    def waiting(self) -> int:
        """Records that are still on their way."""
        return self._writer.waiting

    @property
    def healthy(self) -> bool:
        """Whether records are being written, and none was dropped for a minute."""
        return self._writer.healthy

    def flush(self, timeout: float = CLOSE_S) -> bool:
        """Write what waits, now; whether nothing waits any more. For functions that are frozen in between."""
        return self._writer.flush(timeout)

    def close(self, timeout: float = CLOSE_SLOWLY_S) -> None:
        """Write what waits and stop. A later request starts it again."""
        self._writer.close(timeout)


class Extractors(Generic[R]):
    """Who asks, by what a request says of itself."""

    def __init__(
        self,
        caller: Callable[[R], str],
        address: Callable[[R], str],
        tenant: Callable[[R], str] | None,
        resource: Callable[[R], str] | None,
    ) -> None:
        self._caller = caller
        self._address = address
        self._tenant = tenant
        self._resource = resource

    def who(self, request: R, asked: RequestIdentity | None, route: Callable[[R], str]) -> RequestIdentity:
        """Whom to log it under: whom its guard has `asked` for, else what the extractors say. The resource
        is what the application's extractor says, else what the guard asked for, else `route`."""
        who = asked or RequestIdentity(
            caller=extract(self._caller, request),
            address=extract(self._address, request),
            tenant=extract(self._tenant, request),
        )
        resource = extract(self._resource, request) or who.resource or route(request)
        return who if resource == who.resource else who._replace(resource=resource)


def extract(extractor: Callable[[R], str] | None, request: R) -> str:
    """What `extractor` says of the request; "" where it fails, for a log must not break what it logs."""
    if extractor is None:
        return ""
    try:
        return extractor(request)
    except Exception:  # whose it is: the application's
        logger.debug("the request log could not ask %r", extractor, exc_info=True)
        return ""
