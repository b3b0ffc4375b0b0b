"""Log lines: their two formats, escaped text, masked secrets, and silent libraries."""

from __future__ import annotations

import io
import itertools
import json
import logging
import sqlite3
from collections.abc import Iterator
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.kernel.logs import KINDS_MAX, LogFormat, PacedHandler, printable, set_up
from tests.support.waiting import wait_until


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


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[PacedHandler, io.StringIO, list[float]]]:
    """A handler, what it has written, and its clock, which the test moves; its timer writes nothing."""
    stream, now_s = io.StringIO(), [100.0]
    handler = PacedHandler(stream, lambda: now_s[0])
    monkeypatch.setattr(handler, "_write_later", lambda: None)
    handler.setFormatter(logging.Formatter("%(name)s %(message)s"))
    yield handler, stream, now_s
    handler.close()


def record_of(name: str, message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord(name, logging.WARNING, "", 0, message, args, None)


# Kinds of lines that clients cause; of a library's some arrive with their values in the text.
CAUSED = {
    "gone in the middle of an answer": ("asyncio", "socket.send() raised exception.", ()),
    "a transport that failed": ("asyncio", "Fatal error on transport\ntransport: <_Transport fd={n}>", ()),
    "no HTTP": ("uvicorn.error", "Invalid HTTP request received.", ()),
    "an error of the application": ("uvicorn.error", "Exception in ASGI application\n", ()),
    "refused": ("analyzer.faces.authentication", "requests refused: %s", ("{n}",)),
    "reports of gates": ("analyzer.faces.feed.gates_endpoint", "cannot store reports: %s", ("{n}",)),
    "too many connections": ("analyzer.server.connection_limits", "turned away: %s", ("{n}",)),
}


@pytest.mark.parametrize("kind", CAUSED)
def test_of_lines_that_clients_cause_there_is_one_in_a_second_with_a_count(
    kind: str, paced: tuple[PacedHandler, io.StringIO, list[float]]
) -> None:
    handler, stream, now_s = paced
    name, message, args = CAUSED[kind]
    for n in range(2_349):
        values = [str(value).replace("{n}", str(n)) for value in args]
        handler.handle(record_of(name, message.replace("{n}", str(n)), *values))
    assert stream.getvalue().count(name) == 1
    now_s[0] += 1.0
    handler.handle(record_of("analyzer.daemon", "something else"))
    written = stream.getvalue()
    assert written.count(name) == 2
    assert "(and 2,347 more since the line before)" in written
    assert written.endswith("analyzer.daemon something else\n")


def test_the_number_of_lines_left_out_is_logged_within_a_second() -> None:
    stream = io.StringIO()
    set_up("console", stream)
    for _ in range(10):
        logging.getLogger("asyncio").warning("socket.send() raised exception.")
    assert stream.getvalue().count("raised") == 1
    wait_until(lambda: "(and 8 more since the line before)" in stream.getvalue(), 10)


def test_of_all_other_lines_fifty_of_each_kind_in_a_second(
    paced: tuple[PacedHandler, io.StringIO, list[float]],
) -> None:
    handler, stream, _ = paced
    for n in range(80):
        handler.handle(record_of("analyzer.judging.judgement_log", "locked %s", n))
        handler.handle(record_of("analyzer.judging.judgement_log", "unlocked %s", n))
    assert stream.getvalue().count(" locked") == stream.getvalue().count(" unlocked") == 50
    handler.close()
    assert " locked 79 (and 29 more since the line before)\n" in stream.getvalue()


def test_different_messages_do_not_hide_each_other_and_their_number_is_bounded(
    paced: tuple[PacedHandler, io.StringIO, list[float]],
) -> None:
    handler, stream, _ = paced
    for letters in itertools.product("abcdefghij", repeat=4):
        handler.handle(record_of("asyncio", "".join(letters)))
    assert stream.getvalue().count("\n") == KINDS_MAX + 1
