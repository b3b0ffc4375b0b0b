"""The lock feed for many gates over HTTP: read once for all of them, with long polling.

All gates share one reader of the source. A refresh asks only for changes after the latest known version, so
that it usually costs one row. A gate gets an answer from a refresh that *began after its request arrived*:
its view is then at least as new as the request, which bounds the delay of a lock. Requests that arrive during
a refresh share the next one.

While at least one gate waits, the source is refreshed when a change is notified, and every `FALLBACK_S`. As
long as it is not known that changes are notified, it is refreshed every `REFRESH_EVERY_S` instead.

Each change is encoded and compressed once for all gates, and kept for those that ask later. A gate whose
version is unknown gets the snapshot at hand and the changes since: what a client claims to hold causes no
read of all locks. What has to be read for one gate is read by a second source: refreshes do not wait for it.
When very many gates wait, changes that follow each other closely reach them together, so that the answers
cost a bounded share of a core.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache, partial
from math import inf
from typing import NamedTuple

from analyzer.server.shared_gzip import CompressedAnswer, CompressedChanges
from analyzer.server.single_flight import consume_exception, run_in_thread
from gatekeeper.feed import feed_json
from gatekeeper.model import Cursor, LockSource, SourceError, Update

REFRESH_EVERY_S = 0.05  # without notifications a lock is 25 ms late on average
REFRESH_MIN_S = 0.01  # between two refreshes, however many notifications arrive
FALLBACK_S = 5.0  # between two refreshes while changes are notified
ANSWER_S = 0.0003  # until the next refresh, for each gate that gets a change: an answer costs a third of it
READ_AHEAD_S = 2.0  # changes are read before a gate asks, if one has asked within this time
WAITERS_MAX = 2_000  # further requests are answered at once, with a pace for the next one
CACHED_MAX = 32  # versions from which changes to the latest one are cached
STEPS_MAX = 256  # changes from one refresh to the next
KEPT_BYTES_MAX = 64 << 20  # of the steps, and of the other changes
LATER_BYTES_MIN = 1 << 20  # so much may always follow a snapshot in its answer
MARKS_MAX = 10_000  # versions of which it is known whether the feed had them, and under which mark
REQUESTS_PER_S_MAX = 1_000  # costs half a core; beyond, gates are asked to poll less often
PACE_MAX_S = 10.0

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

encode_head = lru_cache(64)(feed_json.encode_head)  # most gates get the same


class FeedState(NamedTuple):
    """State of the feed, as one refresh found it."""

    begun_s: float  # uptime at which the refresh began: the state is at least as new
    update: Update  # without its changes

    def with_pace(self, next_poll_s: float) -> FeedState:
        """Returns this state with another pause before the gate's next poll."""
        return self._replace(update=self.update._replace(next_poll=next_poll_s))


# Before the first refresh: a version that no feed has.
NEVER_REFRESHED = FeedState(-inf, Update(Cursor(-1, ""), None, True, EPOCH, 0.0, 0.0, ()))


