"""docs/examples/push_server.py under uvicorn, with real WebSocket clients."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import pytest
import uvicorn
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

Example = Callable[[str], ModuleType]


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """Yields the URL of `app` under a real server, in this loop."""
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off", ws="websockets-sansio")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield f"ws://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


def run_story(story: Callable[[ModuleType, str], Awaitable[None]], example: Example) -> None:
    async def main() -> None:
        push = example("push_server")
        async with serving(push.app) as address:
            await asyncio.wait_for(story(push, address), 20)

    asyncio.run(main())


async def session_of(push: ModuleType, kind: str, name: str) -> Any:
    while (session := push.find(getattr(push, kind), name)) is None:
        await asyncio.sleep(0.001)
    return session


async def wait_until_gone(push: ModuleType, kind: str, name: str) -> None:
    while push.find(getattr(push, kind), name) is not None:
        await asyncio.sleep(0.001)


async def received(client: ClientConnection, count: int) -> list[Any]:
    return [json.loads(await client.recv()) for _ in range(count)]


def test_a_session_is_found_by_its_kind_and_name(example: Example):
    async def story(push: ModuleType, address: str) -> None:
        async with connect(f"{address}/customers/anna"), connect(f"{address}/orders/anna"):
            customer = await session_of(push, "CustomerSession", "anna")
            order = await session_of(push, "OrderSession", "anna")
            assert (type(customer).__name__, type(order).__name__) == ("CustomerSession", "OrderSession")
            assert push.find(push.CustomerSession, "bert") is None
        await wait_until_gone(push, "CustomerSession", "anna")

    run_story(story, example)


def test_messages_arrive_in_order_urgent_ones_first_each_with_a_receipt(example: Example):
    async def story(push: ModuleType, address: str) -> None:
        async with connect(f"{address}/customers/anna") as client:
            anna = await session_of(push, "CustomerSession", "anna")
            began = time.time()
            sending = [anna.balance(cents) for cents in (50, 150, 0)]
            sending.append(anna.fraud("withdrawn from Atlantis"))
            assert await received(client, 4) == [
                {"fraud": "withdrawn from Atlantis"},
                {"balance": 50},
                {"balance": 150},
                {"balance": 0},
            ]
            receipts = await asyncio.gather(*sending)
            assert [receipt.message for receipt in receipts[:2]] == [{"balance": 50}, {"balance": 150}]
            assert receipts[3].sent_at <= receipts[0].sent_at <= receipts[2].sent_at
            assert began <= receipts[3].sent_at <= time.time()

    run_story(story, example)


def test_draining_sends_waiting_messages_and_accepts_no_more(example: Example):
    async def story(push: ModuleType, address: str) -> None:
        async with connect(f"{address}/customers/anna") as client:
            anna = await session_of(push, "CustomerSession", "anna")
            unblock = asyncio.Event()
            push.pushes.submit(anna._key, unblock.wait)
            sending = [anna.balance(cents) for cents in range(30)]
            closing = asyncio.create_task(anna.drain_and_close())
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="takes no more jobs"):
                anna.balance(31)
            unblock.set()
            assert await received(client, 30) == [{"balance": cents} for cents in range(30)]
            with pytest.raises(ConnectionClosed):
                await client.recv()
            assert client.close_code == 1000
            await closing
            assert all(future.done() and not future.cancelled() for future in sending)

    run_story(story, example)


@pytest.mark.parametrize(("how", "code"), [("close", 1000), ("abort", 1006)])
def test_closing_sends_a_close_frame_aborting_does_not_and_both_cancel_waiting_messages(
    example: Example, how: str, code: int
):
    async def story(push: ModuleType, address: str) -> None:
        async with connect(f"{address}/customers/anna") as client:
            anna = await session_of(push, "CustomerSession", "anna")
            sending = [anna.balance(cents) for cents in range(30)]
            ending = getattr(anna, how)()
            if ending is not None:
                await ending
            with pytest.raises(ConnectionClosed):
                await received(client, 30)
            assert client.close_code == code
            assert all(future.cancelled() for future in await settled(sending))
        await wait_until_gone(push, "CustomerSession", "anna")

    run_story(story, example)


async def settled(futures: list[Any]) -> list[Any]:
    await asyncio.gather(*futures, return_exceptions=True)
    return futures


def test_a_client_that_connects_again_gets_only_new_messages(example: Example):
    async def story(push: ModuleType, address: str) -> None:
        async with connect(f"{address}/customers/anna"):
            first = await session_of(push, "CustomerSession", "anna")
            async with connect(f"{address}/customers/anna") as client:
                while (second := push.find(push.CustomerSession, "anna")) is first:
                    await asyncio.sleep(0.001)
                first.balance(1)
                await second.balance(2)
                assert await received(client, 1) == [{"balance": 2}]

    run_story(story, example)
