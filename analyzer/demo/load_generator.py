"""The demo's clients: forty ordinary callers and a noisy one, over real connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

NOISY = "api_key:noisy"
CALLERS = 40
INTERVAL_S = 1.0  # between two requests of an ordinary caller, on average
FLOOD_CONNECTIONS = 24  # of the noisy caller at the same time
PAUSE_AFTER_REFUSAL_S = 0.2
REQUEST = "GET /v1/items/7 HTTP/1.1\r\nhost: shop\r\nx-api-key: {key}\r\nconnection: close\r\n\r\n"


class ClientResponse(NamedTuple):
    """Response to one request, as the client saw it."""

    caller: str
    at_s: float  # wall clock when it arrived
    took_s: float
    status: int
    policy: str  # of the lock that denied the request; empty if none did (also if the limiter refused it)


@dataclass(slots=True)
class LoadGenerator:
    """Sends requests to all `ports` in turn and keeps every response. One event loop, no threads."""

    ports: Sequence[int]
    random: Random
    responses: list[ClientResponse] = field(default_factory=list)
    is_flooding: bool = False  # whether the noisy caller sends requests
    is_stopped: bool = False

    async def run(self) -> None:
        """Runs all callers until `is_stopped` is set and the last response has arrived."""
        ordinary = [self._ordinary(f"caller-{n:02}") for n in range(CALLERS)]
        noisy = [self._noisy(n) for n in range(FLOOD_CONNECTIONS)]
        await asyncio.gather(*ordinary, *noisy)

    async def _ordinary(self, key: str) -> None:
        await asyncio.sleep(self.random.uniform(0, INTERVAL_S))
        for port in self._ports_in_turn(self.random.randrange(len(self.ports))):
            await self._request(key, port)
            await asyncio.sleep(self.random.uniform(0.5, 1.5) * INTERVAL_S)

    async def _noisy(self, number: int) -> None:
        for port in self._ports_in_turn(number):
            if not self.is_flooding:
                await asyncio.sleep(0.05)
            elif (await self._request("noisy", port)).status != 200:
                await asyncio.sleep(PAUSE_AFTER_REFUSAL_S)

    def _ports_in_turn(self, first: int) -> Iterator[int]:
        turn = first
        while not self.is_stopped:
            yield self.ports[turn % len(self.ports)]
            turn += 1

    async def _request(self, key: str, port: int) -> ClientResponse:
        began_s = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST.format(key=key).encode())
        head, _, _ = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        status, policy = read_head(head)
        response = ClientResponse(f"api_key:{key}", time.time(), time.monotonic() - began_s, status, policy)
        self.responses.append(response)
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
