"""What must be true in the end, held against the truth that was kept outside."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby

import sqlalchemy as sa

from analyzer.core.counting.meters import DAY_S
from analyzer.core.judging.judge import judge
from analyzer.core.judging.plan import Plan
from analyzer.core.judging.totals import Standing, TotalKey
from analyzer.core.judging.windows import window_at
from analyzer.store.database.clock import instant
from analyzer.store.database.engine import NowMs, reading
from analyzer.store.database.schema import feed, feed_versions, lock_changes, locks, offsets, rejects, totals
from analyzer.store.transaction.lock_feed import KEY, lock_of
from gatekeeper.model import Lock, LockKey, Set, SourceError
from gatekeeper.sources.sql import SqlSource
from gatekeeper.view.lock_view import EMPTY, LockView, ViewOutOfStep, apply
from tests.faults.fleet import Fleet
from tests.faults.traffic import Place, Truth

OLD_S = 30 * DAY_S  # minutes older than this may have been joined into quarters and days meanwhile


def wrongs(fleet: Fleet, truth: Truth, follower: Follower | None = None) -> Iterator[str]:
    """A sentence for each promise that was broken; call it when every record was seen and nobody writes."""
    yield from wrong_counts(fleet.counts(), truth)
    yield from wrong_ledger(fleet, truth)
    yield from wrong_totals(fleet, truth)
    yield from wrong_locks(fleet, truth)
    yield from wrong_feed(fleet)
    if follower is not None:
        yield from follower.wrongs(fleet)


def wrong_counts(found: Counter[Place], truth: Truth) -> Iterator[str]:
    now_s = max((place.minute_s for place in truth.counts), default=0)
    wanted, got = by_day_when_old(truth.counts, now_s), by_day_when_old(found, now_s)
    differ = [place for place in wanted | got if wanted[place] != got[place]]
    if differ:
        place = min(differ)
        yield (
            f"counts differ in {len(differ)} of {len(wanted)} places, {got.total()} for {wanted.total()};"
            f" first {place}: {got[place]} for {wanted[place]}"
        )


def by_day_when_old(counts: Counter[Place], now_s: int) -> Counter[Place]:
    found: Counter[Place] = Counter()
    for place, n in counts.items():
        old = place.minute_s < now_s - OLD_S
        found[place._replace(minute_s=place.minute_s // DAY_S * DAY_S) if old else place] += n
    return found


def wrong_ledger(fleet: Fleet, truth: Truth) -> Iterator[str]:
    """By the command that an operator would use, and against the truth."""
    command = [sys.executable, "-m", "analyzer.cli", "--config", str(fleet.config), "audit"]
    audited = subprocess.run(command, capture_output=True, text=True)
    if audited.returncode or ": equal" not in audited.stdout:
        yield f"gatelock audit: {audited.stdout[-300:]}{audited.stderr[-300:]}"
    counted = truth.counts.total()
    wanted = {
        "seen": truth.records,
        "counted": counted,
        "duplicate": 0,
        "dead": truth.dead,
        "late": truth.late,
    }
    if (ledger := fleet.ledger()) != wanted:
        yield f"the ledger says {ledger}, the truth {wanted}"
    with reading(fleet.engine) as db:
        kept = db.execute(sa.select(sa.func.count()).select_from(rejects)).scalar_one()
        parts = db.execute(sa.select(sa.func.count()).select_from(offsets)).scalar_one()
    if kept != truth.dead + truth.late:
        yield f"{kept} rejected records are kept, {truth.dead + truth.late} were written"
    if parts != fleet.partitions:
        yield f"{parts} partitions are followed, there are {fleet.partitions}"


def used_in(plan: Plan, truth: Truth, at_s: int) -> dict[TotalKey, int]:
    """The slow, obvious answer: every total in the window that holds `at_s`, added up again."""
    found: Counter[TotalKey] = Counter()
    for sum_ in plan.policies_of:
        window = window_at(sum_.window, at_s)
        for place, n in truth.counts.items():
            if not place.denied and window.start_s <= place.minute_s < window.until_s:
                found[TotalKey(sum_, place.caller, "", window)] += n
    return found


def wrong_totals(fleet: Fleet, truth: Truth) -> Iterator[str]:
    with reading(fleet.engine) as db:
        now_s = db.execute(sa.select(NowMs())).scalar_one() // 1000
        rows = db.execute(sa.select(totals)).all()
    wanted = used_in(fleet.plan, truth, now_s)
    windows = {(str(total.sum.window), total.window.start_s) for total in wanted}
    found = {(row.period, row.key, row.window_s): row.used for row in rows}
    found = {at: used for at, used in found.items() if (at[0], at[2]) in windows}
    expected = {(str(total.sum.window), total.key, total.window.start_s): n for total, n in wanted.items()}
    differ = [at for at in found | expected if found.get(at) != expected.get(at)]
    if differ:
        at = min(differ)
        first = f"{at}: {found.get(at)} for {expected.get(at)}"
        yield f"{len(differ)} of {len(expected)} totals differ; first {first}"


def wrong_locks(fleet: Fleet, truth: Truth) -> Iterator[str]:
    """The locks in force are those that the pure judgement gives for the truth, at the database's time."""
    now, found = locks_in_force(fleet)
    standings = [Standing(total, n) for total, n in used_in(fleet.plan, truth, int(now.timestamp())).items()]
    judged = [each for each in judge(fleet.plan, standings, {}, now) if isinstance(each, Set)]
    wanted = {change.at: change.lock.until for change in judged}
    got = {lock.at: lock.until for lock in found}
    if got != wanted:
        missing, extra = sorted(wanted.keys() - got.keys()), sorted(got.keys() - wanted.keys())
        yield f"{len(got)} locks for {len(wanted)}: missing {missing[:3]}, too many {extra[:3]}"


