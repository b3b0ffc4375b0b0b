"""The ids of events that a partition remembers, so that each (caller, id) counts once within a horizon.

The rule and its reasons are in docs/decisions/0050. Which records are duplicates depends only on the earlier
records of the partition, so that reading the log again gives the same counts.

Ids are kept as 64-bit keyed hashes: all in one set, which answers for a column of records at once, and in
the generations in which they came, which are forgotten as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, compress, groupby, repeat

from analyzer.kernel.model import IdBlob, IdState
from analyzer.plan.mapping import EventIdRule

HASH_BYTES = 8
BLOB_IDS_MIN = 128  # a smaller blob is extended
GENERATIONS = 8  # a generation ends after this part of the horizon, or of the ids that may be remembered
FAR_MS = 86_400_000  # a record further from the time that the partition has reached may have a wrong time
# So many records in a row that are further ahead show that time has passed: a topic that rests for a weekend;
# so many further behind, that the time was wrong.
AHEAD_RUN_MAX = 100
BEHIND_RUN_MAX = 10_000


@dataclass(slots=True)
class Generation:
    """Ids that came one after the other."""

    number: int  # since the partition remembers ids, without gaps
    began_ms: int  # the partition's time when its first id came
    hashes: list[bytes] = field(default_factory=list)
    stored: int = 0  # of `hashes`: drained
    blobs: int = 0  # in which they were drained
    latest: int = 0  # of `hashes`: where the last blob begins

    def drain(self) -> IdBlob:
        """Returns the ids that are new since the last call (at least one), in a new blob or the last one.

        A blob is extended while it is small: a partition with an id in each flush must not have a row for
        each.
        """
        if not self.blobs or self.stored - self.latest >= BLOB_IDS_MIN:
            self.blobs, self.latest = self.blobs + 1, self.stored
        self.stored = len(self.hashes)
        joined = b"".join(self.hashes[self.latest :])
        return IdBlob(self.number, self.blobs - 1, self.began_ms, joined)


class EventIds:
    """The ids that one partition remembers.

    Args:
        rule: How long, and how many.
        secret: The key of the hashes.
        state: The stored ids; None: none yet.
    """

    def __init__(self, rule: EventIdRule, secret: bytes, state: IdState | None = None) -> None:
        self._horizon_ms, self._ids_max = rule.horizon_ms, rule.ids_max
        self._generation_ms = max(1, rule.horizon_ms // GENERATIONS)
        self._generation_ids = max(1, rule.ids_max // GENERATIONS)
        self._secret = secret
        self._reached_ms = None if state is None else state.reached_ms
        self._far_run = 0 if state is None else state.far_run
        blobs = [] if state is None else sorted(state.blobs)
        self._generations = [
            _restored(list(of_one)) for _, of_one in groupby(blobs, lambda blob: blob.generation)
        ]
        self._known = set(chain.from_iterable(generation.hashes for generation in self._generations))
        self._next = self._generations[-1].number + 1 if self._generations else 0
        self._forgotten_to: int | None = None  # since the last drain: generations before this one

    def __len__(self) -> int:
        """The number of ids that are remembered."""
        return len(self._known)

    def are_new(
        self, callers: Sequence[str] | None, ids: Sequence[str], times_ms: Sequence[int]
    ) -> list[bool] | None:
        """Remembers the ids of records, and returns which records are not duplicates; None: all.

        `callers` are those before the limit on their number, None where no grouping has them; `ids` has ""
        for none; `times_ms` are Kafka times, or the requests' own where there is none (at least one).
        """
        remembered, hashes = self._known, self._hashes(callers, ids)
        first_ms, last_ms = min(times_ms), max(times_ms)
        if not self._is_uneventful(first_ms, last_ms, len(hashes)):
            return self._one_by_one(ids, hashes, times_ms)
        self._reached_ms, self._far_run = max(self._reached_ms or 0, last_ms), 0
        if remembered.isdisjoint(hashes):
            size = len(remembered)
            remembered.update(hashes)
            if len(remembered) == size + len(hashes):
                self._generations[-1].hashes += hashes
                return None
            remembered.difference_update(hashes)  # one of them comes twice among these records
        return self._one_by_one(ids, hashes, repeat(None, len(ids)))

    def drain(self) -> IdState:
        """Returns the state for the records to come, with the ids that are new since the last call."""
        added = [
            generation.drain()
            for generation in self._generations
            if generation.stored < len(generation.hashes)
        ]
        forgotten_to, self._forgotten_to = self._forgotten_to, None
        return IdState(
            reached_ms=self._reached_ms,
            far_run=self._far_run,
            blobs=added,
            forgotten_to=forgotten_to,
            kept_ms=self.kept_ms,
            held=len(self._known),
        )

    @property
    def kept_ms(self) -> int:
        """The time for which an id is really remembered: less than the horizon with too many ids."""
        if not self._generations or self._generations[0].number == 0:
            return self._horizon_ms
        kept_ms = (self._reached_ms or 0) - self._generations[0].began_ms
        return min(self._horizon_ms, max(0, kept_ms))

    def _hashes(self, callers: Sequence[str] | None, ids: Sequence[str]) -> list[bytes]:
        """Returns the hash of each record that has an id."""
        secret = self._secret
        names: Iterable[str] = repeat("") if callers is None else callers
        if "" in ids:
            names, ids = list(compress(names, ids)), list(filter(None, ids))
        # No caller's name has a line break.
        try:
            return [
                blake2b(secret + f"{name}\n{id_}".encode(), digest_size=HASH_BYTES).digest()
                for name, id_ in zip(names, ids, strict=False)
            ]
        except UnicodeEncodeError:  # halves of surrogate pairs, which JSON can write
            texts = [f"{name}\n{id_}" for name, id_ in zip(names, ids, strict=False)]
            values = (secret + text.encode("utf-8", "surrogatepass") for text in texts)
            return [blake2b(value, digest_size=HASH_BYTES).digest() for value in values]

    def _is_uneventful(self, first_ms: int, last_ms: int, new: int) -> bool:
        """Whether records with these times and so many ids neither begin nor end a generation."""
        reached_ms, generations = self._reached_ms, self._generations
        if reached_ms is None or not generations:
            return False
        latest, then_ms = generations[-1], max(reached_ms, last_ms)
        return (
            last_ms - reached_ms <= FAR_MS
            and then_ms - first_ms <= FAR_MS
            and latest.began_ms <= reached_ms
            and then_ms < latest.began_ms + self._generation_ms
            and len(latest.hashes) + new <= self._generation_ids
            and len(self._known) + new <= self._ids_max
            and not self._has_past(then_ms)
        )

    def _one_by_one(
        self, ids: Sequence[str], hashes: Iterable[bytes], times_ms: Iterable[int | None]
    ) -> list[bool] | None:
        """Answers `are_new` record by record; a time of None moves nothing."""
        answers, hashes, remembered = [], iter(hashes), self._known
        for id_, ms in zip(ids, times_ms, strict=True):
            if ms is not None:
                self._reach(ms)
            is_new = True
            if id_:
                hashed = next(hashes)
                is_new = hashed not in remembered
                if is_new:
                    self._remember(hashed)
            answers.append(is_new)
        return answers if False in answers else None

    def _reach(self, ms: int) -> None:
        reached_ms, run = self._reached_ms, self._far_run
        if reached_ms is None:
            self._reached_ms = ms
            return
        if abs(ms - reached_ms) <= FAR_MS:
            self._far_run = 0
            if ms <= reached_ms:
                return
        else:
            # One absurd time neither makes ids forgotten nor keeps a wrong time.
            self._far_run = run = max(run, 0) + 1 if ms > reached_ms else min(run, 0) - 1
            if -BEHIND_RUN_MAX < run < AHEAD_RUN_MAX:
                return
            self._far_run = 0
        self._reached_ms = ms
        if self._has_past(ms):
            began_ms = [generation.began_ms for generation in self._generations]
            past_ms = ms - self._horizon_ms
            self._forget(max(index for index, began in enumerate(began_ms) if began <= past_ms))

    def _has_past(self, reached_ms: int) -> bool:
        """Whether a generation is forgotten when the partition's time is this."""
        past_ms = reached_ms - self._horizon_ms
        return any(generation.began_ms <= past_ms for generation in self._generations[1:])

    def _remember(self, hashed: bytes) -> None:
        latest = self._generations[-1] if self._generations else None
        reached_ms = self._reached_ms or 0
        if (
            latest is None
            or not latest.began_ms <= reached_ms < latest.began_ms + self._generation_ms
            or len(latest.hashes) >= self._generation_ids
        ):
            latest = Generation(self._next, reached_ms)
            self._generations.append(latest)
            self._next += 1
        latest.hashes.append(hashed)
        self._known.add(hashed)
        if len(self._known) > self._ids_max:
            self._forget(1)

    def _forget(self, generations: int) -> None:
        """Forgets so many of the oldest generations."""
        for generation in self._generations[:generations]:
            self._known.difference_update(generation.hashes)
        del self._generations[:generations]
        self._forgotten_to = self._generations[0].number


def without_ids(state: IdState | None) -> IdState | None:
    """Returns what a partition drains whose source has no ids any more: all that is stored is forgotten."""
    if state is None or not state.blobs:
        return None
    return IdState(state.reached_ms, forgotten_to=max(state.blobs).generation + 1)


def _restored(blobs: Sequence[IdBlob]) -> Generation:
    """Returns a stored generation. Blobs of retries, the first ones, do not know when it began."""
    joined = b"".join(blob.hashes for blob in blobs)
    hashes = [joined[position : position + HASH_BYTES] for position in range(0, len(joined), HASH_BYTES)]
    last = blobs[-1]
    latest = len(hashes) - len(last.hashes) // HASH_BYTES
    return Generation(last.generation, last.began_ms, hashes, len(hashes), last.number + 1, latest)
