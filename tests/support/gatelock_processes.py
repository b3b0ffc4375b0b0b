"""`gatelock` as a process, started in a hundredth of a second.

A new interpreter takes 0.8 CPU-seconds to import what `gatelock run` needs. Here it is a fork of a process
that has imported it: see `tests.support.fork_server`. For tests of what a command does. A test of its start,
or one that changes a module before others import it, starts an interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

PROGRAM = "tests.support.fork_server"
ROOT = Path(__file__).parents[2]
LOOK_S = 0.1  # of a wait, after which another thread may look
END_S = 10.0
File = IO[Any] | int

_cpu_s: list[float] = []  # of each process that has ended
_server: list[tuple[socket.socket, subprocess.Popen[bytes]]] = []  # one, from the first command on
_mutex = threading.Lock()


def used_s() -> float:
    """Returns the CPU seconds of processes that have ended, with those of their server."""
    return sum(_cpu_s)


def _control() -> socket.socket:
    """Returns the socket of this process's server, which ends when this process does."""
    if not _server:
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, str(its.fileno())],
            cwd=ROOT,
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        its.close()
        _server.append((mine, server))
        atexit.register(_end_server)
    return _server[0][0]


def _end_server() -> None:
    control, server = _server.pop()
    control.close()
    server.wait(END_S)


class GatelockProcess:
    """A process of `gatelock`; its methods are those of `subprocess.Popen`.

    Args:
        arguments: Those after `gatelock`.
        folder: Where it runs; None: in that of this process.
        env: Its environment; None: that of this process.
        stdin: A file, or its number; None: an empty one.
        stdout: A file, or its number; None: that of this process. As is `stderr`.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        folder: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: File | None = None,
        stdout: File = 1,
        stderr: File = 2,
    ) -> None:
        self.args = tuple(arguments)
        self.returncode: int | None = None
        self._look_mutex = threading.Lock()
        reading, writing = os.pipe()
        self._report = os.fdopen(reading, "rb", buffering=0)
        message = {
            "arguments": self.args,
            "env": dict(os.environ if env is None else env),
            "folder": str(folder or Path.cwd()),
        }
        with Path(os.devnull).open("rb") as nothing:
            files = [nothing if stdin is None else stdin, stdout, stderr, writing]
            numbers = [file if isinstance(file, int) else file.fileno() for file in files]
            with _mutex:
                socket.send_fds(_control(), [json.dumps(message).encode()], numbers)
        os.close(writing)
        self.pid: int = self._next_report()["pid"]

    def poll(self) -> int | None:
        """Returns its exit code, negative the number of a signal; None while it runs."""
        self._look(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Returns its exit code when it has ended. Raises subprocess.TimeoutExpired."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left_s = LOOK_S if deadline_s is None else min(LOOK_S, deadline_s - time.monotonic())
            self._look(max(0.0, left_s))
            if self.returncode is None and left_s <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, within_s: float) -> None:
        """Notes the end, if it comes within this time."""
        if not self._look_mutex.acquire(timeout=within_s):
            return  # another thread looks
        try:
            if self.returncode is None and select.select([self._report], [], [], within_s)[0]:
                end = self._next_report()
                _cpu_s.append(end["cpu_s"])
                self.returncode = end["code"]
                self._report.close()
        finally:
            self._look_mutex.release()

    def _next_report(self) -> dict[str, Any]:
        line = self._report.readline()
        assert line, f"{PROGRAM} has ended: its standard error says why"
        report: dict[str, Any] = json.loads(line)
        return report


def run_gatelock(
    *arguments: str,
    stdin: File | None = None,
    text: str | None = None,
    timeout_s: float = 60.0,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Runs `gatelock` in a process to its end; returns its code and outputs.

    `text` is that of its standard input; further options are those of `GatelockProcess`.
    """
    with ExitStack() as stack:
        read, output, errors = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        if text is not None:
            read.write(text.encode())
            read.seek(0)
            stdin = read
        child = GatelockProcess(arguments, stdin=stdin, **{"stdout": output, "stderr": errors, **options})
        try:
            code = child.wait(timeout_s)
        finally:
            child.kill()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(
            list(arguments), code, output.read().decode(), errors.read().decode()
        )
