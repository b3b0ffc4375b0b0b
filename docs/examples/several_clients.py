"""Threads with several HTTP clients share one throttle, for a service that allows 10 requests per second."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import httpx2

from gatekeeper.limits import LeakyQueue

# All threads import this object from one module. Requests leave evenly, but their travel times
# differ and the service counts arrivals; so the period is longer than a second.
throttle = LeakyQueue(limit=10, period=1.2, queue=1000)


def fetch(client: httpx2.Client, item: int) -> str:
    with throttle.guard():  # in order of arrival, for all clients and threads together
        return client.get(f"/items/{item}").raise_for_status().text


def fetch_all(url: str, items: Iterable[int]) -> list[str]:
    with (
        httpx2.Client(base_url=url) as stock,
        httpx2.Client(base_url=url, headers={"x-department": "sales"}) as sales,
        ThreadPoolExecutor(max_workers=8) as pool,
    ):
        waiting = [pool.submit(fetch, stock if item % 2 else sales, item) for item in items]
        return [future.result() for future in waiting]


if __name__ == "__main__":
    print(*fetch_all(sys.argv[1], range(20)), sep="\n")
