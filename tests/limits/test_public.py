"""Names that can be imported, and methods and attributes that each limiter has."""

from __future__ import annotations

import ast
import inspect

import pytest

import gatekeeper
import gatekeeper.limits
from gatekeeper.limits import AllOf, ByPlan, Concurrency, Sharded, SlidingLog, TokenBucket
from tests.house.reading import modules, within
from tests.limits.memory_kinds import KINDS
from tests.limits.oracles import StepClock

METHODS = {
    *("allow", "check", "peek", "refund", "reserve", "wait", "reset", "configure", "dump", "load"),
    *("allow_async", "check_async", "peek_async", "reserve_async", "wait_async", "enforce_async"),
    *("enforce", "guard", "ticks"),
}
ATTRIBUTES = {"name", "store", "is_awaited", "holds_permits", "overflowed"}
MANY = {"check_many", "check_many_async"}
BLOCKS = {"__enter__", "__exit__", "__aenter__", "__aexit__"}


def test_every_limiter_can_be_imported_from_the_package_itself():
    """Except what limiters return, which an application does not create."""
    classes = {
        name for name in gatekeeper.limits.__all__ if inspect.isclass(getattr(gatekeeper.limits, name))
    }
    for name in classes - {"QueueEvent", "Reservation", "Share", "WaitingJob"}:
        assert getattr(gatekeeper, name) is getattr(gatekeeper.limits, name)
    assert {*gatekeeper.__all__} <= {*dir(gatekeeper)}


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_every_limiter_of_a_rate_has_all_methods(kind):
    assert {*dir(kind.make(3, 1000, StepClock()))} >= METHODS | ATTRIBUTES | MANY | BLOCKS


def test_composites_have_all_methods_and_the_page_names_the_exceptions():
    one = SlidingLog(1, 1)
    for composite in (AllOf(one), Sharded(lambda: SlidingLog(1, 1), shards=2)):
        assert {*dir(composite)} >= METHODS | ATTRIBUTES | MANY | BLOCKS
        decisions = composite.check_many(["a", "b", "a"])
        assert [decision.allowed for decision in decisions] == [True, True, False]
    assert {*dir(ByPlan({"free": one}))} >= METHODS | ATTRIBUTES
    assert {*dir(Concurrency(1))} >= ATTRIBUTES
    assert METHODS - {*dir(Concurrency(1))} == {"reserve", "reserve_async", "ticks", "dump", "load"}


def test_the_attributes_say_what_a_guard_needs_to_know():
    bucket, workers = TokenBucket(1, 1, name="uploads"), Concurrency(1, name="workers")
    limiters = [
        bucket,
        workers,
        AllOf(bucket, name="both"),
        Sharded(lambda: TokenBucket(1, 1, name="many"), shards=2),
        ByPlan({"free": bucket}, default="free"),
        ByPlan({"free": bucket}),
    ]
    names = ["uploads", "workers", "both", "many", "uploads", ""]
    assert [limiter.name for limiter in limiters] == names
    assert [limiter.holds_permits for limiter in limiters] == [limiter is workers for limiter in limiters]
    assert not any(limiter.is_awaited for limiter in limiters)
    assert [limiter.store for limiter in limiters] == [None] * 6


def test_the_text_form_shows_class_name_and_limit():
    bucket = TokenBucket(10, 60, burst=3, name="uploads")
    assert repr(bucket) == "<TokenBucket 'uploads': 10 per 60 s, 3 at once>"
    assert repr(AllOf(bucket, name="n")) == f"<AllOf 'n': {bucket!r}>"
    assert repr(Concurrency(5, name="workers")) == "<Concurrency 'workers': 5 at the same time>"


def test_only_the_package_itself_reads_private_names_of_limiters():
    private = {"_keys", "_rule", "_shared", "_parts", "_shards", "_limiters", "_sharing", "_store"}
    found = [
        f"{module.path}:{node.lineno}: {name}"
        for module in modules().values()
        if within(module.name, "gatekeeper") and not within(module.name, "gatekeeper.limits")
        for node in ast.walk(module.tree)
        for name in private & {*names_read_by(node)}
    ]
    assert found == []


def names_read_by(node: ast.AST) -> list[str]:
    """Attributes of objects other than self, by name or by getattr."""
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in {"self", "cls"}:
        return [node.attr]
    if isinstance(node, ast.Call) and ast.unparse(node.func) in {"getattr", "setattr", "hasattr"}:
        return [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
    return []
