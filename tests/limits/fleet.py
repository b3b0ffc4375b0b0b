"""Eight processes that decide together: each runs what it is told, all at the same moment."""

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
from tests.limits.stores import KINDS

PROCESSES = 8
# Imports once, in a process that has no threads, and is forked from there.
PARENT = multiprocessing.get_context("forkserver")
PARENT.set_forkserver_preload([__name__])
Story = Callable[..., Any]
Admitted = list[tuple[float, float]]  # before and after each call that was allowed, by the wall clock


class Fleet:
    """Processes that wait for a story; started once for many of them."""

    def __init__(self, url: str) -> None:
        self._pipes: list[Connection] = []
        self.processes = []
        for _ in range(PROCESSES):
            ours, theirs = PARENT.Pipe()
            process = PARENT.Process(target=_member, args=(theirs, url), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)
        self.run(nothing)  # all of them are there

    def run(self, story: Story, *words: Any) -> list[Any]:
        """What the story comes to in each of them."""
        start_s = time.time() + 0.05
        for pipe in self._pipes:
            pipe.send((story, start_s, words))
        return [pipe.recv() for pipe in self._pipes]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.join(10)


def _member(pipe: Connection, url: str) -> None:
    client = redis.Redis.from_url(url)
    store = RedisStore(client, timeout=5)
    while True:
        try:
            story, start_s, words = pipe.recv()
        except EOFError:
            break
        time.sleep(max(0.0, start_s - time.time()))
        pipe.send(story(store, client, *words))
    store.close()
    client.close()


def nothing(store: RedisStore, client: redis.Redis) -> None:
    """Be there."""


def race_for(store: RedisStore, client: redis.Redis, kind: int, limit: int, name: str, calls: int) -> int:
    """How many of `calls` passed, in a period that does not end."""
    limiter = KINDS[kind].make(limit, 36_000, store=store, name=name)
    return sum(limiter.allow("a") for _ in range(calls))


def press(
    store: RedisStore, client: redis.Redis, kind: int, limit: int, period: float, name: str, until_s: float
) -> tuple[Admitted, int]:
    """Ask without a pause; when each admission was, and how often the store was asked in vain."""
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
    """Wait for `turns` turns; when each was asked for and when it came."""
    queue = KINDS[kind].make(limit, period, store=store, name=name)
    admitted: Admitted = []
    for _ in range(turns):
        before_s = time.time()
        assert queue.wait("a", timeout=60)
        admitted.append((before_s, time.time()))
    return admitted


def work(store: RedisStore, client: redis.Redis, limit: int, name: str, jobs: int) -> int:
    """Work under a guard; the most that this process saw at work. Every third job raises."""
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
    """Take a lease, and be killed with it."""
    limiter = Concurrency(1, store=RedisStore(redis.Redis.from_url(url)), name=name, lease=lease)
    assert limiter.allow("a")
    os.kill(os.getpid(), signal.SIGKILL)
