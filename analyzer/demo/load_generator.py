"""Forty ordinary callers and a noisy one, over real connections; remembers every answer that anybody got."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

NOISY = "api_key:noisy"
CALLERS = 40
EVERY_S = 1.0  # how often an ordinary caller asks
STORM_CONNECTIONS = 24
REQUEST = "GET /v1/items/7 HTTP/1.1\r\nhost: shop\r\nx-api-key: {key}\r\nconnection: close\r\n\r\n"
REST_S = 0.2  # what the noisy one waits after a refusal


class ClientResponse(NamedTuple):
    caller: str
    at_s: float  # when it came
    took_s: float
    status: int
    policy: str  # the lock that refused it, or ""


@dataclass(slots=True)
class LoadGenerator:
    """Sends requests to all workers in turn until told to stop. One event loop, no threads."""

    ports: Sequence[int]
    random: Random
    answers: list[ClientResponse] = field(default_factory=list)
    storming: bool = False
    stopped: bool = False

    async def run(self) -> None:
        """Every caller at once; ends when `stopped` is set and the last answer is in."""
        ordinary = [self._ordinary(f"caller-{n:02}") for n in range(CALLERS)]
        noisy = [self._noisy(n) for n in range(STORM_CONNECTIONS)]
        await asyncio.gather(*ordinary, *noisy)

    async def _ordinary(self, key: str) -> None:
        await asyncio.sleep(self.random.uniform(0, EVERY_S))
        for port in self._turns(self.random.randrange(len(self.ports))):
            await self._ask(key, port)
            await asyncio.sleep(self.random.uniform(0.5, 1.5) * EVERY_S)

    async def _noisy(self, number: int) -> None:
        for port in self._turns(number):
            if not self.storming:
                await asyncio.sleep(0.05)
            elif (await self._ask("noisy", port)).status != 200:
                await asyncio.sleep(REST_S)

    def _turns(self, first: int) -> Iterator[int]:
        turn = first
        while not self.stopped:
            yield self.ports[turn % len(self.ports)]
            turn += 1

    async def _ask(self, key: str, port: int) -> ClientResponse:
        began_s = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST.format(key=key).encode())
        head, _, _ = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        status, policy = read_head(head)
        answer = ClientResponse(f"api_key:{key}", time.time(), time.monotonic() - began_s, status, policy)
        self.answers.append(answer)
        return answer


def read_head(head: bytes) -> tuple[int, str]:
    r"""Status, and the policy in the header `Gatelock: denied;policy="..."`.

    >>> read_head(b'HTTP/1.1 429 Too Many Requests\r\ngatelock: denied;policy="daily"')
    (429, 'daily')
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    policy = ""
    for line in lines:
        name, _, value = line.partition(":")
        if name.lower() == "gatelock":
            policy = value.partition('policy="')[2].partition('"')[0]
    return int(first.split(" ")[1]), policy
