"""The demo's clients over real connections: forty ordinary callers and a noisy one; later, two incidents."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from analyzer.demo.guarded_app import CLIENT, EXPORT, LOGIN
from analyzer.demo.past_traffic import FLOOD_NETWORK, NEIGHBOUR
from analyzer.demo.traffic_size import TrafficSize

NOISY = "api_key:noisy"
CALLERS = 40
HELD_S = 0.05  # between two looks of a caller that is held back
# Requests that are not counted yet. The broker of the demo keeps 5 MB a partition, and deletes what is older,
# counted or not: callers wait rather than lose a record of a machine that is busy with other things.
BACKLOG_MAX = 4_000
TEAMS = 4  # tenants of the ordinary callers
NETWORKS = 8  # that they call from
PATHS = ("/v1/items/7", "/v1/items/8", "/v1/search", "/v1/orders")
NEIGHBOUR_CONNECTIONS = 2
FLOOD_PER_S = 16.0
FLOOD_CLIENTS = 60  # addresses of one network


class ClientRequest(NamedTuple):
    """A request of a client.

    Attributes:
        key: Its API key; "" for none.
        path: What it asks for.
        address: Where it comes from.
        tenant: The tenant of its key.
    """

    key: str
    path: str
    address: str
    tenant: str = ""

    @property
    def caller(self) -> str:
        """The name that it is counted under."""
        return f"api_key:{self.key}" if self.key else f"address:{self.address}"

    @property
    def head(self) -> bytes:
        """The request as bytes."""
        headers = {"x-api-key": self.key, "x-tenant": self.tenant, "x-forwarded-for": self.address}
        headers[CLIENT.decode()] = "yes"
        lines = [f"{name}: {value}" for name, value in headers.items() if value]
        return "\r\n".join(
            [f"GET {self.path} HTTP/1.1", "host: shop", *lines, "connection: close", "", ""]
        ).encode()


class ClientResponse(NamedTuple):
    """Response to one request, as the client saw it."""

    caller: str
    at_s: float  # wall clock when it arrived
    took_s: float
    status: int
    policy: str  # of the lock that denied the request; empty if none did (also if the limiter refused it)


class NoAnswer(Exception):
    """A process of the application did not answer a request."""


FLOODING = ClientRequest("noisy", PATHS[0], "198.51.100.250", "team-1")


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
    with_incidents: bool = False  # whether a neighbour exports too much, and a network guesses passwords
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    is_idle: bool = False  # whether the last response has arrived

    @property
    def backlog(self) -> int:
        """The number of requests that are not counted yet."""
        return self.sent.total() - self.counted

    async def run(self) -> None:
        """Runs all callers until `stopped` is set and the last response has arrived. Raises NoAnswer."""
        tasks = [self._ordinary(n) for n in range(CALLERS)]
        tasks += [self._noisy(n) for n in range(self.size.connections)]
        if self.with_incidents:
            tasks += [self._neighbour(n) for n in range(NEIGHBOUR_CONNECTIONS)]
            tasks.append(self._flood())
        await asyncio.gather(*tasks)
        self.is_idle = True

    async def _ordinary(self, number: int) -> None:
        of_caller = f"caller-{number:02}", f"198.51.100.{number % NETWORKS * 32 + number // NETWORKS}"
        await self._pause(self.random.uniform(0, self.size.interval_s))
        for port in self._ports_in_turn(self.random.randrange(len(self.ports))):
            if self.backlog < BACKLOG_MAX:
                key, address = of_caller
                path = self.random.choice(PATHS)
                await self._request(ClientRequest(key, path, address, f"team-{number % TEAMS}"), port)
            await self._pause(self.random.uniform(0.5, 1.5) * self.size.interval_s)

    async def _neighbour(self, number: int) -> None:
        """Exports without a pause: others wait for it, and it is slowed."""
        export = ClientRequest(NEIGHBOUR, EXPORT, "198.51.101.13", "globex")
        for port in self._ports_in_turn(number):
            response = None if self.backlog >= BACKLOG_MAX else await self._request(export, port)
            await self._pause(HELD_S if response is None or response.status == 200 else 1.0)

    async def _flood(self) -> None:
        """Guesses passwords from many addresses of one network."""
        for port in self._ports_in_turn(0):
            address = f"{FLOOD_NETWORK}.{self.random.randrange(FLOOD_CLIENTS) + 1}"
            if self.backlog < BACKLOG_MAX:
                await self._request(ClientRequest("", LOGIN, address), port)
            await self._pause(1 / (FLOOD_PER_S * self.size.share))

    async def _noisy(self, number: int) -> None:
        for port in self._ports_in_turn(number):
            if not self.is_flooding or self.noisy_left == 0 or self.backlog >= BACKLOG_MAX:
                await self._pause(HELD_S)
                continue
            if self.noisy_left is not None:
                self.noisy_left -= 1
            if (await self._request(FLOODING, port)).status != 200:
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

    async def _request(self, request: ClientRequest, port: int) -> ClientResponse:
        began_s = time.monotonic()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request.head)
            head, _, _ = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
        except OSError as error:
            raise NoAnswer(f"the application at port {port} does not answer: {error}") from error
        if not head:
            raise NoAnswer(f"the application at port {port} has closed a connection without an answer")
        status, policy = read_head(head)
        response = ClientResponse(request.caller, time.time(), time.monotonic() - began_s, status, policy)
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
