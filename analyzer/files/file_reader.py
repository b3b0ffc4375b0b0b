"""One file, from its identification to its end.

A file is known again by its content, under whatever name it is found, plain or compressed: its first
line gives the name of its partition, and the digest of all counted bytes, kept beside the offset,
must be that of the file's own first bytes. Files that begin alike get a number after the name; when
several fit, the one that was counted furthest is it. So two files are taken for one only as long as
they are the same byte for byte, and then it makes no difference. A file that ends before anything
that was counted with its first line is a new one; unless it is final and its prints say that it is an
older copy, of which there is nothing left to count.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import IO

from analyzer.core.model import Gap, Lag, Partition, Position, Records
from analyzer.files.line_reader import Checkpoint, LineReader
from analyzer.sources import PositionStore

log = logging.getLogger(__name__)

CLUSTER = "file"
NAMES_AT_ONCE = 8
CHECKPOINTS_MAX = 1_000  # of takes that are not stored; behind them a file is read again from its beginning

Inode = tuple[int, int]  # device and number


class FileReader:
    """Gives a file's lines from where it was counted to.

    `size` says how many bytes there are, where that is known without reading them.
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
    ) -> None:
        self.path = path
        self.inode = inode
        self.lines = LineReader(stream, line_bytes_max)
        self.part: Partition | None = None
        self.placed = False
        self.ended = False  # nothing more will come
        self.cut = False  # what was read is not there any more
        self.gap: Gap | None = None  # what stands in its way: it waits for a person
        self.unreadable = ""  # why nothing more can be read of it
        self.stored = 0
        self.opened_s = now_s
        self.grew_s = now_s  # when more was found where the end had been
        self._source = source
        self._size = size
        self._waiting = 0  # bytes
        self._caught_up_s = now_s
        self._taken = 0  # lines
        self._marks: deque[Checkpoint] = deque(maxlen=CHECKPOINTS_MAX)  # where we may be sent back to

    @property
    def done(self) -> bool:
        """Nothing more will come, and what came is stored."""
        return self.ended and (self.part is None or self.stored == self.lines.next)

    @property
    def stopped(self) -> str:
        """Why nothing is taken of it; "" while something is. Any thread may ask."""
        gap = self.gap
        return self.unreadable if gap is None else gap.why

    def over(self) -> bool:
        """Whether there is nothing to be had of it, for now or ever."""
        return self.ended or bool(self.stopped)

    def place(
        self,
        places: PositionStore,
        others: Mapping[str, FileReader],
        *,
        final: bool = False,
        latest: bool = False,
    ) -> bool:
        """Find out which log this is, and stand where it was counted to; False while that cannot be told.

        `others` are the files that this process reads, by their topic id. `latest`: a log that was
        never counted begins at its end. Raises StoreAway.
        """
        if self.part is not None and self._go_back(places, self.part):
            return True
        self.lines.go_back()
        line = self.lines.first_line(final=final)
        if line is None:
            return False
        known, unused = self._known(places, hashlib.sha256(line).hexdigest())
        for part in list(known):
            other = others.get(part.topic_id, self)
            if other is self:
                continue
            if other.ended or other.inode == self.inode:
                return False  # it may be this very content, and how far it is counted is not settled
            del known[part]
        if self._go_on(known):
            return True
        if final and self._is_older_copy(known):
            log.warning("%s: everything in it was counted before, from a longer file", self.path)
            self.part, self.ended = None, True
            return False
        return self._begin(places, unused, latest=latest)

    def take(self, now_s: float, *, final: bool) -> Records | None:
        """The next lines; None when there are none. Raises OSError, EOFError, zlib.error."""
        if self.part is None:
            return None
        read_to, at_end = self.lines.read_to, self.lines.at_end
        start, items = self.lines.next, self.lines.take(final=final)
        if at_end and self.lines.read_to > read_to:
            self.grew_s = now_s
        self._waiting = 0
        if self.lines.at_end:
            self._caught_up_s = now_s
        else:
            self._waiting = self.lines.read_to - self.lines.next
            if self._size is not None:
                self._waiting = max(self._waiting, self._size() - self.lines.next)
        if items is None:
            return None
        self._taken += len(items)
        self._marks.append(self.lines.mark())
        return Records(self.part, start, self.lines.next, items, self.lines.resume_token)

    def rewind(self) -> None:
        """Stand at the stored position again, as soon as `place` has asked for it."""
        if self.part is not None:
            self.placed = self.ended = False
            self.unreadable, self.gap = "", None

    def acknowledge(self, stored: int) -> None:
        self.stored = stored
        while self._marks and self._marks[0].next < stored:
            self._marks.popleft()

    def lag(self, now_s: float) -> Lag:
        """In lines as long as those that were taken, and since when some of them wait."""
        if not self._waiting:
            return Lag(0, 0.0)
        mean_bytes = max(1, self.lines.next // max(1, self._taken))
        return Lag(max(1, self._waiting // mean_bytes), max(0.0, now_s - self._caught_up_s))

    def _go_back(self, places: PositionStore, part: Partition) -> bool:
        """To a place we still know, without reading everything before it again. Raises StoreAway."""
        stored = places.positions([part]).get(part, Position(0))
        if self.cut:
            if stored.next < self.lines.next:
                lost = f"bytes [{stored.next}, {self.lines.next}) were cut away before they were stored"
                log.error("%s: %s; if a copy was kept, import it", self.path, lost)
            self.placed, self.ended, self.stored = True, True, self.lines.next
            return True
        for mark in self._marks:
            if mark.next == stored.next and mark.digest.hexdigest() == stored.resume_token:
                self._stand(part, mark, stored.gap)
                return True
        return False

    def _known(self, places: PositionStore, name: str) -> tuple[dict[Partition, Position], Partition]:
        """Every log with this first line, and a name for one more."""
        known: dict[Partition, Position] = {}
        for first in itertools.count(0, NAMES_AT_ONCE):
            ids = [f"{name}#{number}" if number else name for number in range(first, first + NAMES_AT_ONCE)]
            parts = [Partition(CLUSTER, topic_id, 0, self._source, self.path) for topic_id in ids]
            known |= places.positions(parts)
            unused = next((part for part in parts if part not in known), None)
            if unused is not None:
                return known, unused
        raise AssertionError("counting has no end")

    def _go_on(self, known: Mapping[Partition, Position]) -> bool:
        best: tuple[Partition, Checkpoint, Gap | None] | None = None
        self.lines.go_back()
        for part, position in sorted(known.items(), key=lambda item: item[1].next):
            if not self.lines.pass_to(position.next):
                break
            if self.lines.resume_token == position.resume_token:
                best = part, self.lines.mark(), position.gap
        if best is not None:
            self._stand(*best)
        return best is not None

    def _is_older_copy(self, known: Mapping[Partition, Position]) -> bool:
        """Once `_go_on` has read as far as anything was counted."""
        end = self.lines.next
        return any(each.next > end and self.lines.begins(each.resume_token) for each in known.values())

    def _begin(self, places: PositionStore, part: Partition, *, latest: bool) -> bool:
        self.lines.go_back()
        while latest and self.lines.take(final=False) is not None:
            pass
        wanted = Position(self.lines.next, self.lines.resume_token)
        if places.begin(part, wanted.next, wanted.resume_token) != wanted:
            return False  # somebody was faster; it may be this file or another, so look again
        self._stand(part, self.lines.mark())
        return True

    def _stand(self, part: Partition, mark: Checkpoint, gap: Gap | None = None) -> None:
        self.part, self.placed, self.stored, self.gap = part, True, mark.next, gap
        self.lines.go_back(mark)
        self._marks.clear()
        self._marks.append(mark)
