"""Large answers: compressed once for all gates, and in memory once, also while gates read them slowly."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import select
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.server import shared_gzip
from analyzer.server.shared_gzip import (
    SENT_AT_ONCE,
    SENT_EVERY_S,
    TURN_S,
    CompressedAnswer,
    CompressedChanges,
    SendingTurns,
)
from gatekeeper.feed import feed_json
from gatekeeper.model import Cursor, Lock, Set, Update
from gatekeeper.sources.http import HttpSource
from gatekeeper.testing import ManualClock
from gatekeeper.testing.manual_loop import run
from tests.support import plain_http
from tests.support.feed import HandFeed, a_lock
from tests.support.serving import feed_server, line_to
from tests.support.waiting import PATIENCE_S

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = st.lists(st.text(st.characters(codec="utf-8"), max_size=300), max_size=30)


def answer_of(locks: list[Lock]) -> tuple[CompressedAnswer, Update]:
    update = Update(Cursor(1, "m1"), None, True, NOW, 0.0, 0.3, tuple(map(Set, locks)))
    text = feed_json.encode_changes(update.changes)
    checksum = feed_json.changes_checksum(text)
    head = b"0.0".join(feed_json.encode_head(update, checksum))
    return CompressedAnswer(head, update.at, [CompressedChanges(None, text)]), update


@given(NAMES)
def test_the_parts_of_an_answer_compressed_or_not_are_the_whole_answer(names: list[str]) -> None:
    answer, update = answer_of([a_lock(name) for name in names])
    plain = b"".join(answer.parts())
    assert plain == feed_json.dump(update).encode()
    compressed = b"".join(asyncio.run(answer.gzipped()))
    assert gzip.decompress(compressed) == plain


@given(st.lists(NAMES, min_size=1, max_size=4))
def test_changes_one_after_the_other_are_one_answer(steps: list[list[str]]) -> None:
    locks = [Set(a_lock(name)) for names in steps for name in names]
    update = Update(Cursor(9, "m9"), 5, False, NOW, 0.0, 0.3, tuple(locks))
    changes = [
        CompressedChanges(number, feed_json.encode_changes(Set(a_lock(name)) for name in names))
        for number, names in enumerate(steps, 5)
    ]
    answer = CompressedAnswer(b"0.0".join(feed_json.encode_head(update)), update.at, changes)
    plain = b"".join(answer.parts())
    assert plain == feed_json.dump(update).encode()
    assert gzip.decompress(b"".join(asyncio.run(answer.gzipped()))) == plain


def test_other_programs_decompress_an_answer() -> None:
    answer, update = answer_of([a_lock(f"user:{n}") for n in range(3_000)])
    compressed = b"".join(asyncio.run(answer.gzipped()))
    output = subprocess.run(["gzip", "-d"], input=compressed, capture_output=True, check=True).stdout
    assert output == feed_json.dump(update).encode()
    assert len(compressed) < len(output) / 8


def test_gates_that_begin_at_the_same_time_share_one_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    compressed: list[int] = []
    deflate = shared_gzip._deflate

    def counting_deflate(text: bytes) -> bytes:
        compressed.append(len(text))
        return deflate(text)

    monkeypatch.setattr(shared_gzip, "_deflate", counting_deflate)
    feed = HandFeed(*(a_lock(f"user:{n}", ends_in=10**9) for n in range(3_000)))
    with feed_server(feed) as url, ThreadPoolExecutor(20) as pool:

        def begin(_: int) -> int:
            source = HttpSource(url)
            locks = len(source.fetch(None).changes)
            source.close()
            return locks

        plain_http.get(f"{url}/v1/locks")  # the server has read the feed by then
        assert set(pool.map(begin, range(60))) == {3_000}
    assert len(compressed) == 1


def test_slow_clients_do_not_each_hold_a_copy_in_memory() -> None:
    feed = HandFeed(*(a_lock(f"user:{n}", detail="x" * 500, ends_in=10**9) for n in range(15_000)))
    with feed_server(feed) as url, ExitStack() as stack:
        size = len(plain_http.get(f"{url}/v1/locks").content)
        assert size > 10_000_000
        process = psutil.Process()
        before = process.memory_info().rss
        lines = [stack.enter_context(line_to(url, 4096)) for _ in range(40)]
        for line in lines:
            line.sendall(b"GET /v1/locks HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        for line in lines:  # the server has begun to write to each, and none takes more
            assert select.select([line], [], [], PATIENCE_S)[0]
        assert process.memory_info().rss - before < 10 * size


def test_long_answers_are_sent_in_turns_first_to_clients_that_had_fewest() -> None:
    clock, turns, sent = ManualClock(), SendingTurns(), list[tuple[str, float]]()

    async def ask(host: str, takes_s: float) -> None:
        async with turns.turn((host, 1)):
            sent.append((host, clock.uptime_s()))
            await asyncio.sleep(takes_s)

    async def story() -> float:
        for _ in range(3):
            await ask("greedy", 0.0)
        await ask("honest", 0.0)
        began_s = clock.uptime_s()
        slow = [asyncio.ensure_future(ask(f"slow-{n}", 60.0)) for n in range(SENT_AT_ONCE)]
        await asyncio.sleep(0)
        leaving = asyncio.ensure_future(ask("leaving", 0.0))
        asking = [asyncio.ensure_future(ask("greedy", 0.0)), asyncio.ensure_future(ask("cold", 0.0))]
        await asyncio.sleep(TURN_S / 2)
        leaving.cancel()
        await asyncio.gather(*asking)
        await asyncio.gather(*slow)
        return began_s

    began_s = run(story(), clock)
    greedy_s = [at_s for host, at_s in sent if host == "greedy"]
    assert all(after - before >= SENT_EVERY_S for before, after in itertools.pairwise(greedy_s))
    at_s = dict(sent)
    assert at_s["cold"] - began_s == pytest.approx(TURN_S), "a slow client has a turn of limited length"
    assert "leaving" not in at_s
