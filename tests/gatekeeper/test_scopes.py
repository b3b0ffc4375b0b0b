"""Scopes: who is met by which lock, however an address is spelt, and by how many look-ups."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import chain, combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gatekeeper import ALLOWED, Gate
from gatekeeper.model import Clear, Lock, Set
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.testing import ManualClock
from gatekeeper.view.fast_path import fast_path_of
from gatekeeper.view.lock_view import EMPTY, LockView, RequestScopes, apply
from gatekeeper.view.lookup_keys import CACHED_ROUTE_CHARACTERS_MAX, normalize_route, parse_address, table_key
from tests.gatekeeper.test_view import an_update
from tests.support.feed import HandFeed, a_lock

ACME = "api_key:acme"


def a_gate(*locks: Lock) -> Gate:
    gate = Gate(FixedSource(*locks), clock=ManualClock())
    assert gate.ready(1.0)
    return gate


def is_met(lock: Lock, **asked: str) -> bool:
    return not a_gate(lock).check(**asked).allowed


def in_range(key: str) -> Lock:
    return a_lock(key, scope="range")


def on(address: str) -> Lock:
    return a_lock(address, scope="address")


# -- each scope alone, and narrowed ---------------------------------------------------------------

EACH = {
    "caller": (a_lock(ACME), {"caller": ACME}),
    "tenant": (a_lock("acme-inc", scope="tenant"), {"tenant": "acme-inc"}),
    "address": (on("192.0.2.7"), {"address": "192.0.2.7"}),
    "address 6": (on("2001:db8::7"), {"address": "2001:db8::7"}),
    "range 4": (in_range("192.0.2.0/24"), {"address": "192.0.2.7"}),
    "range 6": (in_range("2001:db8::/32"), {"address": "2001:db8::7"}),
    "resource": (a_lock("/v1/items/{id}", scope="resource"), {"resource": "/v1/items/{item_id}"}),
    "everyone": (a_lock("", scope="everyone"), {}),
}
NOT_MET = {
    "caller": "api_key:eve", "tenant": "eve-inc", "address": "198.51.100.1", "resource": "/v1/items",
}  # fmt: skip


@pytest.mark.parametrize("scope", EACH)
def test_a_lock_meets_whom_it_names_and_nobody_else(scope: str) -> None:
    lock, asked = EACH[scope]
    gate = a_gate(lock)
    assert not gate.check(**asked)
    assert gate.check(**{name: NOT_MET[name] for name in asked}).allowed is (scope != "everyone")


@pytest.mark.parametrize("scope", [scope for scope in EACH if scope != "resource"])
def test_a_resource_narrows_any_scope(scope: str) -> None:
    lock, asked = EACH[scope]
    gate = a_gate(replace(lock, resource="/v1/items/{id}"))
    assert not gate.check(**{**asked, "resource": "/v1/items/{other}"})
    for elsewhere in ({}, {"resource": "/v1/items"}, {"resource": "/v1/items/{id}/parts"}):
        assert gate.check(**asked | elsewhere).allowed


def test_what_is_asked_for_by_one_name_is_not_met_under_another() -> None:
    """A key that is spelt like an address, a tenant that is called like a caller."""
    gate = a_gate(a_lock("192.0.2.7"), a_lock(ACME, scope="tenant"), on("acme"))
    assert gate.check(ACME, address="192.0.2.7", tenant="acme", resource="192.0.2.7") is ALLOWED


# -- all at once ----------------------------------------------------------------------------------


def strictness(lock: Lock) -> tuple[int, float]:
    return ("deny", "slow", "tag").index(lock.action), -lock.until.timestamp()


EVERY_WAY = {
    "caller": ACME, "tenant": "acme-inc", "address": "192.0.2.7", "resource": "/v1/items",
}  # fmt: skip
AT_ONCE = [
    a_lock(ACME, "by caller", ends_in=10),
    a_lock("acme-inc", "by tenant", scope="tenant", ends_in=60),
    a_lock("192.0.2.7", "by address", scope="address", ends_in=20, action="tag"),
    a_lock("192.0.2.0/24", "by range", scope="range", ends_in=50, status=403),
    a_lock("192.0.0.0/8", "by a wider range", scope="range", ends_in=90, action="tag"),
    a_lock("/v1/items", "by resource", scope="resource", ends_in=30, status=503),
    a_lock("", "by all", scope="everyone", ends_in=40),
]


@pytest.mark.parametrize(
    "some", [*combinations(AT_ONCE, 1), *combinations(AT_ONCE, 2), *combinations(AT_ONCE, 3), AT_ONCE]
)
def test_the_strictest_lock_answers_and_the_others_stand_beside_it(some: tuple[Lock, ...]) -> None:
    said = a_gate(*some, a_lock("api_key:eve", "another")).check(**EVERY_WAY)
    first, *others = sorted(some, key=strictness)
    assert (said.policy, said.status, said.until) == (first.policy, first.status, first.until)
    assert said.allowed is (first.action == "tag")
    assert set(said.also) == {lock.policy for lock in others}
    assert set(said.tags) == {lock.policy for lock in some if lock.action == "tag"}


# -- addresses ------------------------------------------------------------------------------------

V6 = [
    "2001:db8::7", "2001:DB8::7", "2001:0db8:0000:0000:0000:0000:0000:0007", "2001:db8:0:0::7",
    "2001:db8::0.0.0.7", "2001:db8::7%eth0",
]  # fmt: skip
V4 = ["192.0.2.7", "::ffff:192.0.2.7", "::FFFF:c000:207", "0:0:0:0:0:ffff:192.0.2.7"]


@pytest.mark.parametrize("spelt", V6)
@pytest.mark.parametrize("locked", V6[:-1])
def test_an_ipv6_address_is_the_same_however_it_is_spelt(locked: str, spelt: str) -> None:
    assert is_met(on(locked), address=spelt)
    assert is_met(in_range(f"{locked}/64"), address=spelt)
    assert not is_met(on(locked), address="2001:db8::8")


@pytest.mark.parametrize("spelt", V4)
@pytest.mark.parametrize("locked", V4)
def test_ipv4_in_ipv6_is_the_ipv4_address(locked: str, spelt: str) -> None:
    assert is_met(on(locked), address=spelt)
    assert not is_met(on(locked), address="192.0.2.8")
    assert not is_met(on(locked), address="::192.0.2.7")  # something else, and out of use
    assert is_met(in_range("192.0.2.0/24"), address=spelt)
    assert is_met(in_range("::ffff:192.0.2.0/120"), address=spelt)


@pytest.mark.parametrize(
    "spelt", ["192.0.2.07", "192.0.2", "0xc0000207", "3221225991", "192.0.2.7 ", "192.0.2.7:80", "é"]
)
def test_what_is_no_usual_spelling_is_no_address(spelt: str) -> None:
    """Nobody gets out of a lock by this: `address` is the other end of the connection, and no header's."""
    assert not is_met(on("192.0.2.7"), address=spelt)
    assert not is_met(in_range("0.0.0.0/0"), address=spelt)


