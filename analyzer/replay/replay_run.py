"""The job behind `gatelock upkeep replay`: reads logs again, and counts them into a shadow generation.

Each transaction stores the differences together with the position in the log. A replay that was killed reads
again what fills the memory of its counters, and counts on from its position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import sqlalchemy as sa

from analyzer.judging.sql import plans
from analyzer.kernel.database.engine import reading
from analyzer.kernel.errors import LogUnreadable, ReplayRefused
from analyzer.kernel.model import Counter, Partition, Records
from analyzer.plan.counted_stretches import StretchPlan, counted_stretches, skipped_ranges
from analyzer.plan.plan import Plan, UnknownPlan, plan_from
from analyzer.replay import generations
from analyzer.replay.generations import NewReplay, Replay, ReplayPosition, ReplayRange
from analyzer.replay.replayed_plan import counting_digest, counting_plan, why_not_comparable
from analyzer.replay.twin_counter import TwinCounter, TwinStretch, pieces
from analyzer.sources.files.file_reader import CLUSTER
from analyzer.sources.files.replayed_lines import counted_file, read_lines
from analyzer.sources.kafka.probes.replayed_records import log_times, logged_records
from analyzer.sources.positions import PositionStore

STORED_EVERY = 250_000  # records of a transaction, unless the counters are full before
# What fills the memory of the counters: names of two hours and a rest, ids of two horizons, and in any case
# so many offsets, because ids are remembered while few come.
NAMES_MS, EARLIER_OFFSETS = 3 * 3_600_000, 10_000

ReplayProgress = Callable[[Partition, int, int, int], None]  # partition, first offset, next, end


class ReplayPlan(NamedTuple):
    """The plan in force, which a replay counts by."""

    version: int
    mark: str
    plan: Plan

    @classmethod
    def read(cls, engine: sa.Engine) -> Self:
        """Returns the plan in force. Raises ReplayRefused, StoreAway, SchemaBehind."""
        with reading(engine) as db:
            if not plans.exists(db):
                raise ReplayRefused("nothing has been counted yet: no plan is in force")
            version, plan = plans.active(db)
            return cls(version, plans.stored_mark(db, version), plan)


class LogReplay:
    """Replays logs of one source.

    Args:
        engine: The database.
        by: The plan to count by.
        source: Name of the source.
        new_counter: Returns an empty counter for a plan.
        options: Of kafka-python.
        positions: Where files were counted up to.
        host: Of the files.
        wall_ms: This machine's clock, for lines that are ahead of it.
    """

    def __init__(
        self,
        engine: sa.Engine,
        by: ReplayPlan,
        source: str,
        new_counter: Callable[[Plan], Counter],
        options: Mapping[str, Any],
        positions: PositionStore,
        host: str,
        wall_ms: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._by = by
        self._source = source
        self._new_counter = new_counter
        self._options = options
        self._positions = positions
        self._host = host
        self._wall_ms = wall_ms

    def begin_files(self, paths: Sequence[Path], who: str) -> Replay:
        """Stores a new replay of files, each whole as far as it is counted.

        Raises LogUnreadable, ReplayRefused, StoreAway.
        """
        files = [counted_file(path, self._source, self._host, self._positions) for path in paths]
        if len({file.part for file in files}) < len(files):
            raise ReplayRefused("two of the files were counted as one: name it once")
        logs = generations.known_logs(self._engine, self._source)
        ranges = []
        for file in files:
            part = next((part for part in logs if part[:3] == file.part[:3]), None)
            if part is None:
                raise ReplayRefused(f"{file.path}: it was counted as a file of another source")
            begin = logs[part][0]
            ranges.append(ReplayRange(part, begin, begin, file.next))
        shown = [str(path.absolute()) for path in paths]
        return self._begin(ranges, shown, f"{self._source}: {', '.join(shown)}", who)

    def begin_topic(self, topic: str, since_ms: int, until_ms: int | None, about: str, who: str) -> Replay:
        """Stores a new replay of the records with a Kafka time in [since, until), as far as they are counted.

        None: up to where they are counted now. Raises LogUnreadable, ReplayRefused, StoreAway.
        """
        ranges: list[ReplayRange] = []
        for part, (begin, next_) in sorted(generations.known_logs(self._engine, self._source).items()):
            if part.topic == topic and part.cluster != CLUSTER:
                ranges += self._find_range(part, begin, next_, since_ms, until_ms)
        if not ranges:
            raise ReplayRefused(f"{topic}: nothing of this time is counted of it")
        return self._begin(ranges, [], about, who)

    def _find_range(
        self, part: Partition, begin: int, next_: int, since_ms: int, until_ms: int | None
    ) -> Iterator[ReplayRange]:
        memory_ms = since_ms - NAMES_MS - 2 * self._horizon_ms(part, next_)
        times = [memory_ms, since_ms] if until_ms is None else [memory_ms, since_ms, until_ms]
        kept, (warm, first, *last) = log_times(part, times, self._options)
        end = min([next_, *(offset for offset in last if offset >= 0)])
        if first < 0 or max(first, begin) >= end:
            return
        if begin < kept >= first:
            raise LogUnreadable(
                f"{part}: the records before {kept:,} were deleted after their retention: choose a later "
                "--from"
            )
        first = max(first, begin)
        warm = max(begin, kept, min(warm if warm >= 0 else first, first) - EARLIER_OFFSETS)
        yield ReplayRange(part, warm, first, end)

    def _horizon_ms(self, part: Partition, end: int) -> int:
        """Returns the longest horizon of ids of the plans that a partition was counted by."""
        with reading(self._engine) as db:
            stretches = counted_stretches(db, part, end)
        bodies = {stretch.body for stretch in stretches if stretch.body is not None}
        mappings = [_decoded(body).sources.get(self._source) for body in bodies]
        rules = [
            mapping.event_ids
            for mapping in [*mappings, self._by.plan.sources[self._source]]
            if mapping is not None
        ]
        return max((rule.horizon_ms for rule in rules if rule is not None), default=0)

    def _begin(self, ranges: Sequence[ReplayRange], files: Sequence[str], about: str, who: str) -> Replay:
        for log_range in ranges:
            self._stretches(log_range)  # raises where it cannot be replayed
        digest = counting_digest(self._by.plan, self._source)
        new = NewReplay(self._source, (self._by.version, self._by.mark), digest, files, about, ranges)
        return generations.begin(self._engine, new, who)

    def run(self, replay: Replay, progress: ReplayProgress) -> Replay:
        """Counts a replay to its end, from where it is; returns it.

        Raises LogUnreadable, ReplayRefused, ReplayLost, StoreAway.
        """
        if counting_digest(self._by.plan, self._source) != replay.parts:
            raise ReplayRefused(
                f"another plan is in force than when replay {replay.id} began: "
                f"`gatelock upkeep replay drop {replay.id} --reason TEXT`, and begin another one"
            )
        begins = generations.known_logs(self._engine, self._source)
        for index, position in enumerate(replay.positions):
            if position.next < position.range.end:
                path = Path(replay.files[index]) if replay.files else None
                begin = begins.get(position.range.part, (position.range.warm, 0))[0]
                self._run(replay.id, position, path, progress, is_whole=begin == position.range.warm)
        return generations.finish(self._engine, replay.id)

    def _run(
        self,
        number: int,
        position: ReplayPosition,
        path: Path | None,
        progress: ReplayProgress,
        *,
        is_whole: bool,
    ) -> None:
        log_range = position.range
        twin = TwinCounter(
            log_range.part,
            self._stretches(log_range),
            self._new_counter(counting_plan(self._by.plan, self._source, self._by.plan)),
            position.next,
            generations.rejected_reasons(self._engine, log_range),
        )
        unstored = 0
        for records in self._records(log_range, path):
            for piece in pieces(records, [log_range.end]):
                if piece.start < log_range.end:
                    twin.feed(piece, self._wall_ms())
                    unstored += len(piece.columns.offsets)
            if unstored >= STORED_EVERY or twin.full():
                self._store(number, log_range, twin, progress, is_whole=is_whole)
                unstored = 0
        self._store(number, log_range, twin, progress, is_whole=is_whole)

    def _store(
        self,
        number: int,
        log_range: ReplayRange,
        twin: TwinCounter,
        progress: ReplayProgress,
        *,
        is_whole: bool,
    ) -> None:
        counted = twin.drain()
        if counted is None:
            return
        if counted.overflow and not is_whole:
            raise ReplayRefused(
                f"{log_range.part}: callers are counted in the overflow, and which ones depends on records "
                "before those that are read: such a partition can only be replayed from its beginning"
            )
        generations.store(self._engine, number, log_range.part, counted)
        progress(log_range.part, log_range.begin, counted.next, log_range.end)

    def _records(self, log_range: ReplayRange, path: Path | None) -> Iterator[Records]:
        with reading(self._engine) as db:
            skipped = skipped_ranges(db, log_range.part, log_range.end)
        if path is not None:
            return (_without(records, skipped) for records in read_lines(path, log_range.part, log_range.end))
        bytes_max = self._by.plan.sources[self._source].batch_bytes_max
        return logged_records(
            log_range.part, log_range.warm, log_range.end, skipped, self._options, bytes_max
        )

    def _stretches(self, log_range: ReplayRange) -> list[TwinStretch]:
        """Returns what counted a range. Raises ReplayRefused where that cannot be repeated or compared."""
        with reading(self._engine) as db:
            stretches = counted_stretches(db, log_range.part, log_range.end)
        earliest = [stretch for stretch in stretches if stretch.start <= log_range.warm][-1:]
        if not earliest:
            raise ReplayRefused(f"{log_range.part}: it is not stored by which plan it was counted")
        relevant = [*earliest, *(stretch for stretch in stretches if stretch.start > log_range.warm)]
        return [
            TwinStretch(stretch.start, partial(self._new_counter, self._comparable_plan(log_range, stretch)))
            for stretch in relevant
        ]

    def _comparable_plan(self, log_range: ReplayRange, stretch: StretchPlan) -> Plan:
        if stretch.body is None:
            raise ReplayRefused(
                f"{log_range.part}: plan {stretch.plan}, which counted it, is not stored any more"
            )
        plan = _decoded(stretch.body)
        if reason := why_not_comparable(plan, self._by.plan, self._source):
            raise ReplayRefused(f"{log_range.part}: counted by plan {stretch.plan}: {reason}")
        return counting_plan(plan, self._source, self._by.plan)


def _without(records: Records, skipped: Sequence[tuple[int, int]]) -> Records:
    """Returns records without those that an operator let the partition skip."""
    if not skipped:
        return records
    kept = [
        not any(start <= offset < until for start, until in skipped) for offset in records.columns.offsets
    ]
    return records._replace(columns=records.columns.only(kept))


def _decoded(body: str) -> Plan:
    try:
        return plan_from(body)
    except UnknownPlan as error:
        raise ReplayRefused(f"a plan that it was counted by cannot be read: {error}") from error
