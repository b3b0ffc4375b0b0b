"""`gatelock rejects` as people use it: SQLite and PostgreSQL alike."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import sqlalchemy as sa

from analyzer.config.settings import load
from analyzer.core.model import RejectReason
from analyzer.store.database.schema import buckets, offsets, rejects
from analyzer.store.transaction.sql_store import SqlStore
from tests.support.configured import source

Gatelock = Callable[..., Any]
Configure = Callable[[str], Path]

NOW_MS = 1_795_216_000_000
GOOD = json.dumps({"ts": NOW_MS, "key": "acme"}).encode()
HOSTILE = b'{"key":"\x1b[2J\xff"'


@pytest.fixture
def configuration() -> str:
    return source("access-log")


@pytest.fixture
def engine(engine: sa.Engine) -> sa.Engine:
    SqlStore(engine, "here").activate(load(Path("gatelock.toml")).plan())
    with engine.begin() as db:
        place = {
            "cluster": "c",
            "topic_id": "t",
            "partition": 3,
            "source": "access-log",
            "topic": "access-log",
        }
        db.execute(sa.insert(offsets).values(**place, next=9, seen=4, dead=4))
        for offset, reason, sample, size in (
            (5, "bad-caller", GOOD, len(GOOD)),
            (6, "bad-utf8", HOSTILE, len(HOSTILE)),
            (7, "too-large", b"x" * 100, 2_000_000),
            (8, "tombstone", b"", None),
        ):
            row = {"offset": offset, "reason": reason, "sample": sample, "value_bytes": size}
            db.execute(sa.insert(rejects).values(**place, **row, kafka_ms=NOW_MS, at_ms=NOW_MS + offset))
    return engine


def listed(told: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in told.stdout.splitlines()]


def test_list_shows_where_why_and_how_it_begins(gatelock: Gatelock, engine: sa.Engine) -> None:
    told = gatelock("rejects", "list")
    assert told.exit_code == 0
    assert "access-log[3]@5" in told.output
    assert "\x1b" not in told.output
    assert "\\x1b[2J\\xff" in told.output
    found = listed(gatelock("rejects", "list", "--json"))
    assert [each["offset"] for each in found] == [8, 7, 6, 5]
    assert found[3] == {
        "record": "access-log[3]@5", "source": "access-log", "topic": "access-log", "partition": 3,
        "offset": 5, "topic_id": "t", "reason": "bad-caller", "found": "2026-11-20T23:06:40.005000Z",
        "kafka_ms": NOW_MS, "value_bytes": len(GOOD), "whole": True, "sample": GOOD.decode(),
        "sample_base64": None,
    }  # fmt: skip
    assert b64decode(found[2]["sample_base64"]) == HOSTILE


@pytest.mark.parametrize(
    ("asked", "offsets"),
    [
        ("--reason tombstone", [8]),
        ("--source access-log", [8, 7, 6, 5]),
        ("--source other", []),
        ("--topic access-log", [8, 7, 6, 5]),
        ("--topic access", []),
        ("--partition 3", [8, 7, 6, 5]),
        ("--partition 4", []),
        ("--partition access-log[3]", [8, 7, 6, 5]),
        ("--partition other[3]", []),
        ("--topic access-log --partition access-log[3]", [8, 7, 6, 5]),
        ("--since 2026-11-21", []),
        ("--since 2026-11-20T23:06:40.006Z", []),  # whole seconds
        ("--since 2026-11-20T23:06:40Z", [8, 7, 6, 5]),
        ("--from 2026-11-20", [8, 7, 6, 5]),
        ("--since 99999d", [8, 7, 6, 5]),
        ("--topic access-log --partition 3 --reason bad-utf8 --since 2026-11-20", [6]),
    ],
)
def test_they_are_asked_for_by_source_topic_partition_reason_and_time(
    gatelock: Gatelock, engine: sa.Engine, asked: str, offsets: list[int]
) -> None:
    """Everything that is given must hold, for each command alike."""
    words = asked.split()
    assert [each["offset"] for each in listed(gatelock("rejects", "list", "--json", *words))] == offsets
    assert [each["offset"] for each in listed(gatelock("rejects", "export", *words))] == offsets[::-1]
    (told,) = listed(gatelock("rejects", "retry", "--json", "--why", "mended", *words))
    assert told["counted"] + sum(told["left"].values()) == len(offsets)


def test_how_long_ago_is_told_by_the_clock(gatelock: Gatelock, engine: sa.Engine) -> None:
    now_ms = int(time.time() * 1000)
    with engine.begin() as db:
        for offset, ago_s in ((5, 30), (6, 90)):
            here = sa.update(rejects).where(rejects.c.offset == offset)
            db.execute(here.values(at_ms=now_ms - ago_s * 1000))
        db.execute(sa.update(rejects).where(rejects.c.offset > 6).values(at_ms=now_ms - 3 * 3_600_000))

    def since(ago: str) -> list[int]:
        return [each["offset"] for each in listed(gatelock("rejects", "export", "--since", ago))]

    assert [since(ago) for ago in ("1m", "2m", "2h", "4h", "1d")] == [
        [5],
        [5, 6],
        [5, 6],
        [5, 6, 7, 8],
        [5, 6, 7, 8],
    ]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("--reason strange", "known are: tombstone, too-large, bad-utf8"),
        ("--since soon", "how long ago: 30m, 2h, 7d"),
        ("--partition x", "'x' names no partition; write 3, or 'access-log[3]'"),
        ("--partition 9999999999999999999", "names no partition"),
        ("--topic other --partition access-log[3]", "--topic other: access-log[3] is of another one"),
    ],
)
def test_what_cannot_be_asked_is_answered_with_what_can(
    gatelock: Gatelock, engine: sa.Engine, asked: str, words: str
) -> None:
    told = gatelock("rejects", "list", *asked.split())
    assert told.exit_code == 2
    assert words in told.stderr


def test_nothing_is_said_where_there_is_nothing(gatelock: Gatelock, engine: sa.Engine) -> None:
    assert "every record could be read" in gatelock("rejects", "list", "--source", "x").output


def test_show_says_what_was_expected_and_what_would_happen_today(
    gatelock: Gatelock, engine: sa.Engine
) -> None:
    told = gatelock("rejects", "show", "access-log[3]@5")
    assert "a caller: text of at most 256 bytes" in told.output
    assert "in key (api_key)" in told.output
    assert "it can be read" in told.output
    assert GOOD.decode() in told.output
    (found,) = listed(gatelock("rejects", "show", "access-log[3]@7", "--json"))
    assert (found["whole"], found["today"]) == (False, "only its beginning was kept")
    assert gatelock("rejects", "show", "access-log[3]@99").exit_code == 2
    assert "names no record" in gatelock("rejects", "show", "access-log").stderr


def test_export_writes_objects_or_the_records_themselves(
    gatelock: Gatelock, engine: sa.Engine, tmp_path: Path
) -> None:
    file = tmp_path / "rejects.jsonl"
    assert gatelock("rejects", "export", "--output", str(file)).exit_code == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["offset"] for row in rows] == [5, 6, 7, 8], "as they stand in their log"
    assert len({tuple(row) for row in rows}) == 1, "all of one shape"
    told = gatelock("rejects", "export", "--format", "raw")
    assert told.exit_code == 1
    assert told.stdout_bytes == GOOD + b"\n" + HOSTILE + b"\n"
    assert "2 left out" in told.stderr
    told = gatelock("rejects", "export", "--output", str(file))
    assert (told.exit_code, "not overwritten" in told.stderr) == (2, True)


def test_retry_counts_what_can_be_read_and_says_what_cannot(gatelock: Gatelock, engine: sa.Engine) -> None:
    told = gatelock("rejects", "retry", "--why", "the field was renamed", "--json")
    assert told.exit_code == 1
    assert listed(told) == [
        {"counted": 1, "left": {"bad-utf8": 1, "it has no value": 1, "only its beginning was kept": 1}}
    ]
    with engine.connect() as db:
        assert db.execute(sa.select(buckets.c["key", "value"])).all() == [("api_key:acme", 1)]
    assert gatelock("audit").exit_code == 0
    (event,) = listed(gatelock("events", "list", "--json"))
    assert (event["act"], event["about"], event["why"]) == (
        "rejects counted", "access-log[3]@5", "the field was renamed",
    )  # fmt: skip
    again = gatelock("rejects", "retry", "--why", "once more", "--reason", "bad-caller")
    assert (again.exit_code, again.output) == (0, "0 counted, 0 left\n")
    assert gatelock("rejects", "retry", "--why", " ").exit_code == 2


def test_every_reason_says_what_was_expected(gatelock: Gatelock, engine: sa.Engine) -> None:
    for reason in get_args(RejectReason):
        with engine.begin() as db:
            db.execute(sa.update(rejects).where(rejects.c.offset == 5).values(reason=reason))
        (found,) = listed(gatelock("rejects", "show", "access-log[3]@5", "--json"))
        assert found["expected"]


def test_the_overflow_is_told_by_usage_and_audit(gatelock: Gatelock, engine: sa.Engine) -> None:
    row = {
        "grouping": "caller",
        "resource": "",
        "meter": "requests",
        "width_s": 60,
        "bucket_s": 0,
        "denied": 1,
    }
    with engine.begin() as db:
        for key, value in (("api_key:acme", 2), ("overflow:", 5)):
            db.execute(sa.insert(buckets).values(**row, key=key, value=value))
        db.execute(sa.update(offsets).values(seen=13, counted=9, dead=4))
    told = gatelock("audit")
    assert "9 counted, 9 in buckets: equal" in told.output
    assert "6 of these are in overflow:" in told.output
    assert listed(gatelock("audit", "--json"))[0]["overflow"] == 6
    (found,) = listed(gatelock("usage", "--json", "--caller", "overflow:"))
    assert (found["caller"], found["value"], found["denied"]) == ("overflow:", 5, 1)
