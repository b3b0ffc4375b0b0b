"""A gate whose source is cut and healed at random, on a clock that is moved by hand."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

from gatekeeper import Gate, SlidingLog
from gatekeeper.model import Change, Clear, Lock, LockKey, Set
from gatekeeper.sources.sql import FETCH_S, NEXT_POLL_S, SqlSource
from gatekeeper.testing import ManualClock
from tests.cuts.bound import Manner
from tests.cuts.lines import Database, Line, Paper
from tests.cuts.oracle import LIMIT, LIMITED, NO, PASS, PERIOD_S, STALE, Moment, Oracle, Slack, Truth, by
from tests.cuts.sky import NOT_OF_FILES, OF_FILES, drawn
from tests.support.feed import HandFeed

SOURCES = ("sql", "sqlite", "http", "file")
ON_STALE = ("allow", "deny", "limiter")
SECONDS = 600.0
CALLERS = tuple(f"api_key:{name}" for name in ("acme", "bob", "eve", "ida", "kim", "lee"))
POLICIES = ("pa", "pb")
SLACK = Slack(1e-6, 1e-6)  # of adding up seconds as floats
A_DAY_S = 86_400.0


class Story(NamedTuple):
    """What is told again by the same words."""

    seed: int
    source: str
    on_stale: str
    seconds: float = SECONDS
    kinds: tuple[str, ...] = ()  # of faults; all that this source can have


def a_lock(random: Random, now: datetime) -> Lock:
    """On anybody, for moments or for longer than the story."""
    lasts_s = random.choice((0.3, 3.0, 30.0, A_DAY_S)) * random.uniform(0.5, 1.5)
    until = (now + timedelta(seconds=lasts_s)).replace(microsecond=0)
    return Lock(
        scope="caller",
        key=random.choice(CALLERS),
        policy=random.choice(POLICIES),
        began=now.replace(microsecond=0),
        until=until + timedelta(milliseconds=random.randrange(1000)),  # as a database keeps it
        action="tag" if random.random() < 0.15 else "deny",
        on_stale=random.choice(("keep", "keep", "allow")),
    )


class Desk:
    """Where locks are written: what is told to the feed, and noted as the truth."""

    def __init__(self, feed: Any, truth: Truth, random: Random) -> None:
        self._feed = feed
        self._truth = truth
        self._random = random
        self._locks: dict[LockKey, Lock] = {}
        self._kept: list[tuple[Any, dict[LockKey, Lock]]] = []

    def write(self, now: datetime, uptime_s: Callable[[], float]) -> None:
        """One thing: some locks, some of them lifted, or a database that is copied, pruned or restored."""
        luck = self._random.random()
        if luck < 0.05:
            self._kept.append((self._feed.backup(), dict(self._locks)))
        elif luck < 0.10:
            self._feed.prune()
        elif luck < 0.13 and self._kept:
            kept, locks = self._kept.pop()
            self._become(locks, lambda: self._feed.restore(kept), uptime_s)
        else:
            changes = [self._change(now) for _ in range(self._random.randrange(1, 4))]
            changes = list({change.at: change for change in changes}.values())  # each lock once
            gone = {change.at for change in changes}
            locks = {at: lock for at, lock in self._locks.items() if at not in gone}
            locks |= {change.at: change.lock for change in changes if isinstance(change, Set)}
            self._become(locks, lambda: self._feed.publish(*changes), uptime_s)

    def _become(
        self, locks: dict[LockKey, Lock], write: Callable[[], object], uptime_s: Callable[[], float]
    ) -> None:
        # Before it is written: a gate may know of it before we hear that it is.
        self._truth.becomes(locks.values(), uptime_s())
        write()
        self._truth.became(uptime_s())
        self._locks = locks

    def _change(self, now: datetime) -> Change:
        if self._locks and self._random.random() < 0.45:
            return Clear(self._random.choice(list(self._locks)))
        return Set(a_lock(self._random, now))


class World:
    """One gate, its source, the sky between them, and all that is drawn from one seed."""

    def __init__(self, story: Story, folder: Path, sqlite_template: Path) -> None:
        random = self._random = Random(f"{story.seed} {story.source} {story.on_stale}")
        self._story = story
        # SQLite knows no other time; at a whole second, so that the same words tell the same story.
        self._clock = ManualClock(datetime.now(UTC).replace(microsecond=0))
        self._truth = Truth()
        self._held = ExitStack()
        self._folder = folder
        kinds = story.kinds or (OF_FILES if story.source == "file" else NOT_OF_FILES)
        sky = drawn(random, story.seconds, kinds)
        manner = self._manner(random)
        feed = self._source(sky, manner, sqlite_template)
        self._desk = Desk(feed, self._truth, random)
        self._jumps = random.random() < 0.5  # else the gate is stopped and started now and then
        self._saved = folder / "view" if random.random() < 0.5 else None
        self._oracle = Oracle(self._truth, sky, manner, story.on_stale, 0.0)
        self._off_s = 0.0  # what the wall clock is wrong by
        self.gate = self._begun()

    def _manner(self, random: Random) -> Manner:
        stale_after_s = random.choice((1.5, 5.0, 30.0))
        match self._story.source:
            case "http":
                return Manner(0.0, 0.2, stale_after_s / 6, stale_after_s / 3, stale_after_s)
            case "file":
                return Manner(0.4, 0.0, 0.0, 0.0, stale_after_s)
            case "sqlite":
                return Manner(NEXT_POLL_S, 0.2, 0.0, FETCH_S, stale_after_s)
            case _:
                return Manner(random.choice((0.1, 0.4, 2.0)), 0.2, 0.0, FETCH_S, stale_after_s)

    def _source(self, sky: Any, manner: Manner, sqlite_template: Path) -> Any:
        """Also where the feed is written."""
        if self._story.source == "sqlite":
            shutil.copyfile(sqlite_template, self._folder / "gatelock.db")
            url = f"sqlite:///{self._folder}/gatelock.db"
            database = Database(url)
            self._held.callback(database.close)
            self._line: Line | Paper = Line(SqlSource(url), sky, self._clock, self._random, manner)
            return database
        feed = HandFeed()
        feed.next_poll = manner.pace_s
        if self._story.source == "file":
            self._line = Paper(feed, self._folder / "locks.json", sky, self._clock)
        else:
            written = self._story.source == "http"
            self._line = Line(feed, sky, self._clock, self._random, manner, written=written)
        return feed

    def _begun(self) -> Gate:
        limiter = SlidingLog(LIMIT, PERIOD_S, clock=self._clock)
        on_stale = limiter if self._story.on_stale == "limiter" else self._story.on_stale
        stale_after_s = self._oracle.manner.stale_after_s
        gate = Gate(self._line, stale_after=stale_after_s, on_stale=cast(Any, on_stale), saved=self._saved,
                    clock=self._clock)  # fmt: skip
        return gate.start()

    def run(self) -> Counter[str]:
        """How often what was met. Raises AssertionError for the first wrong answer."""
        with self._held:
            try:
                for turn in (self._write, self._ask, self._jump if self._jumps else self._restart):
                    self._clock.run(turn, turn.__name__)
                self._clock.advance(self._story.seconds)
            finally:
                self.gate.close()
        return self._oracle.tally

    # -- what happens, each in turns of its own --------------------------------------------------

    def _write(self) -> float:
        self._desk.write(self._clock.now() - timedelta(seconds=self._off_s), self._clock.uptime_s)
        if isinstance(self._line, Paper):
            self._line.write()
        return self._random.choice((0.01, 0.5, 4.0)) * self._random.random()

    def _ask(self) -> float:
        self._clock.luck = self._random.random()
        now_s, now_ns = self._clock.uptime_s(), self._clock.wall_ns()
        moment = Moment(now_s, now_s, now_ns, now_ns, now_ns - round(self._off_s * 1e9))
        asked = self._random.sample(CALLERS, len(CALLERS))
        said = {caller: self._answer(caller) for caller in asked}
        wrong = self._oracle.wrong(said, moment, SLACK)
        wrong = wrong or self._oracle.wrong_age(self.gate.age, moment, SLACK)
        assert not wrong, f"{self._story}: {wrong}"
        return self._random.choice((0.001, 0.05, 0.6)) * self._random.random()

    def _answer(self, caller: str) -> str:
        if self._random.random() < 0.4:
            return PASS if self.gate.allow(caller) else NO
        return word_of(self.gate.check(caller))

    def _jump(self) -> float:
        to_s = 0.0 if self._off_s else self._random.choice((-3600.0, -5.0, -0.5, 0.5, 5.0, 3600.0))
        if to_s < self._off_s:
            self._oracle.set_back.append((self._clock.uptime_s(), self._clock.wall_ns()))
        self._clock.jump(to_s - self._off_s)
        self._off_s = to_s
        return self._random.uniform(0.1, 30) if to_s else self._random.uniform(10, 60)

    def _restart(self) -> float:
        if self._line.busy:
            return 0.3
        self.gate.close()
        self._oracle.begins_anew(self._clock.uptime_s(), remembers=self._saved is not None)
        self.gate = self._begun()
        return self._random.uniform(20, 200)


def word_of(decision: Any) -> str:
    """What the decision amounts to."""
    if decision.allowed:
        return PASS
    return {"stale": STALE, "limited": LIMITED}.get(decision.reason, by(decision.policy))
