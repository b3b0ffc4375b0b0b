"""Orders in which something was lost once, each with the change that let it be lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interleavings.actors import Transactions
from tests.interleavings.orders import OrderFailed, Orders
from tests.interleavings.worlds import World

# One flush has judged by the day that ends, one by the day that begins. They have no total in common.
MIDNIGHT = (
    ("flush-evening", "insert into locks"),
    ("midnight", None),
    ("flush-tomorrow", None),
    ("flush-evening", None),
)
# The second pruning is younger than a version that the first one has left.
PRUNINGS = (("prune", "update feed"), ("hours", None), ("prune1", None), ("prune", None))


@pytest.fixture
def transactions(transactions: Transactions) -> Iterator[Transactions]:
    yield transactions
    transactions.mutate({})


@pytest.mark.parametrize("world", ["one_sum"], indirect=True)
@pytest.mark.parametrize("is_mended", [True, False])
def test_a_lock_of_the_new_day_is_not_replaced_by_one_of_the_old(
    transactions: Transactions, world: World, is_mended: bool
) -> None:
    orders = Orders(transactions, world, ["flush-evening", "flush-tomorrow", "midnight"])
    if is_mended:
        assert "flush-tomorrow: insert into locks" in orders.run(*MIDNIGHT)
        return
    transactions.mutate({" WHERE locks.until_ms < excluded.until_ms": ""})
    with pytest.raises(OrderFailed, match="missing locks"):
        orders.run(*MIDNIGHT)


@pytest.mark.parametrize("is_mended", [True, False])
def test_two_prunings_never_move_the_feeds_bound_back(
    transactions: Transactions, world: World, is_mended: bool
) -> None:
    orders = Orders(transactions, world, ["prune", "prune", "hours"])
    if is_mended:
        assert "prune1: update feed" in orders.run(*PRUNINGS)
        return
    transactions.mutate({" WHERE feed.pruned_to < %(pruned_to_1)s::BIGINT": ""})
    with pytest.raises(OrderFailed, match="changes are missing"):
        orders.run(*PRUNINGS)
