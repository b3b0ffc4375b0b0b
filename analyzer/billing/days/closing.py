"""Closes days: targets, the cut, the frozen rows, the digest; see docs/decisions/0049.

Safe while two processes try: the cut of one makes the other wait for its end, and one that was taken over
writes nothing any more.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.billing.days import frozen_rows
from analyzer.billing.days.counted_again import (
    NEVER,
    CountAgain,
    CountedAgain,
    TooLong,
    Turns,
)
from analyzer.billing.days.day_digest import content_digest
from analyzer.billing.days.day_rows import Day, add_day, hold_open, open_day, stored_days
from analyzer.billing.days.given_differences import compare_given
from analyzer.billing.days.targets import (
    AskEnds,
    AwaitedPartition,
    awaited,
    has_targets,
    store_targets,
    untargeted,
)
from analyzer.billing.reports.day_origin import Remembered, count_origin, origin_differences, remembered_by
from analyzer.judging.sql import plans
from analyzer.kernel import outbox
from analyzer.kernel.database import signed_rows
from analyzer.kernel.database.chain import require_witnessed, signer_of
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import NowMs, insert, reading, slow_reading, without_scans, writing
from analyzer.kernel.database.named_leases import Lease
from analyzer.kernel.database.partition_keys import (
    is_partition,
    key_columns,
    partition_columns,
    partition_values,
)
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.errors import ClosingLost, DayAltered, NothingToClose, StoreAway
from analyzer.kernel.model import Partition
from analyzer.kernel.outbox import OutboxEvent
from analyzer.kernel.tables.billing_tables import adjustments, day_positions, days
from analyzer.kernel.tables.schema import offsets
from analyzer.plan import catalog
from analyzer.plan.catalog import Catalog

log = logging.getLogger(__name__)

# A process that closes a day holds its lease, and writes nothing without it. Longer than the buckets of a
# large day are added up, in which nothing is written.
CLOSINGS = Lease(lease_ms=300_000)
DIFFERING_MS = 3_600_000  # until a day whose log gives other amounts is tried again
SHOWN_MAX = 3  # differences in a sentence
BLOCKED_MS = 100  # flushes wait no longer than this for a cut that waits for others


class Billing(NamedTuple):
    """The days that are closed, by what, and when."""

    zones: tuple[str, ...] = ("UTC",)
    grace_s: float = 1_800.0  # after the end of the day
    groupings: tuple[str, ...] = ("caller",)
    key: DigestKey = DigestKey()
    count_again: CountAgain | None = None  # before a day is signed; None: never


class ClosedBefore(NamedTuple):
    """The closing of a day before the database was restored, as a manifest has it.

    Attributes:
        cut_ms: Of then.
        partitions: What the origin says of each.
        origin: See `count_origin`.
        digest: Of the day.
        digest_key: The fingerprint of its key; "" for none, or for one that the manifest does not name.
    """

    cut_ms: int
    partitions: Mapping[Partition, Mapping[str, Any]]
    origin: Mapping[str, Any]
    digest: str
    digest_key: str = ""


class ClosedAgain(NamedTuple):
    """The outcome of closing a restored day again.

    Attributes:
        is_same: Whether all that was signed before is there again.
        differences: What its counts come from otherwise; none where only amounts differ.
    """

    is_same: bool = True
    differences: Sequence[str] = ()


class _Frozen(NamedTuple):
    """A day whose rows are frozen, and that is not signed yet."""

    day: Day
    numbers: Catalog
    remembered: Sequence[Remembered]
    holder: str


class DayClosing:
    """Closes the days of some zones.

    Must not be shared between threads. `wall_ms` is this machine's clock: a day ends when both it and the
    database's say so, because a clock that is ahead for a minute must not close tomorrow.
    """

    def __init__(
        self,
        engine: sa.Engine,
        billing: Billing,
        ends: AskEnds,
        random_mark: Callable[[], str],
        wall_ms: Callable[[], int],
        blocked_ms: int = BLOCKED_MS,
    ) -> None:
        self._engine = self._snapshots = engine
        self._billing = billing
        self._ends = ends
        self._random_mark = random_mark
        self._wall_ms = wall_ms
        self._blocked_ms = blocked_ms
        self._differing: dict[int, int] = {}  # ids of days, and when they are tried again

    def step(self) -> int:
        """Closes a day that is due, or one whose closing has ended without result.

        Returns 1, or 0 when nothing is to be done now. Raises StoreAway; LogsUnknown when targets cannot be
        asked for, NothingToClose.
        """
        for zone in self._billing.zones:
            day = self._next_day(zone)
            try:
                if day is not None and self.close(day):
                    return 1
            except ClosingLost as lost:
                log.warning("%s", lost)
        return 0

    def _next_day(self, zone: str) -> Day | None:
        """Returns the day of a zone that can be closed now."""
        with reading(self._engine) as db:
            now_ms = clock_ms(db)
            closing = stored_days(db, days.c.zone == zone, days.c.state == "closing")
            leased = {candidate.id for candidate in closing if CLOSINGS.is_held(db, lease_name(candidate))}
            day = open_day(db, zone)
            if not catalog.load(db).groupings:
                return None  # nothing was ever counted
        if closing:
            now_ms = self._wall_ms()
            waiting = {number for number, until_ms in self._differing.items() if now_ms < until_ms}
            return next((candidate for candidate in closing if candidate.id not in leased | waiting), None)
        if day is None:
            with writing(self._engine) as db:
                day = add_day(db, zone, clock_ms(db) // 1000)
        if min(now_ms, self._wall_ms()) < day.due_ms(self._billing.grace_s) or self.find_awaited(day):
            return None
        return day

    def find_awaited(self, day: Day) -> list[AwaitedPartition]:
        """Returns the partitions that a day waits for, after asking for the targets that are missing.

        Raises StoreAway, LogsUnknown.
        """
        with reading(self._engine) as db:
            missing = untargeted(db, day)
            if not missing and has_targets(db, day):
                return awaited(db, day)
        ends = self._ends(missing)
        with writing(self._engine) as db:
            if not hold_open(db, day):
                return []  # another process has cut it meanwhile
            store_targets(db, day, day.due_ms(self._billing.grace_s), ends)
            return awaited(db, day)

    def close(self, day: Day) -> bool:
        """Cuts a day and closes it; returns False if flushes in flight did not permit the cut.

        Takes an open day, or one whose closing has ended without result. Raises StoreAway, ClosingLost,
        NothingToClose; DayAltered if what it takes as given is not in the chain, or its log gives
        other amounts; ChainCut, WitnessAway.
        """
        frozen = self._frozen(day)
        if frozen is None:
            return False
        again = self._counted_again(frozen.day, frozen.holder)
        self._finish(frozen, self._origin(frozen, again))
        return True

    def close_again(self, day: Day, before: ClosedBefore) -> ClosedAgain:
        """Closes a day with the cut that it had before a restore.

        All partitions must stand there. The rows are signed as those of then if they have the digest of then,
        and otherwise as those of a day that is cut now. Raises as `close`, and ClosingLost while flushes are
        in flight.
        """
        frozen = self._frozen(day, before)
        if frozen is None:
            raise ClosingLost(f"{day}: flushes are in flight: stop all analyzers")
        differences = origin_differences(self._origin(frozen, NEVER), before.origin)
        if not differences and self._is_signed(frozen, before):
            self._finish(frozen, before.origin)
            return ClosedAgain()
        with writing(self._engine) as db:
            _keep(db, frozen.day, frozen.holder)
            day = frozen.day._replace(cut_ms=clock_ms(db))
            db.execute(sa.update(days).where(days.c.id == day.id).values(cut_ms=day.cut_ms))
        frozen = frozen._replace(day=day)
        again = self._counted_again(day, frozen.holder)
        self._finish(frozen, self._origin(frozen, again))
        return ClosedAgain(is_same=False, differences=differences)

    def _is_signed(self, frozen: _Frozen, before: ClosedBefore) -> bool:
        with slow_reading(self._engine) as db:
            without_scans(db)
            return _has_digest(db, frozen.day, before)

    def _frozen(self, day: Day, before: ClosedBefore | None = None) -> _Frozen | None:
        """Cuts a day and freezes its rows; returns None if flushes in flight did not permit the cut."""
        require_witnessed(self._engine)
        # Before the work, and once more before the signature: acts may be forged meanwhile.
        with slow_reading(self._engine) as db:
            _require_given(db, day)
        holder = self._random_mark()
        with ExitStack() as stack:
            with writing(self._engine) as db:
                if not CLOSINGS.take(db, lease_name(day), holder):
                    raise _closed_elsewhere(day)
                if not plans.try_block_flushes(db, self._blocked_ms):
                    db.rollback()  # with the lease
                    return None
                # The buckets are complete, and stay so until this transaction ends: the snapshot begins here.
                snapshot = stack.enter_context(slow_reading(self._snapshots))
                numbers = catalog.load(snapshot)
                day = _cut(db, snapshot, numbers, day, self._billing.groupings, before)
            try:
                remembered = remembered_by(snapshot)
                self._freeze(snapshot, numbers, day, holder)
            except BaseException:
                # It begins again at once, here or elsewhere; when the lease has ended it does so anyway.
                with suppress(StoreAway), writing(self._engine) as db:
                    CLOSINGS.release(db, lease_name(day), holder)
                raise
        return _Frozen(day, numbers, remembered, holder)

    def _origin(self, frozen: _Frozen, counted_again: CountedAgain) -> Mapping[str, Any]:
        with slow_reading(self._engine) as db:
            without_scans(db)
            origin = count_origin(db, frozen.day, frozen.remembered)
        return origin | {"second_count": counted_again.fields()}

    def _counted_again(self, day: Day, holder: str) -> CountedAgain:
        """Has the log of a frozen day counted again. Raises DayAltered if it gives other amounts."""
        if self._billing.count_again is None:
            return NEVER

        def keep() -> None:
            with writing(self._engine) as db:
                _keep(db, day, holder)

        try:
            counted = self._billing.count_again(self._engine, day, Turns(day, keep).advanced)
        except TooLong as error:
            counted = CountedAgain(why_not=str(error))
        if counted.differences:
            self._differing[day.id] = self._wall_ms() + DIFFERING_MS
            first = "; ".join(counted.differences[:SHOWN_MAX])
            command = f"`gatelock billing audit --day {day.date} --against-kafka`"
            raise DayAltered(f"{day}: it is not signed, its log gives other amounts: {first}; see {command}")
        return counted

    def _freeze(self, snapshot: sa.Connection, numbers: Catalog, day: Day, holder: str) -> None:
        while True:
            with writing(self._engine) as db:
                _keep(db, day, holder)
                if not frozen_rows.delete_some(db, day):
                    break
        for part in frozen_rows.frozen_parts(snapshot, numbers, day):
            with writing(self._engine) as db:
                _keep(db, day, holder)
                # The snapshot has the names of callers that are forgotten meanwhile.
                forgotten = plans.hold_forgotten(db)
                frozen_rows.write(db, day, part, forgotten)

    def _finish(self, frozen: _Frozen, origin: Mapping[str, Any]) -> None:
        """Signs a day, and closes it."""
        day, numbers, _, holder = frozen
        with slow_reading(self._engine) as db:
            without_scans(db)
            _require_given(db, day)
            rows, requests = frozen_rows.frozen_totals(db, numbers, day)
            day = day._replace(given=json.dumps(origin))
            content = content_digest(db, day)
        with writing(self._engine) as db:
            _keep(db, day, holder)
            zone = days.c.zone == day.zone
            # Of two days of a zone that are closed at a time, the second has the digest of the first.
            db.execute(sa.select(days.c.id).where(zone, days.c.state == "open").with_for_update())
            previous_digest = _newest_digest(db, day.zone)
            closed = {
                "state": "closed",
                "closed_ms": NowMs(),
                "rows": rows,
                "requests": requests,
                "given": day.given,
                "digest_before": previous_digest,
                "digest": self._billing.key.chained(content, previous_digest),
                "digest_key": self._billing.key.fingerprint,
            }
            update = sa.update(days).where(days.c.id == day.id).values(closed)
            signed_rows.sign(db, signed_rows.closing(db.execute(update.returning(*days.c)).mappings().one()))
            CLOSINGS.release(db, lease_name(day), holder)
            outbox.put(db, [_closed_event(day, rows, requests)])
        log.info("%s: closed, with %d requests of callers in %d rows", day, requests, rows)


def _closed_event(day: Day, rows: int, requests: int) -> OutboxEvent:
    return OutboxEvent(
        "day.closed",
        str(day),
        f"{day} is closed, with {requests:,} requests of callers",
        "info",
        command=f"gatelock billing report day {day.date} --zone {day.zone}",
        details={"zone": day.zone, "date": day.date, "requests": requests, "rows": rows},
    )


def _newest_digest(db: sa.Connection, zone: str) -> str:
    """Returns the digest of the day of a zone that was closed last; "" before the first."""
    newest = sa.select(days.c.digest).where(days.c.zone == zone, days.c.state == "closed")
    newest = newest.order_by(days.c.closed_ms.desc(), days.c.id.desc()).limit(1)
    return db.execute(newest).scalar() or ""


def _has_digest(db: sa.Connection, day: Day, before: ClosedBefore) -> bool:
    """Whether the rows of a day are those that were signed before, with the origin of then."""
    content = content_digest(db, day._replace(given=json.dumps(before.origin)))
    previous, signer = _newest_digest(db, day.zone), signer_of(db)
    keys = [signer.key, *signer.earlier, DigestKey()]
    named = [key for key in keys if key.fingerprint == before.digest_key] if before.digest_key else keys
    return any(key.chained(content, previous) == before.digest for key in named)


def _require_given(db: sa.Connection, day: Day) -> None:
    """Raises DayAltered if the chain does not lead to what the day takes as given."""
    if sentences := compare_given(db, signer_of(db)).about(day):
        raise DayAltered(f"{day}: it is not signed: {sentences[0]}; see `gatelock billing audit`")


def lease_name(day: Day) -> str:
    """Returns the name of the lease under which a day is closed."""
    return f"day {day.id}"


def _keep(db: sa.Connection, day: Day, holder: str) -> None:
    """Extends the lease of a day, in the transaction of what needs it. Raises ClosingLost without it."""
    if not CLOSINGS.keep(db, lease_name(day), holder):
        raise _closed_elsewhere(day)


def _closed_elsewhere(day: Day) -> ClosingLost:
    return ClosingLost(f"{lease_name(day)}: another process closes it")


def _cut(
    db: sa.Connection,
    snapshot: sa.Connection,
    numbers: Catalog,
    day: Day,
    groupings: Collection[str],
    before: ClosedBefore | None,
) -> Day:
    """Marks a day as being closed, and opens the next one if it was the open one; returns it.

    Of a restored day with the time and the targets that it had. Raises NothingToClose, ClosingLost.
    """
    if missing := [grouping for grouping in groupings if grouping not in numbers.groupings]:
        raise NothingToClose(f"{day}: nothing was counted by {', '.join(missing)} yet")
    cut_ms = clock_ms(db) if before is None else before.cut_ms
    meters = sorted((meter.number, meter.name, meter.join) for meter in numbers.meters.values())
    cut = {
        "state": "closing",
        "cut_ms": cut_ms,
        "groupings": "\n".join(groupings),
        "meters": json.dumps(meters),
    }
    is_ours = sa.and_(days.c.id == day.id, days.c.state != "closed")
    if db.execute(sa.update(days).where(is_ours).values(cut)).rowcount != 1:
        raise ClosingLost(f"{day}: another process has closed it")
    # Those of an earlier attempt: the buckets contain what they contain.
    db.execute(sa.delete(adjustments).where(adjustments.c.day == day.id))
    _store_positions(db, snapshot, day)
    if before is not None:
        for part, values in before.partitions.items():
            targets = {"target": values["target"], "is_gone": int(values["is_gone"])}
            is_part = day_positions.c.day == day.id, is_partition(day_positions, part)
            db.execute(sa.update(day_positions).where(*is_part).values(targets))
    if open_day(db, day.zone) is None:
        add_day(db, day.zone, day.end_s)
    [day] = stored_days(db, days.c.id == day.id)
    return day


def _store_positions(db: sa.Connection, snapshot: sa.Connection, day: Day) -> None:
    """Stores how far each partition is counted in the snapshot."""
    statement = sa.select(*partition_columns(offsets), offsets.c.next).order_by(*key_columns(offsets))
    rows = [
        {"day": day.id, **partition_values(Partition(*row[:5])), "cut": row[5]}
        for row in snapshot.execute(statement)
    ]
    if rows:
        added = insert(db, day_positions)
        changed = {"cut": added.excluded.cut}
        db.execute(added.on_conflict_do_update(index_elements=day_positions.primary_key, set_=changed), rows)
