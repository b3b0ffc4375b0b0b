"""Which records repeat an event that was counted before; also those of which that cannot be known.

An id is remembered for its horizon at least, and then until its generation is forgotten, which depends on
when counting began. So a repeat within the horizon is certain, and a later one possible.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Literal, NamedTuple

Novelty = Literal["new", "repeated", "unknown"]
DAY_MS = 86_400_000
AHEAD_MAX, BEHIND_MAX = 100, 10_000  # records in a row that show that the partition's time is wrong


class _Seen(NamedTuple):
    """An id, by the record that was last taken for its first."""

    ms: int
    number: int  # of ids before it
    is_certain: bool


class RepeatedIds:
    """The ids of one partition.

    Args:
        horizon_ms: How long an id is remembered at least.
        ids_max: How many are remembered at most; an eighth of them is forgotten at a time.
        is_whole: Whether the log is read from where counting began.
    """

    def __init__(self, horizon_ms: int, ids_max: int, *, is_whole: bool) -> None:
        self._horizon_ms, self._kept = horizon_ms, ids_max - max(1, ids_max // 8)
        self._is_whole = is_whole
        self._now_ms: int | None = None
        self._far = 0
        self._first_ms: int | None = None  # when the first id came
        self._seen: dict[bytes, _Seen] = {}
        self._number = 0

    def ask(self, caller: str, id_: str, ms: int) -> Novelty:
        """Returns whether a readable record of this time in the log is the first of its event."""
        now_ms = self._moved(ms)
        if not id_:
            return "new"
        key = sha256(f"{caller}\n{id_}".encode("utf-8", "surrogatepass")).digest()[:16]
        if self._first_ms is None:
            self._first_ms = now_ms
        last = self._seen.get(key)
        answer: Novelty = "new"
        if last is not None:
            is_near = now_ms - last.ms < self._horizon_ms and self._number - last.number <= self._kept
            if is_near and last.is_certain:
                return "repeated"
            answer = "unknown"
        elif not self._is_whole and now_ms - self._first_ms < 3 * self._horizon_ms // 2:
            answer = "unknown"  # it may repeat one from before the first offset that was read
        self._seen[key] = _Seen(now_ms, self._number, answer == "new")
        self._number += 1
        return answer

    def _moved(self, ms: int) -> int:
        """Returns the time that the partition has reached."""
        now_ms = self._now_ms
        if now_ms is None:
            now_ms = ms
        elif abs(ms - now_ms) <= DAY_MS:
            self._far, now_ms = 0, max(now_ms, ms)
        else:
            self._far = max(self._far, 0) + 1 if ms > now_ms else min(self._far, 0) - 1
            if self._far in (AHEAD_MAX, -BEHIND_MAX):
                self._far, now_ms = 0, ms
        self._now_ms = now_ms
        return now_ms
