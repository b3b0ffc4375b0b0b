"""Large answers: packed once for all, and held once for all, however slowly they are taken."""

from __future__ import annotations

import asyncio
import gzip
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.web import shared_gzip
from analyzer.web.shared_gzip import CompressedAnswer, CompressedChanges
from gatekeeper.feed import feed_json
from gatekeeper.model import Cursor, Lock, Set, Update
from gatekeeper.sources.http import HttpSource
from tests.support import plain_http
from tests.support.feed import HandFeed, a_lock
from tests.support.serving import feed_server, line_to

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = st.lists(st.text(st.characters(codec="utf-8"), max_size=300), max_size=30)


def answer_of(locks: list[Lock]) -> tuple[CompressedAnswer, Update]:
    update = Update(Cursor(1, "m1"), None, True, NOW, 0.0, 0.3, tuple(map(Set, locks)))
    changes = feed_json.block(update.changes)
    head = feed_json.answer(update, changes._replace(text=b"")).removesuffix(feed_json.CLOSING)
    return CompressedAnswer(head, CompressedChanges(None, changes)), update


@given(NAMES)
def test_in_pieces_packed_or_not_it_is_the_same_answer(names: list[str]) -> None:
    answer, update = answer_of([a_lock(name) for name in names])
    plain = b"".join(answer.pieces())
    assert plain == feed_json.dump(update).encode()
    packed = b"".join(asyncio.run(answer.gzipped()))
    assert gzip.decompress(packed) == plain


def test_other_programs_unpack_it_too() -> None:
    answer, update = answer_of([a_lock(f"user:{n}") for n in range(3_000)])
    packed = b"".join(asyncio.run(answer.gzipped()))
    told = subprocess.run(["gzip", "-d"], input=packed, capture_output=True, check=True)
    assert told.stdout == feed_json.dump(update).encode()
    assert len(packed) < len(told.stdout) / 8


def test_a_fleet_that_begins_at_once_is_packed_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    long: list[int] = []
    deflated = shared_gzip._deflated

    def counted(text: bytes, end: int) -> bytes:
        if len(text) > 10_000:
            long.append(len(text))
        return deflated(text, end)

    monkeypatch.setattr(shared_gzip, "_deflated", counted)
    feed = HandFeed(*(a_lock(f"user:{n}", ends_in=10**9) for n in range(3_000)))
    with feed_server(feed) as url, ThreadPoolExecutor(20) as pool:

        def begin(_: int) -> int:
            source = HttpSource(url)
            held = len(source.fetch(None).changes)
            source.close()
            return held

        plain_http.get(f"{url}/v1/locks")  # the server has looked by then
        assert set(pool.map(begin, range(60))) == {3_000}
    assert len(long) == 1


def test_those_who_take_it_slowly_do_not_each_have_a_copy_in_memory() -> None:
    feed = HandFeed(*(a_lock(f"user:{n}", detail="x" * 500, ends_in=10**9) for n in range(15_000)))
    with feed_server(feed) as url, ExitStack() as held:
        size = len(plain_http.get(f"{url}/v1/locks").content)
        assert size > 10_000_000
        process = psutil.Process()
        before = process.memory_info().rss
        for _ in range(40):
            line = held.enter_context(line_to(url, 4096))
            line.sendall(b"GET /v1/locks HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        time.sleep(1.5)
        assert process.memory_info().rss - before < 10 * size
