"""Judges totals whose rows the transaction holds, and stores what follows from it, except the locks.

A flush calls it for the totals that its growth has brought to their `next`, the warden for those that must be
judged without growth: judgements that had to wait, and locks of rolling windows that are about to end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.judging.caller_limits import Limits
from analyzer.judging.circumstances import Circumstances, Hold
from analyzer.judging.earned_notices import LastNotice, NoticeKey, notice_key
from analyzer.judging.judge import NOTHING, Evidence, Judged, earned_at, judge, lock_keys, used_at
from analyzer.judging.kinds import policy_kind
from analyzer.judging.kinds.earned_locks import lock_key
from analyzer.judging.locks import lock_feed, lock_history
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql import brake_rows, hold_offs, holds, postponed, stored_notices
from analyzer.judging.sql.directory import NO_DIRECTORY, DirectoryVersion, read_limits
from analyzer.judging.sql.slots import with_addresses, with_bases, with_slots, with_wholes
from analyzer.judging.sql.totals import StoredTotal, held, set_next, used_by
from analyzer.judging.sql.usual_levels import UsualLevels
from analyzer.judging.sql.victim_slots import with_victims
from analyzer.judging.totals import Standing, TotalKey
from analyzer.kernel.database.clock import millis
from analyzer.plan.catalog import Catalog
from analyzer.plan.plan import Plan
from analyzer.plan.sums import Sum
from analyzer.plan.windows import ALWAYS, Rolling, Window
from gatekeeper.model import Change, Lock, LockKey


class Judge(NamedTuple):
    """Judges in a transaction: by the plan in force, the catalog's numbers, the time and the backlog."""

    plan: Plan
    version: int
    catalog: Catalog
    now: datetime
    behind_s: float = 0.0
    filling: Collection[Sum] = ()  # not complete: judged when they are
    directory: DirectoryVersion = NO_DIRECTORY
    limits: Limits | None = None  # of all series; None: read for those that are judged
    is_warden: bool = False  # which compares the totals that have a whole
    usual: UsualLevels | None = None  # of the warden

    def of(
        self,
        db: sa.Connection,
        stored_totals: Sequence[StoredTotal],
        *,
        waited: Sequence[postponed.DueTotal] = (),
    ) -> Judged:
        """Judges totals; stores when they must be judged next, and their notices.

        The changes of locks are left to be published. `waited` are totals that wait no more, unless they are
        judged so; their rows come behind those of the locks, in every transaction.
        """
        stored_totals = [stored for stored in stored_totals if stored.standing.total.sum not in self.filling]
        if not stored_totals:
            postponed.forget(db, waited, self.catalog)
            return NOTHING
        now_s = int(self.now.timestamp())
        standings = with_slots(db, [stored.standing for stored in stored_totals], self.catalog, now_s)
        standings = with_addresses(db, self.plan, standings, self.catalog, now_s)
        standings = with_bases(db, self.plan, standings, self.catalog, now_s)
        # Cannot lock what does not exist yet: `publish_longer` compares again.
        locks = lock_feed.locked(db, lock_keys(self.plan, standings))
        limits = self.series_limits(db, standings)
        context = self.circumstances(db, standings, limits)
        if self.is_warden:
            standings = with_wholes(db, self.plan, standings, self.catalog, now_s)
        if self.usual is not None:
            standings = self.usual.added_to(self.plan, standings)
        judged = judge(self.plan, standings, locks, context)
        if self.is_warden:
            completed = with_victims(db, self.plan, self.catalog, standings, judged.changes, locks, context)
            judged = judged if completed is None else judge(self.plan, completed, locks, context)
        read = [
            stored._replace(standing=standing)
            for stored, standing in zip(stored_totals, standings, strict=True)
        ]
        set_next(db, limits, self.directory.judged_by(self.version), read, self.now.timestamp(), self.catalog)
        postponed.forget(db, waited, self.catalog)
        postponed.store(db, judged.waiting, self.catalog)
        if self.is_warden:
            holds.replace(db, context.holds, judged.holds)
        notices = stored_notices.store(db, judged.notices, millis(self.now))
        return Judged(judged.changes, notices, self.evidence(standings, judged.changes, context))

    def evidence(
        self, standings: Sequence[Standing], changes: Sequence[Change], context: Circumstances
    ) -> Evidence:
        """Returns the grounds of changes that these totals have caused."""
        used = used_at(self.plan, standings, changes)
        return Evidence(self.version, used, earned_at(self.plan, standings, changes, context))

    def publish(self, db: sa.Connection, judged: Judged, mark: str, *, only_longer: bool = False) -> Judged:
        """Publishes what a transaction has judged, as far as the brakes of its policies allow it.

        Returns it with the changes that the feed has, as `lock_feed.publish_judged` does. Must be the last
        statement of its transaction.
        """
        if judged.changes:
            judged = brake_rows.within(db, self.plan, self.catalog, judged, millis(self.now))
        return lock_feed.publish_judged(db, judged, mark, only_longer=only_longer)

    def held(self, db: sa.Connection, keys: Iterable[TotalKey]) -> list[StoredTotal]:
        """Returns those of these totals that exist, and blocks flushes of their series until commit."""
        keys = list(keys)
        if self.usual is not None:
            self.usual.read(db, self.plan, keys, self.catalog, int(self.now.timestamp()))
        return held(db, keys, self.catalog)

    def lock_standings(self, db: sa.Connection, locks: Mapping[LockKey, int]) -> list[Standing]:
        """Returns the totals by which the policies of these locks judge, each once, without their slots.

        Of calendar windows the total of the window that holds the lock's second. A series that may have
        nothing stands there without a total, too.
        """
        limits = read_limits(db, self.plan, self.directory, {key.key for key in locks})
        series_by_window: dict[tuple[Sum, Window], set[tuple[str, str]]] = {}
        for key, at_s in locks.items():
            policy = self.plan.policy(key.policy)
            if policy is not None:
                sum_ = policy_kind(policy).judged_sum(policy)
                window = limits.series_window(sum_, key.key, at_s)
                series_by_window.setdefault((sum_, window), set()).add((key.key, key.resource))
        standings: list[Standing] = []
        for (sum_, window), series in series_by_window.items():
            used = used_by(db, self.catalog.sum_number(sum_), window.start_s, sorted(series))
            refused = (pair for pair in series if pair not in used and limits.refuses(sum_, pair[0]))
            standings += [
                Standing(TotalKey(sum_, *pair, window), amount)
                for pair, amount in (used | dict.fromkeys(refused, 0)).items()
            ]
        return standings

    def rolling_totals(self, locks: Iterable[Lock]) -> list[TotalKey]:
        """Returns the totals of rolling sums that earned these locks, which may last.

        Without those of series that are compared: they wait for the warden's next look anyway.
        """
        return [
            TotalKey(sum_, lock.key, lock.resource, ALWAYS)
            for lock in locks
            if (policy := self.plan.policy(lock.policy)) is not None
            and policy_kind(policy).whole_sum is None
            and isinstance((sum_ := policy_kind(policy).judged_sum(policy)).window, Rolling)
        ]

    def series_limits(self, db: sa.Connection, standings: Sequence[Standing]) -> Limits:
        """Returns the limits of these series."""
        if self.limits is not None:
            return self.limits
        return read_limits(db, self.plan, self.directory, {standing.total.key for standing in standings})

    def circumstances(
        self, db: sa.Connection, standings: Sequence[Standing], limits: Limits
    ) -> Circumstances:
        """Returns what else the judgement of these totals depends on."""
        return Circumstances(
            self.now,
            self.behind_s,
            self._offences(db, standings),
            limits,
            self.is_warden,
            self._holds(db, standings),
            self._last_notices(db, standings),
            hold_offs.in_force(db, lock_keys(self.plan, standings), millis(self.now)),
        )

    def _holds(self, db: sa.Connection, standings: Sequence[Standing]) -> Mapping[LockKey, Hold]:
        wholes = plan_sums(self.plan).wholes_by_sum if self.is_warden else {}
        compared = [standing for standing in standings if standing.total.sum in wholes]
        return holds.stored(db, lock_keys(self.plan, compared)) if compared else {}

    def _last_notices(
        self, db: sa.Connection, standings: Sequence[Standing]
    ) -> Mapping[NoticeKey, LastNotice]:
        keys = [
            notice_key(policy.name, standing.total, threshold)
            for standing in standings
            for policy in plan_sums(self.plan).policies_by_sum.get(standing.total.sum, ())
            for threshold in policy_kind(policy).needs(policy).notices
        ]
        return stored_notices.last(db, keys)

    def _offences(self, db: sa.Connection, standings: Sequence[Standing]) -> Mapping[LockKey, int]:
        numbers: dict[LockKey, int] = {}
        for policy in self.plan.policies:
            if ended_s := policy_kind(policy).needs(policy).ended_locks_s:
                sum_ = policy_kind(policy).judged_sum(policy)
                keys = [
                    lock_key(policy, standing.total) for standing in standings if standing.total.sum == sum_
                ]
                numbers |= lock_history.ended_locks(db, keys, ended_s, in_shadow=policy.is_shadow)
        return numbers
