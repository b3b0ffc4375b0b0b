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
    ViewFile,
    read,
    write,
)
from gatekeeper.model import SourceError
from gatekeeper.view.lock_tuples import pack_lock
from gatekeeper.view.lock_view import EMPTY, LockView, with_locks
from tests.support.feed import NOON, a_lock, a_saved_view

SAVED = a_saved_view(NOON, a_lock(), a_lock("user:bob", "flood", resource="/v1/é"), a_lock("line\nbreak"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "view.json"


def test_a_written_view_is_read_back(path: Path) -> None:
    write(path, SAVED)
    assert read(path, NOON) == SAVED
    write(path, a_saved_view(NOON))
    assert read(path, NOON) == a_saved_view(NOON)


def test_other_users_cannot_read_the_file(path: Path) -> None:
    """The file holds names of callers."""
    write(path, SAVED)
    assert path.stat().st_mode & 0o777 == 0o600


def test_any_changed_or_missing_byte_is_detected(path: Path) -> None:
    write(path, SAVED)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        if at < len(whole) - 1:  # the last byte is a line's end
            with pytest.raises(SourceError):
                read(path, NOON)
        path.write_bytes(whole[:at])
        if at < len(whole) - 1:
            with pytest.raises(SourceError):
                read(path, NOON)


def test_a_missing_line_is_detected(path: Path) -> None:
    write(path, SAVED)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:1] + lines[2:]))
    with pytest.raises(SourceError, match="does not match its digest"):
        read(path, NOON)


@pytest.mark.parametrize(
    ("later", "is_valid"),
    [
        (timedelta(), True),
        (AGE_MAX, True),
        (AGE_MAX + timedelta(seconds=1), False),
        (-AHEAD_MAX, True),
        (-AHEAD_MAX - timedelta(seconds=1), False),
    ],
)
def test_a_view_that_is_too_old_or_from_the_future_is_not_used(
    path: Path, later: timedelta, is_valid: bool
) -> None:
    write(path, SAVED)
    if is_valid:
        assert read(path, NOON + later) == SAVED
    else:
        with pytest.raises(SourceError, match="confirmed at 2026-01-01T00:00:00Z"):
            read(path, NOON + later)


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_other_users_can_write_to_is_not_used(path: Path, mode: int) -> None:
    write(path, SAVED)
    path.chmod(mode)
    with pytest.raises(SourceError, match="other users can write to it"):
        read(path, NOON)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a file")
def test_a_file_of_another_user_is_not_used(path: Path) -> None:
    write(path, SAVED)
    os.chown(path, 12345, 12345)
    with pytest.raises(SourceError, match="must belong to this user"):
        read(path, NOON)


def test_the_temporary_file_of_a_killed_process_is_replaced(path: Path) -> None:
    write(path, SAVED)
    (path.parent / f".{path.name}.{os.getpid()}").write_bytes(b"half a li")
    write(path, SAVED)
    assert [file.name for file in path.parent.iterdir()] == ["view.json"]


def a_view(*callers: str) -> LockView:
    return with_locks(EMPTY, [pack_lock(a_lock(caller)) for caller in callers])


class TestViewFile:
    def test_a_view_that_changes_all_the_time_is_written_every_ten_seconds(self, path: Path) -> None:
        file, writes = ViewFile(path), 0
        for second in range(100):
            before = path.stat().st_ino if path.exists() else None
            file.save(a_view(f"user:{second}"), NOON, float(second))
            writes += path.stat().st_ino != before or second == 0
        assert writes == 100 / SAVE_EVERY_S

    def test_a_large_view_is_written_less_often(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Writing 100,000 locks takes as long as three polls."""
        monkeypatch.setattr("gatekeeper.feed.saved_view.LARGE", 2)
        file, written = ViewFile(path), []
        for second in range(100):
            file.save(a_view(*(f"user:{second + n}" for n in range(6))), NOON, float(second))
            written.append(path.stat().st_ino)
        assert len([*groupby(written)]) == 4

    def test_an_unchanged_view_is_written_again_before_it_is_too_old(self, path: Path) -> None:
        file = ViewFile(path)
        for second in range(0, 3000, 10):
            file.save(EMPTY, NOON + timedelta(seconds=second), float(second))
        found = read(path, NOON + timedelta(seconds=3000))
        assert found.confirmed >= NOON + timedelta(seconds=3000 - SAVE_AGAIN_S)

    def test_a_disk_error_is_logged_once(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        file = ViewFile(tmp_path / "not there" / "view.json")
        with caplog.at_level(logging.WARNING, "gatekeeper"):
            for second in range(0, 100, 20):
                file.save(a_view(f"user:{second}"), NOON, float(second))
        assert len(caplog.records) == 1
        assert "cannot save the view" in caplog.text

    def test_a_missing_file_is_not_an_error(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        assert ViewFile(path).load(NOON) is None
        assert caplog.records == []

    def test_an_unusable_file_is_logged(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        path.write_text("[]")
        path.chmod(0o600)
        assert ViewFile(path).load(NOON) is None
        assert "starting without the saved view" in caplog.text
