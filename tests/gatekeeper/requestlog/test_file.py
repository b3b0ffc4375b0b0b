"""A request log in a file: whole lines, with renamed files, full disks and killed processes."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gatekeeper.requestlog.file import FileSink
from gatekeeper.requestlog.log_record import LogLine
from tests.support.requestlog import count_lines

ROOT = Path(__file__).parents[3]


def lines(*texts: str) -> list[LogLine]:
    return [LogLine(f"{text}\n".encode(), "") for text in texts]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "requests.log"


@pytest.fixture
def sink(path: Path) -> FileSink:
    return FileSink(path)


def test_the_first_line_creates_the_file(path: Path, sink: FileSink) -> None:
    assert sink.write([]) == (0, 0, 0, "")
    assert not path.exists()
    assert sink.write(lines("one", "two")) == (2, 2, 0, "")
    assert sink.write(lines("three")) == (1, 1, 0, "")
    assert path.read_text() == "one\ntwo\nthree\n"
    assert path.stat().st_mode & 0o777 == 0o640
    sink.close()


def test_several_writers_append_to_one_file(path: Path, sink: FileSink) -> None:
    other = FileSink(path)
    for number in range(10):
        (sink, other)[number % 2].write(lines(f"{number}"))
    assert path.read_text().split() == [f"{number}" for number in range(10)]


def test_after_a_rename_a_new_file_is_created(path: Path, sink: FileSink) -> None:
    sink.write(lines("one"))
    path.rename(path.with_suffix(".1"))
    sink.write(lines("two"))
    assert (path.with_suffix(".1").read_text(), path.read_text()) == ("one\n", "two\n")


def test_after_a_deletion_a_new_file_is_created(path: Path, sink: FileSink) -> None:
    sink.write(lines("one"))
    path.unlink()
    sink.write(lines("two"))
    assert path.read_text() == "two\n"


def test_a_truncated_file_is_appended_from_its_new_end(path: Path, sink: FileSink) -> None:
    sink.write(lines("one"))
    os.truncate(path, 0)
    sink.write(lines("two"))
    assert path.read_bytes() == b"two\n"


def test_descriptors_do_not_leak(path: Path, sink: FileSink) -> None:
    sink.write(lines("one"))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20):
        path.rename(path.with_suffix(f".{number}"))
        sink.write(lines("more"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_missing_folder_is_reported_and_the_file_created_later(path: Path) -> None:
    sink = FileSink(path / "sub" / "requests.log")
    taken, written, lost, trouble = sink.write(lines("one"))
    assert (taken, written, lost) == (0, 0, 0)
    assert "cannot be opened" in trouble
    (path / "sub").mkdir(parents=True)
    assert sink.write(lines("one")) == (1, 1, 0, "")


def test_the_renamed_file_is_written_until_a_new_one_can_be_created(tmp_path: Path) -> None:
    """An analyzer that follows the path reads the renamed file until there is another."""
    folder = tmp_path / "logs"
    folder.mkdir()
    sink = FileSink(folder / "requests.log")
    sink.write(lines("one"))
    folder.rename(tmp_path / "moved")
    taken, _, _, trouble = sink.write(lines("two"))
    assert taken == 1
    assert "cannot be created again" in trouble
    assert (tmp_path / "moved" / "requests.log").read_text() == "one\ntwo\n"


def test_a_torn_line_of_another_process_spoils_no_line(path: Path, sink: FileSink) -> None:
    path.write_bytes(b'{"whole":1}\n{"to')
    sink.write(lines("one"))
    assert path.read_bytes() == b'{"whole":1}\n{"to\none\n'


def test_a_pipe_can_be_the_file(tmp_path: Path) -> None:
    """Such as /dev/stdout in a container. A pipe without a reader is reported and tried again."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    sink = FileSink(pipe)
    assert "cannot be opened" in sink.write(lines("one")).trouble
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert sink.write(lines("one", "two")) == (2, 2, 0, "")
    assert os.read(reading, 100) == b"one\ntwo\n"
    os.close(reading)
    sink.close()


