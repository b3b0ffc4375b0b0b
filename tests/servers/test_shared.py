"""One server for all workers: its start, its end, and workers that are killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.servers.shared import one_for_all
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
WAIT_S_MAX = 30.0
USER = """
import sys
from pathlib import Path
from tests.support.servers.shared import one_for_all

with one_for_all(Path(sys.argv[1]), None) as address:
    print(address, flush=True)
    sys.stdin.read()
"""


class Starts:
    """Counts the servers that were started, and those that have not ended."""

    def __init__(self) -> None:
        self.started = 0
        self.running = 0

    @contextmanager
    def start(self) -> Iterator[str]:
        self.started += 1
        self.running += 1
        yield f"number {self.started}"
        self.running -= 1


@pytest.fixture
def starts() -> Starts:
    return Starts()


def test_the_second_user_gets_the_address_of_the_first_server(tmp_path: Path, starts: Starts) -> None:
    folder = tmp_path / "server"
    with one_for_all(folder, starts.start) as first, one_for_all(folder, starts.start) as second:
        assert (first, second, starts.started) == ("number 1", "number 1", 1)
    assert starts.running == 0


def test_the_server_runs_until_its_last_user_has_left(tmp_path: Path, starts: Starts) -> None:
    first, second = one_for_all(tmp_path, starts.start), one_for_all(tmp_path, starts.start)
    first.__enter__()
    second.__enter__()
    leaving = threading.Thread(target=first.__exit__, args=(None, None, None))
    leaving.start()
    wait_until(lambda: not (tmp_path / "address").exists())
    with one_for_all(tmp_path, starts.start) as third:
        assert (third, starts.running) == ("number 2", 2), "a server that ends gets no new users"
        second.__exit__(None, None, None)
    leaving.join(WAIT_S_MAX)
    assert not leaving.is_alive()
    assert starts.running == 0


def test_the_server_does_not_wait_for_a_user_that_was_killed(tmp_path: Path, starts: Starts) -> None:
    with one_for_all(tmp_path, starts.start) as address:
        user = subprocess.Popen(
            [sys.executable, "-c", USER, str(tmp_path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert user.stdout is not None
        assert user.stdout.readline() == f"{address}\n"
        user.kill()
        user.communicate()
    assert (starts.started, starts.running) == (1, 0)


def test_after_a_failed_start_the_next_user_starts_the_server(tmp_path: Path, starts: Starts) -> None:
    @contextmanager
    def fail() -> Iterator[str]:
        raise OSError("no port")
        yield ""

    with pytest.raises(OSError, match="no port"), one_for_all(tmp_path, fail):
        pass
    with one_for_all(tmp_path, starts.start) as address:
        assert address == "number 1"
