"""Checks of the database after a run, against counts that were kept outside."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby

import sqlalchemy as sa

from analyzer.judging.circumstances import Circumstances
from analyzer.judging.judge import judge
from analyzer.judging.kinds import policy_kind
from analyzer.judging.locks.lock_feed import KEY, lock_from_row
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.totals import Standing, TotalKey
from analyzer.kernel.database.clock import instant
from analyzer.kernel.database.engine import NowMs, reading
from analyzer.kernel.tables.schema import feed, feed_versions, lock_changes, locks, notices, offsets, rejects
from analyzer.plan.meters import DAY_S
from analyzer.plan.plan import Plan
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Rolling, window_at
from gatekeeper.model import Lock, LockKey, SourceError
from gatekeeper.sources.sql import SqlSource
from gatekeeper.view.lock_view import EMPTY, LockView, ViewOutOfStep, apply
from tests.faults.fleet import Fleet
from tests.faults.kinds_of_policies import bounds
from tests.faults.traffic import CountKey, ExpectedCounts
from tests.support.gatelock_processes import run_gatelock
from tests.support.stored_counts import stored_totals
from tests.support.waiting import wait_until

ROLLING_WITHIN_S = 30.0  # after all is counted
OLD_S = 30 * DAY_S  # older minutes may have been rolled up into quarter-hours and days


def violations(fleet: Fleet, expected: ExpectedCounts, follower: Follower | None = None) -> Iterator[str]:
    """Yields a sentence for each violation; to be called when every record was read and none is written."""
    if follower is not None:
        yield from follower.violations(fleet)  # first: locks are extended
    yield from count_violations(fleet.counts(), expected)
    yield from ledger_violations(fleet, expected)
    yield from total_violations(fleet, expected)
    yield from lock_violations(fleet, expected)
    yield from feed_violations(fleet)
    yield from rolling_violations(fleet, expected)
    yield from notice_violations(fleet, expected)


def count_violations(found: Counter[CountKey], expected: ExpectedCounts) -> Iterator[str]:
    now_s = max((key.minute_s for key in expected.counts), default=0)
    wanted, got = by_day_when_old(expected.counts, now_s), by_day_when_old(found, now_s)
    differ = [key for key in wanted | got if wanted[key] != got[key]]
    if differ:
        first = min(differ)
        yield (
            f"{len(differ)} of {len(wanted)} counts differ, {got.total()} in all for {wanted.total()};"
            f" first {first}: {got[first]} for {wanted[first]}"
        )


def by_day_when_old(counts: Counter[CountKey], now_s: int) -> Counter[CountKey]:
    found: Counter[CountKey] = Counter()
    for key, n in counts.items():
        is_old = key.minute_s < now_s - OLD_S
        found[key._replace(minute_s=key.minute_s // DAY_S * DAY_S) if is_old else key] += n
    return found


def ledger_violations(fleet: Fleet, expected: ExpectedCounts) -> Iterator[str]:
    """Checks `gatelock billing audit`, and the ledger against the expected counts."""
    audited = run_gatelock("--config", str(fleet.config), "billing", "audit")
    if audited.returncode or ": equal" not in audited.stdout:
        yield f"gatelock billing audit: {audited.stdout[-300:]}{audited.stderr[-300:]}"
    counted = expected.counts.total()
    wanted = {
        "seen": expected.records,
        "counted": counted,
        "duplicate": 0,
        "dead": expected.dead,
        "late": expected.late,
    }
    if (ledger := fleet.ledger()) != wanted:
        yield f"the ledger has {ledger}, expected {wanted}"
    with reading(fleet.engine) as db:
        kept = db.execute(sa.select(sa.func.count()).select_from(rejects)).scalar_one()
        parts = db.execute(sa.select(sa.func.count()).select_from(offsets)).scalar_one()
    if kept != expected.dead + expected.late:
        yield f"{kept} rejected records are stored, {expected.dead + expected.late} were written"
    if parts != fleet.partitions:
        yield f"{parts} partitions are followed, of {fleet.partitions}"


def used_in(plan: Plan, expected: ExpectedCounts, at_s: int) -> dict[TotalKey, int]:
    """Sums up every total in the window that contains `at_s`: slow, and obviously right."""
    found: Counter[TotalKey] = Counter()
    for sum_, policies in plan_sums(plan).policies_by_sum.items():
        window = window_at(sum_.window, at_s)
        if isinstance(sum_.window, Rolling):
            continue
        if not sum_.joined.in_buckets:
            inside = {
                (caller, item)
                for caller, item, minute_s in expected.items
                if window.start_s <= minute_s < window.until_s
            }
            kept = 1 + max(policy.limit for policy in policies)
            for caller, number in Counter(caller for caller, _ in inside).items():
                found[TotalKey(sum_, caller, "", window)] = min(number, kept)
            continue
        for key, n in expected.counts.items():
            if not key.denied and window.start_s <= key.minute_s < window.until_s:
                found[TotalKey(sum_, key.caller, "", window)] += n
    return found


def total_violations(fleet: Fleet, expected: ExpectedCounts) -> Iterator[str]:
    with reading(fleet.engine) as db:
        now_s = db.execute(sa.select(NowMs())).scalar_one() // 1000
        stored = stored_totals(db)
    wanted = used_in(fleet.plan, expected, now_s)
    windows = {(str(total.sum.window), total.window.start_s) for total in wanted}
    found = {
        (name.split(" ", 2)[2], key, window_s): used for (name, key, _, window_s), used in stored.items()
    }
    found = {at: used for at, used in found.items() if (at[0], at[2]) in windows}
    used = {(str(total.sum.window), total.key, total.window.start_s): n for total, n in wanted.items()}
    differ = [at for at in found | used if found.get(at) != used.get(at)]
    if differ:
        at = min(differ)
        yield f"{len(differ)} of {len(used)} totals differ; first {at}: {found.get(at)} for {used.get(at)}"


def lock_violations(fleet: Fleet, expected: ExpectedCounts) -> Iterator[str]:
    """Checks the locks in force against those judged from the expected counts, at the database's time."""
    now, found = locks_in_force(fleet)
    standings = [
        Standing(total, n) for total, n in used_in(fleet.plan, expected, int(now.timestamp())).items()
    ]
    judged = judge(fleet.plan, standings, {}, Circumstances(now)).changes
    wanted = {change.at: change.lock.until for change in judged}
    rolling = {policy.name for policy in fleet.plan.policies if isinstance(policy.window, Rolling)}
    got = {lock.at: lock.until for lock in found if lock.policy not in rolling}
    if got != wanted:
        missing, extra = sorted(wanted.keys() - got.keys()), sorted(got.keys() - wanted.keys())
        yield f"{len(got)} locks for {len(wanted)}: missing {missing[:3]}, unexpected {extra[:3]}"


