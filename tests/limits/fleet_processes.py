"""Eight processes that decide together: each runs the same function, all at the same moment."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import redis

from gatekeeper.limits import Concurrency
from gatekeeper.limits.redis import RedisStore
from tests.limits.redis_kinds import KINDS

PROCESSES = 8
# The parent imports once, without threads, and is forked for each process.
PARENT = multiprocessing.get_context("forkserver")
PARENT.set_forkserver_preload([__name__])
Task = Callable[..., Any]
Admitted = list[tuple[float, float]]  # wall clock before and after each call that was allowed


class Fleet:
    """Processes that wait for a task; started once for many tasks."""

    def __init__(self, url: str) -> None:
        self._pipes: list[Connection] = []
        self.processes = []
        for _ in range(PROCESSES):
            parent_end, child_end = PARENT.Pipe()
            process = PARENT.Process(target=_run_tasks, args=(child_end, url), daemon=True)
            process.start()
            child_end.close()
            self._pipes.append(parent_end)
            self.processes.append(process)
        self.run(do_nothing)  # returns when all of them run

    def run(self, task: Task, *arguments: Any) -> list[Any]:
        """Returns the result of the task in each process."""
        start_s = time.time() + 0.05
        for pipe in self._pipes:
            pipe.send((task, start_s, arguments))
        return [pipe.recv() for pipe in self._pipes]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.join(10)


def _run_tasks(pipe: Connection, url: str) -> None:
    client = redis.Redis.from_url(url)
    store = RedisStore(client, timeout=5)
    while True:
        try:
            task, start_s, arguments = pipe.recv()
        except EOFError:
            break
        time.sleep(max(0.0, start_s - time.time()))
        pipe.send(task(store, client, *arguments))
    store.close()
    client.close()


def do_nothing(store: RedisStore, client: redis.Redis) -> None:
    """Shows that the process runs."""


def race_for(store: RedisStore, client: redis.Redis, kind: int, limit: int, name: str, calls: int) -> int:
    """Returns how many of `calls` passed, in a period that does not end."""
    limiter = KINDS[kind].make(limit, 36_000, store=store, name=name)
    return sum(limiter.allow("a") for _ in range(calls))


def call_without_pause(
    store: RedisStore, client: redis.Redis, kind: int, limit: int, period: float, name: str, until_s: float
) -> tuple[Admitted, int]:
    """Calls `allow` without a pause; returns when each admission was, and how many calls were refused."""
    limiter = KINDS[kind].make(limit, period, store=store, name=name)
    admitted: Admitted = []
    refused = 0
    while (before_s := time.time()) < until_s:
        if limiter.allow("a"):
            admitted.append((before_s, time.time()))
        else:
            refused += 1
    return admitted, refused


def wait_for_turns(
    store: RedisStore, client: redis.Redis, kind: int, limit: int, period: float, name: str, turns: int
) -> Admitted:
    """Waits for `turns` turns; returns when each wait began and ended."""
    queue = KINDS[kind].make(limit, period, store=store, name=name)
    admitted: Admitted = []
    for _ in range(turns):
        before_s = time.time()
        assert queue.wait("a", timeout=60)
        admitted.append((before_s, time.time()))
    return admitted


def work(store: RedisStore, client: redis.Redis, limit: int, name: str, jobs: int) -> int:
    """Works under a guard; returns the most jobs that this process saw in flight. Every third job raises."""
    limiter = Concurrency(limit, store=store, name=name)
    most = 0
    for job in range(jobs):
        with contextlib.suppress(ZeroDivisionError), limiter.guard("a", timeout=30):
            most = max(most, int(client.incr(f"tests:{name}:at work")))
            time.sleep(random.random() * 0.004)
            client.decr(f"tests:{name}:at work")
            _ = 1 // (job % 3)
    client.expire(f"tests:{name}:at work", 60)
    return most


def hold_and_die(url: str, name: str, lease: float) -> None:
    """Takes a lease, and is killed while it holds it."""
    limiter = Concurrency(1, store=RedisStore(redis.Redis.from_url(url)), name=name, lease=lease)
    assert limiter.allow("a")
    os.kill(os.getpid(), signal.SIGKILL)
