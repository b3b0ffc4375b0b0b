"""Gaps: what stopped a partition is stored, and exactly one decision of an operator resolves it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import sqlalchemy as sa

from analyzer.counting.gaps import NoSuchGap, RecordedGap, SqlGaps, accept, recorded_gaps
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.audit_log import entries
from analyzer.kernel.errors import PartitionLost
from analyzer.kernel.model import Gap, Partition, PartitionProgress, Position
from analyzer.maintenance.audit import audit

PART = Partition("cluster", "id-1", 3, "log", "access-log")
RECREATED = PART._replace(topic_id="id-2")
CORRUPT = Gap("corrupt", 10, None, "a batch is damaged")
TRUNCATED = Gap("past-end", 10, 1000, "truncated")
RECREATED_GAP = Gap("recreated", 0, None, "recreated")


def begun(store: SqlStore, at: int = 10) -> None:
    store.begin(PART, at)


def count(store: SqlStore, start: int, to: int) -> None:
    with store.transaction() as tx:
        tx.move_offsets([PartitionProgress(PART, start, to)], {})


def only_gap(engine: sa.Engine) -> RecordedGap:
    [found] = recorded_gaps(engine)
    return found


def test_the_next_analyzer_finds_the_gap_and_may_describe_it_better(
    engine: sa.Engine, store: SqlStore
) -> None:
    begun(store)
    here, there = SqlGaps(engine, "here"), SqlGaps(engine, "there")
    assert here.settle({PART: CORRUPT}) == set()
    better = CORRUPT._replace(end=20)
    for _ in range(2):
        assert there.settle({PART: better}) == set()
    assert store.positions([PART]) == {PART: Position(10, "", better)}
    assert (only_gap(engine).part, only_gap(engine).gap, only_gap(engine).found_by) == (PART, better, "here")


@pytest.mark.parametrize("gap", [CORRUPT, TRUNCATED])
def test_a_decision_moves_the_offset_and_an_outdated_analyzer_cannot_move_it_back(
    engine: sa.Engine, store: SqlStore, gap: Gap
) -> None:
    assert gap.position is not None
    begun(store, gap.position)
    gaps = SqlGaps(engine, "here")
    gaps.settle({PART: gap})
    accept(engine, only_gap(engine), 25, "ann@desk", "disk was full")
    assert list(recorded_gaps(engine)) == []
    assert gaps.settle({PART: gap}) == {PART}
    assert store.positions([PART]) == {PART: Position(25)}
    with pytest.raises(PartitionLost):
        count(store, gap.position, gap.position + 5)
    [event] = entries(engine)
    assert event[1:3] == ("ann@desk", "gap accepted")
    assert event.why == "disk was full"
    [ledger] = audit(engine).partitions
    assert (ledger.skipped, ledger.seen, ledger.equal) == (15, 0, True)


def test_of_two_concurrent_operators_one_decides(
    new_engine: Callable[[], sa.Engine], store: SqlStore
) -> None:
    begun(store)
    engines = [new_engine(), new_engine()]
    SqlGaps(engines[0], "here").settle({PART: CORRUPT})
    gap, barrier = only_gap(engines[0]), Barrier(2)

    def decide(engine: sa.Engine, to: int) -> bool:
        barrier.wait()
        try:
            accept(engine, gap, to, "ann", "why")
        except NoSuchGap:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        decided = list(pool.map(decide, engines, [20, 30]))
    assert sorted(decided) == [False, True]
    assert store.positions([PART])[PART].next == [20, 30][decided.index(True)]
    assert len(list(entries(engines[0]))) == 1


def test_after_a_retry_the_same_damage_is_a_new_gap(engine: sa.Engine, store: SqlStore) -> None:
    begun(store)
    gaps = SqlGaps(engine, "here")
    gaps.settle({PART: CORRUPT})
    accept(engine, only_gap(engine), 10, "ann", "replaced the disk")
    assert gaps.settle({PART: CORRUPT}) == {PART}
    assert store.positions([PART]) == {PART: Position(10)}
    assert gaps.settle({PART: CORRUPT}) == set()
    assert only_gap(engine).gap == CORRUPT
    assert len(list(recorded_gaps(engine, decided=True))) == 2


def test_a_partition_that_another_analyzer_continued_has_no_gap(engine: sa.Engine, store: SqlStore) -> None:
    begun(store)
    gaps = SqlGaps(engine, "here")
    gaps.settle({PART: CORRUPT})
    gap = only_gap(engine)
    count(store, 10, 30)
    assert list(recorded_gaps(engine)) == []
    assert gaps.settle({PART: CORRUPT}) == {PART}
    with pytest.raises(NoSuchGap):
        accept(engine, gap, 20, "ann", "late")
    assert store.positions([PART]) == {PART: Position(30)}
    assert gaps.settle({PART: Gap("corrupt", 30, 40, "another batch is damaged")}) == set()
    assert only_gap(engine).gap.start == 30


def test_a_recreated_topic_begins_at_the_accepted_offset_and_the_old_row_stays(
    engine: sa.Engine, store: SqlStore
) -> None:
    begun(store)
    count(store, 10, 50)
    gaps = SqlGaps(engine, "here")
    assert gaps.settle({RECREATED: RECREATED_GAP}) == set()
    assert store.positions([PART, RECREATED]) == {
        PART: Position(50),
        RECREATED: Position(0, "", RECREATED_GAP),
    }
    accept(engine, only_gap(engine), 7, "ann", "the topic was recreated")
    assert gaps.settle({RECREATED: RECREATED_GAP}) == {RECREATED}
    assert store.positions([PART, RECREATED]) == {PART: Position(50), RECREATED: Position(7)}
    assert {(ledger.topic_id, ledger.next, ledger.skipped) for ledger in audit(engine).partitions} == {
        ("id-1", 50, 0),
        ("id-2", 7, 7),
    }


def test_only_the_latest_of_several_recreated_topics_has_a_gap(engine: sa.Engine, store: SqlStore) -> None:
    begun(store)
    gaps = SqlGaps(engine, "here")
    gaps.settle({PART: CORRUPT})
    gaps.settle({RECREATED: RECREATED_GAP})
    gaps.settle({PART._replace(topic_id="id-3"): RECREATED_GAP})
    assert only_gap(engine).part.topic_id == "id-3"


def test_accepted_rejects_are_read_again_and_not_skipped(engine: sa.Engine, store: SqlStore) -> None:
    begun(store)
    gap = Gap("too-many-rejected", 10, 500, "too many")
    gaps = SqlGaps(engine, "here")
    gaps.settle({PART: gap})
    accept(engine, only_gap(engine), 500, "ann", "they are broken, all of them")
    assert gaps.settle({PART: gap}) == {PART}
    assert store.positions([PART]) == {PART: Position(10)}
    assert store.counter_state(PART).rejects_accepted_to == 500
    assert audit(engine).partitions[0].skipped == 0