def rolling_violations(fleet: Fleet, expected: ExpectedCounts) -> Iterator[str]:
    """Checks the locks of rolling windows: those that must be, and none that must not be."""
    with suppress(AssertionError):  # reported below
        wait_until(
            lambda: not [*_rolling_violations(fleet, expected)], ROLLING_WITHIN_S, lambda: "", every_s=0.5
        )
    yield from _rolling_violations(fleet, expected)


def _rolling_violations(fleet: Fleet, expected: ExpectedCounts) -> Iterator[str]:
    now, found = locks_in_force(fleet)
    for name, (must, may) in bounds(fleet.plan, expected.seconds, int(now.timestamp())).items():
        got = {lock.key for lock in found if lock.policy == name}
        if missing := sorted(must - got):
            yield f"{name}: {len(got)} locks, missing {missing[:3]} of {len(must)}"
        if extra := sorted(got - may):
            yield f"{name}: {len(got)} locks, unexpected {extra[:3]}"


def notice_violations(fleet: Fleet, expected: ExpectedCounts) -> Iterator[str]:
    """Checks that each threshold that was reached in this window was raised, and logged at most once."""
    with reading(fleet.engine) as db:
        now_s = db.execute(sa.select(NowMs())).scalar_one() // 1000
        stored = db.execute(
            sa.select(notices.c.policy, notices.c.key, notices.c.window_s, notices.c.threshold)
        )
        found = Counter(map(tuple, stored))
    used = used_in(fleet.plan, expected, now_s)
    wanted = {
        (policy.name, total.key, total.window.start_s, threshold)
        for policy in fleet.plan.policies
        if isinstance(policy, Quota)
        for total, n in used.items()
        if total.sum == policy_kind(policy).judged_sum(policy)
        for threshold in policy.thresholds
        if n * 1_000 >= policy.limit * threshold
    }
    starts = {total.window.start_s for total in used}
    got = {at for at in found if at[2] in starts}
    if got != wanted:
        yield f"{len(got)} notices for {len(wanted)}: missing {sorted(wanted - got)[:3]}"
    logged = Counter(
        line.partition('"message": ')[2]
        for line in (fleet.folder / "analyzers.log").read_text().splitlines()
        if '"message": "notice' in line
    )
    if again := [line for line, number in logged.items() if number > 1]:
        yield f"{len(again)} notices were raised again: {again[0][:200]}"


