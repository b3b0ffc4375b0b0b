"""Imported files: read to the end, and counted once even if imported again under another name."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from analyzer.kernel.errors import StoreAway
from analyzer.kernel.model import Partition, Record
from analyzer.sources.files import FollowedFile, ImportedFiles
from tests.support.source_reader import MemoryPositionStore, SourceReader


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.positions = MemoryPositionStore()
        self.kept: dict[Partition, list[Record]] = {}
        self.now_s = 0.0
        self.opened: list[ImportedFiles] = []

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        if name.endswith(".gz"):
            path.write_bytes(gzip.compress(text.encode()))
        elif name.endswith(".zst"):
            path.write_bytes(zstandard.compress(text.encode()))
        else:
            path.write_text(text)
        return path

    def load(self, *paths: Path | str, stdin: bytes = b"", turns: int = 1000, host: str = "") -> list[str]:
        """Imports; returns all lines that are stored."""
        source = ImportedFiles(
            paths,
            "web",
            self.positions,
            line_bytes_max=100,
            stdin=io.BytesIO(stdin),
            host=host,
            uptime_s=lambda: self.now_s,
            sleep=lambda seconds: None,
        )
        self.opened.append(source)
        reader = SourceReader(source, self.positions, self.kept)
        for _ in range(turns):
            if source.done:
                break
            reader.turn()
        return [record.value.decode() for records in self.kept.values() for record in records if record.value]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr("analyzer.sources.files.line_reader.CHUNK_BYTES", 64)
    world = World(tmp_path)
    yield world
    for source in world.opened:
        source.close()


LINES = [f"line {number:03}" for number in range(100)]
TEXT = "".join(f"{line}\n" for line in LINES)


@pytest.mark.parametrize("name", ["a.log", "a.log.gz", "a.log.zst"])
def test_an_import_reads_a_file_to_its_end_and_is_done(world: World, name: str) -> None:
    assert world.load(world.write(name, TEXT)) == LINES
    assert world.opened[-1].done
    assert world.positions.finished == set(world.kept)
    assert world.opened[-1].positions() == {}


def test_the_last_line_counts_without_a_newline(world: World) -> None:
    assert world.load(world.write("a.log", "one\ntwo")) == ["one", "two"]


def test_a_second_import_counts_nothing_twice(world: World) -> None:
    path = world.write("a.log", TEXT)
    world.load(path)
    assert world.load(path) == LINES
    assert world.load(path, path) == LINES


def test_a_copy_a_compressed_copy_and_a_pipe_count_nothing_twice(world: World) -> None:
    world.load(world.write("a.log", TEXT))
    assert world.load(world.write("b.log", TEXT)) == LINES
    assert world.load(world.write("a.log.1.gz", TEXT)) == LINES
    assert world.load("-", stdin=TEXT.encode()) == LINES


def test_a_copy_in_the_same_import_waits_until_the_first_is_stored(world: World) -> None:
    names = [world.write(name, TEXT) for name in ("a.log", "b.log", "c.log.gz")]
    assert world.load(*names) == LINES
    assert len(world.positions.stored) == 1


def test_a_file_that_has_grown_is_continued(world: World) -> None:
    world.load(world.write("a.log", TEXT))
    assert world.load(world.write("a.log", TEXT + "more\n")) == [*LINES, "more"]


def test_the_rest_of_an_incomplete_last_line_is_not_a_record(world: World) -> None:
    assert world.load(world.write("a.log", "one\ntwo")) == ["one", "two"]
    assert world.load(world.write("a.log", "one\ntwo and a half\nthree\n")) == ["one", "two", "three"]
    assert world.load(world.write("a.log", "one\ntwo and a half\nthree\nfour\n"))[-1] == "four"


def test_two_files_with_the_same_first_line_are_both_counted(world: World) -> None:
    one, two = world.write("a.log", "head\none\n"), world.write("b.log", "head\ntwo\n")
    assert world.load(one, two) == ["head", "one", "head", "two"]
    assert world.load(two, one) == ["head", "one", "head", "two"]


def test_an_older_copy_of_a_counted_file_counts_nothing(world: World) -> None:
    text = "".join(f"line {number:05}\n" for number in range(3000))
    wanted = text.splitlines()
    assert world.load(world.write("a.log", text), turns=5000) == wanted
    for size in (4_200, 20_005, len(text) - 1):
        assert world.load(world.write("older.log", text[:size]), turns=5000) == wanted
    assert len(world.positions.stored) == 1


def test_a_shorter_file_that_is_not_an_older_copy_is_counted(world: World) -> None:
    head = "".join(f"#head {number}\n" for number in range(30))
    long, short, tiny = head + "a\n" * 5000, head + "b\n" * 3000, head + "c\n"
    counted = [
        len(world.load(world.write(f"{text[-2]}.log", text), turns=5000)) for text in (long, short, tiny)
    ]
    assert counted == [30 + 5000, 60 + 8000, 90 + 8001]


def test_many_files_with_the_same_first_line_are_all_counted(world: World) -> None:
    paths = [world.write(f"{number}.log", f"head\n{number}\n") for number in range(30)]
    wanted = sorted(["head"] * 30 + [str(number) for number in range(30)])
    assert sorted(world.load(*paths)) == wanted
    assert sorted(world.load(*reversed(paths))) == wanted
    assert len(world.positions.stored) == 30


def test_an_interrupted_import_continues(world: World) -> None:
    path = world.write("a.log.gz", TEXT)
    world.load(path, turns=5)
    assert 0 < len(next(iter(world.kept.values()))) < 100
    assert world.load(path) == LINES


def test_the_rest_of_a_followed_file_that_was_rotated_away_can_be_imported(world: World) -> None:
    path = world.write("access.log", "one\n")
    followed = FollowedFile(path, "web", world.positions, sleep=lambda seconds: None)
    reader = SourceReader(followed, world.positions, world.kept)
    reader.turn()
    reader.turn()
    followed.close()
    with path.open("a") as file:
        file.write("two\nthree\n")
    rotated = world.write("access.log.1.gz", path.read_text())
    assert world.load(rotated) == ["one", "two", "three"]


def test_an_empty_file_counts_nothing(world: World) -> None:
    assert world.load(world.write("empty.log", ""), world.write("empty.gz", ""), "-") == []
    assert world.opened[-1].done
    assert world.positions.stored == {}


def test_standard_input_is_kept_until_it_is_stored(world: World) -> None:
    source = ImportedFiles(
        ["-"], "web", world.positions, stdin=io.BytesIO(TEXT.encode()), sleep=lambda _: None
    )
    world.opened.append(source)
    reader = SourceReader(source, world.positions, world.kept)
    reader.take()
    reader.start_over()
    reader.run_until(lambda: source.done)
    assert [record.value.decode() for record in next(iter(world.kept.values())) if record.value] == LINES


def test_a_missing_file_is_an_error_before_anything_is_read(world: World) -> None:
    with pytest.raises(FileNotFoundError):
        world.load(world.write("a.log", TEXT), world.folder / "none.log")
    assert world.kept == {}


@pytest.mark.parametrize("cut", [True, False], ids=["cut short", "damaged"])
def test_a_damaged_compressed_file_is_a_problem_and_the_others_are_read(world: World, cut: bool) -> None:
    text = "".join(f"line {number} {hash(number * 7919)}\n" for number in range(5000))
    path = world.write("a.log.gz", text)
    packed = bytearray(path.read_bytes())
    if cut:
        del packed[len(packed) // 2 :]
    else:
        packed[len(packed) // 2] ^= 0xFF
    path.write_bytes(bytes(packed))
    world.load(path, world.write("b.log", "one\n"), turns=5000)
    (why,) = world.opened[-1].problems().values()
    assert "the rest cannot be read" in why
    assert world.opened[-1].done
    assert [record.value for record in list(world.kept.values())[-1]] == [b"one"]


def test_done_means_stored(world: World) -> None:
    source = ImportedFiles(
        [world.write("a.log", "one\n")], "web", world.positions, sleep=lambda seconds: None
    )
    world.opened.append(source)
    reader = SourceReader(source, world.positions, world.kept)
    for _ in range(5):
        reader.take()
        assert not source.done
    world.positions.away = True
    with pytest.raises(StoreAway):
        reader.store()
    reader.start_over()
    world.positions.away = False
    assert not source.done
    reader.run_until(lambda: source.done)
    assert [record.value for record in next(iter(world.kept.values()))] == [b"one"]


@given(
    lines=st.lists(
        st.text(alphabet="ab\r ", max_size=150).map(lambda line: line.replace("\n", "")), max_size=30
    ),
    chunk=st.integers(1, 400),
    newline=st.booleans(),
    cuts=st.lists(st.integers(0, 5), max_size=10),
)
def test_lines_are_split_correctly_at_any_chunk_size_and_interruption(
    lines: list[str], chunk: int, newline: bool, cuts: list[int]
) -> None:
    text = "\n".join(lines) + ("\n" if newline else "")
    wanted, offset = [], 0
    for line in text.split("\n"):
        if line not in ("", "\r"):
            wanted.append((offset, line[:101].encode()))
        offset += len(line) + 1
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as folder:
        patched.setattr("analyzer.sources.files.line_reader.CHUNK_BYTES", chunk)
        world = World(Path(folder))
        path = world.write("a.log", text)
        for turns in cuts:
            world.load(path, turns=turns)
        world.load(path)
        for source in world.opened:
            source.close()
    assert [(record.offset, record.value) for records in world.kept.values() for record in records] == wanted


def test_an_import_does_not_load_the_kafka_client() -> None:
    command = (
        "import sys, analyzer.build; sys.exit(any(name.split('.')[0] == 'kafka' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", command]).returncode == 0


# What tells files apart


@pytest.mark.parametrize("kept", [1, 10, 29])
def test_a_copy_that_was_cut_short_counts_nothing_twice(world: World, kept: int) -> None:
    lines = [f"192.0.2.{n} GET /items/{n} 200\n" for n in range(30)]
    assert len(world.load(world.write("access.log", "".join(lines)))) == 30
    assert len(world.load(world.write("short.log", "".join(lines[:kept])))) == 30


def test_a_copy_that_was_cut_within_a_line_counts_nothing_twice(world: World) -> None:
    lines = [f"192.0.2.{n} GET /items/{n} 200\n" for n in range(30)]
    assert len(world.load(world.write("access.log", "".join(lines)))) == 30
    assert len(world.load(world.write("short.log", "".join(lines)[:-250]))) == 30


def test_a_short_file_that_differs_after_its_first_line_is_another_file(world: World) -> None:
    lines = [f"192.0.2.{n} GET /items/{n} 200\n" for n in range(30)]
    world.load(world.write("access.log", "".join(lines)))
    assert len(world.load(world.write("other.log", "".join([*lines[:3], *lines[7:9]])))) == 35


def test_equal_logs_of_two_machines_are_two_logs(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = world.write("access.log", "a probe\n" * 20)
    assert len(world.load(file)) == 20
    assert len(world.load(file, host="web-1")) == 20, "what was begun without a host stays"
    other = world.write("other.log", "a check\n" * 20)
    assert len(world.load(other, host="web-1")) == 40
    assert len(world.load(other, host="web-2")) == 60
    assert len(world.load(other, host="web-1")) == 60
    for source in world.opened:
        source.close()


def test_a_file_whose_name_is_not_utf_8_is_read(world: World) -> None:
    name = os.fsdecode(b"caf\xe9.log")
    assert world.load(world.write(name, "one\ntwo\n")) == ["one", "two"]
    (part,) = world.kept
    assert part.topic.endswith("caf\\xe9.log")
    part.topic.encode()


def test_a_short_file_that_differs_in_a_late_line_is_another_file(world: World) -> None:
    """Only the first lines have a digest: more of them prove nothing."""
    lines = [f"{n}\n" for n in range(100)]
    world.load(world.write("access.log", "".join(lines)))
    assert len(world.load(world.write("other.log", "".join([*lines[:70], "another\n"])))) == 171
