"""CPU of a server whose waiting gates all get the same changes: compressed once for all, compressed for each
by Starlette's GZipMiddleware, and not compressed."""

from __future__ import annotations

import argparse
import asyncio
import gzip
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random

import psutil

from gatekeeper.feed import feed_json
from gatekeeper.model import Lock
from tests.support.feed import HandFeed, a_lock

GATES = 300
WAIT_S = 60
Case = tuple[str, int, int]  # title, rounds, locks
CASES: tuple[Case, ...] = (("a change of 10 locks", 20, 10), ("a change of 200 locks", 10, 200))
SNAPSHOT_LOCKS = 10_000
VARIANTS = {
    "shared": "compressed once, shared",
    "middleware-1": "GZipMiddleware, level 1",
    "middleware-9": "GZipMiddleware, its default level 9",
    "none": "not compressed",
}


def run(gates: int = GATES, cases: Sequence[Case] = CASES, snapshot_locks: int = SNAPSHOT_LOCKS) -> None:
    """Prints CPU milliseconds of the server for each round, and the bytes of one answer."""
    print(f"{gates} gates that wait for the same changes; CPU of the server for all answers of a round")
    for variant, title in VARIANTS.items():
        print(f"  {title}")
        with server(variant) as (process, port, publish):
            asyncio.run(_measure(variant, process, port, publish, gates, cases, snapshot_locks))


async def _measure(
    variant: str,
    process: psutil.Process,
    port: int,
    publish: Publish,
    count: int,
    cases: Sequence[Case],
    snapshot_locks: int,
) -> None:
    gates = [await Gate.connect(port, gzipped=variant != "none") for _ in range(count)]
    for title, rounds, locks in cases:
        cpu_s = elapsed_s = 0.0
        for _ in range(rounds):
            for gate in gates:
                gate.ask(publish.version, publish.mark)
            await asyncio.sleep(0.5)  # all of them wait by then
            before_s, began_s = _cpu_s(process), time.monotonic()
            publish(locks)
            sizes = await asyncio.gather(*(gate.answer() for gate in gates))
            cpu_s, elapsed_s = cpu_s + _cpu_s(process) - before_s, elapsed_s + time.monotonic() - began_s
        _print(title, cpu_s / rounds, elapsed_s / rounds, sizes[0])
    publish(snapshot_locks)
    before_s, began_s = _cpu_s(process), time.monotonic()
    for gate in gates:
        gate.ask(None, "")
    sizes = await asyncio.gather(*(gate.answer() for gate in gates))
    _print(f"all {snapshot_locks:,} locks", _cpu_s(process) - before_s, time.monotonic() - began_s, sizes[0])
    for gate in gates:
        gate.close()


def _print(title: str, cpu_s: float, elapsed_s: float, size: int) -> None:
    print(
        f"    {title:22} {cpu_s * 1000:9,.0f} ms CPU, {elapsed_s:6.2f} s to the last, {size:10,} bytes each"
    )


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


class Gate:
    """One connection of a gate, which sends raw requests and checks the answers it gets."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, gzipped: bool) -> None:
        self._reader, self._writer, self._gzipped = reader, writer, gzipped
        self._has_checked = False

    @classmethod
    async def connect(cls, port: int, *, gzipped: bool) -> Gate:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        return cls(reader, writer, gzipped=gzipped)

    def ask(self, version: int | None, mark: str) -> None:
        query = "" if version is None else f"?since={version}&mark={mark}&wait={WAIT_S}"
        accept = "accept-encoding: gzip\r\n" if self._gzipped else ""
        self._writer.write(f"GET /v1/locks{query} HTTP/1.1\r\nhost: 127.0.0.1\r\n{accept}\r\n".encode())

    async def answer(self) -> int:
        """Returns the bytes of the body."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200")
        assert (b"content-encoding: gzip" in head) is self._gzipped
        if b"content-length: " in head:
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            body = await self._reader.readexactly(length)
        else:
            body = await self._chunks()
        if not self._has_checked:
            feed_json.load(gzip.decompress(body) if self._gzipped else body)
            self._has_checked = True
        return len(body)

    async def _chunks(self) -> bytes:
        body = b""
        while length := int((await self._reader.readline()).strip(), 16):
            body += await self._reader.readexactly(length)
            await self._reader.readline()
        await self._reader.readline()
        return body

    def close(self) -> None:
        self._writer.close()


class Publish:
    """Publishes changes of a number of locks in the server's process."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        self.version, self.mark = self._read()

    def __call__(self, locks: int) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{locks}\n")
        self._child.stdin.flush()
        self.version, self.mark = self._read()

    def _read(self) -> tuple[int, str]:
        assert self._child.stdout is not None
        version, mark = self._child.stdout.readline().split()
        return int(version), mark


@contextmanager
def server(variant: str) -> Iterator[tuple[psutil.Process, int, Publish]]:
    """A server of a feed in a separate process."""
    command = [sys.executable, "-m", "tests.benchmarks.shared_gzip", variant]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        yield psutil.Process(child.pid), port, Publish(child)
    finally:
        child.terminate()
        child.wait(20)


def _serve(variant: str) -> None:
    from fastapi import FastAPI
    from starlette.middleware.gzip import GZipMiddleware

    from analyzer.faces.authentication import Authenticator
    from analyzer.faces.feed import locks_endpoint
    from analyzer.faces.feed.feed_cache import FeedCache
    from analyzer.faces.feed.long_polls import LongPolls
    from analyzer.kernel.tokens import TokenList
    from analyzer.server.server import serving

    random, source = Random(7), HandFeed(a_lock(ends_in=10**9))
    feed, app = FeedCache(source, time.monotonic), FastAPI(openapi_url=None)
    authenticator = Authenticator(lambda: TokenList((), 0), time.monotonic)
    locks_endpoint.add_locks_endpoint(app, feed, authenticator)
    long_polls = LongPolls(feed, authenticator) if variant == "shared" else None
    if variant.startswith("middleware"):
        least, locks_endpoint.GZIP_BYTES_MIN = locks_endpoint.GZIP_BYTES_MIN, sys.maxsize
        app.add_middleware(GZipMiddleware, minimum_size=least, compresslevel=int(variant[-1]))
    with serving(app, ("127.0.0.1", 0), long_polls=long_polls) as address:
        assert address is not None
        print(address[1], flush=True)
        print(*source.at, flush=True)
        for line in sys.stdin:
            source.set(*(_lock(random) for _ in range(int(line))))
            feed.notify()
            print(*source.at, flush=True)


def _lock(random: Random) -> Lock:
    """A lock on another caller than any before, as long as a real one."""
    detail = f"100,000 requests per day (Europe/Berlin), {random.randrange(100_000, 110_000):,} counted"
    return a_lock(f"api_key:{random.getrandbits(64):016x}", detail=detail, ends_in=10**9)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("variant", choices=VARIANTS)
    _serve(parser.parse_args().variant)
