"""Sources that fail as a timeline says, on a clock that is moved by hand."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import sqlalchemy as sa

from analyzer.judging.locks import lock_feed as feed_store
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.tables.schema import feed, feed_versions, lock_changes, locks
from gatekeeper.feed import feed_json
from gatekeeper.model import Change, Cursor, LockSource, SourceError, Update
from gatekeeper.sources.file import FileSource
from gatekeeper.sources.http import TryLater
from gatekeeper.testing import ManualClock
from tests.cuts.bound import Period, SourceTiming
from tests.cuts.timeline import period_at
from tests.support.feed import HandFeed

STEP_S = 0.05  # between two checks for news during a long poll
LEAST_S = 1e-6  # below the rounding error of summed floats


class BreakingChanges(tuple[Change, ...]):
    """Changes that raise when half of them were read."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Change]:
        for number, change in enumerate(super().__iter__()):
            if number >= len(self) // 2:
                break
            yield change
        raise MemoryError("half of the changes")


class FaultySource:
    """A source whose answers arrive as the timeline says; with `as_json` each is encoded and parsed."""

    def __init__(
        self,
        source: LockSource,
        timeline: Sequence[Period],
        clock: ManualClock,
        random: Random,
        timing: SourceTiming,
        *,
        as_json: bool = False,
    ) -> None:
        self.busy = False  # a fetch is running
        self._source = source
        self._timeline = timeline
        self._clock = clock
        self._random = random
        self._timing = timing
        self._as_json = as_json
        self._last: Update | None = None
        if as_json:
            self.longest = timing.fetch_s  # like HttpSource, and unlike SqlSource

    def fetch(self, since: Cursor | None) -> Update:
        self.busy = True
        try:
            return self._fetch(since, period_at(self._timeline, self._clock.uptime_s()).kind)
        finally:
            self.busy = False

    def close(self) -> None:
        self._source.close()

    def _fetch(self, since: Cursor | None, kind: str) -> Update:
        self._fail_before(kind)
        asked_s = self._clock.uptime_s()
        self._pass(self._timing.answer_s / 2)
        waited_s = self._wait_for_news(since)
        update = self._source.fetch(since)._replace(now=self._clock.now(), waited=waited_s)
        self._pass(self._timing.answer_s / 2)
        if kind == "slow":
            left_s = self._timing.fetch_s - (self._clock.uptime_s() - asked_s)
            self._pass(max(0.0, left_s))
        by_now = period_at(self._timeline, self._clock.uptime_s())
        if kind == "lost" or (by_now.answers == "none" and by_now.kind != "shredded"):
            raise SourceError("the answer was lost")
        kind = "shredded" if by_now.kind == "shredded" else kind
        return self._damage(kind, update)

    def _fail_before(self, kind: str) -> None:
        match kind:
            case "away":
                raise SourceError("unavailable")
            case "busy":
                raise TryLater("503", self._random.uniform(0, 100))
            case "buggy":
                raise ZeroDivisionError
            case "flapping" if self._random.random() < 0.5:
                raise SourceError("not this time")
            case "silent":
                self._clock.advance(self._timing.fetch_s)
                raise SourceError("no answer in time")

    def _damage(self, kind: str, update: Update) -> Update:
        if kind == "shredded" and not self._as_json:
            raise SourceError("half an answer")  # as a database driver reports it
        if kind == "breaking" and update.changes:
            return update._replace(changes=BreakingChanges(update.changes))
        if kind == "crossed":
            update, self._last = self._previous(update), update
        if self._as_json:
            text = feed_json.dump(update).encode()
            return feed_json.load(text[: self._random.randrange(len(text))] if kind == "shredded" else text)
        return update

    def _previous(self, update: Update) -> Update:
        """The previous answer, unless it is a snapshot or of another history:

        HTTP never delivers these late.
        """
        last = self._last
        if last is None or last.snapshot or self._source.fetch(last.at).snapshot:
            return update
        return last

    def _wait_for_news(self, since: Cursor | None) -> float:
        """Waits as in a long poll; returns for how long."""
        begun_s = self._clock.uptime_s()
        if since is not None:
            while (left_s := begun_s + self._timing.wait_s - self._clock.uptime_s()) > LEAST_S:
                if self._source.fetch(since).at != since:
                    break
                self._clock.advance(min(STEP_S, left_s))
        return self._clock.uptime_s() - begun_s

    def _pass(self, most_s: float) -> None:
        if most_s:
            self._clock.advance(self._random.uniform(0, most_s))


class WrittenFile:
    """A file that a program replaces after each change of a feed, read by the real FileSource.

    The program may stop, be killed while it writes, or lose the file.
    """

    def __init__(self, feed: HandFeed, path: Path, timeline: Sequence[Period], clock: ManualClock) -> None:
        self.busy = False
        self.feed = feed
        self.source = FileSource(path)
        self._last_write: object = None
        self._path = path
        self._timeline = timeline
        self._clock = clock

    def fetch(self, since: Cursor | None) -> Update:
        self.write()
        if period_at(self._timeline, self._clock.uptime_s()).kind == "buggy":
            raise ZeroDivisionError
        return self.source.fetch(since)

    def write(self) -> None:
        """Replaces, truncates or removes the file, as the current period demands."""
        period = period_at(self._timeline, self._clock.uptime_s())
        if self._last_write == (period, self.feed.at):
            return
        self._last_write = (period, self.feed.at)
        text = feed_json.dump(self.feed.fetch(None))
        match period.kind:
            case "away":
                self._path.unlink(missing_ok=True)
            case "shredded":
                self._path.write_text(text[: len(text) // 2])
            case "well":
                temporary = self._path.with_suffix(".new")
                temporary.write_text(text)
                temporary.replace(self._path)

    def close(self) -> None:
        self.source.close()


class SqlFeed:
    """The feed in a database, with the analyzer's statements."""

    TABLES = (feed, feed_versions, lock_changes, locks)

    def __init__(self, url: str) -> None:
        self._engine = open_engine(url)

    def publish(self, *changes: Change) -> None:
        with self._engine.begin() as db:
            feed_store.publish(db, changes, secrets.token_hex(4))

    def prune(self) -> None:
        with self._engine.begin() as db:
            feed_store.prune(db, before_ms=1 << 60, most=1_000)

    def backup(self) -> Any:
        with self._engine.begin() as db:
            return {table: [row._asdict() for row in db.execute(sa.select(table))] for table in self.TABLES}

    def restore(self, backup: Any) -> None:
        with self._engine.begin() as db:
            for table, rows in backup.items():
                db.execute(sa.delete(table))
                if rows:
                    db.execute(sa.insert(table), rows)

    def close(self) -> None:
        self._engine.dispose()