class Snapshot:
    """All locks of one version, with a checksum that also covers the changes since."""

    def __init__(self, cursor: Cursor, changes: CompressedChanges, digest: hashlib._Hash) -> None:
        """`digest` is that of the text of `changes`."""
        self.at = cursor
        self.changes = changes
        self.later_bytes = 0  # of the changes since
        self._digest = digest

    def add_step(self, text: bytes) -> None:
        """Adds the changes of a later version to the checksum."""
        self.later_bytes += len(text)
        feed_json.add_to_digest(self._digest, text)

    @property
    def checksum(self) -> str:
        return feed_json.checksum_text(self._digest)

    @property
    def is_worn(self) -> bool:
        """Whether the changes since are so long that a new snapshot is shorter."""
        return self.later_bytes > max(LATER_BYTES_MIN, len(self.changes.text) // 4)


class KeptChanges:
    """Changes that lead to the latest version: the steps of refreshes, each from the version before; what was
    read for gates that hold another version; and a snapshot of one of these versions."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        # In order: the last one leads to the latest version.
        self._steps: dict[Cursor, CompressedChanges] = {}
        self._others: dict[Cursor, CompressedChanges] = {}

    def find(self, since: Cursor | None, latest: Cursor) -> Sequence[CompressedChanges] | None:
        """Returns what leads from `since` to `latest`, one after the other; None if it is not kept."""
        if since is None:
            return self._find_snapshot(latest)
        if since in self._others:
            return (self._others[since],)
        return self._steps_since(since, latest)

    def _find_snapshot(self, latest: Cursor) -> Sequence[CompressedChanges] | None:
        if self.snapshot is None or self.snapshot.is_worn:
            return None
        steps = self._steps_since(self.snapshot.at, latest)
        return None if steps is None else (self.snapshot.changes, *steps)

    def _steps_since(self, since: Cursor, latest: Cursor) -> Sequence[CompressedChanges] | None:
        if since == latest:
            return ()
        if since not in self._steps:
            return None
        steps = []
        for begin in reversed(self._steps):
            steps.append(self._steps[begin])
            if begin == since:
                break
        return steps[::-1]

    def add_step(self, since: Cursor, changes: CompressedChanges) -> None:
        """Keeps the changes from the version that was the latest to the one that is now."""
        self._others.clear()
        self._steps[since] = changes
        _drop_oldest(self._steps, STEPS_MAX)
        if self.snapshot is not None:
            self.snapshot.add_step(changes.text)

    def start(self, snapshot: Snapshot) -> None:
        """Begins another history with all locks of its latest version."""
        self._others.clear()
        self._steps.clear()
        self.snapshot = snapshot

    def add_snapshot(self, snapshot: Snapshot, latest: Cursor) -> None:
        """Keeps all locks of `latest`, or of an earlier version that is one of the steps."""
        steps = self._steps_since(snapshot.at, latest)
        if steps is not None:
            for step in steps:
                snapshot.add_step(step.text)
            self.snapshot = snapshot

    def add(self, since: Cursor, changes: CompressedChanges) -> None:
        """Keeps changes from `since` to the latest version, until there is a newer one."""
        self._others[since] = changes
        _drop_oldest(self._others, CACHED_MAX)


def _drop_oldest(kept: dict[Cursor, CompressedChanges], most: int) -> None:
    """Drops the first entries until there are at most `most`, in at most `KEPT_BYTES_MAX` or one."""
    size = sum(len(changes.text) for changes in kept.values())
    while len(kept) > most or (len(kept) > 1 and size > KEPT_BYTES_MAX):
        size -= len(kept.pop(next(iter(kept))).text)


class RequestLoad:
    """Requests of this second and the one before."""

    def __init__(self, uptime_s: Callable[[], float]) -> None:
        self._uptime_s = uptime_s
        self._second = 0
        self._requests = self._requests_before = 0.0

    def add(self, cost: float) -> float:
        """Returns the requests of this second or the one before, with this one, over their bound."""
        second = int(self._uptime_s())
        if second != self._second:
            self._requests_before = self._requests if second == self._second + 1 else 0.0
            self._second, self._requests = second, 0.0
        self._requests += cost
        return max(self._requests_before, self._requests) / REQUESTS_PER_S_MAX


class FeedCache:
    """Reads `source` once for any number of gates.

    All methods belong to one event loop, except `notify`, `notified` and `close`, which any thread may call.
    """

    def __init__(
        self,
        source: LockSource,
        uptime_s: Callable[[], float],
        reader: LockSource | None = None,
        mark_of: Callable[[int], str | None] | None = None,
    ) -> None:
        """`reader` is a second source of the same feed, for long reads; by default refreshes wait for them.

        `mark_of` returns the mark of a version, None if the feed has no such version; it may block and raise
        SourceError. Without it the source is asked for the changes since any version.
        """
        self.closed = False  # once true, no request waits any longer
        self.has_waiting = threading.Event()  # set while a request waits for a change
        self._source = source
        self._reader = source if reader is None else reader
        self._mark_of = mark_of
        self._marks: dict[int, str | None] = {}
        self._reads: dict[Cursor | None, asyncio.Future[FetchedChanges]] = {}  # in progress, by `since`
        self._uptime_s = uptime_s
        self._latest = NEVER_REFRESHED
        self._kept = KeptChanges()
        self._is_notified = False  # whether each change will be notified
        self._load = RequestLoad(uptime_s)
        self._mutex = asyncio.Lock()  # one thread at a time uses the source
        self._reader_mutex = self._mutex if reader is None else asyncio.Lock()
        self._next_refresh: asyncio.Task[FeedState] | None = None  # None once it has begun
        self._begun_s = -inf  # when the latest refresh began, successful or not
        self._rests_until_s = -inf  # no refresh begins before
        self._asked_s = -inf  # when the latest request arrived
        self._asking = 0  # requests that are in `state`
        self._waiting: set[asyncio.Future[None]] = set()  # requests that wait for a change
        self._watch_task: asyncio.Task[None] | None = None
        self._refresh_soon = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def notify(self) -> None:
        """Makes the next refresh begin soon, if there is a use for it. May be called by any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: no request waits any more
                self._loop.call_soon_threadsafe(self._refresh_after_change)

    def notified(self, is_listening: bool) -> None:
        """Notes that the feed may have changed, and whether its next change will be notified as well. May be
        called by any thread."""
        self._is_notified = is_listening
        self.notify()

    def close(self) -> None:
        """Ends all waiting. May be called by any thread."""
        self.closed = True
        self.notify()

    async def state(self, held: Cursor | None, wait_s: float, cost: float = 1.0) -> FeedState:
        """Returns the state by a refresh that begins after this call; while it is still at `held`, waits up
        to `wait_s` seconds for a change. Raises SourceError.

        `cost` is what the request costs, in units of an ordinary one.
        """
        load, arrived_s = self._load.add(cost), self._uptime_s()
        self._asked_s = arrived_s
        self._asking += 1
        try:
            return await self._state(held, arrived_s, wait_s, load)
        finally:
            self._asking -= 1

    async def answer(self, since: Cursor | None, state: FeedState, arrived_s: float) -> CompressedAnswer:
        """Returns the changes from `since` to `state` or a later version, for a request that arrived at
        uptime `arrived_s`. Raises SourceError."""
        while True:
            if since is not None and not await self._is_in_feed(since):
                since = None  # all locks, which are at hand
            kept = self.kept_answer(since, state, arrived_s)
            if kept is not None:
                return kept
            if since in self._reads:
                # It began before this request: what it finds is not new enough by itself.
                await asyncio.shield(self._reads[since])
                continue
            read = await self._read_changes(since)
            kept = self.kept_answer(since, state, arrived_s)
            return kept or read.answer(state.update.next_poll, arrived_s)

    def kept_answer(
        self, since: Cursor | None, state: FeedState, arrived_s: float
    ) -> CompressedAnswer | None:
        """Returns what `answer` does if the source need not be read for it, otherwise None."""
        changes = self._kept.find(since, self._latest.update.at)
        if changes is None:
            return None
        if since is not None and not changes:
            changes = [CompressedChanges(since.version, b"")]
        snapshot = self._kept.snapshot
        checksum = snapshot.checksum if snapshot is not None and changes[0].is_snapshot else ""
        return _answer(self._latest.with_pace(state.update.next_poll), changes, arrived_s, checksum)

    async def _is_in_feed(self, since: Cursor) -> bool:
        """Whether the changes since this version can be had; True if only the source can tell.

        Costs one row for each version, however many marks are tried.
        """
        latest = self._latest.update.at
        if since.version >= latest.version or self._mark_of is None:
            return since == latest or since.version < latest.version
        if self._kept.find(since, latest) is not None:
            return True
        if since.version not in self._marks:
            async with self._reader_mutex:
                if since.version not in self._marks:
                    mark = await run_in_thread(partial(self._mark_of, since.version))
                    if len(self._marks) >= MARKS_MAX:
                        self._marks.clear()
                    self._marks[since.version] = mark
        return self._marks.get(since.version) == since.mark

    async def _state(self, held: Cursor | None, arrived_s: float, wait_s: float, load: float) -> FeedState:
        waits = wait_s > 0 and len(self._waiting) < WAITERS_MAX
        # A gate at the latest known version waits at once, if it can rely on being woken.
        if waits and held == self._latest.update.at and self._is_notified:
            state = self._latest
        else:
            state = await self._refresh_for(held)
        if not waits:
            return state.with_pace(min(PACE_MAX_S, state.update.next_poll * max(1.0, load)))
        if held == state.update.at:
            state = await self._wait_for_change(held, arrived_s, wait_s)
        # A gate that may wait here polls again at once. Above the bound of requests it pauses, so that one
        # answer brings several changes.
        return state.with_pace(min(PACE_MAX_S, state.update.next_poll * max(0.0, load - 1.0)))

    def _refresh_after_change(self) -> None:
        self._refresh_soon.set()
        if self._next_refresh is None and self._uptime_s() < self._asked_s + READ_AHEAD_S:
            # The gate that was answered last is busy with the answer and asks again soon.
            self._start_refresh()

    async def _refresh_for(self, held: Cursor | None) -> FeedState:
        """Returns the state by the next refresh, for a request of a gate that holds this version."""
        refresh = self._start_refresh()
        # A gate with another version needs an answer now; others share a refresh with those that come soon.
        due_s = self._begun_s + REFRESH_EVERY_S - self._uptime_s()
        if held != self._latest.update.at or due_s <= 0:
            self._refresh_soon.set()
        else:
            asyncio.get_running_loop().call_later(due_s, self._refresh_soon.set)
        return await asyncio.shield(refresh)  # a client that leaves must not cancel it for others

    def _start_refresh(self) -> asyncio.Task[FeedState]:
        if self._next_refresh is None:
            self._loop = asyncio.get_running_loop()
            self._next_refresh = asyncio.ensure_future(self._run_refresh())
            self._next_refresh.add_done_callback(consume_exception)
        return self._next_refresh

    async def _run_refresh(self) -> FeedState:
        await self._wait_until_due()
        async with self._mutex:
            self._next_refresh = None  # requests from here on share the next one
            return await self._refresh()

    async def _wait_until_due(self) -> None:
        rest_s = max(self._rests_until_s, self._begun_s + REFRESH_MIN_S) - self._uptime_s()
        if rest_s > 0:
            await asyncio.sleep(rest_s)
        every_s = FALLBACK_S if self._is_notified else REFRESH_EVERY_S
        left_s = self._begun_s + every_s - self._uptime_s()
        if left_s > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._refresh_soon.wait(), left_s)
        self._refresh_soon.clear()  # this refresh may miss the changes of later notifications

    async def _refresh(self) -> FeedState:
        previous, self._begun_s = self._latest, self._uptime_s()
        read = await self._fetch(self._source, previous.update.at)
        cursor = read.state.update.at
        if cursor != previous.update.at:
            if read.snapshot is None:
                self._kept.add_step(previous.update.at, read.changes)
            else:
                self._kept.start(read.snapshot)
                self._marks.clear()
            self._rests_until_s = self._uptime_s() + ANSWER_S * self._asking
        self._latest = read.state
        if cursor != previous.update.at:
            self._wake(None)
        return read.state

    async def _read_changes(self, since: Cursor | None) -> FetchedChanges:
        """Reads what leads from `since` to the latest version, and keeps it."""
        reading = self._reads[since] = asyncio.ensure_future(self._fetch_and_keep(since))
        reading.add_done_callback(consume_exception)
        reading.add_done_callback(lambda _: self._reads.pop(since))
        return await asyncio.shield(reading)  # a client that leaves must not cancel it for the others

    async def _fetch_and_keep(self, since: Cursor | None) -> FetchedChanges:
        async with self._reader_mutex:
            read = await self._fetch(self._reader, since)
        if read.snapshot is not None:
            self._kept.add_snapshot(read.snapshot, self._latest.update.at)
        elif since is not None and read.state.update.at == self._latest.update.at:
            self._kept.add(since, read.changes)
        return read

    async def _fetch(self, source: LockSource, since: Cursor | None) -> FetchedChanges:
        begun_s = self._uptime_s()
        update, text = await run_in_thread(partial(_fetch_encoded, source, since))
        state, changes = FeedState(begun_s, update), CompressedChanges(update.since, text)
        if not update.snapshot:
            return FetchedChanges(state, changes, None)
        digest = await run_in_thread(partial(feed_json.add_to_digest, feed_json.new_digest(), text))
        return FetchedChanges(state, changes, Snapshot(update.at, changes, digest))

    async def _wait_for_change(self, held: Cursor, arrived_s: float, wait_s: float) -> FeedState:
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(arrived_s + wait_s - self._uptime_s(), _complete, woken)
        self._waiting.add(woken)
        self.has_waiting.set()
        if self._watch_task is None or self._watch_task.done():
            self._watch_task = asyncio.ensure_future(self._watch())
        try:
            await woken
        finally:
            timer.cancel()
            self._waiting.discard(woken)
        latest = self._latest
        is_old = latest.update.at == held and latest.begun_s < self._uptime_s() - REFRESH_EVERY_S
        return await self._refresh_for(held) if is_old or latest.begun_s < arrived_s else latest

    async def _watch(self) -> None:
        """Refreshes again and again, until no request waits."""
        while self._waiting and not self.closed:
            try:
                await asyncio.shield(self._start_refresh())
            except SourceError as error:
                self._wake(error)
        self._wake(None)
        self.has_waiting.clear()

    def _wake(self, error: SourceError | None) -> None:
        for woken in self._waiting:
            _complete(woken, error)
        self._waiting.clear()


