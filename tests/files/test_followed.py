"""A file that is being written, rotated, truncated and written again."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import pytest

from analyzer.kernel.errors import StoreAway
from analyzer.kernel.model import Partition, Position, Record, Records
from analyzer.sources.files import FollowedFile
from analyzer.sources.files.file_sources import QUIET_S, ROTATIONS_MAX
from tests.support.source_reader import MemoryPositionStore, SourceReader


class World:
    """A path, a store of positions, and a clock that only `sleep` moves."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "access.log"
        self.positions = MemoryPositionStore()
        self.kept: dict[Partition, list[Record]] = {}
        self.now_s = 1_000.0
        self.readers: list[SourceReader] = []
        self.reader = self.follow()

    def follow(self, **given: Any) -> SourceReader:
        source = FollowedFile(
            given.pop("path", self.path),
            "web",
            self.positions,
            line_bytes_max=100,
            uptime_s=lambda: self.now_s,
            sleep=self.sleep,
            **given,
        )
        self.readers.append(SourceReader(source, self.positions, self.kept))
        return self.readers[-1]

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def write(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text)

    def turns(self, count: int = 5) -> list[str]:
        """Takes and stores; returns all lines that were stored so far."""
        for _ in range(count):
            self.reader.turn()
        return self.lines()

    def lines(self) -> list[str]:
        return [record.value.decode() for records in self.kept.values() for record in records]

    def rotate(self) -> None:
        self.path.rename(self.path.with_suffix(".1"))

    def restart(self) -> None:
        self.reader.source.close()
        self.reader = self.follow()

    def wait_quiet(self) -> None:
        self.sleep(QUIET_S)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr("analyzer.sources.files.line_reader.CHUNK_BYTES", 64)
    world = World(tmp_path)
    yield world
    for reader in world.readers:
        reader.source.close()


def test_a_line_is_taken_when_it_is_complete(world: World) -> None:
    assert world.turns() == []
    world.write("one\ntw")
    assert world.turns() == ["one"]
    world.write("o")
    assert world.turns() == ["one"]
    world.write("\nthree\n")
    assert world.turns() == ["one", "two", "three"]


def test_a_file_is_identified_when_its_first_line_is_complete(world: World) -> None:
    world.write("on")
    assert world.turns() == []
    assert world.positions.stored == {}
    world.write("e\n")
    assert world.turns() == ["one"]


def test_the_offset_of_a_record_is_where_its_line_begins(world: World) -> None:
    world.write("one\n\ntwo\r\n\r\nthree\n")
    world.turns()
    (records,) = world.kept.values()
    assert [(record.offset, record.value) for record in records] == [
        (0, b"one"),
        (5, b"two\r"),
        (12, b"three"),
    ]
    assert all(record.kafka_ms is None for record in records)
    assert list(world.reader.source.positions().values()) == [18]


def test_a_restart_continues_at_the_stored_position(world: World) -> None:
    world.write("one\ntwo\n")
    world.turns()
    world.restart()
    assert world.turns() == ["one", "two"]
    world.write("three\n")
    assert world.turns() == ["one", "two", "three"]


def test_the_rest_of_a_rotated_file_is_read_before_the_new_file(world: World) -> None:
    world.write("one\n")
    world.turns()
    world.write("two\n")
    world.rotate()
    world.write("three\n")
    world.turns()
    world.wait_quiet()
    assert world.turns() == ["one", "two", "three"]


def test_a_writer_may_continue_in_the_rotated_file_for_a_while(world: World) -> None:
    world.write("one\n")
    world.turns()
    old = world.path.open("a")
    world.rotate()
    world.write("three\n")
    world.turns()
    old.write("two\n")
    old.close()
    assert world.turns() == ["one", "two"]
    world.wait_quiet()
    assert world.turns() == ["one", "two", "three"]


