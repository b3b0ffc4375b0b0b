from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.servers.shared import one_for_all

ROOT = Path(__file__).parents[2]
WAIT_S_MAX = 30.0
GUEST = """
import sys
from pathlib import Path
from tests.support.servers.shared import one_for_all

with one_for_all(Path(sys.argv[1]), None) as told:
    print(told, flush=True)
    sys.stdin.read()
"""


class Ends:
    """What is started counts, and is open until it has ended."""

    def __init__(self) -> None:
        self.starts = 0
        self.open = 0

    @contextmanager
    def started(self) -> Iterator[str]:
        self.starts += 1
        self.open += 1
        yield f"number {self.starts}"
        self.open -= 1


@pytest.fixture
def ends() -> Ends:
    return Ends()


def test_who_comes_later_is_told_what_the_first_was(tmp_path: Path, ends: Ends) -> None:
    place = tmp_path / "it"
    with one_for_all(place, ends.started) as first, one_for_all(place, ends.started) as second:
        assert (first, second, ends.starts) == ("number 1", "number 1", 1)
    assert ends.open == 0


def test_the_first_stays_until_the_others_have_gone(tmp_path: Path, ends: Ends) -> None:
    host, guest = one_for_all(tmp_path, ends.started), one_for_all(tmp_path, ends.started)
    host.__enter__()
    guest.__enter__()
    leaving = threading.Thread(target=host.__exit__, args=(None, None, None))
    leaving.start()
    while (tmp_path / "told").exists():
        leaving.join(0.001)
    with one_for_all(tmp_path, ends.started) as third:
        assert (third, ends.open) == ("number 2", 2), "what ends is not given to anybody"
        guest.__exit__(None, None, None)
    leaving.join(WAIT_S_MAX)
    assert not leaving.is_alive()
    assert ends.open == 0


def test_a_guest_that_was_killed_is_not_waited_for(tmp_path: Path, ends: Ends) -> None:
    with one_for_all(tmp_path, ends.started) as said:
        guest = subprocess.Popen(
            [sys.executable, "-c", GUEST, str(tmp_path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert guest.stdout is not None
        assert guest.stdout.readline() == f"{said}\n"
        guest.kill()
        guest.communicate()
    assert (ends.starts, ends.open) == (1, 0)


def test_what_did_not_start_is_started_by_the_next(tmp_path: Path, ends: Ends) -> None:
    @contextmanager
    def fails() -> Iterator[str]:
        raise OSError("no port")
        yield ""

    with pytest.raises(OSError, match="no port"), one_for_all(tmp_path, fails):
        pass
    with one_for_all(tmp_path, ends.started) as said:
        assert said == "number 1"
