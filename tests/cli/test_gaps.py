"""Gaps are listed and accepted, on SQLite and PostgreSQL. tests/kafka has the faults that cause them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.counting.gaps import SqlGaps
from analyzer.flush.followed_partitions import release_removed, retire
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.model import Gap, Partition
from analyzer.kernel.tables.schema import offsets
from tests.support.command_line import on_a_terminal
from tests.support.configured import source
from tests.support.servers.child import free_port

Gatelock = Callable[..., Any]
Configure = Callable[[str], Path]

SOURCE = '[[sources]]\nfile = "access.log"\nformat = "combined"\n'  # a file, so that Kafka is not needed
CORRUPT = Gap("corrupt", 70, 80, "a batch is damaged: offset 70; it can be read on at 80")
STOPPED = {
    0: Gap("recreated", 0, None, "topic access-log was deleted and created again"),
    1: Gap("retention", 40, 70, "[40, 70) was deleted before it was counted"),
    2: Gap("past-end", 30, 90, "[30, 90) was counted and is gone"),
    3: CORRUPT,
    4: Gap("corrupt", 70, None, "a batch is damaged: offset 70"),
    5: Gap("too-many-rejected", 10, 500, "too many records in a row cannot be read"),
}


def part(number: int, topic_id: str = "id-1", source: str = "access-log") -> Partition:
    return Partition("c", topic_id, number, source, "access-log")


@pytest.fixture
def configuration() -> str:
    return SOURCE


@pytest.fixture
def engine(engine: sa.Engine) -> sa.Engine:
    store = SqlStore(engine, "one:7")
    for number, gap in STOPPED.items():
        if gap.position is not None:
            store.begin(part(number), gap.position)
    SqlGaps(engine, "one:7").settle({part(number): gap for number, gap in STOPPED.items()})
    return engine


def listed(gatelock: Gatelock, *arguments: str) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in gatelock("upkeep", "sources", "list", "--gaps", "--json", *arguments).stdout.splitlines()
    ]


def accept(gatelock: Gatelock, number: int | str, to: str, *more: str, reason: str = "a reason") -> Any:
    return gatelock(
        "upkeep", "sources", "resume", f"access-log[{number}]", "--to", to, "--reason", reason, "--yes", *more
    )


def next_offsets(engine: sa.Engine) -> dict[int, int]:
    with engine.connect() as db:
        return dict(tuple(row) for row in db.execute(sa.select(offsets.c.partition, offsets.c.next)))


def test_the_list_of_partitions_says_that_some_are_stopped(gatelock: Gatelock, engine: sa.Engine) -> None:
    shown = gatelock("upkeep", "sources", "list")
    assert shown.exit_code == 1
    assert "6 stopped partitions: `gatelock upkeep sources list --gaps` says why" in shown.stderr


def test_list_shows_each_gap_and_the_commands_that_accept_it(gatelock: Gatelock, engine: sa.Engine) -> None:
    result = gatelock("upkeep", "sources", "list", "--gaps")
    assert result.exit_code == 1
    assert re.search(r"access-log\[3\]\tcorrupt\t70\t80\t", result.output)
    commands = [
        line for line in result.output.splitlines() if line.startswith("gatelock upkeep sources resume")
    ]
    shown = [command.partition(" --reason TEXT")[0].split(" --to ") for command in commands]
    assert shown == [
        [f"gatelock upkeep sources resume 'access-log[{number}]'", to]
        for number, values in enumerate(
            (["next"], ["next"], ["next"], ["next", "again"], ["OFFSET", "again"], ["again", "next"])
        )
        for to in values
    ]
    assert "continue at 80: [70, 80) is not counted" in result.output


def test_json_has_every_field(gatelock: Gatelock, engine: sa.Engine) -> None:
    found = listed(gatelock)
    assert [row["kind"] for row in found] == [gap.kind for gap in STOPPED.values()]
    found[3].pop("found")
    assert found[3] == {
        "partition": "access-log[3]", "source": "access-log", "cluster": "c", "topic_id": "id-1",
        "kind": "corrupt", "start": 70, "end": 80, "next": 80, "why": CORRUPT.why, "found_by": "one:7",
        "accepted_to": None, "accepted": None, "accepted_by": "", "reason": "", "skipped": 0,
    }  # fmt: skip


def test_without_gaps_the_exit_code_is_0(gatelock: Gatelock, migrated_url: str, configure: Configure) -> None:
    configure(f'[database]\nurl = "{migrated_url}"\n{SOURCE}')
    result = gatelock("upkeep", "sources", "list", "--gaps")
    assert (result.exit_code, result.output) == (0, "no partition is stopped\n")
    assert listed(gatelock) == []
    result = accept(gatelock, 3, "next")
    assert (result.exit_code, result.stderr) == (1, "access-log[3] is not stopped; no partition is\n")


def test_an_accepted_gap_has_operator_time_and_reason(gatelock: Gatelock, engine: sa.Engine) -> None:
    result = accept(gatelock, 3, "next", reason="  the disk of broker 2  ")
    assert (result.exit_code, result.output) == (
        0, "access-log[3]: corrupt [70, 80): continuing at 80, 10 offsets are skipped\n",
    )  # fmt: skip
    assert next_offsets(engine)[3] == 80
    assert "access-log[3]" not in gatelock("upkeep", "sources", "list", "--gaps").output
    [row] = [row for row in listed(gatelock, "--all") if row["accepted"]]
    assert (row["accepted_to"], row["reason"], row["skipped"]) == (80, "the disk of broker 2", 10)
    assert "@" in row["accepted_by"]
    [event] = [
        json.loads(line) for line in gatelock("upkeep", "events", "list", "--json").stdout.splitlines()
    ]
    assert (event["act"], event["about"]) == ("gap accepted", "access-log[3]: corrupt [70, 80), on at 80")
    assert (event["who"], event["why"]) == (row["accepted_by"], row["reason"])
    apart = datetime.fromisoformat(event["at"]) - datetime.fromisoformat(row["accepted"])
    assert abs(apart.total_seconds()) < 5
    audit = gatelock("billing", "audit")
    assert audit.exit_code == 0
    assert "skipped: access-log[3] [70, 80), corrupt: " in audit.output
    assert accept(gatelock, 3, "next").exit_code == 1, "there is nothing to change"


@pytest.mark.parametrize(
    ("number", "to", "message"),
    [
        (0, "again", "access-log[0]: reading again would not help: "),
        (1, "39", "access-log[1]: 39 is before 40: those offsets were counted"),
        (1, "55", "access-log[1]: 55 cannot be read either: `next` continues at 70"),
        (1, "again", "access-log[1]: reading again would not help: "),
        (2, "29", "access-log[2]: 29 is before 30: those offsets were counted"),
        (2, "again", "access-log[2]: reading again would not help: "),
        (3, "79", "access-log[3]: 79 cannot be read either: `next` continues at 80"),
        (3, "-1", "--to -1: write an offset, `next` or `again`"),
        (3, "soon", "--to soon: write an offset, `next` or `again`"),
        (4, "next", "access-log[4]: the next readable offset is not known (yet): write an offset"),
        (
            "x",
            "next",
            "'access-log[x]' does not name a partition; `gatelock upkeep sources list --gaps` shows the ",
        ),
        ("*", "80", "--to 80: write `next` or `again`; an offset applies to a single partition"),
        ("*", "next", "access-log[4]: the next readable offset is not known (yet): write an offset"),
    ],
)
def test_an_impossible_offset_exits_with_2_and_changes_nothing(
    gatelock: Gatelock, engine: sa.Engine, number: int | str, to: str, message: str
) -> None:
    before = next_offsets(engine)
    result = accept(gatelock, number, to)
    assert result.exit_code == 2
    assert result.stderr.startswith(message)
    assert next_offsets(engine) == before
    assert len(listed(gatelock)) == len(STOPPED)


def test_a_partition_that_is_not_stopped_exits_with_1(gatelock: Gatelock, engine: sa.Engine) -> None:
    result = accept(gatelock, 9, "next")
    assert result.exit_code == 1
    assert result.stderr.startswith("access-log[9] is not stopped; these are: access-log[0], ")


def test_an_accepted_gap_is_json(gatelock: Gatelock, engine: sa.Engine) -> None:
    result = gatelock(
        "upkeep", "sources", "resume", "access-log[3]", "--to", "next", "--reason", "disk", "--json", "--yes"
    )
    assert json.loads(result.stdout) == {
        "partition": "access-log[3]", "kind": "corrupt", "start": 70, "to": 80
    }  # fmt: skip


@pytest.mark.parametrize(("answer", "exit_code", "position"), [("", 2, 70), ("y", 0, 80)])
def test_on_a_terminal_a_gap_is_accepted_when_the_operator_agrees(
    engine: sa.Engine, answer: str, exit_code: int, position: int
) -> None:
    arguments = ("upkeep", "sources", "resume", "access-log[3]", "--to", "next", "--reason", "disk")
    code, _, shown = on_a_terminal(*arguments, answer=answer)
    assert code == exit_code
    assert "10 offsets" in shown
    assert shown.rstrip().endswith("Do it? [y/N]")
    assert next_offsets(engine)[3] == position


def test_accepting_a_gap_needs_a_reason(gatelock: Gatelock, engine: sa.Engine) -> None:
    result = gatelock("upkeep", "sources", "resume", "access-log[3]", "--to", "80")
    assert result.exit_code == 2
    assert "--reason" in result.stderr
    assert accept(gatelock, 3, "next", reason=" ").stderr.startswith("--reason: write a reason")
    assert len(listed(gatelock)) == len(STOPPED)


@pytest.mark.parametrize(
    ("number", "to", "message", "offset"),
    [
        (0, "next", "recreated [0, ?): continuing at 0", 0),
        (0, "7", "recreated [0, ?): continuing at 7, 7 offsets are skipped", 7),
        (1, "next", "retention [40, 70): continuing at 70, 30 offsets are skipped", 70),
        (2, "next", "past-end [30, 90): continuing at 30", 30),
        (2, "50", "past-end [30, 90): continuing at 50, 20 offsets are skipped", 50),
        (3, "again", "corrupt [70, 80): reading again from 70", 70),
        (4, "90", "corrupt [70, ?): continuing at 90, 20 offsets are skipped", 90),
        (5, "next", "too-many-rejected [10, 500): reading again; unreadable records up to 500", 10),
        (5, "again", "too-many-rejected [10, 500): reading again from 10", 10),
    ],
)
def test_each_kind_of_gap_can_be_accepted(
    gatelock: Gatelock, engine: sa.Engine, number: int, to: str, message: str, offset: int
) -> None:
    result = accept(gatelock, number, to)
    assert result.exit_code == 0
    assert result.output.startswith(f"access-log[{number}]: {message}")
    assert next_offsets(engine)[number] == offset
    assert len(listed(gatelock)) == len(STOPPED) - 1


def test_all_gaps_of_a_topic_can_be_accepted_together(gatelock: Gatelock, engine: sa.Engine) -> None:
    accept(gatelock, 4, "90")
    result = accept(gatelock, "*", "next")
    assert result.exit_code == 0
    assert len(result.output.splitlines()) == 5
    assert gatelock("upkeep", "sources", "list", "--gaps").exit_code == 0


def test_a_name_of_two_logs_needs_the_option_log(gatelock: Gatelock, engine: sa.Engine) -> None:
    other = part(3, "id-2", "another")
    SqlStore(engine, "one:7").begin(other, 5)
    SqlGaps(engine, "one:7").settle({other: Gap("corrupt", 5, 6, "damaged")})
    result = accept(gatelock, 3, "next")
    assert (result.exit_code, result.stderr) == (
        2, "access-log[3]: several logs of this name are stopped; choose one with --log: id-1, id-2\n",
    )  # fmt: skip
    assert "continuing at 6" in accept(gatelock, 3, "next", "--log", "id-2").output
    assert "continuing at 80" in accept(gatelock, 3, "next").output


def test_without_kafka_an_offset_that_cannot_be_checked_exits_with_3(
    gatelock: Gatelock, engine: sa.Engine, migrated_url: str, configure: Configure
) -> None:
    kafka = f'[kafka]\nbootstrap_servers = "127.0.0.1:{free_port()}"\n'
    configure(f'[database]\nurl = "{migrated_url}"\n{kafka}{source("access-log")}')
    result = accept(gatelock, 3, "5000")
    assert result.exit_code == 3
    assert result.stderr.startswith("access-log[3]: cannot find out whether the log has offset 5000: ")
    assert result.stderr.endswith("; run this again when Kafka answers\n")
    assert next_offsets(engine)[3] == 70
    assert accept(gatelock, 3, "80").exit_code == 0


def test_gaps_of_a_retired_source_are_not_listed(gatelock: Gatelock, engine: sa.Engine) -> None:
    beat_ms = sa.case((offsets.c.partition == 3, offsets.c.beat_ms), else_=1_000)
    with engine.begin() as db:
        db.execute(sa.update(offsets).values(beat_ms=1_000))
        db.execute(sa.update(offsets).values(beat_ms=beat_ms, owner="one:7"))
        db.execute(sa.update(offsets).where(offsets.c.partition == 3).values(beat_ms=2**52, owner="two:8"))
    assert retire(engine, "access-log", "ann@desk", "no longer read") == 4
    stopped = [row["partition"] for row in listed(gatelock)]
    assert stopped == ["access-log[0]", "access-log[3]"], "an analyzer still reads the source"
    assert release_removed(engine, "two", {"access.log"}) == 1
    assert listed(gatelock) == []
