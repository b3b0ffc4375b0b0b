"""The lock feed for many gates over HTTP: read once for all of them, with long polling.

All gates share one reader of the source. While at least one gate waits for a change, the reader refreshes
every `REFRESH_EVERY_S`, and at once after `notify()`. A refresh asks only for changes after the latest known
version, so that it usually costs one row. A gate gets an answer from a refresh that *began after its request
arrived*: its view is then at least as new as the request, which bounds the delay of a lock. Requests that
arrive during a refresh share the next one.

The changes from a version to the latest one are kept until the feed changes, encoded and compressed, so that
a fleet at the same version costs one read of the source.
"""

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

REFRESH_EVERY_S = 0.05  # without notifications a lock is 25 ms late on average
REFRESH_MIN_S = 0.01  # between two refreshes, however many notifications arrive
WAITERS_MAX = 2_000  # further requests are answered at once, with a pace for the next one
CACHED_MAX = 32  # versions from which changes to the latest one are cached
REQUESTS_PER_S_MAX = 1_000  # costs half a core; beyond, gates are asked to poll less often
PACE_MAX_S = 10.0

NO_CHANGES = feed_json.encode_changes(())
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FeedState(NamedTuple):
    """State of the feed, as one refresh found it."""

    begun_s: float  # uptime at which the refresh began: the state is at least as new
    update: Update  # without its changes

    def with_pace(self, next_poll_s: float) -> FeedState:
        """Returns this state with another pause before the gate's next poll."""
        return self._replace(update=self.update._replace(next_poll=next_poll_s))


# Before the first refresh: a version that no feed has.
NEVER_REFRESHED = FeedState(-inf, Update(Cursor(-1, ""), None, True, EPOCH, 0.0, 0.0, ()))


