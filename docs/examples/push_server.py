"""Messages to WebSocket sessions: in order per session, urgent ones first, with a receipt for each.

Run with: uvicorn push_server:app
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

# A hundred tasks send at the same time, each to one session; after ten messages to one session a
# task continues with another, if one waits.
pushes = AsyncKeyedScheduler(workers=100, yield_after=10)
session_numbers = itertools.count()


@dataclass(frozen=True)
class Receipt:
    """A message that was handed to the network, and the time."""

    message: dict[str, object]
    sent_at: float


class Session:
    """One connected socket."""

    def __init__(self, name: str, socket: WebSocket) -> None:
        self.name = name
        self.ended = asyncio.Event()
        self._socket = socket
        # The number is unique, so that a client that connects again gets no messages of its old session.
        self._key = (type(self).__name__, name, next(session_numbers))

    def send(self, message: dict[str, object], *, ahead: bool = False) -> asyncio.Future[Receipt]:
        """Returns the future receipt; `ahead` sends before all waiting messages, after the one being sent."""
        return pushes.submit(self._key, lambda: self._deliver(message), high=ahead)

    async def close(self) -> None:
        """Closes the socket after the message being sent; waiting messages are cancelled."""
        pushes.abort(self._key)
        await self.drain_and_close()

    async def drain_and_close(self) -> None:
        """Accepts no more messages, sends all waiting ones, and then closes the socket."""
        await pushes.remove(self._key)
        await self._socket.close()
        self.ended.set()

    def abort(self) -> None:
        """Drops the connection at once, without a close frame; waiting messages are cancelled."""
        pushes.abort(self._key)
        self.ended.set()

    async def _deliver(self, message: dict[str, object]) -> Receipt:
        await self._socket.send_json(message)
        return Receipt(message, time.time())


class CustomerSession(Session):
    """A session of a customer, about an account."""

    def balance(self, cents: int) -> asyncio.Future[Receipt]:
        return self.send({"balance": cents})

    def fraud(self, why: str) -> asyncio.Future[Receipt]:
        return self.send({"fraud": why}, ahead=True)


class OrderSession(Session):
    """A session about the delivery of an order."""

    def shipped(self, parcel: str) -> asyncio.Future[Receipt]:
        return self.send({"shipped": parcel})


sessions: dict[tuple[type[Session], str], Session] = {}


def find(kind: type[S], name: str) -> S | None:
    """Returns the connected session of that kind and name, or None."""
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
        pass  # this server ignores messages of clients
    session.ended.set()


async def customer(socket: WebSocket) -> None:
    await serve(socket, CustomerSession)


async def order(socket: WebSocket) -> None:
    await serve(socket, OrderSession)


app = Starlette(
    routes=[WebSocketRoute("/customers/{name}", customer), WebSocketRoute("/orders/{name}", order)]
)
