"""Logging: one event per line, as JSON or for a terminal, with secrets masked."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TextIO

from analyzer.config.secrets import masked

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


def set_up(log_format: LogFormat | None, stream: TextIO | None = None) -> None:
    """Configures the root logger to write to `stream`, the standard error by default.

    With None as `log_format` a terminal gets "console", anything else "json".
    """
    stream = stream or sys.stderr
    if log_format is None:
        log_format = "console" if stream.isatty() else "json"
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else ConsoleFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    for name, level in LIBRARY_LEVELS.items():
        logging.getLogger(name).setLevel(level)


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
