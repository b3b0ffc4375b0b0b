"""Messages to WebSocket sessions: in order for each, some ahead of the others, and a receipt for every one.

uvicorn push_server:app
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass
from typing import TypeVar

from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from gatekeeper.limits import AsyncKeyedScheduler

S = TypeVar("S", bound="Session")

# A hundred sessions are sent to at the same time, each by one task; after ten messages to one
# session it is the turn of another, if one waits.
pushes = AsyncKeyedScheduler(workers=100, yield_after=10)
numbers = itertools.count()


@dataclass(frozen=True)
class Receipt:
    """What was handed to the network, and when."""

    message: dict[str, object]
    sent_at: float


class Session:
    """One connected socket."""

    def __init__(self, name: str, socket: WebSocket) -> None:
        self.name = name
        self.ended = asyncio.Event()
        self._socket = socket
        # With a number of its own: who connects again does not inherit what was waiting.
        self._key = (type(self).__name__, name, next(numbers))

    def send(self, message: dict[str, object], *, ahead: bool = False) -> asyncio.Future[Receipt]:
        """The receipt to come; `ahead` of all that wait, but never in the middle of one."""
        return pushes.submit(self._key, lambda: self._deliver(message), high=ahead)

    async def close(self) -> None:
        """Say goodbye after the message that is being sent; what waits is cancelled."""
        pushes.abort(self._key)
        await self.drain_and_close()

    async def drain_and_close(self) -> None:
        """Take nothing new, send all that waits, and then say goodbye."""
        await pushes.remove(self._key)
        await self._socket.close()
        self.ended.set()

    def abort(self) -> None:
        """Hang up at once, without a word; what waits is cancelled."""
        pushes.abort(self._key)
        self.ended.set()

    async def _deliver(self, message: dict[str, object]) -> Receipt:
        await self._socket.send_json(message)
        return Receipt(message, time.time())


class CustomerSession(Session):
    """A customer who looks at an account."""

    def balance(self, cents: int) -> asyncio.Future[Receipt]:
        return self.send({"balance": cents})

    def fraud(self, why: str) -> asyncio.Future[Receipt]:
        return self.send({"fraud": why}, ahead=True)


class OrderSession(Session):
    """Somebody who follows an order."""

    def shipped(self, parcel: str) -> asyncio.Future[Receipt]:
        return self.send({"shipped": parcel})


sessions: dict[tuple[type[Session], str], Session] = {}


def find(kind: type[S], name: str) -> S | None:
    """The session of that kind and name, when it is connected."""
    session = sessions.get((kind, name))
    return session if isinstance(session, kind) else None


async def serve(socket: WebSocket, kind: type[Session]) -> None:
    await socket.accept()
    session = kind(socket.path_params["name"], socket)
    sessions[kind, session.name] = session
    reading = asyncio.create_task(until_disconnected(session, socket))
    try:
        await session.ended.wait()
    finally:
        reading.cancel()
        pushes.abort(session._key)
        if sessions.get((kind, session.name)) is session:
            del sessions[kind, session.name]


async def until_disconnected(session: Session, socket: WebSocket) -> None:
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass  # this server only talks
    session.ended.set()


async def customer(socket: WebSocket) -> None:
    await serve(socket, CustomerSession)


async def order(socket: WebSocket) -> None:
    await serve(socket, OrderSession)


app = Starlette(
    routes=[WebSocketRoute("/customers/{name}", customer), WebSocketRoute("/orders/{name}", order)]
)
