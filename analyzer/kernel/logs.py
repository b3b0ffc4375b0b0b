"""Logging: one event per line, as JSON or for a terminal, with secrets masked."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TextIO

from analyzer.kernel.secrets import masked
from gatekeeper.log_pace import EVERY_S, more_suffix

LogFormat = Literal["json", "console"]

# Attributes that every record has; any other was given as `extra`.
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
# kafka-python logs the bytes of its requests, passwords included, at DEBUG, each rebalance at INFO, and each
# failed attempt in four lines. The sources of the analyzer log its failures once.
LIBRARY_LEVELS = {
    "alembic": logging.WARNING,
    "kafka": logging.CRITICAL,
    "sqlalchemy": logging.WARNING,
    "uvicorn": logging.WARNING,
}
# Loggers whose lines clients cause, by what they send and by when they go: of each kind one line in a second.
OF_CLIENTS = (
    *("asyncio", "uvicorn", "analyzer.server", "analyzer.faces.app", "analyzer.faces.authentication"),
    *("analyzer.faces.api", "analyzer.faces.feed", "analyzer.faces.pages"),
)
LINES_MAX = 50  # in a second, of each kind of all others: locks of callers are among them
KINDS_MAX = 1_000  # in one second; beyond, all of one logger and level are one kind
CHANGING = re.compile(r"0x[0-9a-f]+|\d+")  # in messages that a library has already put together


def set_up(log_format: LogFormat | None, stream: TextIO | None = None) -> None:
    """Configures the root logger to write to `stream`, the standard error by default.

    With None as `log_format` a terminal gets "console", anything else "json".
    """
    stream = stream or sys.stderr
    if log_format is None:
        log_format = "console" if stream.isatty() else "json"
    handler = PacedHandler(stream)
    handler.setFormatter(FORMATTERS[log_format]())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    for name, level in LIBRARY_LEVELS.items():
        logging.getLogger(name).setLevel(level)


class LineKind(NamedTuple):
    """The logger, the level and the text of lines that differ in their values alone."""

    logger: str
    level: int
    message: str  # without its values

    @classmethod
    def of(cls, record: logging.LogRecord) -> LineKind:
        """Returns the kind of a record."""
        first, _, _ = str(record.msg).partition("\n")
        return cls(record.name, record.levelno, CHANGING.sub("#", first[:100]))

    @property
    def lines_max(self) -> int:
        """The most lines of this kind in a second."""
        is_of_clients = any(f"{self.logger}.".startswith(f"{name}.") for name in OF_CLIENTS)
        return 1 if is_of_clients else LINES_MAX


class LineCount:
    """The lines of one kind since a second began."""

    __slots__ = ("began_s", "last", "left_out", "written")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.written = self.left_out = 0
        self.last: logging.LogRecord | None = None  # that was left out


class PacedHandler(logging.StreamHandler[TextIO]):
    """Writes a few lines of each kind in a second, then the last one with how many were left out.

    Otherwise a client that goes away in the middle of an answer, again and again, fills the disk.
    """

    def __init__(self, stream: TextIO, uptime_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._uptime_s = uptime_s
        self._counts: dict[LineKind, LineCount] = {}
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record, or counts it. Its caller holds the lock of the handler."""
        self._write_due()
        kind, now_s = LineKind.of(record), self._uptime_s()
        if kind not in self._counts and len(self._counts) >= KINDS_MAX:
            kind = LineKind(record.name, record.levelno, "")
        count = self._counts.setdefault(kind, LineCount(now_s))
        if count.written < kind.lines_max:
            count.written += 1
            super().emit(record)
            return
        count.left_out += 1
        count.last = record
        if self._timer is None:
            self._timer = threading.Timer(EVERY_S, self._write_later)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """Writes what was left out, as far as the stream is still open."""
        with self.lock or threading.RLock():
            if not self.stream.closed:
                self._write_due(at_end=True)
        super().close()

    def _write_later(self) -> None:
        with self.lock or threading.RLock():
            self._timer = None
            if not self.stream.closed:
                self._write_due(at_end=True)

    def _write_due(self, *, at_end: bool = False) -> None:
        now_s = self._uptime_s()
        for kind, count in list(self._counts.items()):
            if now_s - count.began_s < EVERY_S and not (at_end and count.last):
                continue
            if count.last is None:
                del self._counts[kind]
                continue
            # The line about the others is the first one of the next second.
            self._counts[kind] = LineCount(now_s)
            self._counts[kind].written = 1
            super().emit(with_count(count.last, count.left_out))


def with_count(record: logging.LogRecord, count: int) -> logging.LogRecord:
    """Returns the last of `count` records that were left out, as a line for all of them."""
    line = logging.makeLogRecord(vars(record))
    line.msg, line.args = f"{record.getMessage()}{more_suffix(count - 1)}", ()
    return line


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON in ASCII.

    A caller's name can therefore neither break the line nor change the direction of its text.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "at": _instant(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": masked(record.getMessage()),
            **{name: _clean(value) for name, value in _extra(record).items()},
        }
        if record.exc_info:
            fields["error"] = masked(self.formatException(record.exc_info))
        return json.dumps(fields)


class ConsoleFormatter(logging.Formatter):
    """Formats a record for a terminal: time, level, module, message, and extra fields as key=value."""

    def format(self, record: logging.LogRecord) -> str:
        time = _instant(record).astimezone().strftime("%H:%M:%S.%f")[:-3]
        extra = "".join(f" {name}={json.dumps(_clean(value))}" for name, value in _extra(record).items())
        module = record.name.removeprefix("analyzer.")
        line = f"{time} {record.levelname:<7} {module}: {printable(masked(record.getMessage()))}{extra}"
        if not record.exc_info:
            return line
        trace = masked(self.formatException(record.exc_info))
        return "\n".join([line, *(f"  {printable(text)}" for text in trace.splitlines())])


def printable(text: str) -> str:
    r"""Returns `text` with everything escaped that a terminal would interpret instead of showing it.

    >>> printable("api_key:a\x1b[2J\u202e")
    'api_key:a\\x1b[2J\\u202e'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _instant(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _extra(record: logging.LogRecord) -> Mapping[str, object]:
    return {name: value for name, value in vars(record).items() if name not in STANDARD}


def _clean(value: object) -> object:
    return value if value is None or isinstance(value, (bool, int, float)) else masked(str(value))


FORMATTERS: Mapping[LogFormat, type[logging.Formatter]] = {"json": JsonFormatter, "console": ConsoleFormatter}
