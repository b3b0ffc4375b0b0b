"""`gatelock upkeep rejects` on SQLite and PostgreSQL."""

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
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.model import CountRow, RejectReason
from analyzer.kernel.tables.schema import buckets, offsets, rejects
from tests.support.configured import source
from tests.support.stored_counts import put_counts

Gatelock = Callable[..., Any]
Configure = Callable[[str], Path]

NOW_MS = 1_795_216_000_000
READABLE = json.dumps({"ts": NOW_MS, "key": "acme"}).encode()
HOSTILE = b'{"key":"\x1b[2J\xff"'


@pytest.fixture
def configuration() -> str:
    return source("access-log")


@pytest.fixture
def engine(engine: sa.Engine) -> sa.Engine:
    SqlStore(engine, "here").activate(load(Path("gatelock.toml")).plan())
    with engine.begin() as db:
        part = {
            "cluster": "c",
            "topic_id": "t",
            "partition": 3,
            "source": "access-log",
            "topic": "access-log",
        }
        db.execute(sa.insert(offsets).values(**part, next=9, seen=4, dead=4))
        for offset, reason, sample, size in (
            (5, "bad-caller", READABLE, len(READABLE)),
            (6, "bad-utf8", HOSTILE, len(HOSTILE)),
            (7, "too-large", b"x" * 100, 2_000_000),
            (8, "tombstone", b"", None),
        ):
            row = {"offset": offset, "reason": reason, "sample": sample, "value_bytes": size}
            db.execute(sa.insert(rejects).values(**part, **row, kafka_ms=NOW_MS, at_ms=NOW_MS + offset))
    return engine