def test_the_last_line_of_a_rotated_file_needs_no_newline(world: World) -> None:
    world.write("one\ntwo")
    world.turns()
    world.rotate()
    world.write("three\n")
    assert world.turns() == ["one"]
    world.wait_quiet()
    assert world.turns() == ["one", "two", "three"]


def test_several_rotations_while_the_database_is_down_lose_nothing(world: World) -> None:
    world.write("one\n")
    world.turns()
    world.positions.away = True
    for number in range(4):
        world.write(f"more {number}\n")
        for _ in range(2):
            with pytest.raises(StoreAway):
                world.turns()
            world.reader.start_over()
        world.path.rename(world.path.with_suffix(f".{9 - number}"))
    world.write("last\n")
    world.positions.away = False
    for _ in range(10):
        world.wait_quiet()
        world.turns()
    assert world.lines() == ["one", "more 0", "more 1", "more 2", "more 3", "last"]
    assert len(world.positions.finished) == 4
    assert len(world.reader.source.positions()) == 1


def test_a_file_is_finished_when_it_is_stored_to_its_end(world: World) -> None:
    world.write("one\n")
    world.turns()
    world.rotate()
    world.write("two\n")
    world.wait_quiet()
    world.turns(1)
    world.wait_quiet()
    world.turns()
    (first,) = world.positions.finished
    assert world.kept[first][0].value == b"one"
    assert [world.kept[part][0].value for part in world.reader.source.positions()] == [b"two"]


def test_unstored_lines_of_a_rotated_file_are_read_again_from_it(world: World) -> None:
    world.write("one\ntwo\n")
    world.reader.take()
    world.rotate()
    world.write("three\n")
    world.wait_quiet()
    for _ in range(4):
        world.reader.take()
        world.wait_quiet()
    world.reader.start_over()
    world.wait_quiet()
    assert world.turns(10) == ["one", "two", "three"]


def test_a_truncated_file_that_is_written_again_is_a_new_one(world: World) -> None:
    world.write("one\ntwo\n")
    world.turns()
    shutil.copy(world.path, world.path.with_suffix(".1"))  # as logrotate does with copytruncate
    os.truncate(world.path, 0)
    world.turns()
    world.write("three\n")
    assert world.turns() == ["one", "two", "three"]
    assert len(world.positions.stored) == 2


def test_a_file_that_was_truncated_and_is_longer_again_is_a_new_one(world: World) -> None:
    world.write("one\ntwo\n")
    world.turns()
    os.truncate(world.path, 0)
    world.write("three\nfour\nfive\n")
    assert world.turns() == ["one", "two", "three", "four", "five"]


def test_a_truncated_file_with_the_same_first_line_is_a_new_one(world: World) -> None:
    world.write("begin\none\n")
    world.turns()
    os.truncate(world.path, 0)
    world.write("begin\ntwo\n")
    assert world.turns() == ["begin", "one", "begin", "two"]
    world.restart()
    assert world.turns() == ["begin", "one", "begin", "two"]
    assert len(world.positions.stored) == 2


def test_bytes_that_were_cut_off_before_they_were_stored_are_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.write("one\n")
    world.turns()
    world.write("two\n")
    world.reader.take()
    os.truncate(world.path, 0)
    world.write("three\n")
    world.reader.take()
    world.reader.start_over()
    assert world.turns() == ["one", "three"]
    assert "bytes [4, 8) were cut off before they were stored" in caplog.text


def test_a_line_that_is_too_long_is_cut_to_one_byte_more_than_the_bound(world: World) -> None:
    """So that the counter rejects it for its size."""
    world.write("one\n" + "x" * 1000)
    assert world.turns(20) == ["one", "x" * 101]
    world.write("y" * 1000)
    world.turns(20)
    world.restart()
    world.write("z\ntwo\n")
    assert world.turns(20) == ["one", "x" * 101, "two"]
    assert list(world.reader.source.positions().values()) == [world.path.stat().st_size]


