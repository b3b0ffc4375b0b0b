"""Gzip answers of which many gates share the largest part, compressed once.

*Purpose.* A lock reaches every gate within a stated delay, and no client can overload the server. After a
change, or after a restart, hundreds of gates get the same changes at the same moment. Each answer also has
a few fields for one gate (the time, how long this gate has waited), so that whole answers cannot be cached.

*Method.* An answer is a head, the changes, and an end. They become three runs of blocks in one deflate stream
(RFC 1951). The changes are compressed once and end with a full flush: their blocks are aligned to a byte
and refer to nothing before, so they can follow any others. The head and the end, some two hundred bytes, go
into stored blocks, which are not compressed and cost next to nothing. With a gzip header and the checksum
of the whole text (RFC 1952) this is one ordinary gzip member, which every client decompresses.

*Why not Starlette's middleware.* Its GZipMiddleware compresses each answer from the beginning, for each
gate, and so does a reverse proxy; docs/decisions/0016 has the measurement. This module uses public names of
`zlib` and `starlette` only.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import struct
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import NamedTuple

from fastapi import Response
from starlette.types import Receive, Scope, Send

from analyzer.server.connection_limits import Client
from analyzer.server.single_flight import run_in_thread
from gatekeeper.feed import feed_json
from gatekeeper.model import Cursor

PIECE_BYTES = 64 << 10  # as much of an answer is buffered for a slow client; the rest stays shared
COMPRESSION = 1  # of 1 to 9: three quarters of the saving of 9, in a fifth of its time
LONG_BYTES = 1 << 20  # of what is sent; shorter answers do not wait for a turn
SENT_AT_ONCE = 2
TURN_S = 0.25  # a client that takes its answer slowly does not keep others waiting
SENT_EVERY_S = 0.5  # over one connection, which may be that of a proxy
CLIENTS_KEPT = 10_000
RAW_DEFLATE = -15  # zlib's sign for blocks without a header, with the largest window
SEPARATOR = b",\n"  # between changes
SMALL_BYTES = 16 << 10  # compressed in a fifth of a millisecond, for which a thread is not worth starting
CHECKSUM_BYTES_MAX = 1 << 20  # the checksum of a longer text is computed in a thread: a millisecond for 4 MB
GZIP_HEADER = bytes((0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 0xFF))  # deflate; no name, no time, any system


class CompressedChanges:
    """Changes from one version to another, encoded once and compressed once for all answers."""

    def __init__(self, since: int | None, text: bytes) -> None:
        """`text` as `feed_json.encode_changes` returns it. Of a snapshot `since` is None."""
        self.since = since
        self.text = text
        self._deflated: asyncio.Future[bytes] | None = None

    @property
    def is_snapshot(self) -> bool:
        """Whether these are all locks."""
        return self.since is None

    async def deflated(self) -> bytes:
        """Returns the changes as deflate blocks, none of which is the last of a stream."""
        if self._deflated is None:
            if len(self.text) < SMALL_BYTES:
                self._deflated = asyncio.get_running_loop().create_future()
                self._deflated.set_result(_deflate(self.text))
            else:
                self._deflated = run_in_thread(partial(_deflate, self.text))
        return await asyncio.shield(self._deflated)  # a client that leaves must not cancel it for the others


class CompressedAnswer(NamedTuple):
    """An answer in JSON: the head for one gate, shared changes one after the other, and the end."""

    head: bytes
    at: Cursor  # the version that the gate holds after this answer
    changes: Sequence[CompressedChanges]

    def parts(self) -> Sequence[bytes]:
        """Returns the text of the answer in parts."""
        texts = [changes.text for changes in self.changes if changes.text]
        separated = [part for text in texts for part in (SEPARATOR, text)][1:]
        return self.head, *separated, feed_json.encode_end(texts[0] if texts else b"")

    async def gzipped(self) -> Sequence[bytes]:
        """Returns the answer as a gzip file in parts."""
        parts = self.parts()
        deflated = [await changes.deflated() for changes in self.changes if changes.text]
        separated = [part for blocks in deflated for part in (_stored(SEPARATOR), blocks)][1:]
        is_long = sum(map(len, parts)) > CHECKSUM_BYTES_MAX
        trailer = await run_in_thread(partial(_trailer, parts)) if is_long else _trailer(parts)
        return GZIP_HEADER + _stored(self.head), *separated, _stored(parts[-1], is_last=True) + trailer


def _trailer(parts: Sequence[bytes]) -> bytes:
    """Returns the checksum and the length of the text in these parts, as they end a gzip file."""
    crc = size = 0
    for part in parts:
        crc, size = zlib.crc32(part, crc), size + len(part)
    return struct.pack("<II", crc, size & 0xFFFF_FFFF)


def _deflate(text: bytes) -> bytes:
    """Returns `text` as deflate blocks that other blocks may precede and follow."""
    compressor = zlib.compressobj(COMPRESSION, zlib.DEFLATED, RAW_DEFLATE)
    return compressor.compress(text) + compressor.flush(zlib.Z_FULL_FLUSH)


def _stored(text: bytes, *, is_last: bool = False) -> bytes:
    """Returns `text`, below 64 KiB, as one deflate block that is not compressed (RFC 1951, 3.2.4)."""
    return struct.pack("<BHH", is_last, len(text), len(text) ^ 0xFFFF) + text


class SendingTurns:
    """Turns in which long answers are sent, so that no client keeps others from theirs by asking for many.

    A few are sent at a time; of the clients that wait, those go first that had the fewest. A client waits
    between two answers: a gate needs all locks once. All methods belong to one event loop.
    """

    def __init__(self) -> None:
        self._free = SENT_AT_ONCE
        self._queue: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap: had before, order of arrival
        self._arrivals = itertools.count()
        self._had: dict[Client, tuple[int, float]] = {}  # how many, and when the last one began

    @asynccontextmanager
    async def turn(self, client: Client) -> AsyncIterator[None]:
        """Waits until an answer may be sent to `client`. The next one follows after it, or after `TURN_S`."""
        loop = asyncio.get_running_loop()
        had, last_s = self._had.get(client, (0, -inf))
        if len(self._had) >= CLIENTS_KEPT:
            self._had.clear()
        self._had[client] = had + 1, max(loop.time(), last_s + SENT_EVERY_S)
        await asyncio.sleep(max(0.0, last_s + SENT_EVERY_S - loop.time()))
        if self._free:
            self._free -= 1
        else:
            waiting: asyncio.Future[None] = loop.create_future()
            heapq.heappush(self._queue, (had, next(self._arrivals), waiting))
            try:
                await waiting
            except asyncio.CancelledError:
                if not waiting.cancelled():  # its turn came when the client left
                    self._end()
                raise
        timer = loop.call_later(TURN_S, self._end)
        try:
            yield
        finally:
            if loop.time() < timer.when():
                timer.cancel()
                self._end()

    def _end(self) -> None:
        while self._queue:
            waiting = heapq.heappop(self._queue)[2]
            if not waiting.done():  # of a client that has not left
                waiting.set_result(None)
                return
        self._free += 1


class PiecewiseResponse(Response):
    """A response that is sent piece by piece, each when the client has taken most of those before.

    A slow client then holds one piece in the transport's buffer, not a copy of the whole body. Long ones are
    sent in `turns`.
    """

    def __init__(
        self, parts: Sequence[bytes], headers: Mapping[str, str], media_type: str, turns: SendingTurns
    ) -> None:
        length = sum(map(len, parts))
        super().__init__(headers={**headers, "content-length": str(length)}, media_type=media_type)
        self._parts = parts
        self._turns = turns if length >= LONG_BYTES else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._turns is None:
            await self._send(send)
            return
        async with self._turns.turn(scope.get("client") or ("", 0)):
            await self._send(send)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._parts:
            for offset in range(0, len(part), PIECE_BYTES):
                body = part[offset : offset + PIECE_BYTES]
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
