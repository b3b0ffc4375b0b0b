"""Orders in which something was lost once."""

from __future__ import annotations

import pytest

from analyzer.callers.caller_changes import OverrideRequest, add_override
from analyzer.flush.analyzers import apply_file
from analyzer.judging.caller_limits import Subject
from analyzer.judging.sql.plans import plan_in_force
from tests.interleavings.actors import Actor, TransactionFunction, Transactions
from tests.interleavings.orders import Orders
from tests.interleavings.transactions import counting, upkeep_of
from tests.interleavings.worlds import ACME, NEW_PLAN, PARTS, PLAN, World, requests
from tests.store.simulated_analyzers import MAPPING


@pytest.mark.parametrize("world", ["one_sum"], indirect=True)
def test_a_lock_of_the_new_day_is_not_replaced_by_one_of_the_old(
    transactions: Transactions, world: World
) -> None:
    """One flush has judged by the day that ends, one by the next day. They have no total in common."""
    orders = Orders(transactions, world, ["flush-evening", "flush-tomorrow", "midnight"])
    steps = orders.run(
        ("flush-evening", "insert into locks"),
        ("midnight", None),
        ("flush-tomorrow", None),
        ("flush-evening", None),
    )
    assert "flush-tomorrow: insert into locks" in steps


def test_two_prunings_never_move_the_feeds_bound_back(transactions: Transactions, world: World) -> None:
    """The second pruning begins hours later, and deletes a version that the first one has left."""
    orders = Orders(transactions, world, ["prune", "prune", "hours"])
    steps = orders.run(("prune", "update feed"), ("hours", None), ("prune1", None), ("prune", None))
    assert "prune1: update feed" in steps


def test_a_run_that_outlived_its_lease_ends_as_lost(transactions: Transactions, world: World) -> None:
    """A process hangs between the lease and the work of its run, and another one does it meanwhile."""
    orders = Orders(transactions, world, ["job", "job", "hours"])
    steps = orders.run(("job", "select lock_changes"), ("hours", None), ("job1", None), ("job", None))
    assert steps.count("job1: insert into job_runs") == 1


def applying(source: str) -> TransactionFunction:
    """An operator's `policies apply` of a file that has one more source."""
    file = PLAN.with_sources({source: MAPPING})
    return lambda actor: apply_file(actor.engine, file, "operator", random_mark=actor.mark)


def test_a_file_that_is_applied_keeps_what_another_one_has_just_added(
    transactions: Transactions, world: World
) -> None:
    more = {"apply-web": applying("web"), "apply-shop": applying("shop")}
    orders = Orders(transactions, world, ["apply-web", "apply-shop"], more)
    orders.run(("apply-web", "lock table plans"), ("apply-shop", None), ("apply-web", None))
    plan = plan_in_force(world.engine)
    assert plan is not None
    assert sorted(plan.sources) == ["shop", "web"]


def set_hourly_limit(actor: Actor) -> object:
    """An operator gives acme, which has 30 requests in this hour, an hourly limit of 35 instead of 40."""
    asked = OverrideRequest("limit", Subject("caller", ACME), "hourly", 35)
    return add_override(actor.engine, asked, "operator", "", actor.mark)


def end_activation(actor: Actor) -> None:
    while upkeep_of(actor).continue_activation():
        pass


@pytest.mark.parametrize("world", ["filling_begun"], indirect=True)
@pytest.mark.parametrize("is_filled_first", [True, False])
def test_a_limit_that_is_lowered_while_a_sum_is_filled_holds_from_then_on(
    transactions: Transactions, world: World, is_filled_first: bool
) -> None:
    """The total of the new sum had its `next` by the limit of before, also when it was filled."""
    more = {
        "lower": set_hourly_limit,
        "end-activation": end_activation,
        "flush-few": counting(PARTS[0], requests(ACME, 6), by=(3, NEW_PLAN)),
        "flush-none": counting(PARTS[1], by=(3, NEW_PLAN)),
    }
    orders = Orders(transactions, world, ["lower", "end-activation", "flush-few", "flush-none"], more)
    last = ["end-activation", "flush-few"] if is_filled_first else ["flush-few", "end-activation"]
    orders.run(("lower", None), *((name, None) for name in (*last, "flush-none")))


@pytest.mark.parametrize("world", ["closed"], indirect=True)
def test_a_correction_of_a_caller_that_was_forgotten_has_no_name(
    transactions: Transactions, world: World
) -> None:
    """The operator knows the name, which must not come back by it."""
    orders = Orders(transactions, world, ["forget", "correct"])
    orders.run(("correct", "lock table"), ("forget", None), ("correct", None))


@pytest.mark.parametrize("world", ["due"], indirect=True)
def test_a_day_that_is_frozen_while_a_caller_is_forgotten_does_not_bring_its_name_back(
    transactions: Transactions, world: World
) -> None:
    """The snapshot of the closing has the name."""
    orders = Orders(transactions, world, ["flush-yesterday", "forget", "close-day"])
    orders.run(
        ("flush-yesterday", None),
        ("close-day", "select secrets"),
        ("forget", None),
        ("close-day", None),
    )