def objects(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_list_shows_place_reason_and_beginning(gatelock: Gatelock, engine: sa.Engine) -> None:
    result = gatelock("upkeep", "rejects", "list")
    assert result.exit_code == 0
    assert "access-log[3]@5" in result.output
    assert "\x1b" not in result.output
    assert "\\x1b[2J\\xff" in result.output
    found = objects(gatelock("upkeep", "rejects", "list", "--json"))
    assert [reject["offset"] for reject in found] == [8, 7, 6, 5]
    assert found[3] == {
        "record": "access-log[3]@5", "source": "access-log", "topic": "access-log", "partition": 3,
        "offset": 5, "topic_id": "t", "reason": "bad-caller", "found": "2026-11-20T23:06:40.005000Z",
        "kafka_ms": NOW_MS, "value_bytes": len(READABLE), "whole": True, "sample": READABLE.decode(),
        "sample_base64": None,
    }  # fmt: skip
    assert b64decode(found[2]["sample_base64"]) == HOSTILE


WHOLE = {5: READABLE, 6: HOSTILE}  # by offset


@pytest.mark.parametrize(
    ("options", "offsets"),
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
def test_rejects_are_selected_by_source_topic_partition_reason_and_time(
    gatelock: Gatelock, engine: sa.Engine, options: str, offsets: list[int]
) -> None:
    """All options must apply, in each command."""
    words = options.split()
    assert [
        reject["offset"] for reject in objects(gatelock("upkeep", "rejects", "list", "--json", *words))
    ] == offsets
    raw = gatelock("upkeep", "rejects", "list", "--raw", *words).stdout_bytes
    assert raw.splitlines() == [WHOLE[offset] for offset in sorted(offsets) if offset in WHOLE]
    (result,) = objects(gatelock("upkeep", "rejects", "retry", "--json", "--why", "corrected", *words))
    assert result["counted"] + sum(result["left"].values()) == len(offsets)


def test_an_age_is_measured_from_now(gatelock: Gatelock, engine: sa.Engine) -> None:
    now_ms = int(time.time() * 1000)
    with engine.begin() as db:
        for offset, ago_s in ((5, 30), (6, 90)):
            row = sa.update(rejects).where(rejects.c.offset == offset)
            db.execute(row.values(at_ms=now_ms - ago_s * 1000))
        db.execute(sa.update(rejects).where(rejects.c.offset > 6).values(at_ms=now_ms - 3 * 3_600_000))

    def since(age: str) -> list[int]:
        return [
            reject["offset"]
            for reject in objects(gatelock("upkeep", "rejects", "list", "--json", "--since", age))
        ]

    assert [since(age) for age in ("1m", "2m", "2h", "4h", "1d")] == [
        [5],
        [5, 6],
        [5, 6],
        [5, 6, 8, 7],
        [5, 6, 8, 7],
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--reason strange", "--reason strange: use one of tombstone, too-large, bad-utf8"),
        ("--since soon", "or an age: 30m, 2h, 7d"),
        ("--partition x", "--partition x: write its number, or its name: 3, 'access-log[3]'"),
        ("--partition 9999999999999999999", "write its number"),
        ("--topic other --partition access-log[3]", "--topic other: access-log[3] belongs to another topic"),
    ],
)
def test_an_invalid_option_exits_with_2_and_the_accepted_forms(
    gatelock: Gatelock, engine: sa.Engine, options: str, message: str
) -> None:
    result = gatelock("upkeep", "rejects", "list", *options.split())
    assert result.exit_code == 2
    assert message in result.stderr


def test_without_rejects_the_table_says_so(gatelock: Gatelock, engine: sa.Engine) -> None:
    assert "no rejected record matches" in gatelock("upkeep", "rejects", "list", "--reason", "future").output


def test_show_prints_what_is_expected_and_the_result_of_reading_it_today(
    gatelock: Gatelock, engine: sa.Engine
) -> None:
    result = gatelock("upkeep", "rejects", "list", "access-log[3]@5")
    assert "a caller: text in at least one of" in result.output
    assert "one of key (api_key)" in result.output
    assert "can be read: " in result.output
    assert READABLE.decode() in result.output
    (found,) = objects(gatelock("upkeep", "rejects", "list", "access-log[3]@7", "--json"))
    assert (found["whole"], found["today"]) == (False, "only its beginning was kept")
    assert gatelock("upkeep", "rejects", "list", "access-log[3]@99").exit_code == 1
    assert "does not name a record" in gatelock("upkeep", "rejects", "list", "access-log").stderr


def test_raw_records_are_printed_in_the_order_of_their_log(gatelock: Gatelock, engine: sa.Engine) -> None:
    result = gatelock("upkeep", "rejects", "list", "--raw")
    assert result.exit_code == 1
    assert result.stdout_bytes == READABLE + b"\n" + HOSTILE + b"\n"
    assert "2 left out" in result.stderr
    assert gatelock("upkeep", "rejects", "list", "--raw", "--json").exit_code == 2


def test_retry_counts_readable_records_and_reports_the_others(gatelock: Gatelock, engine: sa.Engine) -> None:
    result = gatelock("upkeep", "rejects", "retry", "--why", "the field was renamed", "--json")
    assert result.exit_code == 1
    assert objects(result) == [
        {
            "counted": 1,
            "duplicate": 0,
            "left": {"bad-utf8": 1, "it has no value": 1, "only its beginning was kept": 1},
        }
        | {"locked": 0, "freed": 0, "notices": 0, "judged": []}
    ]
    with engine.connect() as db:
        assert db.execute(sa.select(buckets.c["key", "value_0"])).all() == [("api_key:acme", 1)]
    assert gatelock("billing", "audit").exit_code == 0
    event, _activation = objects(gatelock("upkeep", "events", "list", "--json"))
    assert (event["act"], event["about"], event["why"]) == (
        "rejects counted", "access-log[3]@5", "the field was renamed",
    )  # fmt: skip
    again = gatelock("upkeep", "rejects", "retry", "--why", "once more", "--reason", "bad-caller")
    assert (again.exit_code, again.output) == (0, "0 counted, 0 left\n")
    assert gatelock("upkeep", "rejects", "retry", "--why", " ").exit_code == 2


def test_every_reason_has_an_expectation(gatelock: Gatelock, engine: sa.Engine) -> None:
    for reason in get_args(RejectReason):
        with engine.begin() as db:
            db.execute(sa.update(rejects).where(rejects.c.offset == 5).values(reason=reason))
        (found,) = objects(gatelock("upkeep", "rejects", "list", "access-log[3]@5", "--json"))
        assert found["expected"]


def test_usage_and_audit_show_the_overflow(gatelock: Gatelock, engine: sa.Engine) -> None:
    with engine.begin() as db:
        for key, value in (("api_key:acme", 2), ("overflow:", 5)):
            put_counts(db, [CountRow("caller", key, "", "requests", 60, 0, value, 1)])
        db.execute(sa.update(offsets).values(seen=13, counted=9, dead=4))
    result = gatelock("billing", "audit")
    assert "9 counted, 9 in buckets: equal" in result.output
    assert "6 of these are in overflow:" in result.output
    assert objects(gatelock("billing", "audit", "--json"))[0]["overflow"] == 6
    (found,) = objects(gatelock("usage", "--json", "--caller", "overflow:"))
    assert (found["caller"], found["value"], found["denied"]) == ("overflow:", 5, 1)
