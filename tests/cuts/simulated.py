"""A gate whose source fails at random, on a clock that is moved by hand."""

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
from tests.cuts.bound import SourceTiming
from tests.cuts.faulty_sources import FaultySource, SqlFeed, WrittenFile
from tests.cuts.oracle import (
    DENIED,
    LIMIT,
    LIMITED,
    PASS,
    PERIOD_S,
    STALE,
    LockHistory,
    Moment,
    Oracle,
    Slack,
    denied_by,
)
from tests.cuts.timeline import FILE_KINDS, OTHER_KINDS, draw_timeline
from tests.support.feed import HandFeed

SOURCES = ("sql", "sqlite", "http", "file")
ON_STALE = ("allow", "deny", "limiter")
SECONDS = 600.0
CALLERS = tuple(f"api_key:{name}" for name in ("acme", "bob", "eve", "ida", "kim", "lee"))
POLICIES = ("pa", "pb")
SLACK = Slack(1e-6, 1e-6)  # rounding when seconds are added up as floats
DAY_S = 86_400.0


class Scenario(NamedTuple):
    """The parameters of a run, which repeat it exactly."""

    seed: int
    source: str
    on_stale: str
    seconds: float = SECONDS
    kinds: tuple[str, ...] = ()  # of faults; by default all kinds that the source can have


def a_lock(random: Random, now: datetime) -> Lock:
    """A random lock, for moments or for longer than the run."""
    lasts_s = random.choice((0.3, 3.0, 30.0, DAY_S)) * random.uniform(0.5, 1.5)
    until = (now + timedelta(seconds=lasts_s)).replace(microsecond=0)
    return Lock(
        scope="caller",
        key=random.choice(CALLERS),
        policy=random.choice(POLICIES),
        began=now.replace(microsecond=0),
        until=until + timedelta(milliseconds=random.randrange(1000)),  # databases store milliseconds
        action="tag" if random.random() < 0.15 else "deny",
        on_stale=random.choice(("keep", "keep", "allow")),
    )


class LockWriter:
    """Writes random changes to a feed, and records them in the history."""

    def __init__(self, feed: Any, history: LockHistory, random: Random) -> None:
        self._feed = feed
        self._history = history
        self._random = random
        self._locks: dict[LockKey, Lock] = {}
        self._backups: list[tuple[Any, dict[LockKey, Lock]]] = []

    def write(self, now: datetime, uptime_s: Callable[[], float]) -> None:
        """Sets and clears some locks, or backs up, prunes or restores the feed."""
        luck = self._random.random()
        if luck < 0.05:
            self._backups.append((self._feed.backup(), dict(self._locks)))
        elif luck < 0.10:
            self._feed.prune()
        elif luck < 0.13 and self._backups:
            backup, locks = self._backups.pop()
            self._replace(locks, lambda: self._feed.restore(backup), uptime_s)
        else:
            changes = [self._change(now) for _ in range(self._random.randrange(1, 4))]
            changes = list({change.at: change for change in changes}.values())  # each lock once
            changed = {change.at for change in changes}
            locks = {at: lock for at, lock in self._locks.items() if at not in changed}
            locks |= {change.at: change.lock for change in changes if isinstance(change, Set)}
            self._replace(locks, lambda: self._feed.publish(*changes), uptime_s)

    def _replace(
        self, locks: dict[LockKey, Lock], write: Callable[[], object], uptime_s: Callable[[], float]
    ) -> None:
        # Before writing: a gate may read the locks before `write` returns.
        self._history.begin_write(locks.values(), uptime_s())
        write()
        self._history.end_write(uptime_s())
        self._locks = locks

    def _change(self, now: datetime) -> Change:
        if self._locks and self._random.random() < 0.45:
            return Clear(self._random.choice(list(self._locks)))
        return Set(a_lock(self._random, now))


