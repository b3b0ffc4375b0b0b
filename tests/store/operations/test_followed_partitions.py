"""Partitions that no analyzer follows any more do not count as behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.flush.followed_partitions import followed, release_removed, rename_sources, retire
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.audit_log import entries
from analyzer.kernel.model import Lag, Partition, PartitionProgress
from analyzer.kernel.tables.schema import offsets
from gatekeeper.sources.sql import SqlSource

OLD, NEW = (Partition("c", name, 0, name, f"{name}-log") for name in ("old", "new"))


@pytest.fixture
def behind(migrated_url: str) -> Iterator[Any]:
    source = SqlSource(migrated_url)
    yield lambda: source.fetch(None).behind
    source.close()


def follow(engine: sa.Engine, part: Partition, owner: str) -> None:
    store = SqlStore(engine, owner)
    at = store.begin(part, 0).next
    with store.transaction() as tx:
        tx.move_offsets([PartitionProgress(part, at, at + 5)], {part: Lag(2, 0.5)})


def silence(engine: sa.Engine, part: Partition, seconds: int) -> None:
    with engine.begin() as db:
        late = {"beat_ms": offsets.c.beat_ms - seconds * 1000}
        db.execute(sa.update(offsets).where(offsets.c.topic_id == part.topic_id).values(late))


def test_a_source_that_its_analyzer_no_longer_has_is_not_behind(engine: sa.Engine, behind: Any) -> None:
    follow(engine, OLD, "one:7")
    follow(engine, NEW, "one:7")
    silence(engine, OLD, 1000)
    assert behind() > 1000
    assert release_removed(engine, "one", {"new"}) == 1
    assert 0.4 < behind() < 60
    assert [(part.source, part.heard_s is None) for part in followed(engine)] == [
        ("new", False),
        ("old", True),
    ]


def test_partitions_of_other_analyzers_are_left_alone(engine: sa.Engine) -> None:
    follow(engine, OLD, "on%:7")
    follow(engine, NEW, "one1:7")
    assert release_removed(engine, "one", {"third"}) == release_removed(engine, "on_", {"third"}) == 0


def test_an_operator_retires_a_source_whose_analyzer_is_gone(engine: sa.Engine, behind: Any) -> None:
    follow(engine, OLD, "one:7")
    assert retire(engine, "old", "ann@desk", "switched off") == 0, "an analyzer follows it"
    silence(engine, OLD, 16)
    assert retire(engine, "old", "ann@desk", "switched off") == 1
    assert behind() == 0
    assert [event[1:5] for event in entries(engine)] == [
        ("ann@desk", "upkeep sources retire", "old", "switched off")
    ]
    follow(engine, OLD, "two:9")
    [again] = followed(engine)
    assert (again.next, again.owner, again.behind_records, again.behind_s) == (10, "two:9", 2, 0.5)


def test_a_renamed_source_keeps_its_history(engine: sa.Engine, store: SqlStore) -> None:
    follow(engine, OLD, "one:7")
    follow(engine, NEW, "one:7")
    names = {"old-log": "renamed", "new-log": "new"}
    assert rename_sources(engine, names, "one") == 1
    assert rename_sources(engine, names, "one") == 0
    assert [(part.source, part.topic, part.next) for part in followed(engine)] == [
        ("new", "new-log", 5),
        ("renamed", "old-log", 5),
    ]
    assert [event[1:5] for event in entries(engine)] == [
        ("one", "source renamed", "old to renamed", "it reads old-log")
    ]
    # A topic that is deleted and created in the same maintenance still shows that it is another one.
    assert store.logs("renamed", "old-log") == [("c", "old")]


def test_a_source_that_exists_besides_is_not_renamed(engine: sa.Engine) -> None:
    """Two sources exchanged their topics, or one topic was moved to another existing source."""
    follow(engine, OLD, "one:7")
    assert rename_sources(engine, {"old-log": "new", "third-log": "old"}, "one") == 0
    assert [part.source for part in followed(engine)] == ["old"]