class FetchedChanges(NamedTuple):
    """Result of one fetch: the state and the changes, which are those of `snapshot` if it is not None."""

    state: FeedState
    changes: CompressedChanges
    snapshot: Snapshot | None

    def answer(self, next_poll_s: float, arrived_s: float) -> CompressedAnswer:
        checksum = "" if self.snapshot is None else self.snapshot.checksum
        return _answer(self.state.with_pace(next_poll_s), [self.changes], arrived_s, checksum)


def _fetch_encoded(source: LockSource, since: Cursor | None) -> tuple[Update, bytes]:
    update = source.fetch(since)
    return update._replace(changes=()), feed_json.encode_changes(update.changes)


def _complete(woken: asyncio.Future[None], error: SourceError | None = None) -> None:
    if woken.done():
        return
    if error is None:
        woken.set_result(None)
    else:
        woken.set_exception(error)


def _answer(
    state: FeedState, changes: Sequence[CompressedChanges], arrived_s: float, checksum: str
) -> CompressedAnswer:
    first = changes[0]
    update = state.update._replace(since=first.since, snapshot=first.is_snapshot)
    head, tail = encode_head(update, checksum)
    waited_s = max(0.0, round(state.begun_s - arrived_s, 6))
    return CompressedAnswer(b"%s%r%s" % (head, waited_s, tail), state.update.at, changes)
