"""Log lines: their two formats, escaped text, masked secrets, and silent libraries."""

from __future__ import annotations

import io
import json
import logging
import sqlite3
from collections.abc import Iterator
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.logs import LogFormat, printable, set_up


@pytest.fixture(autouse=True)
def restored_root_logger() -> Iterator[None]:
    """Restores the root logger, which `set_up` changes."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(False)
    root.handlers, root.level = handlers, level


def logged(log_format: LogFormat | None, message: str, *args: object, **extra: object) -> str:
    stream = io.StringIO()
    set_up(log_format, stream)
    logging.getLogger("analyzer.daemon").warning(message, *args, extra=extra)
    return stream.getvalue()


def test_json_has_one_object_per_line_with_the_extra_fields() -> None:
    line = logged("json", "locked %s", "api_key:acme", policy="daily", used=100_214)
    fields = json.loads(line)
    assert line.count("\n") == 1
    assert fields.pop("at").endswith("Z")
    assert fields == {
        "level": "warning",
        "logger": "analyzer.daemon",
        "message": "locked api_key:acme",
        "policy": "daily",
        "used": 100_214,
    }


def test_the_console_shows_time_level_module_message_and_extra_fields() -> None:
    line = logged("console", "locked %s", "api_key:acme", policy="daily", used=3)
    assert line[12:] == ' WARNING daemon: locked api_key:acme policy="daily" used=3\n'


def test_without_a_terminal_the_format_is_json() -> None:
    assert json.loads(logged(None, "hello"))["message"] == "hello"


@given(st.text())
def test_a_callers_name_neither_breaks_a_line_nor_moves_the_cursor(name: str) -> None:
    for log_format in get_args(LogFormat):
        line = logged(log_format, "locked %s", name, caller=name)
        assert line[:-1].isprintable()
        assert line[-1] == "\n"
    assert json.loads(logged("json", "locked %s", name, caller=name))["caller"] == name


@given(st.text())
def test_printable_text_is_unchanged(text: str) -> None:
    assert printable(text).isprintable()
    assert not text.isprintable() or printable(text) == text


def test_passwords_are_masked_in_both_formats() -> None:
    url = "postgresql+psycopg://ada:s3cret@db/gatelock"
    for log_format in get_args(LogFormat):
        stream = io.StringIO()
        set_up(log_format, stream)
        try:
            sqlite3.connect(f"/nowhere/{url} password=s3cret").close()
        except sqlite3.Error as error:
            error.add_note(f"{url} password=s3cret")
            logging.getLogger("x").exception("away: %s", url, extra={"url": url, "seen": [url]})
        assert "OperationalError" in stream.getvalue()
        assert "ada:***@db" in stream.getvalue()
        assert "s3cret" not in stream.getvalue()


def test_libraries_do_not_log_what_they_send() -> None:
    stream = io.StringIO()
    set_up("json", stream)
    for name in ("kafka.conn", "kafka.coordinator.consumer", "uvicorn.error", "sqlalchemy.engine", "alembic"):
        logging.getLogger(name).info("raw bytes, parameters")
        logging.getLogger(name).debug("raw bytes, parameters")
    assert stream.getvalue() == ""
