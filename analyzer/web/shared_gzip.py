"""An answer in pieces: a fleet that begins at once shares the text of all locks, packed once."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from fastapi import Response
from starlette.types import Receive, Scope, Send

from analyzer.web.single_flight import run_in_thread
from gatekeeper.feed import feed_json

PIECE_BYTES = 64 << 10  # so much of an answer waits for a slow client; the rest is everybody's
PACKED_HARD = 1  # of 9: three quarters of what 9 saves, in a fifth of the time
RAW = -15  # deflate alone: its blocks may be put one after the other
END = feed_json.CLOSING
GZIP_HEAD = bytes((0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 0xFF))  # RFC 1952: no name, no time, any system


class CompressedChanges:
    """What leads from one version to another; written once, told to many."""

    def __init__(self, since: int | None, changes: feed_json.ChangeBlock) -> None:
        self.since = since
        self.changes = changes
        self._packed: asyncio.Future[bytes] | None = None

    async def packed(self) -> bytes:
        """The text of the changes as blocks of deflate, none of them the last."""
        if self._packed is None:
            self._packed = run_in_thread(partial(_deflated, self.changes.text, zlib.Z_FULL_FLUSH))
        return await asyncio.shield(self._packed)  # one who leaves must not take it from the others


class CompressedAnswer(NamedTuple):
    """An answer in JSON: a head of its own, changes that others are told too, and the end."""

    head: bytes
    told: CompressedChanges

    def pieces(self) -> Sequence[bytes]:
        return self.head, self.told.changes.text, END

    async def gzipped(self) -> Sequence[bytes]:
        """The pieces of the same as a gzip file."""
        packed = await self.told.packed()
        is_long = len(self.told.changes.text) > PIECE_BYTES
        trailer = await run_in_thread(self._trailer) if is_long else self._trailer()
        head = GZIP_HEAD + _deflated(self.head, zlib.Z_FULL_FLUSH)
        return head, packed, _deflated(END, zlib.Z_FINISH) + trailer

    def _trailer(self) -> bytes:  # takes ten milliseconds for a hundred thousand locks
        crc = size = 0
        for piece in self.pieces():
            crc, size = zlib.crc32(piece, crc), size + len(piece)
        return struct.pack("<II", crc, size & 0xFFFF_FFFF)


def _deflated(text: bytes, end: int) -> bytes:
    packing = zlib.compressobj(PACKED_HARD, zlib.DEFLATED, RAW)
    return packing.compress(text) + packing.flush(end)


class PiecewiseResponse(Response):
    """A response whose body is sent piece by piece, each when the client has taken most of those before."""

    def __init__(self, pieces: Sequence[bytes], headers: Mapping[str, str], media_type: str) -> None:
        length = sum(map(len, pieces))
        super().__init__(headers={**headers, "content-length": str(length)}, media_type=media_type)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            for at in range(0, len(piece), PIECE_BYTES):
                body = piece[at : at + PIECE_BYTES]
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
