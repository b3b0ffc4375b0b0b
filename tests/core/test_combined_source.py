"""Several sources as one: none makes the records of another wait, and none is left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from analyzer.sources.positions import SHORT_S, CombinedSource, Source


class GivingSource:
    """Yields a number of items in each poll, and remembers how long it was waited for."""

    def __init__(self, name: str, items: int) -> None:
        self.name = name
        self.items = items
        self.waits_s: list[float] = []

    def take(self, timeout_s: float) -> Iterator[str]:
        self.waits_s.append(timeout_s)
        yield from [self.name] * self.items


def combined(*sources: GivingSource) -> Any:
    return CombinedSource([cast("Source", source) for source in sources])


def test_an_idle_source_is_not_waited_for_while_another_has_records() -> None:
    file, topic = GivingSource("file", 0), GivingSource("topic", 2)
    source = combined(file, topic)
    for _ in range(5):
        assert list(source.take(0.1)) == ["topic", "topic"]
    assert file.waits_s == [0.05, *[SHORT_S] * 4]
    topic.items = 0
    assert list(source.take(0.1)) == []
    assert (file.waits_s[-1], topic.waits_s[-1]) == (0.05, 0.05)


def test_a_source_that_fills_each_flush_leaves_the_others_their_turn() -> None:
    file, topic = GivingSource("file", 100), GivingSource("topic", 1)
    source = combined(file, topic)
    first = [next(source.take(0.1)) for _ in range(6)]
    assert first == ["file", "topic"] * 3


def test_sources_with_records_take_turns() -> None:
    sources = [GivingSource(name, 1) for name in "abc"]
    source = combined(*sources)
    assert ["".join(source.take(0.0)) for _ in range(3)] == ["abc"] * 3
    assert "".join(combined().take(1.0)) == ""