def locks_in_force(fleet: Fleet) -> tuple[datetime, list[Lock]]:
    with reading(fleet.engine) as db:
        now = instant(db.execute(sa.select(NowMs())).scalar_one())
        return now, [lock for row in db.execute(sa.select(locks)) if (lock := lock_from_row(row)).until > now]


def feed_violations(fleet: Fleet) -> Iterator[str]:
    """Checks that the feed, applied from its beginning, gives the table of locks, without a missing version
    and without a change that changes nothing."""
    with reading(fleet.engine) as db:
        version = db.execute(sa.select(feed.c.version)).scalar_one()
        versions = list(db.scalars(sa.select(feed_versions.c.version).order_by(feed_versions.c.version)))
        order = (lock_changes.c.version, lock_changes.c.number)
        changed = db.execute(sa.select(lock_changes).order_by(*order)).all()
        rows = db.execute(sa.select(*KEY, locks.c.until_ms, locks.c.detail))
        table = {row[: len(KEY)]: (row.until_ms, limit_in(row.detail)) for row in rows}
    if versions != list(range(1, version + 1)):
        yield f"the feed is at version {version} and has {len(versions)} versions"
    if missing := set(versions) - {number for number, _ in groupby(changed, lambda row: row.version)}:
        yield f"versions without a change: {sorted(missing)[:5]}"
    locks_by_key: dict[tuple[str, ...], tuple[int, str]] = {}
    for row in changed:
        at = LockKey(row.scope, row.key, row.resource, row.policy)
        lock = row.until_ms, limit_in(row.detail)
        if row.op == "set" and locks_by_key.get(at) == lock:
            yield f"version {row.version} sets a lock that was set: {at}"
        if row.op == "clear" and at not in locks_by_key:
            yield f"version {row.version} clears a lock that was not set: {at}"
        if row.op == "set":
            locks_by_key[at] = lock
        else:
            locks_by_key.pop(at, None)
    if locks_by_key != table:
        yield f"the feed gives {len(locks_by_key)} locks, the table has {len(table)}"


def limit_in(detail: str) -> str:
    """The detail of a lock without its count: a new limit sets the same lock again."""
    return detail.partition("), ")[0]


@dataclass(slots=True)
class Follower:
    """A gate's view of the feed, kept up to date from version to version throughout the run."""

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
        self._poll(source)  # once more, when nothing changes any more
        source.close()

    def _poll(self, source: SqlSource) -> None:
        self.polls += 1
        try:
            update = source.fetch(self.view.at)
        except SourceError:
            self.failed += 1
            return
        if self.view.at is not None and self.view.at.version > 0:  # the first poll is always a snapshot
            self.snapshots += update.snapshot
        try:
            self.view = apply(self.view, update)
        except ViewOutOfStep as wrong:
            self.out_of_step.append(str(wrong))

    def violations(self, fleet: Fleet) -> Iterator[str]:
        """Yields a sentence for each difference between the view and the table; call it after `stop`."""
        if self.out_of_step:
            yield f"a gate was out of step: {self.out_of_step[0]}"
        if self.snapshots:
            yield f"{self.snapshots} times a gate could not continue from its version"
        now, table = locks_in_force(fleet)
        followed = {lock.at: lock.until for lock in self.view if lock.until > now}
        if followed != {lock.at: lock.until for lock in table}:
            yield f"a gate that followed the feed has {len(followed)} locks, the table {len(table)}"