def locks_in_force(fleet: Fleet) -> tuple[datetime, list[Lock]]:
    with reading(fleet.engine) as db:
        now = instant(db.execute(sa.select(NowMs())).scalar_one())
        return now, [lock for row in db.execute(sa.select(locks)) if (lock := lock_of(row)).until > now]


def wrong_feed(fleet: Fleet) -> Iterator[str]:
    """Told from the beginning, the feed leads to the locks' table; no version is left out, nothing told
    that was so already."""
    with reading(fleet.engine) as db:
        version = db.execute(sa.select(feed.c.version)).scalar_one()
        versions = list(db.scalars(sa.select(feed_versions.c.version).order_by(feed_versions.c.version)))
        order = (lock_changes.c.version, lock_changes.c.number)
        told = db.execute(sa.select(lock_changes).order_by(*order)).all()
        said = db.execute(sa.select(*KEY, locks.c.until_ms, locks.c.detail))
        table = {row[: len(KEY)]: (row.until_ms, by_which_limit(row.detail)) for row in said}
    if versions != list(range(1, version + 1)):
        yield f"the feed is at version {version} and knows of {len(versions)}"
    if missing := set(versions) - {number for number, _ in groupby(told, lambda row: row.version)}:
        yield f"versions without a change: {sorted(missing)[:5]}"
    held: dict[tuple[str, ...], tuple[int, str]] = {}
    for row in told:
        at = LockKey(row.scope, row.key, row.resource, row.policy)
        lock = row.until_ms, by_which_limit(row.detail)
        if row.op == "set" and held.get(at) == lock:
            yield f"version {row.version} sets what was set: {at}"
        if row.op == "clear" and at not in held:
            yield f"version {row.version} clears what was not set: {at}"
        if row.op == "set":
            held[at] = lock
        else:
            held.pop(at, None)
    if held != table:
        yield f"the feed leads to {len(held)} locks, the table holds {len(table)}"


def by_which_limit(detail: str) -> str:
    """The sentence of a lock without what had been counted: a new limit is told of the same lock again."""
    return detail.partition("), ")[0]


@dataclass(slots=True)
class Follower:
    """A gate's view of the feed, kept up through everything, from one version to the next."""

    database: str
    view: LockView = EMPTY
    polls: int = 0
    failed: int = 0
    snapshots: int = 0
    out_of_step: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _follow(self) -> None:
        source = SqlSource(self.database)
        while not self._stop.wait(0.05):
            self._poll(source)
        self._poll(source)  # once more, when nothing changes any longer
        source.close()

    def _poll(self, source: SqlSource) -> None:
        self.polls += 1
        try:
            update = source.fetch(self.view.at)
        except SourceError:
            self.failed += 1
            return
        if self.view.at is not None and self.view.at.version > 0:  # at first there is nothing to go on from
            self.snapshots += update.snapshot
        try:
            self.view = apply(self.view, update)
        except ViewOutOfStep as wrong:
            self.out_of_step.append(str(wrong))

    def wrongs(self, fleet: Fleet) -> Iterator[str]:
        """Whether the view holds what the table holds; call it after `stop`."""
        if self.out_of_step:
            yield f"a gate was out of step: {self.out_of_step[0]}"
        if self.snapshots:
            yield f"{self.snapshots} times a gate could not go on from its version"
        now, table = locks_in_force(fleet)
        ours = {lock.at: lock.until for lock in self.view if lock.until > now}
        if ours != {lock.at: lock.until for lock in table}:
            yield f"a gate that followed holds {len(ours)} locks, the table {len(table)}"