class FeedCache:
    """Reads `source` once for any number of gates.

    All methods belong to one event loop, except `notify` and setting `closed`, which any thread may do.
    """

    def __init__(self, source: LockSource, uptime_s: Callable[[], float]) -> None:
        self.closed = False  # once true, no request waits any longer
        self._source = source
        self._uptime_s = uptime_s
        self._latest = NEVER_REFRESHED
        self._begun_s = -inf  # when the latest refresh began, successful or not
        self._changes_since: dict[Cursor | None, CompressedChanges] = {}  # None: all locks
        self._mutex = asyncio.Lock()  # one thread at a time uses the source
        self._next_refresh: asyncio.Task[FeedState] | None = None  # None once it has begun
        self._waiters = 0
        self._watch_task: asyncio.Task[None] | None = None
        self._change_future: asyncio.Future[None] | None = None  # completed by the next change of version
        self._refresh_soon = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._second, self._requests, self._requests_before = 0, 0, 0

    def notify(self) -> None:
        """Makes the next refresh begin at once, if a request waits for it. May be called by any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: no request waits any more
                self._loop.call_soon_threadsafe(self._refresh_soon.set)

    async def state(self, held: Cursor | None, wait_s: float) -> FeedState:
        """Returns the state by a refresh that begins after this call; while it is still at `held`, waits up
        to `wait_s` seconds for a change. Raises SourceError."""
        load = self._request_load()
        if held != self._latest.update.at:
            self._refresh_soon.set()  # this gate needs an answer now, not when the next refresh is due
        state = await self._refresh()
        if wait_s <= 0 or self._waiters >= WAITERS_MAX:
            return state.with_pace(min(PACE_MAX_S, state.update.next_poll * max(1.0, load)))
        if held == state.update.at:
            await self._wait_for_change(held, self._uptime_s() + wait_s)
            state = self._latest
        # A gate that may wait here polls again at once. Above the bound of requests it pauses, so that one
        # answer brings several changes.
        return state.with_pace(min(PACE_MAX_S, state.update.next_poll * max(0.0, load - 1.0)))

    async def answer(self, since: Cursor | None, state: FeedState, arrived_s: float) -> CompressedAnswer:
        """Returns the changes from `since` to `state` or a later version, for a request that arrived at
        uptime `arrived_s`. Raises SourceError."""
        if since is not None and since == state.update.at:
            shared = CompressedChanges(since.version, NO_CHANGES)
        else:
            shared = self._changes_since.get(since) or await self._read_changes(since)
            state = self._latest.with_pace(state.update.next_poll)
        waited_s = max(0.0, round(state.begun_s - arrived_s, 6))
        update = state.update._replace(since=shared.since, snapshot=shared.since is None, waited=waited_s)
        head = feed_json.encode_answer(update, shared.changes._replace(text=b"")).removesuffix(END)
        return CompressedAnswer(head, shared)

    async def _refresh(self) -> FeedState:
        if self._next_refresh is None:
            self._loop = asyncio.get_running_loop()
            self._next_refresh = asyncio.ensure_future(self._run_refresh())
            self._next_refresh.add_done_callback(consume_exception)
        return await asyncio.shield(self._next_refresh)  # a client that leaves must not cancel it for others

    async def _run_refresh(self) -> FeedState:
        async with self._mutex:
            await self._wait_until_due()
            self._next_refresh = None  # requests from here on share the next one
            await self._read(self._latest.update.at)
            return self._latest

    async def _wait_until_due(self) -> None:
        since_s = self._uptime_s() - self._begun_s
        if since_s < REFRESH_MIN_S:
            await asyncio.sleep(REFRESH_MIN_S - since_s)
        if since_s < REFRESH_EVERY_S:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._refresh_soon.wait(), REFRESH_EVERY_S - since_s)
        self._refresh_soon.clear()  # this refresh may miss the changes of later notifications

    async def _read_changes(self, since: Cursor | None) -> CompressedChanges:
        async with self._mutex:
            return self._changes_since.get(since) or await self._read(since)

    async def _read(self, since: Cursor | None) -> CompressedChanges:
        begun_s = self._begun_s = self._uptime_s()
        update, changes = await run_in_thread(partial(self._fetch_encoded, since))
        if update.at != self._latest.update.at:
            self._changes_since.clear()
            self._wake(None)
        self._latest = FeedState(begun_s, update)
        shared = CompressedChanges(update.since, changes)
        if update.snapshot:
            # One snapshot for all gates whose version is unknown: it may be large.
            shared = self._changes_since.setdefault(None, shared)
        if since != update.at:
            if len(self._changes_since) >= CACHED_MAX:
                del self._changes_since[next(iter(self._changes_since))]
            self._changes_since[since] = shared
        return shared

    def _fetch_encoded(self, since: Cursor | None) -> tuple[Update, feed_json.EncodedChanges]:
        update = self._source.fetch(since)
        changes = feed_json.encode_changes(update.changes) if update.changes else NO_CHANGES
        return update._replace(changes=()), changes

    async def _wait_for_change(self, held: Cursor, until_s: float) -> None:
        self._waiters += 1
        try:
            while self._latest.update.at == held and not self.closed:
                left_s = until_s - self._uptime_s()
                if left_s <= 0:
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(self._next_change()), left_s)
        finally:
            self._waiters -= 1

    def _next_change(self) -> asyncio.Future[None]:
        if self._change_future is None:
            self._change_future = asyncio.get_running_loop().create_future()
            self._change_future.add_done_callback(consume_exception)
        if self._watch_task is None or self._watch_task.done():
            self._watch_task = asyncio.ensure_future(self._watch())
        return self._change_future

    async def _watch(self) -> None:
        """Refreshes again and again, until no request waits."""
        while self._waiters and not self.closed:
            try:
                await self._refresh()
            except SourceError as error:
                self._wake(error)
        self._wake(None)

    def _wake(self, error: SourceError | None) -> None:
        future, self._change_future = self._change_future, None
        if future is not None and error is not None:
            future.set_exception(error)
        elif future is not None:
            future.set_result(None)

    def _request_load(self) -> float:
        """Returns the requests of this second or the one before, with this one, over their bound."""
        second = int(self._uptime_s())
        if second != self._second:
            self._requests_before = self._requests if second == self._second + 1 else 0
            self._second, self._requests = second, 0
        self._requests += 1
        return max(self._requests_before, self._requests) / REQUESTS_PER_S_MAX
