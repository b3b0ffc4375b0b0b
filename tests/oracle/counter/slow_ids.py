"""The ids that a partition remembers, record by record, in one list."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from analyzer.kernel.model import IdBlob, IdState
from analyzer.plan.mapping import EventIdRule

DAY_MS = 86_400_000


class Remembered(NamedTuple):
    """An id, and the generation in which it came."""

    hashed: bytes
    generation: int
    began_ms: int


class Ids:
    """Decides about each record of a partition whether it repeats another one."""

    def __init__(self, rule: EventIdRule, secret: bytes, before: IdState | None) -> None:
        self.rule, self.secret = rule, secret
        self.now_ms = before.reached_ms if before else None
        self.run = before.far_run if before else 0
        self.kept = [
            Remembered(blob.hashes[at : at + 8], blob.generation, blob.began_ms)
            for blob in (before.blobs if before else ())
            for at in range(0, len(blob.hashes), 8)
        ]
        self.fresh: list[Remembered] = []  # since the drain
        self.forgot = False

    def drained(self) -> None:
        self.fresh, self.forgot = [], False

    def is_new(self, caller: str, id_: str, ms: int) -> bool:
        self.move(ms)
        self.forget_the_past()
        text = f"{caller}\n{id_}".encode(errors="surrogatepass")
        hashed = hashlib.blake2b(self.secret + text, digest_size=8).digest()
        if not id_:
            return True
        if any(one.hashed == hashed for one in self.kept):
            return False
        self.remember(hashed)
        return True

    def move(self, ms: int) -> None:
        if self.now_ms is None:
            self.now_ms = ms
        elif abs(ms - self.now_ms) <= DAY_MS:
            self.run, self.now_ms = 0, max(self.now_ms, ms)
        else:
            ahead = ms > self.now_ms
            self.run = (max(self.run, 0) + 1) if ahead else (min(self.run, 0) - 1)
            if self.run in (100, -10_000):
                self.run, self.now_ms = 0, ms

    def generations(self) -> list[tuple[int, int]]:
        """Returns numbers and beginnings of the generations that are kept."""
        return sorted({(one.generation, one.began_ms) for one in self.kept})

    def forget_before(self, generation: int) -> None:
        if any(one.generation < generation for one in self.kept):
            self.kept = [one for one in self.kept if one.generation >= generation]
            self.fresh = [one for one in self.fresh if one.generation >= generation]
            self.forgot = True

    def forget_the_past(self) -> None:
        assert self.now_ms is not None
        past_ms = self.now_ms - self.rule.horizon_ms
        old = [number for number, began_ms in self.generations() if began_ms <= past_ms]
        if old:
            self.forget_before(old[-1])

    def remember(self, hashed: bytes) -> None:
        assert self.now_ms is not None
        generation, began_ms = self.generations()[-1] if self.kept else (-1, -1)
        size = sum(one.generation == generation for one in self.kept)
        lasts_ms = max(1, self.rule.horizon_ms // 8)
        if (
            not self.kept
            or size >= max(1, self.rule.ids_max // 8)
            or not 0 <= self.now_ms - began_ms < lasts_ms
        ):
            generation, began_ms = generation + 1, self.now_ms
        one = Remembered(hashed, generation, began_ms)
        self.kept.append(one)
        self.fresh.append(one)
        if len(self.kept) > self.rule.ids_max:
            self.forget_before(self.generations()[1][0])

    def state(self, stored: dict[int, list[int]]) -> IdState:
        """Returns what is drained now; `stored` has the sizes of the blobs of each generation, and grows."""
        blobs = []
        for generation, began_ms in sorted({(one.generation, one.began_ms) for one in self.fresh}):
            of_one = [one.hashed for one in self.kept if one.generation == generation]
            sizes = stored.setdefault(generation, [])
            if sizes and sizes[-1] < 128:
                sizes.pop()  # it is stored again, with what is new
            hashes = b"".join(of_one[sum(sizes) :])
            blobs.append(IdBlob(generation, len(sizes), began_ms, hashes))
            sizes.append(len(hashes) // 8)
        kept_ms = self.rule.horizon_ms
        first = self.generations()[0] if self.kept else (0, 0)
        if first[0] and self.now_ms is not None:
            kept_ms = sorted((0, self.now_ms - first[1], kept_ms))[1]
        return IdState(
            self.now_ms, self.run, blobs, first[0] if self.forgot else None, kept_ms, len(self.kept)
        )
