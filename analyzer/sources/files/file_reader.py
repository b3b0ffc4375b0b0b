"""Reads one file, from its identification to its end.

A file is identified by its content, under any name, plain or compressed. The digest of its first line is its
topic id; files with equal first lines get a number after it. The resume token that is stored with the offset
holds digests of all bytes that were counted, and the first bytes of the file must have equal digests. If
several stored positions match, the furthest one applies. Two files are therefore taken for one only while
they are equal byte for byte, and then the counts are right for both.

A file that is shorter than every stored position of its first line is a new file. The exception is a
complete file whose digests show that it is an older copy of a longer one: all of it was counted.

Logs of two machines may be equal for a while, and are two logs. Where several machines share a database, each
source has a `host`, which is a part of the topic ids of its files; those that were begun without a host keep
theirs.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import IO

from analyzer.kernel.model import Gap, Lag, Partition, Position, Records
from analyzer.sources.files.line_reader import Checkpoint, LineReader
from analyzer.sources.positions import PositionStore

log = logging.getLogger(__name__)

CLUSTER = "file"
NAMES_AT_ONCE = 8  # topic ids that are looked up in one query
CHECKPOINTS_MAX = 1_000  # of takes that are not stored; with more, a file is read again from its beginning

Inode = tuple[int, int]  # device and number


def shown_path(path: str) -> str:
    """Returns the path as text that can be stored and printed, with escapes for bytes that are not UTF-8."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class FileReader:
    """The lines of one file from its stored position on.

    `size` returns the number of bytes, where that is known without reading them.
    """

    def __init__(
        self,
        path: str,
        source: str,
        stream: IO[bytes],
        *,
        inode: Inode,
        size: Callable[[], int] | None,
        line_bytes_max: int,
        now_s: float,
        host: str = "",
        wall_ms: Callable[[], int] | None = None,
    ) -> None:
        """`host` tells equal files of several machines apart; `wall_ms` returns the time, for a bound on that
        of the records."""
        self.path = shown_path(path)
        self._host = host
        self._wall_ms = wall_ms
        self.inode = inode
        self.lines = LineReader(stream, line_bytes_max)
        self.part: Partition | None = None
        self.is_placed = False  # whether it stands at the stored position
        self.has_ended = False  # whether nothing more will come
        self.is_truncated = False  # whether bytes that were read are not in it any more
        self.gap: Gap | None = None  # what stops it until an operator decides
        self.unreadable = ""  # why nothing more can be read of it
        self.stored = 0
        self.opened_s = now_s
        self.grew_s = now_s  # uptime when bytes were last found behind its previous end
        self._source = source
        self._size = size
        self._waiting_bytes = 0
        self._caught_up_s = now_s
        self._lines_taken = 0
        self._checkpoints: deque[Checkpoint] = deque(maxlen=CHECKPOINTS_MAX)  # a rewind goes back to one

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come, and everything that came is stored."""
        return self.has_ended and (self.part is None or self.stored == self.lines.next)

    @property
    def stopped(self) -> str:
        """The reason that nothing is taken of it; "" while it is read. Any thread may ask."""
        gap = self.gap
        return self.unreadable if gap is None else gap.why

    def is_exhausted(self) -> bool:
        """Whether it has ended, or is stopped until it is rewound."""
        return self.has_ended or bool(self.stopped)

    def place(
        self,
        positions: PositionStore,
        readers: Mapping[str, FileReader],
        *,
        final: bool = False,
        latest: bool = False,
    ) -> bool:
        """Identifies the file and goes to its stored position; False while that is not possible.

        `readers` are the files that this process reads, by topic id. With `latest` a file that was never
        counted begins at its end. Raises StoreAway.
        """
        if self.part is not None and self._go_back(positions, self.part):
            return True
        self.lines.go_back()
        line = self.lines.first_line(final=final)
        if line is None:
            return False
        stored, unused = self._stored(positions, hashlib.sha256(line).hexdigest())
        for part in list(stored):
            reader = readers.get(part.topic_id, self)
            if reader is self:
                continue
            if reader.has_ended or reader.inode == self.inode:
                return False  # it may have the same content, and its position is not settled yet
            del stored[part]
        if self._continue(stored):
            return True
        if final and self._is_older_copy(stored):
            log.warning("%s: everything in it was counted before, from a longer file", self.path)
            self.part, self.has_ended = None, True
            return False
        return self._begin(positions, unused, latest=latest)

    def find_counted(self, positions: PositionStore) -> tuple[Partition, int] | None:
        """Returns the partition that the file was counted as, and the offset up to which; None: as none.

        Begins nothing, and leaves the reader at the beginning. Raises StoreAway, OSError, EOFError.
        """
        self.lines.go_back()
        line = self.lines.first_line(final=True)
        if line is None:
            return None
        stored, _ = self._stored(positions, hashlib.sha256(line).hexdigest())
        is_known = self._continue(stored)
        self.lines.go_back()
        return None if not is_known or self.part is None else (self.part, self.stored)

    def take(self, now_s: float, *, final: bool) -> Records | None:
        """Returns the next lines; None when there are none. Raises OSError, EOFError, zlib.error."""
        if self.part is None:
            return None
        read_to, at_end = self.lines.read_to, self.lines.at_end
        start, columns = self.lines.next, self.lines.take(final=final)
        if at_end and self.lines.read_to > read_to:
            self.grew_s = now_s
        self._waiting_bytes = 0
        if self.lines.at_end:
            self._caught_up_s = now_s
        else:
            self._waiting_bytes = self.lines.read_to - self.lines.next
            if self._size is not None:
                self._waiting_bytes = max(self._waiting_bytes, self._size() - self.lines.next)
        if columns is None:
            return None
        self._lines_taken += len(columns.values)
        self._checkpoints.append(self.lines.checkpoint())
        read_ms = None if self._wall_ms is None else self._wall_ms()
        return Records(self.part, start, self.lines.next, columns, self.lines.resume_token, read_ms)

    def rewind(self) -> None:
        """Lets the next `place` go back to the stored position."""
        if self.part is not None:
            self.is_placed = self.has_ended = False
            self.unreadable, self.gap = "", None

    def acknowledge(self, stored: int) -> None:
        self.stored = stored
        while self._checkpoints and self._checkpoints[0].next < stored:
            self._checkpoints.popleft()

    def lag(self, now_s: float) -> Lag:
        """Returns the lag in lines of mean length, and for how long some have waited."""
        if not self._waiting_bytes:
            return Lag(0, 0.0)
        mean_bytes = max(1, self.lines.next // max(1, self._lines_taken))
        return Lag(max(1, self._waiting_bytes // mean_bytes), max(0.0, now_s - self._caught_up_s))

    def _go_back(self, positions: PositionStore, part: Partition) -> bool:
        """Goes back to the stored position by a checkpoint, without reading everything before it again; False
        without such a checkpoint. Raises StoreAway."""
        stored = positions.positions([part]).get(part, Position(0))
        if self.is_truncated:
            if stored.next < self.lines.next:
                lost = f"bytes [{stored.next}, {self.lines.next}) were cut off before they were stored"
                log.error("%s: %s; if you have a copy, import it", self.path, lost)
            self.is_placed, self.has_ended, self.stored = True, True, self.lines.next
            return True
        for checkpoint in self._checkpoints:
            if (checkpoint.next, checkpoint.resume_token) == (stored.next, stored.resume_token):
                self._set(part, checkpoint, stored.gap)
                return True
        return False

    def _stored(self, positions: PositionStore, name: str) -> tuple[dict[Partition, Position], Partition]:
        """Returns the stored positions of all files with this first line, and an unused partition."""
        stored, unused = self._numbered(positions, name)
        if not self._host:
            return stored, unused
        of_host, unused = self._numbered(positions, f"{name}@{self._host}")
        return stored | of_host, unused

    def _numbered(self, positions: PositionStore, name: str) -> tuple[dict[Partition, Position], Partition]:
        """Returns the positions under `name`, alone and with a number after it, and an unused partition."""
        stored: dict[Partition, Position] = {}
        for first in itertools.count(0, NAMES_AT_ONCE):
            ids = [f"{name}#{number}" if number else name for number in range(first, first + NAMES_AT_ONCE)]
            parts = [Partition(CLUSTER, topic_id, 0, self._source, self.path) for topic_id in ids]
            stored |= positions.positions(parts)
            unused = next((part for part in parts if part not in stored), None)
            if unused is not None:
                return stored, unused
        raise AssertionError("unreachable: the loop is endless")

    def _continue(self, stored: Mapping[Partition, Position]) -> bool:
        """Goes to the furthest position whose resume token matches; False when none does."""
        best: tuple[Partition, Checkpoint, Gap | None] | None = None
        self.lines.go_back()
        for part, position in sorted(stored.items(), key=lambda item: item[1].next):
            if not self.lines.skip_to(position.next):
                break
            if self.lines.resume_token == position.resume_token:
                best = part, self.lines.checkpoint(), position.gap
        if best is not None:
            self._set(*best)
        return best is not None

    def _is_older_copy(self, stored: Mapping[Partition, Position]) -> bool:
        """Whether a longer file with the same first bytes was counted; after `_continue` has read it all."""
        end = self.lines.next
        return any(
            position.next > end and self.lines.is_prefix(position.resume_token)
            for position in stored.values()
        )

    def _begin(self, positions: PositionStore, part: Partition, *, latest: bool) -> bool:
        self.lines.go_back()
        while latest and self.lines.take(final=False) is not None:
            pass
        position = Position(self.lines.next, self.lines.resume_token)
        if positions.begin(part, position.next, position.resume_token) != position:
            return False  # another process was faster, with this file or another: identify it again
        self._set(part, self.lines.checkpoint())
        return True

    def _set(self, part: Partition, checkpoint: Checkpoint, gap: Gap | None = None) -> None:
        self.part, self.is_placed, self.stored, self.gap = part, True, checkpoint.next, gap
        self.lines.go_back(checkpoint)
        self._checkpoints.clear()
        self._checkpoints.append(checkpoint)
