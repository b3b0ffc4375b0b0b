"""Requests without a caller: the log counts them by address, so locks on callers `address:...` are theirs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gatekeeper import Gate, Lock
from gatekeeper.feed.saved_view import ViewFile
from gatekeeper.identity import address_of, caller_of
from gatekeeper.model import ALLOWED, Clear
from gatekeeper.testing import ManualClock
from gatekeeper.view.lock_view import apply
from tests.gatekeeper.test_view import a_view, an_update
from tests.support.feed import HandFeed, a_lock

FOUR, SIX = "192.0.2.7", "2001:db8::7"


def a_gate(*locks: Lock) -> Gate:
    gate = Gate(HandFeed(*locks), clock=ManualClock())
    assert gate.ready(1.0)
    return gate


@pytest.mark.parametrize(
    ("address", "prefix6"),
    [(FOUR, 64), (FOUR, 128), (SIX, 128), (SIX, 64), (SIX, 48), ("::ffff:192.0.2.7", 64)],
)
def test_a_request_without_a_caller_meets_the_lock_on_its_address_as_the_log_cuts_it(
    address: str, prefix6: int
) -> None:
    """The lock's name shows at how many bits the log cuts, so a gate needs no setting for it."""
    gate = a_gate(a_lock(caller_of(address=address, prefix6=prefix6)))
    decision = gate.check(address=address)
    assert (decision.allowed, decision.policy) == (False, "daily")
    assert gate.check(address="198.51.100.1") is ALLOWED
    assert gate.check(address="2001:db8:ffff::1") is ALLOWED


def test_a_request_with_a_caller_is_counted_by_it_and_does_not_meet_the_lock() -> None:
    gate = a_gate(a_lock(f"address:{FOUR}"), a_lock("2001:db8::/64", scope="address"))
    assert gate.check("api_key:acme", address=FOUR).allowed
    assert not gate.check("api_key:acme", address=SIX).allowed, "a lock in the scope `address` is on everyone"
    assert not gate.check(f"address:{FOUR}", address=FOUR).allowed
    assert gate.check(address=FOUR).also == ()


def test_the_lock_can_be_narrowed_to_a_resource() -> None:
    gate = a_gate(a_lock(f"address:{FOUR}", resource="/v1/items/{id}"))
    assert not gate.check(address=FOUR, resource="/v1/items/{number}").allowed
    assert gate.check(address=FOUR, resource="/v1/other").allowed


@pytest.mark.parametrize("caller", [f"address:{FOUR}", f"address:{SIX}", "address:2001:db8::/64"])
def test_a_lock_that_is_lifted_is_gone_from_both_places(caller: str) -> None:
    lock = a_lock(caller)
    view = a_view(lock)
    assert list(view) == [lock], "listed once"
    view = apply(view, an_update(Clear(lock.at)))
    assert (list(view), len(view), dict(view.lengths)) == ([], 0, {})


def test_a_saved_view_has_the_lock_once_and_applies_it(tmp_path: Path) -> None:
    lock, now = a_lock(f"address:{FOUR}"), datetime(2026, 1, 1, tzinfo=UTC)
    file = ViewFile(tmp_path / "view")
    file.save(a_view(lock), now, 0.0, at_once=True)
    saved = file.load(now)
    assert saved is not None
    assert len(tuple(saved.locks)) == 1


def test_every_cut_of_an_address_is_found() -> None:
    for bits in range(1, 129):
        gate = a_gate(a_lock(f"address:{address_of(SIX, bits)}"))
        assert not gate.check(address=SIX).allowed, bits
