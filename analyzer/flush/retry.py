"""Reads rejected records again, by the mapping in force, and counts those that can be read by now.

Each is counted as if it had been readable at once: in the buckets, the totals, the judgement and the ledger,
in the transaction that takes it from the table of rejected records. So it is counted once, however often a
retry runs and however many run together. Only the limit on callers by name does not apply: the order of
records is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from analyzer.flush.rejects import PlanMismatch, RejectedRecord, RejectFilter, SqlRejects
from analyzer.judging.judge import NOTHING, Judged
from analyzer.kernel.model import Counter, CounterState, DrainedCounts, Partition, Record, Records
from analyzer.plan.mapping import SourceMapping
from analyzer.plan.plan import Plan

AT_ONCE = 500  # records in one transaction, counted in some hundredths of a second


class RetryOutcome(NamedTuple):
    """Outcome of a retry for one record."""

    record: RejectedRecord
    why: str  # why it cannot be counted; "": it is counted now, or a duplicate
    is_duplicate: bool = False  # its id was counted before: it is left out, and no rejected record any more


def without_limits(mappings: Mapping[str, SourceMapping]) -> dict[str, SourceMapping]:
    """Returns the mappings for a retry: no run of rejected records stops it, no caller is in the overflow."""
    return {source: mapping.without_limits() for source, mapping in mappings.items()}


class RejectRetry:
    """Retries the rejected records of a database.

    Args:
        rejects: The rejected records.
        plan: The plan in force.
        sources: Names of the sources that can be read.
        new_counter: Returns an empty counter for `plan`, with mappings `without_limits`.
        differing: Names of sources whose mapping in the configuration is not the one in force.
        with_ids: Names of sources whose records have ids.
    """

    def __init__(
        self,
        rejects: SqlRejects,
        plan: Plan,
        sources: Collection[str],
        new_counter: Callable[[], Counter],
        differing: Collection[str] = (),
        with_ids: Collection[str] = (),
    ) -> None:
        self._rejects = rejects
        self._plan = plan
        self._sources = sources
        self._differing = differing
        self._with_ids = with_ids
        self._new_counter = new_counter

    def run(
        self,
        selection: RejectFilter,
        who: str,
        reason: str,
        report: Callable[[Judged], None] = lambda _: None,
    ) -> Iterator[RetryOutcome]:
        """Yields the outcome of each wanted record, by partition and offset, as transactions commit.

        What was judged in each of them is passed to `report`. Raises PlanMismatch, StoreAway; what was
        yielded before that is stored.
        """
        parts = self._rejects.partitions(selection)
        if differing := sorted({part.source for part in parts} & set(self._differing)):
            raise PlanMismatch(
                f"the configuration reads {', '.join(differing)} in another way than the plan in force: "
                "put it in force first, in the file of an analyzer or by `gatelock policies apply`"
            )
        for part in parts:
            offset = -1
            while True:
                outcomes, judged = self._retry(part, selection, offset, who, reason)
                if not outcomes:
                    break
                report(judged)
                yield from outcomes
                offset = outcomes[-1].record.offset

    def why_rejected(self, record: RejectedRecord) -> str:
        """Returns why this record cannot be counted today; "" when it can."""
        return self._count([record], CounterState())[1][0].why

    def _retry(
        self, part: Partition, selection: RejectFilter, offset: int, who: str, reason: str
    ) -> tuple[list[RetryOutcome], Judged]:
        with self._rejects.retrying(part, self._plan) as transaction:
            records = transaction.rejected(selection, offset, AT_ONCE)
            state = CounterState()
            if records and part.source in self._with_ids:
                state = transaction.counter_state()
            counted, outcomes = self._count(records, state)
            readable = [outcome.record for outcome in outcomes if not outcome.why]
            judged = transaction.count(readable, counted, who, reason) if readable else NOTHING
            return outcomes, judged

    def _count(
        self, records: Sequence[RejectedRecord], state: CounterState
    ) -> tuple[DrainedCounts, list[RetryOutcome]]:
        """Counts the records of one partition; returns the counts, and the outcome of each record."""
        reasons = {record.offset: self._why_unusable(record) for record in records}
        usable = [record for record in records if not reasons[record.offset]]
        counter = self._new_counter()
        duplicates: set[int] = set()
        if usable:
            part, start = usable[0].part, usable[0].offset
            counter.resume(part, state)
            for record in usable:  # one by one, to see which are duplicates
                item = Record(record.offset, record.kafka_ms, record.sample)
                fed = counter.feed(Records.of(part, start, record.offset + 1, [item]))
                start = fed.next
                if not fed.counted:
                    duplicates.add(record.offset)
        counted = counter.drain()
        reasons |= {rejected.offset: rejected.reason for rejected in counted.rejected}
        outcomes = [
            RetryOutcome(record, reason, not reason and record.offset in duplicates)
            for record in records
            for reason in [reasons[record.offset]]
        ]
        return counted._replace(rejected=[]), outcomes

    def _why_unusable(self, record: RejectedRecord) -> str:
        if record.reason == "tombstone":
            return "it has no value"
        if not record.whole:
            return "only its beginning was kept"
        if record.part.source not in self._sources:
            return f"neither the plan nor the configuration has a source {record.part.source}"
        return ""
