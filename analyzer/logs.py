"""Logs for people at a terminal or for machines, one event per line, without secrets."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TextIO

from analyzer.config.secrets import masked

LogFormat = Literal["json", "console"]

# What every record has; everything else was given as `extra`.
OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
# kafka-python prints the bytes of its requests, passwords among them, at DEBUG, and every rebalance at
# INFO. What goes wrong there is said once by our own sources: it says so with every attempt, in four lines.
QUIET = dict.fromkeys(("alembic", "sqlalchemy", "uvicorn"), logging.WARNING) | {"kafka": logging.CRITICAL}


def set_up(form: LogFormat | None, stream: TextIO | None = None) -> None:
    """Log to `stream` (the standard error) in this form; None: as fits where it goes."""
    stream = stream or sys.stderr
    if form is None:
        form = "console" if stream.isatty() else "json"
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if form == "json" else ConsoleFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    for name, level in QUIET.items():
        logging.getLogger(name).setLevel(level)


class JsonFormatter(logging.Formatter):
    """One JSON object per line, ASCII only: no caller's name can break a line or turn its direction."""

    def format(self, record: logging.LogRecord) -> str:
        said = {
            "at": _instant(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": masked(record.getMessage()),
            **{name: _clean(value) for name, value in _extra(record).items()},
        }
        if record.exc_info:
            said["error"] = masked(self.formatException(record.exc_info))
        return json.dumps(said)


class ConsoleFormatter(logging.Formatter):
    """The same for eyes: time, level, where, message, and what else there is as key=value."""

    def format(self, record: logging.LogRecord) -> str:
        time = _instant(record).astimezone().strftime("%H:%M:%S.%f")[:-3]
        extra = "".join(f" {name}={json.dumps(_clean(value))}" for name, value in _extra(record).items())
        where = record.name.removeprefix("analyzer.")
        line = f"{time} {record.levelname:<7} {where}: {printable(masked(record.getMessage()))}{extra}"
        if not record.exc_info:
            return line
        trace = masked(self.formatException(record.exc_info))
        return "\n".join([line, *(f"  {printable(each)}" for each in trace.splitlines())])


def printable(text: str) -> str:
    r"""`text` with everything escaped that a terminal would obey instead of show.

    >>> printable("api_key:a\x1b[2J\u202e")
    'api_key:a\\x1b[2J\\u202e'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _instant(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _extra(record: logging.LogRecord) -> Mapping[str, object]:
    return {name: value for name, value in vars(record).items() if name not in OWN}


def _clean(value: object) -> object:
    return value if value is None or isinstance(value, (bool, int, float)) else masked(str(value))
