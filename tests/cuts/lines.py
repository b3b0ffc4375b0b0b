"""Sources behind a line that is cut and healed on a clock that is moved by hand."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import sqlalchemy as sa

from analyzer.store.database.engine import open_engine
from analyzer.store.database.schema import feed, feed_versions, lock_changes, locks
from analyzer.store.transaction import lock_feed as feed_store
from gatekeeper.feed import feed_json
from gatekeeper.model import Change, Cursor, LockSource, SourceError, Update
from gatekeeper.sources.file import FileSource
from gatekeeper.sources.http import TryLater
from gatekeeper.testing import ManualClock
from tests.cuts.bound import Manner, Stretch
from tests.cuts.sky import at
from tests.support.feed import HandFeed

STEP_S = 0.05  # how often a server looks while it keeps an answer back
SHORTEST_S = 1e-6  # what is left of a second by adding up floats would never pass


class Breaking(tuple[Change, ...]):
    """Changes that break off while they are read."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Change]:
        for number, change in enumerate(super().__iter__()):
            if number >= len(self) // 2:
                break
            yield change
        raise MemoryError("half of the changes")


class Line:
    """`source`, as far as the sky lets its answers through; with `written` each of them as text."""

    def __init__(
        self,
        source: LockSource,
        sky: Sequence[Stretch],
        clock: ManualClock,
        random: Random,
        manner: Manner,
        *,
        written: bool = False,
    ) -> None:
        self.busy = False  # a question is under way
        self._source = source
        self._sky = sky
        self._clock = clock
        self._random = random
        self._manner = manner
        self._written = written
        self._last: Update | None = None
        if written:
            self.longest = manner.fetch_s  # as the HTTP source says it, and the SQL source does not

    def fetch(self, since: Cursor | None) -> Update:
        self.busy = True
        try:
            return self._fetched(since, at(self._sky, self._clock.uptime_s()).kind)
        finally:
            self.busy = False

    def close(self) -> None:
        self._source.close()

    def _fetched(self, since: Cursor | None, kind: str) -> Update:
        self._before(kind)
        asked_s = self._clock.uptime_s()
        self._pass(self._manner.answer_s / 2)
        waited_s = self._wait_for_news(since)
        update = self._source.fetch(since)._replace(now=self._clock.now(), waited=waited_s)
        self._pass(self._manner.answer_s / 2)
        if kind == "slow":
            left_s = self._manner.fetch_s - (self._clock.uptime_s() - asked_s)
            self._pass(max(0.0, left_s))
        by_now = at(self._sky, self._clock.uptime_s())
        if kind == "lost" or (by_now.answers == "none" and by_now.kind != "shredded"):
            raise SourceError("the answer was lost")
        kind = "shredded" if by_now.kind == "shredded" else kind
        return self._after(kind, update)

    def _before(self, kind: str) -> None:
        match kind:
            case "away":
                raise SourceError("nobody is there")
            case "busy":
                raise TryLater("503", self._random.uniform(0, 100))
            case "mad":
                raise ZeroDivisionError
            case "flapping" if self._random.random() < 0.5:
                raise SourceError("not this time")
            case "silent":
                self._clock.advance(self._manner.fetch_s)
                raise SourceError("no answer in time")

    def _after(self, kind: str, update: Update) -> Update:
        if kind == "shredded" and not self._written:
            raise SourceError("half an answer")  # what a database's driver makes of one
        if kind == "breaking" and update.changes:
            return update._replace(changes=Breaking(update.changes))
        if kind == "crossed":
            update, self._last = self._before_this(update), update
        if self._written:
            text = feed_json.dump(update).encode()
            return feed_json.load(text[: self._random.randrange(len(text))] if kind == "shredded" else text)
        return update

    def _before_this(self, update: Update) -> Update:
        """The answer before, if it is one that must do no harm: all locks, or changes out of another
        history, come late from nobody who keeps to HTTP."""
        last = self._last
        if last is None or last.snapshot or self._source.fetch(last.at).snapshot:
            return update
        return last

    def _wait_for_news(self, since: Cursor | None) -> float:
        """How long it waited."""
        begun_s = self._clock.uptime_s()
        if since is not None:
            while (left_s := begun_s + self._manner.wait_s - self._clock.uptime_s()) > SHORTEST_S:
                if self._source.fetch(since).at != since:
                    break
                self._clock.advance(min(STEP_S, left_s))
        return self._clock.uptime_s() - begun_s

    def _pass(self, most_s: float) -> None:
        if most_s:
            self._clock.advance(self._random.uniform(0, most_s))


class Paper:
    """A feed that is written to a file after each change, by a program that may stop, die half-way, or lose
    the file. It is looked at by the real source, without a line."""

    def __init__(self, feed: HandFeed, path: Path, sky: Sequence[Stretch], clock: ManualClock) -> None:
        self.busy = False
        self.feed = feed
        self.source = FileSource(path)
        self._written: object = None
        self._path = path
        self._sky = sky
        self._clock = clock

    def fetch(self, since: Cursor | None) -> Update:
        self.write()
        if at(self._sky, self._clock.uptime_s()).kind == "mad":
            raise ZeroDivisionError
        return self.source.fetch(since)

    def write(self) -> None:
        """Have the file as it would be by now."""
        stretch = at(self._sky, self._clock.uptime_s())
        if self._written == (stretch, self.feed.at):
            return
        self._written = (stretch, self.feed.at)
        text = feed_json.dump(self.feed.fetch(None))
        match stretch.kind:
            case "away":
                self._path.unlink(missing_ok=True)
            case "shredded":
                self._path.write_text(text[: len(text) // 2])
            case "well":
                beside = self._path.with_suffix(".new")
                beside.write_text(text)
                beside.replace(self._path)

    def close(self) -> None:
        self.source.close()


class Database:
    """The feed as the analyzer keeps it."""

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

    def restore(self, kept: Any) -> None:
        with self._engine.begin() as db:
            for table, rows in kept.items():
                db.execute(sa.delete(table))
                if rows:
                    db.execute(sa.insert(table), rows)

    def close(self) -> None:
        self._engine.dispose()
