"""A way to a server that can be made bad: cut, silent, slow, in shreds, in halves; or losing one
commit or its reply."""

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
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST, as a firewall does that has forgotten
Loss = Literal["request", "reply", "time"]
T = TypeVar("T")


@dataclass(slots=True)
class Trap:
    """What becomes of a request that holds `word`, after so many that pass."""

    word: bytes
    loss: Loss
    seconds: float
    after: int
    sprung: threading.Event


@dataclass(slots=True, eq=False)
class Link:
    """One client's connection, and ours to the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    caught: Trap | None = None  # the reply to what is asked now is to be lost

    def reset(self) -> None:
        for writer in (self.client, self.server):
            with suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()


class Proxy:
    """Listens on `port` of 127.0.0.1 and passes everything on to port `target` of `host`, unless told
    otherwise. Works in a thread of its own; every method may be called from any other."""

    def __init__(self, target: int, host: str = "127.0.0.1") -> None:
        self.port = free_port()
        self._target = host, target
        self._links: set[Link] = set()
        self._traps: list[Trap] = []
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
        """Reset every connection; returns how many there were."""
        return self._do(self._cut())

    def shut(self) -> int:
        """Reset every connection, and each that is tried from here on, until `open`."""
        self._takes = False
        return self.cut()

    def open(self) -> None:
        self._takes = True

    def halve(self, halves: bool = True) -> None:
        """Pass on the first half of whatever the server says next, and reset the connection then."""
        self._halves = halves

    def stall(self) -> None:
        """Nothing passes from here on, in either direction, and nobody is told."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def flow(self) -> None:
        self._loop.call_soon_threadsafe(self._flowing.set)

    def slow(self, seconds: float) -> None:
        """Hold everything up for so long."""
        self._delay_s = seconds

    def shred(self, most: int = CHUNK) -> None:
        """Pass on at most so many bytes at a time."""
        self._piece = most

    def lose(self, word: bytes, loss: Loss, seconds: float = 0.0, after: int = 0) -> threading.Event:
        """A request that holds `word`, after so many that pass, never arrives; or it does, and its reply
        never; or ("time") it is held back for `seconds` first, as by an analyzer that is stopped there, and
        never arrives. Its connection is reset then. The event says that somebody walked into it."""
        trap = Trap(word, loss, seconds, after, threading.Event())
        self._traps.append(trap)
        return trap.sprung

    def spoil(self, word: bytes) -> threading.Event:
        """The next reply that holds `word` arrives with a bit of it changed; the event says that it has."""
        self._spoiling.append((word, done := threading.Event()))
        return done

    def close(self) -> None:
        self.flow()
        self._do(self._finished())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # ------------------------------------------------------------------------- in the proxy's own thread

    def _do(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

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

    async def _serve(self, asked: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        link = None
        if not self._takes:
            client.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.transport.abort()
            return
        try:
            answered, server = await asyncio.open_connection(*self._target)
            link = Link(client, server)
            self._links.add(link)
            await asyncio.gather(self._ask(link, asked), self._answer(link, answered))
        except (OSError, asyncio.CancelledError):
            pass  # nobody is there, somebody went, or we are closed
        finally:
            if link is None:
                client.transport.abort()
            else:
                link.reset()
                self._links.discard(link)

    async def _ask(self, link: Link, asked: asyncio.StreamReader) -> None:
        while data := await asked.read(CHUNK):
            link.caught = self._trapped(data)
            if link.caught is not None and link.caught.loss != "reply":
                link.caught.sprung.set()
                await asyncio.sleep(link.caught.seconds)
                link.reset()
                return
            await self._pass(link.server, data)
        link.server.close()

    def _trapped(self, data: bytes) -> Trap | None:
        for trap in [trap for trap in self._traps if trap.word in data]:
            trap.after -= 1
            if trap.after < 0:
                self._traps.remove(trap)
                return trap
        return None

    async def _answer(self, link: Link, answered: asyncio.StreamReader) -> None:
        while data := await answered.read(CHUNK):
            if link.caught is not None:
                link.caught.sprung.set()
                link.reset()
                return
            if self._halves:
                await self._pass(link.client, data[: len(data) // 2])
                link.reset()
                return
            await self._pass(link.client, self._spoilt(data))
        link.client.close()

    def _spoilt(self, data: bytes) -> bytes:
        for word, done in [each for each in self._spoiling if each[0] in data]:
            at = data.index(word)
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            self._spoiling.remove((word, done))
            done.set()
        return data

    async def _pass(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        await self._flowing.wait()
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        most = self._piece  # may be another one before all is said
        for at in range(0, len(data), most):
            writer.write(data[at : at + most])
            await writer.drain()
            if most < CHUNK:
                await asyncio.sleep(0)  # or the next piece would go with this one
