"""The demo's clients: forty ordinary callers and a noisy one, over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from analyzer.demo.traffic_size import TrafficSize

NOISY = "api_key:noisy"
CALLERS = 40
HELD_S = 0.05  # between two looks of a caller that is held back
# Requests that are not counted yet. The broker of the demo keeps 5 MB a partition, and deletes what is older,
# counted or not: callers wait rather than lose a record of a machine that is busy with other things.
BACKLOG_MAX = 4_000
REQUEST = "GET /v1/items/7 HTTP/1.1\r\nhost: shop\r\nx-api-key: {key}\r\nconnection: close\r\n\r\n"


class ClientResponse(NamedTuple):
    """Response to one request, as the client saw it."""

    caller: str
    at_s: float  # wall clock when it arrived
    took_s: float
    status: int
    policy: str  # of the lock that denied the request; empty if none did (also if the limiter refused it)


class NoAnswer(Exception):
    """A process of the application did not answer a request."""


@dataclass(slots=True)
class LoadGenerator:
    """Sends requests to all `ports` in turn and keeps every response. One event loop, no threads.

    Callers wait while `BACKLOG_MAX` requests are not counted yet; another task keeps `counted` up to date.
    """

    ports: Sequence[int]
    random: Random
    size: TrafficSize
    responses: list[ClientResponse] = field(
        default_factory=list
    )  # may be cleared: `sent` keeps their numbers
    sent: Counter[tuple[str, bool]] = field(
        default_factory=Counter
    )  # by caller, and whether a lock denied it
    counted: int = 0
    noisy_left: int | None = None  # requests that the noisy caller may still send; None: any number
    is_flooding: bool = False  # whether the noisy caller sends requests
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    is_idle: bool = False  # whether the last response has arrived

    @property
    def backlog(self) -> int:
        """The number of requests that are not counted yet."""
        return self.sent.total() - self.counted

    async def run(self) -> None:
        """Runs all callers until `stopped` is set and the last response has arrived. Raises NoAnswer."""
        ordinary = [self._ordinary(f"caller-{n:02}") for n in range(CALLERS)]
        noisy = [self._noisy(n) for n in range(self.size.connections)]
        await asyncio.gather(*ordinary, *noisy)
        self.is_idle = True

    async def _ordinary(self, key: str) -> None:
        await self._pause(self.random.uniform(0, self.size.interval_s))
        for port in self._ports_in_turn(self.random.randrange(len(self.ports))):
            if self.backlog < BACKLOG_MAX:
                await self._request(key, port)
            await self._pause(self.random.uniform(0.5, 1.5) * self.size.interval_s)

    async def _noisy(self, number: int) -> None:
        for port in self._ports_in_turn(number):
            if not self.is_flooding or self.noisy_left == 0 or self.backlog >= BACKLOG_MAX:
                await self._pause(HELD_S)
                continue
            if self.noisy_left is not None:
                self.noisy_left -= 1
            if (await self._request("noisy", port)).status != 200:
                await self._pause(self.size.pause_after_refusal_s)

    async def _pause(self, seconds: float) -> None:
        """Waits, but no longer than until `stopped` is set."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stopped.wait(), seconds)

    def _ports_in_turn(self, first: int) -> Iterator[int]:
        turn = first
        while not self.stopped.is_set():
            yield self.ports[turn % len(self.ports)]
            turn += 1

    async def _request(self, key: str, port: int) -> ClientResponse:
        began_s = time.monotonic()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(REQUEST.format(key=key).encode())
            head, _, _ = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
        except OSError as error:
            raise NoAnswer(f"the application at port {port} does not answer: {error}") from error
        if not head:
            raise NoAnswer(f"the application at port {port} has closed a connection without an answer")
        status, policy = read_head(head)
        response = ClientResponse(f"api_key:{key}", time.time(), time.monotonic() - began_s, status, policy)
        self.responses.append(response)
        self.sent[response.caller, bool(policy)] += 1
        return response


def read_head(head: bytes) -> tuple[int, str]:
    r"""Returns the status and the policy in the header `Gatelock: denied;policy="..."`.

    >>> read_head(b'HTTP/1.1 429 Too Many Requests\r\ngatelock: denied;policy="daily"')
    (429, 'daily')
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    policy = ""
    for line in lines:
        name, _, value = line.partition(":")
        if name.lower() == "gatelock":
            policy = value.partition('denied;policy="')[2].partition('"')[0]
    return int(first.split(" ")[1]), policy
