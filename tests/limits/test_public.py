"""What can be imported, from where, and what each limiter can do."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import gatekeeper
import gatekeeper.limits
from gatekeeper.limits import AllOf, ByPlan, Concurrency, Sharded, SlidingLog
from tests.limits.kinds import KINDS
from tests.limits.oracles import HandClock

PROTOCOL = {
    *("allow", "check", "peek", "refund", "reserve", "wait", "reset", "configure", "dump", "load"),
    *("allow_async", "check_async", "peek_async", "reserve_async", "wait_async", "enforce_async"),
    *("enforce", "guard", "ticks"),
}
MANY = {"check_many", "check_many_async"}
BLOCKS = {"__enter__", "__exit__", "__aenter__", "__aexit__"}


def test_every_limiter_can_be_imported_from_the_package_itself():
    """Their results stay where they are: nobody makes a Reservation by hand."""
    classes = {
        name for name in gatekeeper.limits.__all__ if inspect.isclass(getattr(gatekeeper.limits, name))
    }
    for name in classes - {"Reservation", "Share"}:
        assert getattr(gatekeeper, name) is getattr(gatekeeper.limits, name)
    assert {*gatekeeper.__all__} <= {*dir(gatekeeper)}


def test_importing_the_package_takes_less_than_thirty_milliseconds():
    """Of processor time, the best of five: neighbours do not count."""
    code = "import time; began = time.process_time(); import gatekeeper; print(time.process_time() - began)"
    took = [subprocess.check_output([sys.executable, "-c", code], text=True) for _ in range(5)]
    assert min(map(float, took)) < 0.030


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_every_limiter_of_a_rate_has_the_whole_protocol(kind):
    assert {*dir(kind.make(3, 1000, HandClock()))} >= PROTOCOL | MANY | BLOCKS


def test_what_is_made_of_limiters_has_it_too_and_the_page_names_what_has_not():
    one = SlidingLog(1, 1)
    for made in (AllOf(one), Sharded(lambda: SlidingLog(1, 1), shards=2)):
        assert {*dir(made)} >= PROTOCOL | MANY | BLOCKS
        assert [bool(each) for each in made.check_many(["a", "b", "a"])] == [True, True, False]
    assert {*dir(ByPlan({"free": one}))} >= PROTOCOL
    assert PROTOCOL - {*dir(Concurrency(1))} == {"reserve", "reserve_async", "ticks", "dump", "load"}
