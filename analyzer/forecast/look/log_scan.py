"""Reads logs in blocks of lines, counts them, and adds the counts to a profile.

Lines are read by `LineReader` and counted by `PythonCounter`, as by `gatelock upkeep import`, so that a line
counts here exactly if it counts there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, NamedTuple

from analyzer.counting.counter.counter import PythonCounter
from analyzer.forecast.look.json_fields import Table
from analyzer.forecast.look.log_detection import SAMPLE_LINES, DetectedLog, detect
from analyzer.forecast.look.traffic_profile import COUNTED, METERS, TrafficProfile
from analyzer.forecast.look.unread_formats import SAMPLE_CHARS, refusal
from analyzer.kernel.model import Partition, RecordColumns, Records, Rejected, RejectReason, SlotLayout
from analyzer.plan.format_decoder import text_of_bytes
from analyzer.plan.groupings import BY_ADDRESS, parse_grouping
from analyzer.plan.mapping import SourceMapping
from analyzer.plan.windows import Rolling
from analyzer.sources.files.compressed_files import DamagedFile
from analyzer.sources.files.line_reader import LineReader

LINE_BYTES_MAX = 1 << 20
ROWS_MAX = 400_000  # values in memory
READ_ERRORS = (OSError, EOFError, DamagedFile)


class UnreadLine(NamedTuple):
    """The first line of a file that was not read for a reason."""

    reason: RejectReason
    line: int  # its number, from 1; blank lines have none
    sample: str


@dataclass
class ScannedFile:
    """The result of reading one file.

    `problem` says why nothing, or not everything, could be read; `fields` are those that the file has.
    """

    name: str
    format: str = ""
    source: Table | None = None
    fields: frozenset[str] = frozenset()
    missing: Sequence[str] = ()  # fields that the grouping needs, and the file lacks
    lines: int = 0
    size_bytes: int = 0  # decompressed
    unread: Counter[RejectReason] = field(default_factory=Counter)
    first_unread: list[UnreadLine] = field(default_factory=list)
    problem: str = ""
    elsewhere: str = ""  # a sentence on another field that has addresses

    @property
    def guessed_zone(self) -> str:
        """The time zone in which its times are read, because they have none; "" for other times."""
        time = ((self.source or {}).get("fields") or {}).get("time")
        return time.get("zone", "") if isinstance(time, dict) else ""


class LogScan:
    """Reads files into one profile, which counts by the grouping `by` in the slots of `rolling`.

    Lines whose time is more than five minutes after `now_ms` are not read. `mapping_of` turns a table as
    [[sources]] has it into a mapping.
    """

    def __init__(
        self,
        by: str,
        rolling: Rolling,
        *,
        floor: int,
        now_ms: int,
        mapping_of: Callable[[Table], SourceMapping],
    ) -> None:
        grouping = parse_grouping(by)
        is_of_networks = grouping.scope == "range"
        self.profile = TrafficProfile(rolling, is_of_networks=is_of_networks, floor=floor)
        self._grouping = grouping
        self._slots = SlotLayout(by + BY_ADDRESS if is_of_networks else by, rolling.slot_s, COUNTED)
        self._now_ms = now_ms
        self._mapping_of = mapping_of

    def read(self, file: ScannedFile, stream: IO[bytes]) -> Iterator[int]:
        """Reads one file to its end into `file`, and yields how many bytes of it are read, again and again.

        Damaged data end the file; what was read before counts.
        """
        lines = LineReader(stream, LINE_BYTES_MAX)
        pending = _Pending(file)
        counter: PythonCounter | None = None
        part = Partition("look", file.name, 0, "look", file.name)
        while True:
            start = lines.next
            try:
                batch = lines.take(final=True)
            except READ_ERRORS as error:
                file.problem = f"the rest cannot be read: {error}"
                break
            if batch is None and lines.next == start:
                break
            file.size_bytes = lines.next
            if batch is not None and batch.values:
                if counter is None:
                    counter = self._file_counter(file, batch)
                    if counter is None:
                        return
                pending.note(batch)
                counter.feed(Records(part, start, lines.next, batch, "-", self._now_ms))
                if counter.full():
                    self._drain(counter, pending)
            yield lines.next
        if counter is not None:
            self._drain(counter, pending)
        elif not file.problem:
            file.problem = "is empty"

    def _file_counter(self, file: ScannedFile, first: RecordColumns) -> PythonCounter | None:
        """Returns a counter for a file with these first lines; None if it has a problem."""
        sample = [value for value in first.values[:SAMPLE_LINES] if value is not None]
        detected = detect(sample)
        file.problem = _sample_problem(detected, sample)
        if detected is None or file.problem:
            return None
        file.fields = detected.fields
        file.missing = sorted({part.field for part in self._grouping.dimensions} - {"caller"} - file.fields)
        if file.missing:
            file.problem = f"the log has no {' and no '.join(file.missing)}"
            return None
        file.format, file.source, file.elsewhere = detected.name, detected.source, detected.elsewhere
        mapping = self._mapping_of(detected.source).without_limits()
        return PythonCounter(
            {"look": mapping}, [self._grouping.name], METERS, slots=[self._slots], rows_max=ROWS_MAX
        )

    def _drain(self, counter: PythonCounter, pending: _Pending) -> None:
        drained = counter.drain()
        for table in drained.slots:
            self.profile.add(table)
        pending.drain(drained.rejected)


class _Pending:
    """The lines that were counted and not drained, by which the number of a rejected one is found."""

    def __init__(self, file: ScannedFile) -> None:
        self._file = file
        self._takes: list[tuple[int, list[int]]] = []  # the number of lines before, and the offsets

    def note(self, batch: RecordColumns) -> None:
        self._takes.append((self._file.lines, batch.offsets))
        self._file.lines += len(batch.offsets)

    def drain(self, rejected: Sequence[Rejected]) -> None:
        for record in rejected:
            if not self._file.unread[record.reason]:
                sample = text_of_bytes(record.sample)[:SAMPLE_CHARS]
                self._file.first_unread.append(UnreadLine(record.reason, self._number(record.offset), sample))
            self._file.unread[record.reason] += 1
        self._takes = []

    def _number(self, offset: int) -> int:
        lines, offsets = next(take for take in reversed(self._takes) if take[1][0] <= offset)
        return lines + bisect_left(offsets, offset) + 1


def _sample_problem(detected: DetectedLog | None, sample: Sequence[bytes]) -> str:
    return refusal(sample) if detected is None else detected.problem
