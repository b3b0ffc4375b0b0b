"""A TCP proxy that injects faults: resets, silence, delays, fragments, half or lost replies, lost commits."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from tests.support.servers.child import free_port

CHUNK = 65_536
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST, as a firewall that dropped its state
Loss = Literal["request", "reply", "time"]
T = TypeVar("T")


@dataclass(slots=True)
class Fault:
    """Happens to the request that contains `word`, after `after` of them have passed."""

    word: bytes
    loss: Loss
    seconds: float
    after: int
    triggered: threading.Event


@dataclass(slots=True, eq=False)
class Link:
    """A client's connection, and the proxy's connection to the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    fault: Fault | None = None  # applies to the current request

    def reset(self) -> None:
        for writer in (self.client, self.server):
            with suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()


class Proxy:
    """Listens on `port` of 127.0.0.1 and forwards to port `target` of `host`, until a method injects a fault.

    Runs in a separate thread; every method may be called from any other.
    """

    def __init__(self, target: int, host: str = "127.0.0.1") -> None:
        self.port = free_port()
        self._target = host, target
        self._links: set[Link] = set()
        self._faults: list[Fault] = []
        self._spoiling: list[tuple[bytes, threading.Event]] = []
        self._delay_s = 0.0
        self._piece = CHUNK
        self._takes = True
        self._halves = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: asyncio.Server = self._do(asyncio.start_server(self._serve, "127.0.0.1", self.port))

    def cut(self) -> int:
        """Resets every connection; returns their number."""
        return self._do(self._cut())

    def turn_to(self, port: int) -> None:
        """Resets every connection; forwards new ones to another port."""
        self._target = self._target[0], port
        self.cut()

    def shut(self) -> int:
        """Resets every connection, and each new one until `open`; returns the number of the first."""
        self._takes = False
        return self.cut()

    def open(self) -> None:
        self._takes = True

    def halve(self, halves: bool = True) -> None:
        """Forwards the first half of the server's next data, and then resets the connection."""
        self._halves = halves

    def stall(self) -> None:
        """Stops forwarding in both directions, silently, until `flow`."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def flow(self) -> None:
        self._loop.call_soon_threadsafe(self._flowing.set)

    def slow(self, seconds: float) -> None:
        """Delays all data by `seconds`."""
        self._delay_s = seconds

    def shred(self, most: int = CHUNK) -> None:
        """Forwards at most `most` bytes at a time."""
        self._piece = most

    def lose(self, word: bytes, loss: Loss, seconds: float = 0.0, after: int = 0) -> threading.Event:
        """Loses the request that contains `word`, after `after` of them passed, and resets its connection.

        "request" loses the request, "reply" its reply; "time" first delays the request by `seconds`, like an
        analyzer that is stopped there. The event is set when it happens.
        """
        fault = Fault(word, loss, seconds, after, threading.Event())
        self._faults.append(fault)
        return fault.triggered

    def spoil(self, word: bytes) -> threading.Event:
        """Flips a bit of `word` in the next reply that contains it; the event is set when it happens."""
        self._spoiling.append((word, done := threading.Event()))
        return done

    def close(self) -> None:
        self.flow()
        self._do(self._finished())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # ------------------------------------------------------------------------- in the proxy's thread

    def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _cut(self) -> int:
        links = list(self._links)
        for link in links:
            link.reset()
        return len(links)

    async def _finished(self) -> None:
        self._server.close()
        await self._cut()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _serve(self, requests: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        link = None
        if not self._takes:
            client.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.transport.abort()
            return
        try:
            replies, server = await asyncio.open_connection(*self._target)
            link = Link(client, server)
            self._links.add(link)
            await asyncio.gather(self._forward_requests(link, requests), self._forward_replies(link, replies))
        except (OSError, asyncio.CancelledError):
            pass  # the server is down, a side has disconnected, or the proxy is closed
        finally:
            if link is None:
                client.transport.abort()
            else:
                link.reset()
                self._links.discard(link)

    async def _forward_requests(self, link: Link, requests: asyncio.StreamReader) -> None:
        while data := await requests.read(CHUNK):
            link.fault = self._matching_fault(data)
            if link.fault is not None and link.fault.loss != "reply":
                link.fault.triggered.set()
                await asyncio.sleep(link.fault.seconds)
                link.reset()
                return
            await self._pass(link.server, data)
        link.server.close()

    def _matching_fault(self, data: bytes) -> Fault | None:
        for fault in [fault for fault in self._faults if fault.word in data]:
            fault.after -= 1
            if fault.after < 0:
                self._faults.remove(fault)
                return fault
        return None

    async def _forward_replies(self, link: Link, replies: asyncio.StreamReader) -> None:
        while data := await replies.read(CHUNK):
            if link.fault is not None:
                link.fault.triggered.set()
                link.reset()
                return
            if self._halves:
                await self._pass(link.client, data[: len(data) // 2])
                link.reset()
                return
            await self._pass(link.client, self._spoilt(data))
        link.client.close()

    def _spoilt(self, data: bytes) -> bytes:
        for word, done in [entry for entry in self._spoiling if entry[0] in data]:
            at = data.index(word)
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            self._spoiling.remove((word, done))
            done.set()
        return data

    async def _pass(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        await self._flowing.wait()
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        most = self._piece  # read once: `shred` may change it meanwhile
        for at in range(0, len(data), most):
            writer.write(data[at : at + most])
            await writer.drain()
            if most < CHUNK:
                await asyncio.sleep(0)  # otherwise the next piece would be sent with this one
