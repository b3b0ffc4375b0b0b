"""Shares of a limit for several nodes."""

from __future__ import annotations

import doctest
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gatekeeper.limits.composites.split
from gatekeeper.limits import SlidingLog, split
from tests.limits.oracles import StepClock


@given(st.integers(1, 10**9), st.integers(1, 300))
def test_shares_are_exactly_the_limit_and_as_equal_as_possible(limit, nodes):
    shares = split(limit, nodes)
    assert len(shares) == nodes
    assert sum(Fraction(share.limit, share.periods) for share in shares) == limit
    assert len({share.periods for share in shares}) == 1
    assert 0 <= shares[0].limit - shares[-1].limit <= 1
    assert shares == tuple(sorted(shares, reverse=True)) == split(limit, nodes)


@given(st.integers(1, 50), st.integers(1, 80))
def test_no_share_is_empty_and_no_period_is_longer_than_necessary(limit, nodes):
    share = split(limit, nodes)[-1]
    assert share.limit >= 1
    assert share.periods == 1 or limit * (share.periods - 1) < nodes


@given(st.integers(1, 12), st.integers(1, 9), st.lists(st.integers(0, 8), max_size=80))
def test_a_fleet_of_exact_shares_keeps_the_limit(limit, nodes, visits):
    """In any stretch of the shares' periods, in any distribution of requests over nodes."""
    clock, period_s = StepClock(), 10
    fleet = [SlidingLog(share.limit, share.periods * period_s, clock=clock) for share in split(limit, nodes)]
    stretch_ns = split(limit, nodes)[0].periods * period_s * 10**9
    admitted = []
    for visit in visits:
        clock.now_ns += 1_300_000_000
        if fleet[visit % nodes].allow():
            admitted.append(clock.now_ns)
        recent = [at for at in admitted if at > clock.now_ns - stretch_ns]
        assert len(recent) <= limit * stretch_ns // (period_s * 10**9)


@pytest.mark.parametrize(("limit", "nodes"), [(0, 1), (1, 0), (1, 1.5), (-3, 2)])
def test_splitting_anything_but_whole_numbers_from_1_raises(limit, nodes):
    with pytest.raises(ValueError, match="expected a whole number"):
        split(limit, nodes)


def test_the_examples_run():
    assert doctest.testmod(gatekeeper.limits.composites.split).failed == 0
