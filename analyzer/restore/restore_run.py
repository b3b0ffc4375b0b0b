"""Closes the days again that were closed between a backup and its restore, each with the cut that it had."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.by_hand import DayWithoutClosing, day_to_close
from analyzer.billing.days.closing import DayClosing
from analyzer.billing.days.day_rows import Day, stored_days
from analyzer.billing.reports.day_origin import (
    CutPartition,
    disbelieved_verdicts,
    references_fingerprint,
)
from analyzer.flush.analyzers import LIVING_MS
from analyzer.flush.pipeline import FlushPace, Pipeline
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.sql import plans
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import reading, writing
from analyzer.kernel.database.partition_keys import (
    UNFOLLOWED,
    PartitionKey,
    is_partition,
    key_tuple,
    partition_columns,
)
from analyzer.kernel.errors import LogUnreadable, RestoreRefused
from analyzer.kernel.model import Counter, Partition
from analyzer.kernel.tables.billing_tables import days
from analyzer.kernel.tables.schema import offsets
from analyzer.plan.plan import Plan
from analyzer.plan.proposals import Agreement, applied
from analyzer.restore.kept_days import KeptDay
from analyzer.restore.kept_logs import KeptLog, KeptLogs, missing_offsets, require_no_gaps

ROWS_AT_ONCE = 10_000  # of totals that are made to agree with a plan
FLUSH_EVERY_S = 1.0  # no gate waits for these locks

RestoreProgress = Callable[[int], None]  # called with the offsets that were counted


class SourceOfLog(NamedTuple):
    """A source of the configuration, as far as its log is read again."""

    name: str
    host: str = ""


class RestoreParts(NamedTuple):
    """The parts of a restore.

    Attributes:
        engine: Signs.
        closing: Of days.
        groupings: By which they are frozen.
        store: Whose flushes believe verdicts as they are logged, and one that decides.
        sources: By topic, or the path of a file.
        options: Of kafka-python.
        configured: The plan of the configuration.
        new_counter: Of a plan.
        uptime_s: A clock.
        who: Puts plans in force.
    """

    engine: sa.Engine
    closing: DayClosing
    groupings: Sequence[str]
    believing: SqlStore
    deciding: SqlStore
    sources: Mapping[str, SourceOfLog]
    options: Mapping[str, Any]
    configured: Plan
    new_counter: Callable[[Plan], Counter]
    uptime_s: Callable[[], float]
    who: str


class RestoredDay(NamedTuple):
    """A day that was closed again.

    Attributes:
        kept: As its manifest has it.
        day: As it is stored now.
        is_same: Whether all that was signed is there again, to the same bytes.
        differences: What its counts come from otherwise.
    """

    kept: KeptDay
    day: Day
    is_same: bool
    differences: Sequence[str]

    @property
    def sentence(self) -> str:
        """The outcome, for an operator."""
        if not self.is_same:
            why = "; ".join(self.differences) or "its log gives other amounts"
            return f"{self.kept}: closed up to the same offsets, and NOT EQUAL: {why}"
        return f"{self.kept}: closed again, to the same bytes"


class MissingDays(NamedTuple):
    """Kept days that a restored database lacks.

    Attributes:
        to_close: Days that can be closed again, in order.
        equal: How many it has.
        problems: What stands in the way, in sentences; the days behind it are not in `to_close`.
        differing: Days that it has with another digest, in sentences.
    """

    to_close: Sequence[KeptDay]
    equal: int
    problems: Sequence[str]
    differing: Sequence[str]


class Restore:
    """Closes days again. Call `missing`, then `close_again` for each of its days in order."""

    def __init__(self, parts: RestoreParts) -> None:
        self._parts = parts
        self._engine = parts.engine

    def missing(self, kept_days: Sequence[KeptDay]) -> MissingDays:
        """Returns which of the kept days are not closed, and why they cannot be closed again.

        Raises LogUnreadable while Kafka does not answer, StoreAway.
        """
        with reading(self._engine) as db:
            stored = {(day.zone, day.date): day for day in stored_days(db)}
            problems = [*self._running(db), *self._other_references(db, kept_days)]
        closed = {key: day for key, day in stored.items() if day.state == "closed"}
        of_kept = [(kept, closed.get((kept.zone, kept.date))) for kept in kept_days]
        differing = [
            f"{kept}: the database has it with another digest than {kept.manifest.name}"
            for kept, day in of_kept
            if day is not None and day.digest != kept.before.digest
        ]
        to_close = [kept for kept, day in of_kept if day is None]
        equal = len(of_kept) - len(to_close) - len(differing)
        to_close, problems = ([], problems) if problems else self._closable(to_close, stored)
        return MissingDays(to_close, equal, problems, differing)

    def _running(self, db: sa.Connection) -> Iterator[str]:
        """Yields a sentence if an analyzer counts."""
        living = sa.select(sa.func.max(offsets.c.beat_ms)).where(offsets.c.beat_ms.is_not(None))
        newest_ms = db.execute(living).scalar()
        if newest_ms is not None and clock_ms(db) - newest_ms < LIVING_MS:
            yield "analyzers count: stop them all first, and wait 15 seconds"

    def _other_references(self, db: sa.Connection, kept_days: Sequence[KeptDay]) -> Iterator[str]:
        fingerprint = references_fingerprint(db)
        others = [
            kept for kept in kept_days if kept.before.origin.get("references", fingerprint) != fingerprint
        ]
        if others:
            yield (
                f"{others[-1]} was billed with another key of references: this is another database, or one "
                "that was made new, and a service would bill its identifiers twice; restore a backup"
            )

    def _closable(
        self, to_close: Sequence[KeptDay], stored: Mapping[tuple[str, str], Day]
    ) -> tuple[list[KeptDay], list[str]]:
        """Returns the days up to the first that cannot be closed again, and why that one cannot."""
        possible: list[KeptDay] = []
        positions = self._stored_positions()
        for kept in to_close:
            problems = [*self._not_open(kept, possible, stored), *self._not_readable(kept, positions)]
            if problems:
                return possible, problems
            possible.append(kept)
            positions |= {key_tuple(part): cut for part, cut in kept.cuts.items()}
        return possible, []

    def _stored_positions(self) -> dict[PartitionKey, int]:
        columns = offsets.c
        with reading(self._engine) as db:
            rows = db.execute(sa.select(columns.cluster, columns.topic_id, columns.partition, columns.next))
            return {(cluster, topic_id, number): next_ for cluster, topic_id, number, next_ in rows}

    def _not_open(
        self, kept: KeptDay, before: Sequence[KeptDay], stored: Mapping[tuple[str, str], Day]
    ) -> Iterator[str]:
        """Yields why a day is not the one that its zone closes next."""
        of_zone = [day for day in stored.values() if day.zone == kept.zone]
        day = stored.get((kept.zone, kept.date))
        # One that was cut as it had been is one whose closing has ended without result.
        if day is not None and day.cut_ms not in (None, kept.before.cut_ms):
            yield f"{kept} is cut, and not closed: restore an earlier backup"
            return
        # An earlier day than the open one is one of an imported log, which waits for no other.
        expected = min((day.date for day in of_zone if day.state == "open"), default=kept.date)
        for other in before:
            if (other.zone, other.date) == (kept.zone, expected):
                expected = _next_date(expected)
        if kept.date > expected:
            yield (
                f"{kept} cannot be closed before {expected}, which has no manifest among these: add it, or "
                "let analyzers close both by what they count then"
            )

    def _not_readable(self, kept: KeptDay, positions: Mapping[PartitionKey, int]) -> Iterator[str]:
        """Yields why the logs cannot be counted up to the cuts of a day."""
        for part, cut in kept.cuts.items():
            if positions.get(key_tuple(part), 0) > cut:
                yield (
                    f"{kept}: {part} is counted up to {positions[key_tuple(part)]:,}, behind its cut at "
                    f"{cut:,}: analyzers have run since; restore the backup once more, and keep them stopped"
                )
                return
        for gap in kept.before.origin["given"]["gaps"]:
            if positions.get(_gap_key(kept, gap), 0) <= gap["start"]:
                yield (
                    f"{kept}: an operator let {_topic(kept, gap)}[{gap['partition']}] skip the offsets from "
                    f"{gap['start']:,} to {gap['accepted_to']:,} since the backup: they are not skipped again"
                )
        logs = self._logs(kept, positions)
        if unknown := sorted({log.part.topic for log in logs if not log.part.source}):
            yield f"{kept}: the configuration has no source for {', '.join(unknown)}"
            return
        yield from (f"{kept}: {missing}" for missing in missing_offsets(logs, self._options))

    @property
    def _options(self) -> Mapping[str, Any]:
        return self._parts.options

    def _logs(self, kept: KeptDay, positions: Mapping[PartitionKey, int]) -> list[KeptLog]:
        with reading(self._engine) as db:
            _, plan = _in_force(db)
        # A plan that came in force since the backup has sources that the one in force lacks.
        mappings = {**self._parts.configured.sources, **plan.sources}
        logs = []
        for part, cut in sorted(kept.cuts.items()):
            source = self._parts.sources.get(part.topic, SourceOfLog(part.source))
            mapping = mappings.get(source.name)
            begin = positions.get(key_tuple(part), int(kept.before.partitions[part]["begin"]))
            bytes_max = 0 if mapping is None else mapping.batch_bytes_max
            logs.append(KeptLog(part._replace(source=source.name), begin, cut, source.host, bytes_max))
        return logs

    def close_again(self, kept: KeptDay, progress: RestoreProgress = lambda _: None) -> RestoredDay:
        """Counts the logs up to the cut of a day, and closes it.

        Raises RestoreRefused, LogUnreadable, StoreAway, and what `DayClosing.close` raises.
        """
        positions = self._stored_positions()
        logs = self._logs(kept, positions)
        if beyond := [log for log in logs if log.begin > log.cut]:
            raise RestoreRefused(f"{kept}: {beyond[0].part} is counted behind its cut: analyzers have run")
        self._count([log for log in logs if log.begin < log.cut], kept, progress)
        day = day_to_close(self._engine, kept.zone, kept.date, self._parts.groupings)
        if isinstance(day, DayWithoutClosing):
            raise RestoreRefused(f"{kept}: {day.why}")
        outcome = self._parts.closing.close_again(day, kept.before)
        with reading(self._engine) as db:
            [stored] = stored_days(db, days.c.id == day.id)
        return RestoredDay(kept, stored, *outcome)

    def _count(self, logs: Sequence[KeptLog], kept: KeptDay, progress: RestoreProgress) -> None:
        if not logs:
            return
        store = self._parts.believing if self._are_believed(kept) else self._parts.deciding
        followed_ms = self._followed_ms([log.part for log in logs], kept)
        require_no_gaps(store, [log.part for log in logs])
        for number, mark, starts in self._new_plans(kept):
            self._count_to(
                [log._replace(cut=min(log.cut, starts.get(key_tuple(log.part), log.cut))) for log in logs],
                store,
                progress,
            )
            self._put_in_force(kept, number, mark)
        self._count_to(logs, store, progress)
        self._leave(logs, followed_ms)

    def _are_believed(self, kept: KeptDay) -> bool:
        """Whether every verdict that was not believed before the cut is one of those that are stored.

        The locks of the lost hours are not in the history: by it, all of their denials would be refuted.
        """
        with reading(self._engine) as db:
            cut = [CutPartition(**values) for values in kept.before.partitions.values()]
            stored = disbelieved_verdicts(db, cut)
        return stored == int(kept.before.origin["given"]["disbelieved_verdicts"])

    def _new_plans(self, kept: KeptDay) -> list[tuple[int, str, dict[PartitionKey, int]]]:
        """Returns the plans that came in force since the backup, with the offsets that they began at."""
        with reading(self._engine) as db:
            version, _ = _in_force(db)
        clusters = {part.topic_id: part.cluster for part in kept.cuts}
        new: dict[tuple[int, str], dict[PartitionKey, int]] = {}
        for stretch in kept.before.origin["given"]["plans"]:
            if stretch["plan"] > version:
                key = clusters[stretch["topic_id"]], stretch["topic_id"], stretch["partition"]
                new.setdefault((stretch["plan"], stretch["mark"]), {})[key] = stretch["start"]
        return [(number, mark, starts) for (number, mark), starts in sorted(new.items())]

    def _put_in_force(self, kept: KeptDay, number: int, mark: str) -> None:
        """Puts the plan of the configuration in force, as the one that counted the day from here on."""
        first = iter([mark])  # marks of the feed's versions are new ones
        with writing(self._engine) as db:
            version, in_force = _in_force(db)
            plan = applied(in_force, self._parts.configured, prune=False)
            activated = plans.activate(
                db, plan, lambda: next(first, "") or new_mark(), self._parts.who, reason=f"restored: {kept}"
            )
            if activated.version == version or activated.version != number:
                db.rollback()
                raise RestoreRefused(
                    f"{kept}: it was counted by plan {number}, which came in force after the backup, and "
                    f"this configuration is that of plan {activated.version}: use the one of then"
                )
        while True:
            with writing(self._engine) as db:
                if not plans.continue_activation(db, new_mark, ROWS_AT_ONCE):
                    return

    def _count_to(self, logs: Sequence[KeptLog], store: SqlStore, progress: RestoreProgress) -> None:
        """Counts logs from their stored positions up to their cuts."""
        positions = self._stored_positions()
        begun = [log._replace(begin=positions.get(key_tuple(log.part), log.begin)) for log in logs]
        behind = [log for log in begun if log.begin < log.cut]
        if not behind:
            return
        with reading(self._engine) as db:
            version, plan = plans.active(db)
        source = KeptLogs(behind, store, self._options)
        pipeline = Pipeline(
            source,
            self._parts.new_counter(plan),
            store,
            Agreement.of(version, plan),
            uptime_s=self._parts.uptime_s,
            pace=FlushPace(flush_every_s=FLUSH_EVERY_S),
        )
        counted = sum(log.begin for log in behind)
        while not source.has_ended:
            pipeline.run_once()
            reached = sum(source.positions().values())
            progress(reached - counted)
            counted = reached
        pipeline.collect()
        pipeline.flush({})

    def _followed_ms(self, parts: Sequence[Partition], kept: KeptDay) -> dict[Partition, int | None]:
        """Returns when analyzers last followed the partitions; None for one that was read to its end."""
        columns = offsets.c
        statement = sa.select(*partition_columns(offsets), columns.beat_ms)
        with reading(self._engine) as db:
            stored = {key_tuple(Partition(*row[:5])): row[5] for row in db.execute(statement)}
        followed = self._parts.sources
        return {
            part: stored.get(key_tuple(part), kept.before.cut_ms if part.topic in followed else None)
            for part in parts
        }

    def _leave(self, logs: Sequence[KeptLog], followed_ms: Mapping[Partition, int | None]) -> None:
        """Checks that each log is counted up to its cut, and leaves it as followed as it was."""
        positions = self._stored_positions()
        for log in logs:
            if positions.get(key_tuple(log.part)) != log.cut:
                raise LogUnreadable(f"{log.part}: it is not counted up to {log.cut:,}")
        if ended := [part for part, beat_ms in followed_ms.items() if beat_ms is None]:
            self._parts.deciding.finish(ended)
        with writing(self._engine) as db:
            for part, beat_ms in followed_ms.items():
                row = {**UNFOLLOWED, "beat_ms": beat_ms}
                db.execute(sa.update(offsets).where(is_partition(offsets, part)).values(row))


def _in_force(db: sa.Connection) -> tuple[int, Plan]:
    """Returns the version in force and its plan; 0 before the first one."""
    return plans.active(db) if plans.exists(db) else (0, Plan())


def _gap_key(kept: KeptDay, gap: Mapping[str, Any]) -> PartitionKey:
    clusters = {part.topic_id: part.cluster for part in kept.cuts}
    return clusters.get(gap["topic_id"], ""), gap["topic_id"], gap["partition"]


def _topic(kept: KeptDay, gap: Mapping[str, Any]) -> str:
    return next((part.topic for part in kept.cuts if part.topic_id == gap["topic_id"]), gap["topic_id"])


def _next_date(text: str) -> str:
    return str(date.fromisoformat(text) + timedelta(days=1))
