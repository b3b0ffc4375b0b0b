"""The end of an ASGI application's life: the last moment to write what waits, for some servers leave by a
signal and run nothing after that."""

from __future__ import annotations

from collections.abc import Callable

from gatekeeper.adapters.asgi import App, Message, Receive, Scope, Send


async def live(app: App, scope: Scope, receive: Receive, send: Send, end: Callable[[], None]) -> None:
    """Let `app` live, and call `end` before it has said that it is over.

    One that knows nothing of lifespans (Django's raises, others return) is answered for, or its server would
    not tell of the end.
    """
    asked = False

    async def receiving() -> Message:
        nonlocal asked
        asked = True
        return await receive()

    async def sending(message: Message) -> None:
        if message["type"].startswith("lifespan.shutdown"):
            end()
        await send(message)

    try:
        await app(scope, receiving, sending)
    except Exception:
        if asked:
            raise
    if not asked:
        await _answer_for(receive, send, end)


async def _answer_for(receive: Receive, send: Send, end: Callable[[], None]) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.shutdown":
            end()
            await send({"type": "lifespan.shutdown.complete"})
            return
        await send({"type": "lifespan.startup.complete"})
