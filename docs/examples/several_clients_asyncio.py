"""Asyncio tasks share one throttle, for a service that allows 10 requests per second."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable

import httpx2

from gatekeeper.limits import LeakyQueue

# Threads may share it, too. Requests leave evenly, but their travel times differ and the service
# counts arrivals; so the period is longer than a second.
throttle = LeakyQueue(limit=10, period=1.2, queue=1000)


@throttle.guard()
async def fetch(client: httpx2.AsyncClient, item: int) -> str:
    response = await client.get(f"/items/{item}")
    return response.raise_for_status().text


async def fetch_all(url: str, items: Iterable[int]) -> list[str]:
    async with httpx2.AsyncClient(base_url=url) as stock, httpx2.AsyncClient(base_url=url) as sales:
        return await asyncio.gather(*(fetch(stock if item % 2 else sales, item) for item in items))


if __name__ == "__main__":
    print(*asyncio.run(fetch_all(sys.argv[1], range(20))), sep="\n")
