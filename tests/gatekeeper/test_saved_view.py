"""The last view on disk."""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from itertools import groupby
from pathlib import Path

import pytest

from gatekeeper.feed.saved_view import (
    AGE_MAX,
    AHEAD_MAX,
    SAVE_AGAIN_S,
    SAVE_EVERY_S,
    SavedView,
    ViewFile,
    read,
    write,
)
from gatekeeper.model import SourceError
from gatekeeper.view.lock_view import EMPTY, with_locks
from tests.support.feed import NOON, a_lock

KEPT = SavedView(NOON, (a_lock(), a_lock("user:bob", "flood", resource="/v1/é"), a_lock("line\nbreak")))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "view.json"


def test_what_is_written_is_read_again(path: Path) -> None:
    write(path, KEPT)
    assert read(path, NOON) == KEPT
    write(path, SavedView(NOON, ()))
    assert read(path, NOON) == SavedView(NOON, ())


def test_nobody_else_may_read_the_file(path: Path) -> None:
    """It holds names of callers."""
    write(path, KEPT)
    assert path.stat().st_mode & 0o777 == 0o600


def test_no_byte_of_it_can_be_changed_or_cut_off_unseen(path: Path) -> None:
    write(path, KEPT)
    whole = path.read_bytes()
    for at in range(0, len(whole), 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        if at < len(whole) - 1:  # the last is a line's end
            with pytest.raises(SourceError):
                read(path, NOON)
        path.write_bytes(whole[:at])
        if at < len(whole) - 1:
            with pytest.raises(SourceError):
                read(path, NOON)


def test_a_line_that_was_taken_out_is_missed(path: Path) -> None:
    write(path, KEPT)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:1] + lines[2:]))
    with pytest.raises(SourceError, match="not what was written"):
        read(path, NOON)


@pytest.mark.parametrize(
    ("later", "fits"),
    [
        (timedelta(), True),
        (AGE_MAX, True),
        (AGE_MAX + timedelta(seconds=1), False),
        (-AHEAD_MAX, True),
        (-AHEAD_MAX - timedelta(seconds=1), False),
    ],
)
def test_a_view_that_is_too_old_or_from_the_future_is_not_used(
    path: Path, later: timedelta, fits: bool
) -> None:
    write(path, KEPT)
    if fits:
        assert read(path, NOON + later) == KEPT
    else:
        with pytest.raises(SourceError, match="confirmed at 2026-01-01T00:00:00Z"):
            read(path, NOON + later)


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_to_is_not_believed(path: Path, mode: int) -> None:
    write(path, KEPT)
    path.chmod(mode)
    with pytest.raises(SourceError, match="others may write to it"):
        read(path, NOON)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_somebody_else_is_not_believed(path: Path) -> None:
    write(path, KEPT)
    os.chown(path, 12345, 12345)
    with pytest.raises(SourceError, match="expected a file of our own"):
        read(path, NOON)


def test_a_process_that_died_in_mid_writing_is_no_hindrance(path: Path) -> None:
    write(path, KEPT)
    (path.parent / f".{path.name}.{os.getpid()}").write_bytes(b"half a li")
    write(path, KEPT)
    assert [file.name for file in path.parent.iterdir()] == ["view.json"]


class TestShelf:
    def test_a_view_that_changes_all_the_time_is_written_now_and_then(self, path: Path) -> None:
        shelf, writes = ViewFile(path), 0
        for second in range(100):
            before = path.stat().st_ino if path.exists() else None
            shelf.keep(with_locks(EMPTY, [a_lock(f"user:{second}")]), NOON, float(second))
            writes += path.stat().st_ino != before or second == 0
        assert writes == 100 / SAVE_EVERY_S

    def test_a_large_one_less_often(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """In the time that it takes to write 100,000 locks three questions could be asked."""
        monkeypatch.setattr("gatekeeper.feed.saved_view.LARGE", 2)
        shelf, written = ViewFile(path), []
        for second in range(100):
            shelf.keep(
                with_locks(EMPTY, [a_lock(f"user:{second + n}") for n in range(6)]), NOON, float(second)
            )
            written.append(path.stat().st_ino)
        assert len([*groupby(written)]) == 4

    def test_a_view_that_stays_the_same_is_dated_anew(self, path: Path) -> None:
        shelf = ViewFile(path)
        for second in range(0, 3000, 10):
            shelf.keep(EMPTY, NOON + timedelta(seconds=second), float(second))
        found = read(path, NOON + timedelta(seconds=3000))
        assert found.confirmed >= NOON + timedelta(seconds=3000 - SAVE_AGAIN_S)

    def test_a_full_disk_is_said_once_and_borne(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        shelf = ViewFile(tmp_path / "not there" / "view.json")
        with caplog.at_level(logging.WARNING, "gatekeeper"):
            for second in range(0, 100, 20):
                shelf.keep(with_locks(EMPTY, [a_lock(f"user:{second}")]), NOON, float(second))
        assert len(caplog.records) == 1
        assert "cannot keep the view" in caplog.text

    def test_a_first_start_has_nothing_to_recall_and_nothing_to_say(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert ViewFile(path).recall(NOON) is None
        assert caplog.records == []

    def test_what_cannot_be_used_is_said(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        path.write_text("[]")
        path.chmod(0o600)
        assert ViewFile(path).recall(NOON) is None
        assert "starting without the saved view" in caplog.text
