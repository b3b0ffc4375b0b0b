"""Starts `gatelock` again and again, and imports its modules once: the program behind `gatelock_processes`.

    python -m tests.support.fork_server SOCKET

SOCKET is the number of a socket that takes one message per command, with four files: the standard ones, and
one for reports of its beginning and end. The server has one thread: a fork has no other, and locks that
others hold would remain locked. A command gets the arguments, environment, folder and files of its message,
and then runs as `python -m analyzer.faces.cli` does, to the end of its interpreter.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import selectors
import socket
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

COMMAND = "analyzer.faces.cli"
# What `gatelock run` imports, at its start and later. What is missing here is imported by each process.
PRELOADED = (
    *("analyzer.faces.cli.verbs.run", "analyzer.faces.cli.made", "analyzer.faces.cli.alternatives"),
    *("analyzer.server.server", "analyzer.server.uvicorn_internals", "analyzer.sources.kafka"),
    *("alembic.command", "alembic.autogenerate", "alembic.runtime.migration", "mako.template", "pygments"),
    *("apscheduler.schedulers.background", "apscheduler.executors.pool", "concurrent.futures.process"),
    *("uvicorn.lifespan.on", "uvicorn.loops.auto", "uvicorn.protocols.http.auto"),
    *("sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql.psycopg", "encodings.idna", "tzlocal"),
)
MESSAGE_MAX = 1 << 20


def serve(control: socket.socket) -> dict[str, Any] | None:
    """Starts what the messages name, and reports ends; returns in each child its message.

    Returns None when no client is left.
    """
    waiting = selectors.DefaultSelector()
    waiting.register(control, selectors.EVENT_READ)
    reports: dict[
        int, tuple[int, int]
    ] = {}  # the process and the file for its report, by the process's descriptor
    own_s = 0.0
    while True:
        for key, _ in waiting.select():
            if key.fileobj is not control:
                waiting.unregister(key.fd)
                os.close(key.fd)
                pid, report = reports.pop(key.fd)
                _, status, usage = os.wait4(pid, 0)
                spent_s, own_s = time.process_time() - own_s, time.process_time()
                cpu_s = usage.ru_utime + usage.ru_stime + spent_s
                send(report, {"code": os.waitstatus_to_exitcode(status), "cpu_s": cpu_s})
                os.close(report)
                continue
            data, files, _, _ = socket.recv_fds(control, MESSAGE_MAX, 4)
            if not data:
                return None
            pid = os.fork()
            if not pid:
                waiting.close()
                control.close()
                for descriptor, (_, other) in reports.items():
                    os.close(descriptor)
                    os.close(other)
                message: dict[str, Any] = json.loads(data)
                take_over(message, files)
                return message
            *standard, report = files
            for file in standard:
                os.close(file)
            descriptor = os.pidfd_open(pid)
            reports[descriptor] = pid, report
            waiting.register(descriptor, selectors.EVENT_READ)
            send(report, {"pid": pid})


def send(report: int, line: dict[str, Any]) -> None:
    os.write(report, json.dumps(line).encode() + b"\n")


def take_over(message: dict[str, Any], files: list[int]) -> None:
    """Gives this process the files, environment, folder and arguments of a message."""
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    modes = (("r", -1, "strict"), ("w", -1, "strict"), ("w", 1, "backslashreplace"))
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, buffering, errors=errors, closefd=False)
        for number, (mode, buffering, errors) in enumerate(modes)
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    os.environ.clear()
    os.environ.update(message["env"])
    time.tzset()
    os.chdir(message["folder"])
    sys.path[0] = message["folder"]
    sys.argv = [COMMAND, *message["arguments"]]


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    for name in PRELOADED:
        import_module(name)
    threads = len([*Path("/proc/self/task").iterdir()])
    assert threads == 1, "a module starts a thread when it is imported: a fork would not have it"
    gc.collect()
    gc.freeze()  # a child's collection does not write to, and so copy, each page
    if serve(control) is not None:
        runpy.run_module(COMMAND, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