def test_a_block_may_be_locked_as_an_address() -> None:
    """Of IPv6 a log may count the first 64 bits: that is the address, then."""
    assert is_met(on("2001:db8::/64"), address="2001:db8::abcd")
    assert not is_met(on("2001:db8::/64"), address="2001:db8:0:1::")


@pytest.mark.parametrize("everything", ["0.0.0.0/0", "::/0"])
def test_a_range_may_hold_every_address_of_its_kind(everything: str) -> None:
    met = [is_met(in_range(everything), address=each) for each in ("203.0.113.9", "2001:db8::1")]
    assert met == [everything[0] == "0", everything[0] == ":"]


@st.composite
def ranges(draw: st.DrawFn) -> tuple[str, ...]:
    kind = draw(st.sampled_from([IPv4Address, IPv6Address]))
    bits = kind(0).max_prefixlen
    numbers = st.integers(0, 2**bits - 1).map(lambda n: n & ~0 << draw(st.integers(0, bits)) & 2**bits - 1)
    return tuple(
        f"{kind(draw(numbers))}/{draw(st.integers(0, bits))}" for _ in range(draw(st.integers(0, 4)))
    )


ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)


@given(st.lists(ranges(), max_size=3), ADDRESSES)
@example([("::ffff:10.0.0.0/104",)], "10.1.2.3")
def test_ranges_meet_what_the_standard_library_says_is_in_them(
    several: list[tuple[str, ...]], address: str
) -> None:
    """The slow obvious way, for IPv4 in IPv6 by hand."""
    keys = {key for some in several for key in some}
    # Of half of the ranges an address that is inside, so that some are met.
    inside = [str(ip_network(key, strict=False).network_address) for key in keys]
    gate = a_gate(*(a_lock(key, key, scope="range") for key in keys))
    for asked in (address, *inside):
        known = plain(ip_address(asked))
        wanted = {key for key in keys if known in plain_network(key)}
        said = gate.check(address=asked)
        assert {said.policy, *said.also} - {""} == wanted


def plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    return getattr(address, "ipv4_mapped", None) or address


def plain_network(key: str) -> list[object] | object:
    network = ip_network(key, strict=False)
    if network.version == 6 and network.prefixlen >= 96 and network.network_address.ipv4_mapped:
        return ip_network(f"{network.network_address.ipv4_mapped}/{network.prefixlen - 96}")
    return network


# -- the cost -------------------------------------------------------------------------------------


class Counted(dict):
    """A table that knows how often it was looked at."""

    seen = 0

    def __contains__(self, key: object) -> bool:
        Counted.seen += 1
        return super().__contains__(key)


def counting(view: LockView) -> LockView:
    return replace(view, tables={name: Counted(table) for name, table in view.tables.items()})


@pytest.fixture
def looked() -> type[Counted]:
    Counted.seen = 0
    return Counted