class SimulatedRun:
    """One gate, its faulty source, and a writer of locks, all drawn from one seed."""

    def __init__(self, scenario: Scenario, folder: Path, sqlite_template: Path) -> None:
        random = self._random = Random(f"{scenario.seed} {scenario.source} {scenario.on_stale}")
        self._scenario = scenario
        # The real time, because SQLite has no other; a whole second, so that a run is repeatable.
        self._clock = ManualClock(datetime.now(UTC).replace(microsecond=0))
        self._history = LockHistory()
        self._resources = ExitStack()
        self._folder = folder
        kinds = scenario.kinds or (FILE_KINDS if scenario.source == "file" else OTHER_KINDS)
        timeline = draw_timeline(random, scenario.seconds, kinds)
        timing = self._timing(random)
        feed = self._make_source(timeline, timing, sqlite_template)
        self._writer = LockWriter(feed, self._history, random)
        self._jumps = random.random() < 0.5  # of the wall clock; otherwise the gate is restarted now and then
        self._saved = folder / "view" if random.random() < 0.5 else None
        self._oracle = Oracle(self._history, timeline, timing, scenario.on_stale, 0.0)
        self._skew_s = 0.0  # of the wall clock
        self.gate = self._start_gate()

    def _timing(self, random: Random) -> SourceTiming:
        stale_after_s = random.choice((1.5, 5.0, 30.0))
        match self._scenario.source:
            case "http":
                return SourceTiming(0.0, 0.2, stale_after_s / 6, stale_after_s / 3, stale_after_s)
            case "file":
                return SourceTiming(0.4, 0.0, 0.0, 0.0, stale_after_s)
            case "sqlite":
                return SourceTiming(NEXT_POLL_S, 0.2, 0.0, FETCH_S, stale_after_s)
            case _:
                return SourceTiming(random.choice((0.1, 0.4, 2.0)), 0.2, 0.0, FETCH_S, stale_after_s)

    def _make_source(self, timeline: Any, timing: SourceTiming, sqlite_template: Path) -> Any:
        """Makes the faulty source; returns the feed that it reads."""
        if self._scenario.source == "sqlite":
            shutil.copyfile(sqlite_template, self._folder / "gatelock.db")
            url = f"sqlite:///{self._folder}/gatelock.db"
            database = SqlFeed(url)
            self._resources.callback(database.close)
            self._source: FaultySource | WrittenFile = FaultySource(
                SqlSource(url), timeline, self._clock, self._random, timing
            )
            return database
        feed = HandFeed()
        feed.next_poll = timing.pace_s
        if self._scenario.source == "file":
            self._source = WrittenFile(feed, self._folder / "locks.json", timeline, self._clock)
        else:
            as_json = self._scenario.source == "http"
            self._source = FaultySource(feed, timeline, self._clock, self._random, timing, as_json=as_json)
        return feed

    def _start_gate(self) -> Gate:
        limiter = SlidingLog(LIMIT, PERIOD_S, clock=self._clock)
        on_stale = limiter if self._scenario.on_stale == "limiter" else self._scenario.on_stale
        stale_after_s = self._oracle.timing.stale_after_s
        gate = Gate(self._source, stale_after=stale_after_s, on_stale=cast(Any, on_stale), saved=self._saved,
                    clock=self._clock)  # fmt: skip
        return gate.start()

    def run(self) -> Counter[str]:
        """Returns the number of answers of each kind. Raises AssertionError for the first wrong one."""
        with self._resources:
            try:
                for turn in (self._write, self._ask, self._jump if self._jumps else self._restart):
                    self._clock.run(turn, turn.__name__)
                self._clock.advance(self._scenario.seconds)
            finally:
                self.gate.close()
        return self._oracle.counts

    # -- periodic functions ----------------------------------------------------------------------

    def _write(self) -> float:
        self._writer.write(self._clock.now() - timedelta(seconds=self._skew_s), self._clock.uptime_s)
        if isinstance(self._source, WrittenFile):
            self._source.write()
        return self._random.choice((0.01, 0.5, 4.0)) * self._random.random()

    def _ask(self) -> float:
        self._clock.luck = self._random.random()
        now_s, now_ns = self._clock.uptime_s(), self._clock.wall_ns()
        moment = Moment(now_s, now_s, now_ns, now_ns, now_ns - round(self._skew_s * 1e9))
        callers = self._random.sample(CALLERS, len(CALLERS))
        answers = {caller: self._answer(caller) for caller in callers}
        wrong = self._oracle.wrong(answers, moment, SLACK)
        wrong = wrong or self._oracle.wrong_age(self.gate.age, moment, SLACK)
        assert not wrong, f"{self._scenario}: {wrong}"
        return self._random.choice((0.001, 0.05, 0.6)) * self._random.random()

    def _answer(self, caller: str) -> str:
        if self._random.random() < 0.4:
            return PASS if self.gate.allow(caller) else DENIED
        return outcome_of(self.gate.check(caller))

    def _jump(self) -> float:
        to_s = 0.0 if self._skew_s else self._random.choice((-3600.0, -5.0, -0.5, 0.5, 5.0, 3600.0))
        if to_s < self._skew_s:
            self._oracle.set_back.append((self._clock.uptime_s(), self._clock.wall_ns()))
        self._clock.jump(to_s - self._skew_s)
        self._skew_s = to_s
        return self._random.uniform(0.1, 30) if to_s else self._random.uniform(10, 60)

    def _restart(self) -> float:
        if self._source.busy:
            return 0.3
        self.gate.close()
        self._oracle.restarted(self._clock.uptime_s(), has_saved_view=self._saved is not None)
        self.gate = self._start_gate()
        return self._random.uniform(20, 200)


def outcome_of(decision: Any) -> str:
    """The outcome of a decision, as the oracle names it."""
    if decision.allowed:
        return PASS
    return {"stale": STALE, "limited": LIMITED}.get(decision.reason, denied_by(decision.policy))
