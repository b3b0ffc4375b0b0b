"""The questions that the counts of a source raise about how it is read."""

from __future__ import annotations

import pytest

from analyzer.counting.records.reading_doubts import REQUESTS_MAX, ReadingQuestions, doubt
from analyzer.kernel.model import CountTable, DrainedCounts, Partition, PartitionProgress

PART = Partition("files", "id", 0, "web", "access.log")


def counted(keys: list[str], requests: int, *sources: str) -> DrainedCounts:
    """Returns counts of one caller or of several, with `requests` records of each source."""
    parts = [
        PartitionProgress(PART._replace(source=source), 0, 9, seen=requests, counted=requests)
        for source in sources or ("web",)
    ]
    size = len(keys)
    table = CountTable("caller", 60, ["requests"], [0] * size, keys, [""] * size, [[1] * size], [])
    return DrainedCounts(parts, [table], [])


@pytest.mark.parametrize(
    ("requests", "callers", "question"),
    [
        (99, 1, ""),
        (100, 1, "one caller has 100 % of 100 requests, host:a: a proxy in front?"),
        (1_000, 2, ""),
        (99, 99, ""),
        (100, 100, "each of 100 requests has a different caller, such as host:a: "),
        (101, 100, ""),
        (100, 0, ""),  # not counted by caller
    ],
)
def test_one_caller_for_all_and_one_for_each_are_questions(
    requests: int, callers: int, question: str
) -> None:
    assert doubt(requests, callers, "host:a").startswith(question)
    assert bool(doubt(requests, callers, "host:a")) == bool(question)


def test_a_field_with_addresses_is_named_with_the_question() -> None:
    question = doubt(100, 1, "host:a", "the last field looks like addresses")
    assert question.endswith("a proxy in front? the last field looks like addresses")


def test_an_analyzer_asks_about_a_source_once() -> None:
    questions = ReadingQuestions()
    assert questions.note(counted(["host:a"], 60)) == ""
    assert questions.note(counted(["host:a"], 60)) == (
        "web: one caller has 100 % of 120 requests, host:a: a proxy in front?"
    )
    assert questions.note(counted(["host:a"], 60)) == ""
    assert questions.note(counted(["host:a"], 60, "api", "web")) == (
        "api and web: one caller has 100 % of 120 requests, host:a: a proxy in front?"
    )


def test_a_source_with_several_callers_is_examined_no_longer_than_needed() -> None:
    questions = ReadingQuestions()
    for number in range(0, REQUESTS_MAX + 2_000, 100):
        assert questions.note(counted([f"host:{number + n}" for n in range(90)], 100)) == ""
    (tally,) = questions._tallies.values()
    assert len(tally._callers) <= REQUESTS_MAX
