"""Random sequences of bookings, for limiters in memory and in a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

Step = tuple[str, int, Fraction]  # action, cost, periods that pass before


def bookings(most: int) -> st.SearchStrategy[list[Step]]:
    return st.lists(
        st.tuples(
            st.sampled_from(
                ["reserve", "reserve", "allow", "cancel the last", "cancel one", "reserve and refund"]
            ),
            st.integers(0, 2),
            st.fractions(0, 1, max_denominator=7),
        ),
        max_size=most,
    )


def assert_in_order(
    limiter: Any,
    play: Iterable[Step],
    now: Callable[[], int],
    move: Callable[[int], object],
    period: int,
    second: int,
) -> list[int]:
    """Asserts that no request overtakes a booking, with cancellations and refunds in between.

    Returns when each request passes; those whose permits are refunded do not.

    `period` and `second` are in ticks of the clock, which `now` reads and `move` moves.
    """
    passing: list[tuple[int, int, Any]] = []  # due, cost, reservation
    for action, cost, periods in play:
        move(int(periods * period))
        if action == "reserve":
            booked = limiter.reserve("a", cost)
            if booked and cost:
                due = now() + round(booked.delay * second)
                assert due >= max([now(), *(earlier for earlier, _, _ in passing)])
                passing.append((due, cost, booked))
        elif action == "allow" and limiter.allow("a", cost) and cost:
            assert all(due <= now() for due, _, _ in passing), "it overtook a booking"
            passing.append((now(), cost, None))
        elif action == "reserve and refund":  # these permits are not used
            if limiter.reserve("a", cost):
                limiter.refund("a", cost)
        elif action.startswith("cancel"):
            ahead = [n for n, (due, _, booked) in enumerate(passing) if booked and due > now()]
            if ahead:
                n = ahead[-1 if action == "cancel the last" else 0]
                passing[n][2].cancel()
                del passing[n]
    return [due for due, cost, _ in passing for _ in range(cost)]


def assert_refunds_give_nothing_back(limiter: Any, bookings_ahead: int) -> None:
    """Takes all permits of a key, then books ahead and refunds as much, several times: the key stays full."""
    while limiter.allow("a"):
        pass
    for _ in range(3):
        assert all(limiter.reserve("a") for _ in range(bookings_ahead))
        for _ in range(bookings_ahead):
            limiter.refund("a")
        assert not limiter.allow("a")
        assert limiter.peek("a").remaining == 0
