"""FIFOs, devices, folders and links where a gate or a request log expects a file: refused at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatekeeper import Gate
from gatekeeper.feed.saved_view import read, write
from gatekeeper.model import SourceError
from gatekeeper.requestlog.asgi import RequestLog as AsgiLog
from gatekeeper.requestlog.file import FileSink
from gatekeeper.requestlog.log_record import LogLine
from gatekeeper.requestlog.wsgi import RequestLog as WsgiLog
from gatekeeper.sources.file import FileSource
from tests.support.feed import NOON, HandFeed, a_lock, a_saved_view

READY_S = 20.0


def make_link(path: Path) -> None:
    other = path.with_name("other")
    write(other, a_saved_view(NOON, a_lock()))
    path.symlink_to(other)


PLANTED: dict[str, Callable[[Path], object]] = {"fifo": os.mkfifo, "link": make_link, "folder": Path.mkdir}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("suffix", ["", ".news", ".all", ".leader"])
@pytest.mark.parametrize("planted", PLANTED)
def test_a_gate_does_not_wait_for_what_was_planted_at_its_files(
    tmp_path: Path, planted: str, suffix: str, shared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """To open a FIFO waits for a writer: the polling thread would hang, and the gate stay open."""
    path = tmp_path / f"view{suffix}"
    PLANTED[planted](path)
    before = path.lstat().st_ino
    with Gate(HandFeed(a_lock(ends_in=10**9)), saved=tmp_path / "view", shared=shared) as gate:
        assert gate.ready(READY_S)
        assert not gate.allow("api_key:acme")
    assert path.lstat().st_ino == before, "it is not replaced"
    if not suffix:
        assert "starting without the saved view" in caplog.text
        assert "cannot save the view" in caplog.text
    elif shared and suffix != ".all":
        assert "cannot share the poller" in caplog.text


def test_a_followers_read_does_not_wait_either(tmp_path: Path) -> None:
    with Gate(HandFeed(a_lock(ends_in=10**9)), saved=tmp_path / "view", shared=True) as leader:
        assert leader.ready(READY_S)
        for name in ("view.news", "view.all"):
            (tmp_path / name).unlink()
            os.mkfifo(tmp_path / name)
        with Gate(HandFeed(a_lock(ends_in=10**9)), saved=tmp_path / "view", shared=True) as follower:
            assert follower.ready(READY_S)
            assert not follower.allow("api_key:acme")


def test_a_device_is_not_read() -> None:
    with pytest.raises(SourceError, match="not a regular file"):
        read(Path("/dev/zero"), NOON)


def test_a_device_is_never_replaced() -> None:
    before = os.lstat("/dev/null")
    with pytest.raises(OSError, match="not a regular file"):
        write(Path("/dev/null"), a_saved_view(NOON))
    assert os.lstat("/dev/null").st_rdev == before.st_rdev


def test_a_lock_file_may_be_a_link_and_not_a_fifo(tmp_path: Path) -> None:
    text = '{"format": 1, "version": 1, "snapshot": true, "now": "2026-11-20T21:14Z", "changes": []}'
    (tmp_path / "..data").write_text(text)
    (tmp_path / "locks.json").symlink_to("..data")
    assert FileSource(tmp_path / "locks.json").fetch(None).at.version == 1
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SourceError, match="not a regular file"):
        FileSource(tmp_path / "fifo").fetch(None)


def test_a_path_may_be_text(tmp_path: Path) -> None:
    saved = str(tmp_path / "view")
    with Gate(HandFeed(a_lock(ends_in=10**9)), saved=saved) as gate:
        assert gate.ready(READY_S)
    assert (tmp_path / "view").is_file()


@pytest.mark.parametrize(
    ("wrong", "kind", "name"),
    [
        ({"saved": 5}, TypeError, "saved"),
        ({"saved": ""}, ValueError, "saved"),
        ({"source": 5}, TypeError, "source"),
        ({"stale_after": "30"}, TypeError, "stale_after"),
        ({"stale_after": 0}, ValueError, "stale_after"),
        ({"startup_wait": "1"}, TypeError, "startup_wait"),
        ({"on_stale": 5}, ValueError, "on_stale"),
        ({"name": 5}, TypeError, "name"),
        ({"on_change": 5}, TypeError, "on_change"),
        ({"on_health": "x"}, TypeError, "on_health"),
    ],
)
def test_a_wrong_argument_raises_when_the_gate_is_made(
    wrong: dict[str, Any], kind: type[Exception], name: str
) -> None:
    with pytest.raises(kind, match=name):
        Gate(**{"source": HandFeed(), **wrong})


@pytest.mark.parametrize("log", [AsgiLog, WsgiLog])
def test_a_request_log_needs_a_path_or_a_sink(log: Any) -> None:
    with pytest.raises(TypeError, match="to: expected the path of a file"):
        log(lambda *_: None, to=5)


def test_a_request_log_does_not_wait_for_a_reader_of_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "requests.log")
    outcome = FileSink(tmp_path / "requests.log").write([LogLine(b"{}\n", key="")])
    assert (outcome.written, "cannot be opened" in outcome.trouble) == (0, True)
