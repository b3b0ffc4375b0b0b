"""The records of logs from their stored positions up to the cut of a day, and not one behind it."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from analyzer.kernel.errors import LogUnreadable
from analyzer.kernel.model import Gap, Lag, Partition, Records, SourceItem
from analyzer.sources.files.compressed_files import DamagedFile, open_log
from analyzer.sources.files.file_reader import CLUSTER, FileReader
from analyzer.sources.files.file_sources import LINE_BYTES_MAX, stream_inode
from analyzer.sources.files.plain_lines import counted_as
from analyzer.sources.kafka.options import Options
from analyzer.sources.kafka.probes.log_bounds import LogGone, read_bounds
from analyzer.sources.kafka.probes.replayed_records import logged_records
from analyzer.sources.positions import PositionStore


class KeptLog(NamedTuple):
    """A log that is counted up to a cut.

    Attributes:
        part: The partition.
        begin: Where counting continues.
        cut: Where it ends.
        host: Of a file, as its source has it.
        batch_bytes_max: Of record batches, decompressed.
    """

    part: Partition
    begin: int
    cut: int
    host: str
    batch_bytes_max: int


def missing_offsets(logs: Sequence[KeptLog], options: Options) -> Iterator[str]:
    """Yields which of the offsets before the cuts cannot be read any more, in sentences.

    Raises LogUnreadable while Kafka does not answer.
    """
    wanted = [log for log in logs if log.begin < log.cut]
    for log in wanted:
        if log.part.cluster == CLUSTER:
            try:
                counted_as(log.part.topic, log.part.topic_id)
            except LogUnreadable as error:
                yield f"{log.part}: the bytes from {log.begin:,} to {log.cut:,}: {error}"
    of_kafka = [log for log in wanted if log.part.cluster != CLUSTER]
    for log in of_kafka:
        offsets = f"{log.part}: the offsets from {log.begin:,} to {log.cut:,}"
        try:
            bounds = read_bounds([log.part], options)
        except LogGone as error:
            yield f"{offsets}: {error}"
            continue
        if isinstance(bounds, str):
            raise LogUnreadable(f"{log.part}: Kafka does not answer: {bounds}")
        first, end = bounds[log.part]
        if first > log.begin:
            yield f"{log.part}: the offsets from {log.begin:,} to {min(first, log.cut):,} are no longer there"
        if end < log.cut:
            yield f"{log.part}: the offsets from {max(end, log.begin):,} to {log.cut:,} are no longer there"


def kept_records(log: KeptLog, positions: PositionStore, options: Options) -> Iterator[Records]:
    """Yields the records of a log up to its cut. Raises LogUnreadable, StoreAway."""
    if log.part.cluster == CLUSTER:
        return _lines(log, positions)
    if log.part not in positions.positions([log.part]):
        positions.begin(log.part, log.begin)
    return logged_records(log.part, log.begin, log.cut, [], options, log.batch_bytes_max)


def _lines(log: KeptLog, positions: PositionStore) -> Iterator[Records]:
    file = counted_as(log.part.topic, log.part.topic_id)
    try:
        with closing(open_log(str(file))) as stream:
            reader = FileReader(
                log.part.topic, log.part.source, stream, inode=stream_inode(stream), size=None, host=log.host,
                line_bytes_max=LINE_BYTES_MAX, now_s=time.monotonic(),
            )  # fmt: skip
            if log.part not in positions.positions([log.part]):
                reader.lines.skip_to(log.begin)
                positions.begin(log.part, reader.lines.next, reader.lines.resume_token)
            if not reader.place(positions, {}, final=True) or reader.part != log.part:
                raise LogUnreadable(f"{file}: its content is not what was counted of {log.part}")
            yield from _before_cut(reader, log)
    except (OSError, EOFError, DamagedFile) as error:
        raise LogUnreadable(f"{file}: {error}") from error


def _before_cut(reader: FileReader, log: KeptLog) -> Iterator[Records]:
    lines = reader.lines
    while (start := lines.next) < log.cut:
        checkpoint = lines.checkpoint()
        columns = lines.take(final=True)
        if columns is None:
            raise LogUnreadable(
                f"{log.part}: it ends before the offset {log.cut:,} up to which it was counted"
            )
        if lines.next > log.cut:
            columns = columns.part(0, bisect_left(columns.offsets, log.cut))
            lines.go_back(checkpoint)
            lines.skip_to(log.cut)
        yield Records(log.part, start, lines.next, columns, lines.resume_token)


class KeptLogs:
    """A source of some logs that end at their cuts; implements `Source` for one process that runs alone."""

    def __init__(self, logs: Sequence[KeptLog], positions: PositionStore, options: Options) -> None:
        self._readers = {log.part: kept_records(log, positions, options) for log in logs}
        self._next = {log.part: log.begin for log in logs}

    @property
    def has_ended(self) -> bool:
        """Whether all records were taken."""
        return not self._readers

    def take(self, timeout_s: float) -> Iterator[SourceItem]:
        """Yields a record set of each log. Raises LogUnreadable."""
        for part, reader in list(self._readers.items()):
            records = next(reader, None)
            if records is None:
                del self._readers[part]
                continue
            self._next[part] = records.next
            yield records

    def lags(self) -> Mapping[Partition, Lag]:
        return {}

    def positions(self) -> Mapping[Partition, int]:
        return self._next

    def problems(self) -> Mapping[str, str]:
        return {}

    def rewind(self, parts: Collection[Partition] | None = None) -> None:
        raise LogUnreadable(f"{parts}: records were lost: run the command again")

    def stop(self, part: Partition, gap: Gap) -> None:
        raise LogUnreadable(f"{part}: {gap.why}")

    def stopped(self) -> Mapping[Partition, Gap]:
        return {}

    def acknowledge(self, stored: Mapping[Partition, int]) -> None:
        """Ignored: nothing is kept of records that were taken."""

    def close(self) -> None:
        """Ignored: the readers close their connections at their end."""


def require_no_gaps(store: PositionStore, parts: Collection[Partition]) -> None:
    """Raises LogUnreadable for a partition that waits for a decision about a gap."""
    for part, position in store.positions(parts).items():
        if position.gap is not None:
            raise LogUnreadable(f"{part}: it is stopped: {position.gap.why}")