@pytest.mark.parametrize("into", ["a pipe", "a file"])
def test_the_standard_output_can_be_the_file(tmp_path: Path, into: str) -> None:
    code = (
        "from gatekeeper.requestlog.file import FileSink\n"
        "from gatekeeper.requestlog.log_record import LogLine\n"
        "sink = FileSink('/dev/stdout');"
        "print([sink.write([LogLine(b'one\\n', '')]) for _ in range(2)], file=__import__('sys').stderr)"
    )
    with (tmp_path / "out").open("wb") as file:
        out = subprocess.PIPE if into == "a pipe" else file
        ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=out, stderr=subprocess.PIPE)
    assert ran.stderr.count(b"taken=1, written=1, lost=0, trouble=''") == 2, ran.stderr
    assert (ran.stdout or (tmp_path / "out").read_bytes()) == b"one\none\n"


class TestAFullDisk:
    """A limit on the file's size fails like a full disk: in the middle of a line."""

    @pytest.fixture(autouse=True)
    def bounded(self) -> object:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
        yield
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)

    def free(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    def test_only_whole_lines_count_as_written(self, path: Path, sink: FileSink) -> None:
        taken, written, lost, trouble = sink.write(lines("one", "two", "three"))
        assert path.read_bytes() == b"one\ntwo\nth"
        assert (taken, written, lost) == (2, 2, 0)
        assert os.strerror(errno.EFBIG) in trouble

    def test_the_torn_line_is_written_again_when_there_is_room(self, path: Path, sink: FileSink) -> None:
        given = lines("one", "two", "three", "four")
        taken = sink.write(given).taken
        assert sink.write(given[taken:]).taken == 0
        self.free()
        assert sink.write(given[taken:]) == (2, 2, 0, "")
        assert path.read_bytes() == b"one\ntwo\nth\nthree\nfour\n"

    def test_the_newline_after_a_torn_line_does_not_count_as_a_line(self, path: Path, sink: FileSink) -> None:
        """There is room for that one byte only."""
        path.write_bytes(b"x" * 9)
        assert sink.write(lines("one")).taken == 0
        assert path.read_bytes() == b"x" * 9 + b"\n"


WRITER = """
import itertools, json, sys, time
from gatekeeper.requestlog.file import FileSink
from gatekeeper.requestlog.log_record import LogLine

sink = FileSink(sys.argv[1])
for number in itertools.count():
    text = json.dumps({"caller": {"api_key": sys.argv[2]}, "ts": number, "pad": "x" * 3000}) + "\\n"
    sink.write([LogLine(text.encode(), "")] * 200)
    time.sleep(0.002)
"""


def test_a_killed_process_leaves_at_most_one_torn_line_which_is_rejected(tmp_path: Path, path: Path) -> None:
    """Three processes write 600 KB at a time; one after the other is killed and replaced."""
    (tmp_path / "gatelock.toml").write_text(
        (ROOT / "deploy" / "requestlog.toml").read_text().replace('"/var/log/shop/requests.log"', f'"{path}"')
    )

    def start(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", WRITER, path, name], cwd=ROOT)

    running = [start(f"w{number}") for number in range(3)]
    kills = 0
    try:
        for number in range(3, 9):
            size = path.stat().st_size if path.exists() else 0
            deadline_s = time.monotonic() + 20
            while not path.exists() or path.stat().st_size < size + 1_000_000:
                assert time.monotonic() < deadline_s
                time.sleep(0.005)
            victim = running.pop(0)
            victim.kill()
            victim.wait()
            kills += 1
            running.append(start(f"w{number}"))
    finally:
        for child in running:
            child.kill()
            child.wait()
            kills += 1
    FileSink(path).write(lines('{"caller":{"api_key":"last"},"ts":1}'))
    found = count_lines(tmp_path / "gatelock.toml", path.read_bytes())
    assert {rejected.reason for rejected in found.rejected} <= {"bad-json"}
    assert len(found.rejected) <= kills
    (progress,) = found.parts
    assert progress.seen == progress.counted + len(found.rejected)
    assert progress.counted > 1_000
    callers = {row.key for row in found.rows}
    assert "api_key:last" in callers
    assert len(callers) > 2
