"""A server as a child process: started, killed, paused, and ended at the latest with the tests."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from tests.support.waiting import NotInTime, wait_until

LAUNCH = Path(__file__).with_name("launch.py")
START_S_MAX = 60.0
END_S_MAX = 30.0


def free_port() -> int:
    """Returns a port of 127.0.0.1 on which no process listens.

    It is outside of the range from which the kernel takes ports of outgoing connections, as for bind(0):
    while a broker restarts, a client that tries to connect could be given the broker's port.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


_addresses = itertools.count(1)


def own_address() -> str:
    """Returns an address of this machine's loopback network that no other server of the tests has.

    For a server that counts or scripts its answers: a client that outlives its server asks the same address
    and port again, and the kernel may have given the port to the next server.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    number = next(_addresses)
    return f"127.{worker + 1}.{number >> 8}.{number & 255}"


def accepts(port: int) -> bool:
    """Whether a process accepts connections on `port`."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended; a zombie has, because some containers have no init that reaps it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Child:
    """One server process and the processes that it starts; its output goes to `folder`/log.

    `parent_death_signal` is sent to it when the process of the tests ends. Root starts it as `user`.
    """

    def __init__(
        self, command: Sequence[str], folder: Path, *, parent_death_signal: signal.Signals, user: str = ""
    ) -> None:
        self._launch = [sys.executable, "-IS", str(LAUNCH), str(int(parent_death_signal)), user, *command]
        self._name = Path(command[0]).name
        self._folder = folder
        self._process: psutil.Popen | None = None

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, ready: Callable[[], bool]) -> None:
        """Starts it and waits until `ready()`. Raises RuntimeError, or NotInTime, with the end of the log."""
        assert not self.alive, f"{self._name} is running already"
        with (self._folder / "log").open("ab") as log:
            self._process = psutil.Popen(
                self._launch,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C goes to the tests, which then stop the servers
            )
        end_s = time.monotonic() + START_S_MAX
        while not ready():
            has_ended = self._process.poll() is not None
            if has_ended or time.monotonic() > end_s:
                self.kill()
                error = RuntimeError if has_ended else NotInTime
                raise error(f"{self._name} did not start:\n{self.log[-3000:]}")
            time.sleep(0.02)

    def end(self, number: signal.Signals) -> None:
        """Sends a signal and waits until the server has ended."""
        if self._process is not None and self.alive:
            self._process.send_signal(number)
            self._process.wait(END_S_MAX)

    def kill(self) -> None:
        """Kills it and its children, as a power cut does; what was written to files stays."""
        family = self._family()
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(END_S_MAX)
        wait_until(
            lambda: all(has_ended(process) for process in family[1:]),
            END_S_MAX,
            lambda: f"a child of {self._name} survives SIGKILL",
        )

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _family(self) -> list[psutil.Process]:
        if self._process is None or not self.alive:
            return []
        return [self._process, *self._process.children(recursive=True)]

    def _signal(self, number: signal.Signals) -> None:
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