def test_a_long_first_line_identifies_the_file_by_its_beginning(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analyzer.sources.files.line_reader.FIRST_LINE_BYTES_MAX", 50)
    world.write("x" * 60)
    world.turns()
    assert len(world.positions.stored) == 1
    world.write("\none\n")
    assert world.turns() == ["x" * 60, "one"]


def test_latest_begins_at_the_last_complete_line_and_only_once(world: World) -> None:
    world.write("old\nhalf")
    world.reader = world.follow(start="latest")
    assert world.turns() == []
    world.write(" new\n")
    assert world.turns() == ["half new"]
    world.rotate()
    world.write("newer\n")
    world.wait_quiet()
    world.turns()
    world.wait_quiet()
    assert world.turns() == ["half new", "newer"]

    world.reader.source.close()
    world.rotate()
    world.write("while stopped\n")
    world.reader = world.follow(start="latest")
    assert world.turns() == ["half new", "newer", "while stopped"]


def test_a_missing_file_is_a_problem_until_it_appears(world: World) -> None:
    world.turns()
    [why] = world.reader.source.problems().values()
    assert why == "cannot be opened: No such file or directory; check the path and its permissions"
    world.write("one\n")
    assert world.turns() == ["one"]
    assert world.reader.source.problems() == {}


def test_rotations_that_wait_are_bounded(world: World) -> None:
    world.positions.away = True
    for number in range(ROTATIONS_MAX + 3):
        world.write(f"{number}\n")
        with pytest.raises(StoreAway):
            world.reader.take()
        world.path.rename(world.path.with_suffix(f".{number}"))
    world.write("last\n")
    with pytest.raises(StoreAway):
        world.reader.take()
    assert "rotated files wait" in world.reader.source.problems()[str(world.path)]
    world.reader.source.close()


def test_an_empty_file_in_between_is_skipped(world: World) -> None:
    world.write("one\n")
    world.turns()
    world.rotate()
    world.write("")
    world.path.touch()
    world.turns()
    world.path.rename(world.path.with_suffix(".2"))
    world.write("two\n")
    for _ in range(4):
        world.wait_quiet()
        world.turns()
    assert world.lines() == ["one", "two"]
    assert len(world.positions.stored) == 2
    assert len(world.reader.source.positions()) == 1


def test_lag_is_in_lines_and_in_seconds_since_they_wait(world: World) -> None:
    world.write("".join(f"line {number:03}\n" for number in range(100)))
    world.reader.turn()
    (lag,) = world.reader.source.lags().values()
    assert 85 <= lag.records <= 95
    world.sleep(7)
    (lag,) = world.reader.source.lags().values()
    assert lag.seconds == 7
    world.turns(30)
    assert list(world.reader.source.lags().values()) == [(0, 0.0)]


class TestTwoFilesWithTheSameFirstLine:
    @pytest.fixture
    def paths(self, tmp_path: Path) -> tuple[Path, Path]:
        return tmp_path / "a.log", tmp_path / "b.log"

    @pytest.mark.parametrize("first", [0, 1])
    @pytest.mark.parametrize("shared", [True, False], ids=["one process", "two processes"])
    def test_each_is_counted_once_and_continues(
        self, world: World, paths: tuple[Path, Path], first: int, shared: bool
    ) -> None:
        open_files: dict[str, object] = {}

        def both() -> list[SourceReader]:
            given = {"open_files": open_files} if shared else {}
            return [world.follow(path=path, **given) for path in paths]

        def turn(readers: list[SourceReader]) -> None:
            for _ in range(20):
                for reader in (readers[first], readers[1 - first]):
                    reader.turn()

        for path in paths:
            path.write_text("GET /healthz\n")
        readers = both()
        for reader in readers:
            reader.turn()
        for path, name in zip(paths, "ab", strict=True):
            with path.open("a") as file:
                file.writelines(f"{name}{number}\n" for number in range(30))
        turn(readers)
        for reader in readers:
            reader.source.close()
        open_files.clear()
        for path, name in zip(paths, "ab", strict=True):
            with path.open("a") as file:
                file.writelines(f"{name}{number}\n" for number in range(30, 60))
        readers = both()
        turn(readers)
        wanted = ["GET /healthz"] * 2 + [f"{name}{number}" for name in "ab" for number in range(60)]
        assert sorted(world.lines()) == sorted(wanted)

    def test_one_file_under_two_paths_is_counted_once(self, world: World, paths: tuple[Path, Path]) -> None:
        open_files: dict[str, object] = {}
        paths[0].write_text("one\ntwo\n")
        paths[1].symlink_to(paths[0])
        readers = [world.follow(path=path, open_files=open_files) for path in paths]
        for _ in range(10):
            for reader in readers:
                reader.turn()
        assert world.lines() == ["one", "two"]


def test_a_second_follower_by_mistake_counts_nothing_twice(world: World) -> None:
    second = world.follow()
    for number in range(50):
        world.write(f"line {number}\n")
        world.reader.take()
        second.take()
        for reader in (world.reader, second) if number % 2 else (second, world.reader):
            reader.turn()
    for _ in range(10):
        world.reader.turn()
        second.turn()
    assert world.lines() == [f"line {number}" for number in range(50)]


@pytest.mark.parametrize("count", [100, 1000], ids=["below 4 KiB", "above 4 KiB"])
def test_a_rewind_does_not_read_the_whole_file_again(world: World, count: int) -> None:
    world.write("".join(f"line {number:03}\n" for number in range(count)))
    world.turns(400)
    read: list[int] = []
    source = world.reader.source
    assert isinstance(source, FollowedFile)
    lines = source._queue.files[0].lines
    lines._stream = cast("IO[bytes]", CountingStream(lines._stream, read))
    world.write("more 1\n")
    world.reader.take()
    world.reader.start_over()
    read.clear()
    assert world.turns() == [*(f"line {number:03}" for number in range(count)), "more 1"]
    assert sum(read) < 100


class CountingStream:
    """A stream that notes how many bytes each call has read."""

    def __init__(self, stream: IO[bytes], read: list[int]) -> None:
        self._stream, self._read = stream, read

    def read(self, size: int) -> bytes:
        got = self._stream.read(size)
        self._read.append(len(got))
        return got

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def test_every_take_is_bounded(world: World) -> None:
    world.write("".join(f"line {number:03}\n" for number in range(1000)))
    largest = 0
    for _ in range(200):
        for taken in world.reader.source.take(0.0):
            assert isinstance(taken, Records)
            largest = max(largest, taken.next - taken.start)
    assert 0 < largest <= 101


def test_a_resume_token_that_does_not_match_means_another_file(world: World) -> None:
    world.write("one\ntwo\n")
    world.turns()
    (part,) = world.positions.stored
    world.reader.source.close()
    world.positions.stored[part] = Position(4, "of something else")
    world.reader = world.follow()
    world.turns()
    assert {known.topic_id for known in world.positions.stored} == {part.topic_id, f"{part.topic_id}#1"}


def test_files_that_rotate_while_no_descriptor_is_left_are_counted_later_in_order(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two rotations: the file in the middle is never at the path while it can be opened."""
    world.write("one\n")
    assert world.turns() == ["one"]
    opened = Path.open

    def no_descriptor(*_args: Any, **_given: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    world.rotate()
    with monkeypatch.context() as patch:
        world.write("two\n")
        patch.setattr(Path, "open", no_descriptor)
        world.turns()
        patch.setattr(Path, "open", opened)
        world.path.rename(world.path.with_suffix(".2"))
        world.write("three\n")
        patch.setattr(Path, "open", no_descriptor)
        for _ in range(3):
            world.wait_quiet()
            assert world.turns() == ["one"]
        assert "Too many open files" in world.reader.source.problems()[str(world.path)]
    for _ in range(3):
        world.wait_quiet()
        world.turns()
    assert world.turns() == ["one", "two", "three"]
    assert world.reader.source.problems() == {}
    assert [record.message for record in caplog.records] == [
        f"{world.path} cannot be opened: Too many open files; check the path and its permissions"
    ]


def test_a_folder_that_cannot_be_listed_does_not_keep_the_new_file_from_being_read(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder of mode 711: its files can be opened by their names, and not be searched."""

    def refused(*_args: object, **_given: object) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    world.write("one\n")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refused)
        world.turns()
    world.rotate()
    world.write("two\n")
    for listing in ("listdir", "scandir"):
        monkeypatch.setattr(os, listing, refused)
    assert world.turns() == ["two"]
    assert "is not counted: [Errno 13] Permission denied" in caplog.text


def test_a_file_that_was_moved_away_before_it_could_be_opened_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.write("one\n")
    with monkeypatch.context() as patch:
        world.path.chmod(0)
        patch.setattr(Path, "open", lambda *_args, **_given: cast("Any", os.open)("/", os.O_WRONLY))
        world.turns()
    world.path.unlink()
    world.write("two\n")
    assert world.turns() == ["two"]
    assert "was moved away before it could be opened, and is not counted" in caplog.text


class TestAFileThatWasNeverSeenAtThePath:
    """Two rotations between two checks of the path, as while the database hangs or the process is paused."""

    def rotate_like_logrotate(self, world: World) -> None:
        first, second = Path(f"{world.path}.1"), Path(f"{world.path}.2")
        if first.exists():
            first.rename(second)
        world.path.rename(first)

    def rotate_twice(self, world: World) -> None:
        world.write("one\n")
        world.turns()
        self.rotate_like_logrotate(world)
        later(world, "two\n", 10)
        self.rotate_like_logrotate(world)
        later(world, "three\n", 20)

    def finish(self, world: World) -> list[str]:
        for _ in range(4):
            world.wait_quiet()
            world.turns()
        return world.lines()

    def test_an_unseen_file_is_counted_in_its_place(self, world: World) -> None:
        self.rotate_twice(world)
        assert self.finish(world) == ["one", "two", "three"]
        assert self.finish(world) == ["one", "two", "three"]

    def test_an_unseen_file_is_named_when_it_is_compressed(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.rotate_twice(world)
        Path(f"{world.path}.1").rename(f"{world.path}.1.gz")
        assert self.finish(world) == ["one", "three"]
        (message,) = [record.message for record in caplog.records]
        assert message.startswith(f"{world.path}.1.gz was rotated and compressed before it was read")
        assert "gatelock upkeep import" in message

    @pytest.mark.parametrize("name", ["access.log.pos", "error.log.1", "access.log.1.swp", "access.log.old"])
    def test_other_files_of_the_folder_are_not_read(
        self, world: World, name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.rotate_twice(world)
        Path(f"{world.path}.1").rename(world.path.with_name(name))
        assert self.finish(world) == ["one", "three"]
        assert caplog.messages == []

    def test_older_files_are_not_read(self, world: World) -> None:
        """Files that were rotated before the first line was read keep their old times."""
        for number, suffix in enumerate((".7", "-20261122")):
            older = Path(f"{world.path}{suffix}")
            older.write_text("long ago\n")
            os.utime(older, (number, number))
        self.rotate_twice(world)
        assert self.finish(world) == ["one", "two", "three"]

    def test_the_path_is_checked_while_nothing_can_be_read(self, world: World) -> None:
        """During an outage only `rewind` is called, after each attempt to reach the database."""
        world.write("one\n")
        world.turns()
        for text in ("two\n", "three\n"):
            world.path.rename(f"{world.path}.gone")  # a name by which it would not be found later
            world.write(text)
            world.reader.source.rewind()
        assert self.finish(world) == ["one", "two", "three"]


def later(world: World, text: str, seconds: int) -> None:
    """Writes to the file at the path, with a later time of its last change."""
    world.write(text)
    seconds += int(time.time())
    os.utime(world.path, (seconds, seconds))
