"""A closed gate leaves no thread and no file open, with any source; and cold starts from a saved view."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gatekeeper import Gate
from gatekeeper.feed import feed_json
from gatekeeper.feed.saved_view import read, write
from tests.support.feed import HandFeed, a_lock, a_saved_view
from tests.support.serving import feed_server

ROOT = Path(__file__).parents[2]

STORY = """
    import gc, json, os, sys, threading, time
    from pathlib import Path
    from gatekeeper import Gate

    def open_files():
        return len(os.listdir("/proc/self/fd"))

    def story():
        changed = []
        gate = Gate({url!r}, saved=Path({saved!r}), shared={shared}, on_change=changed.append)
        assert gate.ready(20)
        gate.check("user:bob")
        time.sleep(0.3)
        gate.close()
        assert changed == [gate]
        gate.close()                       # a second time

    story()                            # a driver may keep files open that it opens once
    gc.collect()
    before = open_files()
    story()
    gc.collect()
    print(json.dumps([[thread.name for thread in threading.enumerate()], open_files() - before]))
"""


def run(code: str, **values: object) -> str:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code).format(**values)],
        capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


@pytest.fixture(params=["http", "http, shared", "sqlite", "postgresql", "file"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, bool]]:
    kind, _, shared = request.param.partition(", ")
    feed = HandFeed(a_lock(ends_in=10**9))
    if kind == "http":
        with feed_server(feed) as url:
            yield url, bool(shared)
    elif kind == "file":
        (tmp_path / "locks.json").write_text(feed_json.dump(feed.fetch(None)))
        yield f"file://{tmp_path}/locks.json", False
    elif kind == "sqlite":
        (tmp_path / "db").write_bytes(request.getfixturevalue("sqlite_template").read_bytes())
        yield f"sqlite:///{tmp_path}/db", False
    else:
        postgres = request.getfixturevalue("postgres")
        url = postgres.new_database(template=request.getfixturevalue("postgres_template"))
        yield url, False
        postgres.drop(url)


def test_a_closed_gate_leaves_no_thread_no_open_file_and_no_warning(
    source: tuple[str, bool], tmp_path: Path
) -> None:
    url, shared = source
    threads, files = json.loads(run(STORY, url=url, saved=str(tmp_path / "view"), shared=shared))
    assert (threads, files) == (["MainThread"], 0)


# -- starts while the source is unavailable -------------------------------------------------------


@pytest.mark.parametrize(
    "damage", ["none", "changed", "cut", "old", "future", "writable by others", "a folder", "missing"]
)
def test_a_cold_start_denies_only_callers_of_a_valid_saved_view(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, now = tmp_path / "view", datetime.now(UTC)
    written = now + timedelta(days={"old": -2, "future": 2}.get(damage, 0))
    write(path, a_saved_view(written, a_lock(ends_in=10**9)))
    text = path.read_bytes()
    match damage:
        case "changed":
            path.write_bytes(text.replace(b"api_key:acme", b"api_key:good"))
        case "cut":
            path.write_bytes(text[: len(text) // 2])
        case "writable by others":
            path.chmod(0o666)
        case "a folder":
            path.unlink()
            path.mkdir()
        case "missing":
            path.unlink()
    feed = HandFeed()
    feed.away = True
    with Gate(feed, saved=path) as gate:
        assert gate._options.clock.wait(_first_fetch(feed), 20)
        assert gate.allow("api_key:good")
        assert gate.allow("api_key:acme") is (damage != "none")
        assert not gate.ready(0)
        assert gate.version == 0
    if damage not in ("none", "missing"):
        assert "starting without the saved view" in caplog.text


def _first_fetch(feed: HandFeed) -> threading.Event:
    """An event that is set by the next fetch, when the saved view is already in use."""
    fetched, fetch = threading.Event(), feed.fetch

    def signals(since: object) -> object:
        fetched.set()
        return fetch(since)

    feed.fetch = signals
    return fetched


def test_a_saved_view_is_complete_even_if_its_writer_is_killed(tmp_path: Path) -> None:
    """Four writers are killed one after the other, each while the test reads."""
    path = tmp_path / "view"
    write(path, a_saved_view(datetime.now(UTC), a_lock()))
    code = """
        import sys
        from datetime import datetime, UTC
        from pathlib import Path
        from gatekeeper.feed.saved_view import write
        from tests.support.feed import a_lock, a_saved_view
        locks = [a_lock(f"user:{{n}}") for n in range(300)]
        print(flush=True)
        while True:
            write(Path({path!r}), a_saved_view(datetime.now(UTC), *locks))
    """
    for number in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code).format(path=str(path))],
            stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        child.stdout.readline()
        for _ in range(20 + number):
            saved = read(path, datetime.now(UTC))
            assert len(saved.locks) in (1, 300)
        child.kill()
        child.wait()
        child.stdout.close()
        assert len(read(path, datetime.now(UTC)).locks) in (1, 300)
