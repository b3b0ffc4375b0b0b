"""The turns of a second count: its pace, its lease and its end, on a manual clock."""

from __future__ import annotations

import pytest

from analyzer.billing.days.counted_again import KEPT_EVERY_S, LONGEST_S, TURN_S, TooLong, Turns
from analyzer.billing.days.day_rows import Day


class World:
    """A clock that sleeping moves, and what was done."""

    def __init__(self) -> None:
        self.now_s, self.slept_s, self.kept = 0.0, 0.0, 0
        day = Day(1, "UTC", "2026-11-20", 0, 86_400, "closing")
        self.turns = Turns(day, self.keep, lambda: self.now_s, self.sleep)

    def keep(self) -> None:
        self.kept += 1

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        self.now_s += seconds

    def count(self, seconds: float) -> None:
        """Counts for a while, and tells it."""
        self.now_s += seconds
        self.turns.advanced(500)


def test_a_second_count_waits_for_as_long_as_it_counts() -> None:
    world = World()
    for _ in range(100):
        world.count(2 * TURN_S)
    assert world.slept_s == pytest.approx(world.now_s / 2)
    world = World()
    world.count(TURN_S / 2)
    assert world.slept_s == 0, "a turn is not over"


def test_a_second_count_keeps_the_lease_of_the_day() -> None:
    world = World()
    for _ in range(10):
        world.count(KEPT_EVERY_S)
    assert 9 <= world.kept <= 10


def test_a_second_count_ends_when_it_takes_too_long() -> None:
    world = World()
    world.count(LONGEST_S / 4)
    with pytest.raises(TooLong, match="within 4 hours"):
        world.count(LONGEST_S)
