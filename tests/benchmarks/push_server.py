"""docs/examples/push_server.py under load: messages per second, their order, and whether all arrive.

    python -m tests.benchmarks.push_server                   # 500 sessions, 200 messages each
    python -m tests.benchmarks.push_server --sessions 2000 --messages 50

The server is one process, all clients are another; both share the machine. The server sends each session its
messages in rounds of twenty, of which each tenth is sent ahead, and waits for the receipts. The clients check
that each session got every message once, and those of one urgency in order.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import uvicorn
from websockets.asyncio.client import connect

EXAMPLE: Final = Path(__file__).parents[2] / "docs" / "examples" / "push_server.py"
ROUND: Final = 20  # messages of one session that wait at a time
AHEAD_EACH: Final = 10
CONNECTING: Final = 50  # clients that connect at a time


def load_example() -> ModuleType:
    """Returns docs/examples/push_server.py as a module."""
    spec = importlib.util.spec_from_file_location("push_server", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def feed(session: Any, messages: int, delays: list[float]) -> None:
    """Sends all messages to one session, in rounds; notes the seconds from `send` to the receipt of each."""
    numbers = iter(range(messages))
    while numbers_of_round := [*itertools.islice(numbers, ROUND)]:
        sent_at = time.time()
        receipts = [session.send({"n": n}, ahead=n % AHEAD_EACH == AHEAD_EACH - 1) for n in numbers_of_round]
        delays.extend(receipt.sent_at - sent_at for receipt in await asyncio.gather(*receipts))
    await session.drain_and_close()


async def serve(sessions: int, messages: int) -> None:
    """Serves the example until all sessions got all messages; prints the port, and then what it measured."""
    push = load_example()
    config = uvicorn.Config(
        push.app, port=0, log_level="error", lifespan="off", backlog=4096, ws_ping_interval=None
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    while len(push.sessions) < sessions:
        await asyncio.sleep(0.01)
    delays: list[float] = []
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(feed(session, messages, delays) for session in list(push.sessions.values())))
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    quantiles = statistics.quantiles(delays, n=1000)
    server.should_exit = True
    await running
    print(
        json.dumps(
            {
                "messages": len(delays),
                "seconds": round(took, 2),
                "messages per second": round(len(delays) / took),
                "µs CPU of the server per message": round(cpu / len(delays) * 1e6),
                "ms to the receipt, median": round(quantiles[499] * 1000, 1),
                "ms to the receipt, p99.9": round(quantiles[998] * 1000, 1),
                "peak MiB of the server": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            }
        ),
        flush=True,
    )


async def receive(url: str, connecting: asyncio.Semaphore) -> list[int]:
    """Returns the numbers of all messages of one session, in the order in which they arrived."""
    async with connecting:
        client = await connect(url, open_timeout=60, ping_interval=None)
    async with client:
        return [json.loads(message)["n"] async for message in client]


def is_in_order(numbers: list[int], messages: int) -> bool:
    """Whether all messages arrived once, and those of each urgency in order."""
    ahead = [n for n in numbers if n % AHEAD_EACH == AHEAD_EACH - 1]
    others = [n for n in numbers if n % AHEAD_EACH != AHEAD_EACH - 1]
    return sorted(numbers) == [*range(messages)] and ahead == sorted(ahead) and others == sorted(others)


async def listen(port: int, sessions: int, messages: int) -> int:
    """Returns how many sessions got all messages in order."""
    connecting = asyncio.Semaphore(CONNECTING)
    urls = [f"ws://127.0.0.1:{port}/customers/{number}" for number in range(sessions)]
    received = await asyncio.gather(*(receive(url, connecting) for url in urls))
    return sum(is_in_order(numbers, messages) for numbers in received)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--messages", type=int, default=200, help="to each session")
    parser.add_argument("--serve", action="store_true", help="be the server; the clients start it")
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.sessions, options.messages))
        return
    command = [sys.executable, "-m", "tests.benchmarks.push_server", "--serve"]
    command += ["--sessions", str(options.sessions), "--messages", str(options.messages)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        complete = asyncio.run(listen(port, options.sessions, options.messages))
        measured = json.loads(server.stdout.readline())
    print(f"{options.sessions} sessions, {complete} of which got all messages in order")
    for name, number in measured.items():
        print(f"{name}: {number:,}")
    if complete != options.sessions:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