SAYS = {"caller": "api_key:zoe", "tenant": "z", "resource": "/z", "address": "203.0.113.1"}


@pytest.mark.parametrize("asked", [*chain(*(combinations(SAYS, n) for n in range(1, 5)))])
def test_each_scope_that_is_asked_for_costs_one_look_up(
    looked: type[Counted], asked: tuple[str, ...]
) -> None:
    """When every scope has locks, but none on a range."""
    scopes = ("caller", "tenant", "resource", "address")
    gate = a_gate(*(a_lock("198.51.100.9", scope=scope) for scope in scopes))
    gate._look = fast_path_of(counting(gate._known.view))
    assert gate.check(**{name: SAYS[name] for name in asked}) is ALLOWED
    # The caller is looked up whether there is one or not.
    assert looked.seen == len({"caller", *asked})


def test_allow_costs_one_look_up(looked: type[Counted]) -> None:
    gate = a_gate(a_lock(ACME), in_range("10.0.0.0/8"))
    gate._locked = fast_path_of(counting(gate._known.view)).callers
    assert gate.allow("api_key:zoe")
    assert looked.seen == 1


@pytest.mark.parametrize("address", ["203.0.113.1", "2001:db9::1"])
def test_only_prefix_lengths_in_use_are_looked_up(looked: type[Counted], address: str) -> None:
    """However many ranges there are of each, and as soon as the last of a length is gone, no more."""
    wide = [in_range(f"{n}.0.0.0/8") for n in range(10, 60)]
    near = [in_range(f"10.{n}.0.0/16") for n in range(50)]
    six = [in_range(f"2001:db8:{n:x}::/48") for n in range(50)]
    view = apply(EMPTY, an_update(*map(Set, wide + near + six), since=None, to=1))
    assert view.lengths == {"range4": {8: 50, 16: 50}, "range6": {48: 50}}
    fewer = apply(view, an_update(*(Clear(lock.at) for lock in near[1:] + wide + six[1:])))
    assert fewer.lengths == {"range4": {16: 1}, "range6": {48: 1}}
    for held, lengths4 in ((view, 2), (fewer, 1)):
        looked.seen = 0
        look = fast_path_of(counting(held))
        assert look.ranges is not None
        assert not look.ranges.meet(address)
        if ":" not in address:  # IPv6 is asked of the view, which looks by `get`
            assert looked.seen == lengths4


def test_without_ranges_an_address_is_not_even_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = a_gate(a_lock(ACME), a_lock("/v1", scope="resource"))
    monkeypatch.setattr("gatekeeper.view.fast_path.AddressRanges.meet", None)
    monkeypatch.setattr("gatekeeper.view.lookup_keys.parse_address", None)
    assert gate.check("api_key:zoe", address="203.0.113.1", resource="/", tenant="z") is ALLOWED


# -- routes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("locked", "asked", "met"),
    [
        ("/v1/items/{id}", "/v1/items/{item_id}", True),
        ("/v1/items/{id}", "/v1/items/{id}/", False),
        ("/v1/items/{id}", "/v1/items/7", False),
        ("/v1/{kind}/{id}", "/v1/{a}/{b}", True),
        ("/v1/{kind}", "/v1/items", False),
        ("{tenant}/x", "{other}/x", False),  # free are whole segments behind a slash
        ("/v1/a{b}", "/v1/a{c}", False),
        ("", "", False),
    ],
)
def test_routes_are_the_same_whatever_their_free_parts_are_called(locked: str, asked: str, met: bool) -> None:
    assert is_met(a_lock(locked, scope="resource"), resource=asked) is met


def test_no_path_that_is_given_for_a_route_is_remembered_at_length() -> None:
    from gatekeeper.view.lookup_keys import _normalize_route

    before = _normalize_route.cache_info().currsize
    for n in range(100):
        assert normalize_route("/{a}/" + "x" * CACHED_ROUTE_CHARACTERS_MAX + str(n)).startswith("/{}/xxx")
        assert normalize_route(f"/plain/{n}") == f"/plain/{n}"
    assert _normalize_route.cache_info().currsize == before


def test_a_place_is_where_the_gate_looks() -> None:
    """The two sides of the look-up, for every address and every way to write it."""
    for spelt in V4 + V6:
        place, known = table_key("address", spelt.partition("%")[0]), parse_address(spelt)
        assert place is not None
        assert known is not None
        assert place.key == (known.text if known.version == 4 else 1 << 128 | known.number)


def test_a_lock_moves_from_scope_to_scope_with_the_feed() -> None:
    feed, clock = HandFeed(), ManualClock()
    gate = Gate(feed, clock=clock)
    assert gate.ready(1.0)
    for lock, asked in EACH.values():
        feed.set(lock)
        clock.advance(0.5)
        assert not gate.check(**asked)
        feed.clear(lock)
        clock.advance(0.5)
        assert gate.check(**asked) is ALLOWED
        assert gate._known.view.of(RequestScopes(**asked)) == []
    assert gate._known.view.lengths == {}
