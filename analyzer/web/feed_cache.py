"""The lock feed for many gates: read once for all who ask at the same moment, and told when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import NamedTuple

from analyzer.web.shared_gzip import END, CompressedAnswer, CompressedChanges
from analyzer.web.single_flight import consume_exception, run_in_thread
from gatekeeper.feed import feed_json
from gatekeeper.model import Cursor, LockSource, SourceError, Update

REFRESH_EVERY_S = 0.05  # where nobody says that there is news, a lock lags by half of it on average
REFRESH_MIN_S = 0.01  # between two looks, whoever says so
WAITERS_MAX = 2_000  # who comes then is answered at once, and comes again at the feed's pace
CACHED_MAX = 32  # answers kept for those who hold the same version, until there is another
REQUESTS_PER_S_MAX = 1_000  # questions, half a core; beyond, gates are asked to come less often
PACE_MAX_S = 10.0

NOTHING = feed_json.block(())
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FeedState(NamedTuple):
    """How the feed stood."""

    begun_s: float  # uptime: what is told was so at this moment or later
    update: Update  # without its changes

    def paced(self, next_poll_s: float) -> FeedState:
        return self._replace(update=self.update._replace(next_poll=next_poll_s))


NEVER = FeedState(-inf, Update(Cursor(-1, ""), None, True, EPOCH, 0.0, 0.0, ()))  # no feed has this version


class FeedCache:
    """One reader of `source` for any number of gates; all methods belong to one event loop.

    While gates wait, it looks at the feed's version every REFRESH_EVERY_S, and at once when it is told that
    there is news. Those who hold the same version share what leads from there to the new one: one fetch
    for a fleet.
    """

    def __init__(self, source: LockSource, uptime_s: Callable[[], float]) -> None:
        self.closed = False  # set by any thread: nobody waits any longer
        self._source = source
        self._uptime_s = uptime_s
        self._latest = NEVER
        self._begun_s = -inf
        self._told: dict[Cursor | None, CompressedChanges] = {}
        self._mutex = asyncio.Lock()  # one thread at a time is inside the source
        self._next: asyncio.Task[FeedState] | None = None  # the look that has not begun yet
        self._waiters = 0
        self._watching: asyncio.Task[None] | None = None
        self._news: asyncio.Future[None] | None = None
        self._hurry = asyncio.Event()  # the next look is not to wait for its time
        self._loop: asyncio.AbstractEventLoop | None = None
        self._second, self._asked, self._asked_before = 0, 0, 0

    def notify(self) -> None:
        """There is news, most likely: look at once, if anybody waits. For any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._hurry.set)

    async def state(self, held: Cursor | None, wait_s: float) -> FeedState:
        """How the feed stands, by a look that begins after this call; up to `wait_s` seconds later when
        it is still at `held`. Raises SourceError."""
        load = self._load()
        if held != self._latest.update.at:
            self._hurry.set()  # there is news for this one already
        look = await self._look()
        if wait_s <= 0 or self._waiters >= WAITERS_MAX:
            return look.paced(min(PACE_MAX_S, look.update.next_poll * max(1.0, load)))
        if held == look.update.at:
            await self._news_after(held, self._uptime_s() + wait_s)
            look = self._latest
        # Who may wait here is told of news as it comes; when it comes so often that answering is all that
        # is done, several at once.
        return look.paced(min(PACE_MAX_S, look.update.next_poll * max(0.0, load - 1.0)))

    async def answer(self, since: Cursor | None, look: FeedState, asked_s: float) -> CompressedAnswer:
        """What leads from `since` to `look`, or beyond. Raises SourceError."""
        if since is not None and since == look.update.at:
            told = CompressedChanges(since.version, NOTHING)
        else:
            told = self._told.get(since) or await self._fetched(since)
            look = self._latest.paced(look.update.next_poll)
        waited_s = max(0.0, round(look.begun_s - asked_s, 6))
        update = look.update._replace(since=told.since, snapshot=told.since is None, waited=waited_s)
        return CompressedAnswer(
            feed_json.answer(update, told.changes._replace(text=b"")).removesuffix(END), told
        )

    async def _look(self) -> FeedState:
        if self._next is None:
            self._loop = asyncio.get_running_loop()
            self._next = asyncio.ensure_future(self._take())
            self._next.add_done_callback(consume_exception)
        return await asyncio.shield(self._next)  # one who leaves must not take it from the others

    async def _take(self) -> FeedState:
        async with self._mutex:
            await self._its_time()
            self._next = None  # who asks from here on gets the next one
            await self._read(self._latest.update.at)
            return self._latest

    async def _its_time(self) -> None:
        since_s = self._uptime_s() - self._begun_s
        if since_s < REFRESH_MIN_S:
            await asyncio.sleep(REFRESH_MIN_S - since_s)
        if since_s < REFRESH_EVERY_S:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), REFRESH_EVERY_S - since_s)
        self._hurry.clear()  # what comes from here on may be too late for this look

    async def _fetched(self, since: Cursor | None) -> CompressedChanges:
        async with self._mutex:
            return self._told.get(since) or await self._read(since)

    async def _read(self, since: Cursor | None) -> CompressedChanges:
        begun_s = self._begun_s = self._uptime_s()
        update, changes = await run_in_thread(partial(self._written, since))
        if update.at != self._latest.update.at:
            self._told.clear()
            self._wake(None)
        self._latest = FeedState(begun_s, update)
        told = CompressedChanges(update.since, changes)
        if update.snapshot:
            # One for all who hold what is not known: a snapshot may be large.
            told = self._told.setdefault(None, told)
        if since != update.at:
            if len(self._told) >= CACHED_MAX:
                del self._told[next(iter(self._told))]
            self._told[since] = told
        return told

    def _written(self, since: Cursor | None) -> tuple[Update, feed_json.ChangeBlock]:
        update = self._source.fetch(since)
        return update._replace(changes=()), feed_json.block(update.changes) if update.changes else NOTHING

    async def _news_after(self, held: Cursor, end_s: float) -> None:
        self._waiters += 1
        try:
            while self._latest.update.at == held and not self.closed:
                left_s = end_s - self._uptime_s()
                if left_s <= 0:
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(self._next_news()), left_s)
        finally:
            self._waiters -= 1

    def _next_news(self) -> asyncio.Future[None]:
        if self._news is None:
            self._news = asyncio.get_running_loop().create_future()
            self._news.add_done_callback(consume_exception)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch())
        return self._news

    async def _watch(self) -> None:
        while self._waiters and not self.closed:
            try:
                await self._look()
            except SourceError as away:
                self._wake(away)
        self._wake(None)

    def _wake(self, error: SourceError | None) -> None:
        news, self._news = self._news, None
        if news is not None and error is not None:
            news.set_exception(error)
        elif news is not None:
            news.set_result(None)

    def _load(self) -> float:
        """How many ask, this one counted, as a multiple of what can be borne."""
        second = int(self._uptime_s())
        if second != self._second:
            self._asked_before = self._asked if second == self._second + 1 else 0
            self._second, self._asked = second, 0
        self._asked += 1
        return max(self._asked_before, self._asked) / REQUESTS_PER_S_MAX
