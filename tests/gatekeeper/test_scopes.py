"""Scopes: which locks apply to which requests, in any spelling of an address, and at which cost."""

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
from gatekeeper.view.fast_path import build_fast_path
from gatekeeper.view.lock_view import EMPTY, LockView, RequestScopes, apply
from gatekeeper.view.lookup_keys import CACHED_ROUTE_CHARACTERS_MAX, normalize_route, parse_address, table_key
from tests.gatekeeper.test_view import a_view, an_update
from tests.support.feed import HandFeed, a_lock

ACME = "api_key:acme"


def a_gate(*locks: Lock) -> Gate:
    gate = Gate(FixedSource(*locks), clock=ManualClock())
    assert gate.ready(1.0)
    return gate


def applies(lock: Lock, **request: str) -> bool:
    return not a_gate(lock).check(**request).allowed


def in_range(key: str) -> Lock:
    return a_lock(key, scope="range")


def on(address: str) -> Lock:
    return a_lock(address, scope="address")


# -- each scope alone, and narrowed to a resource --------------------------------------------------

SCOPES = {
    "caller": (a_lock(ACME), {"caller": ACME}),
    "tenant": (a_lock("acme-inc", scope="tenant"), {"tenant": "acme-inc"}),
    "address": (on("192.0.2.7"), {"address": "192.0.2.7"}),
    "address 6": (on("2001:db8::7"), {"address": "2001:db8::7"}),
    "range 4": (in_range("192.0.2.0/24"), {"address": "192.0.2.7"}),
    "range 6": (in_range("2001:db8::/32"), {"address": "2001:db8::7"}),
    "resource": (a_lock("/v1/items/{id}", scope="resource"), {"resource": "/v1/items/{item_id}"}),
    "everyone": (a_lock("", scope="everyone"), {}),
}
UNLOCKED = {
    "caller": "api_key:eve", "tenant": "eve-inc", "address": "198.51.100.1", "resource": "/v1/items",
}  # fmt: skip


@pytest.mark.parametrize("scope", SCOPES)
def test_a_lock_applies_to_its_scope_and_to_no_other_request(scope: str) -> None:
    lock, request = SCOPES[scope]
    gate = a_gate(lock)
    assert not gate.check(**request)
    assert gate.check(**{name: UNLOCKED[name] for name in request}).allowed is (scope != "everyone")


@pytest.mark.parametrize("scope", [scope for scope in SCOPES if scope != "resource"])
def test_any_scope_can_be_narrowed_to_a_resource(scope: str) -> None:
    lock, request = SCOPES[scope]
    gate = a_gate(replace(lock, resource="/v1/items/{id}"))
    assert not gate.check(**{**request, "resource": "/v1/items/{other}"})
    for elsewhere in ({}, {"resource": "/v1/items"}, {"resource": "/v1/items/{id}/parts"}):
        assert gate.check(**request | elsewhere).allowed


def test_a_name_is_looked_up_in_its_own_scope_only() -> None:
    """A caller spelt like an address, a tenant spelt like a caller."""
    gate = a_gate(a_lock("192.0.2.7"), a_lock(ACME, scope="tenant"), on("acme"))
    assert gate.check(ACME, address="192.0.2.7", tenant="acme", resource="192.0.2.7") is ALLOWED


# -- several scopes at once -----------------------------------------------------------------------


def strictness(lock: Lock) -> tuple[int, float]:
    return ("deny", "slow", "tag").index(lock.action), -lock.until.timestamp()


ALL_SCOPES = {
    "caller": ACME, "tenant": "acme-inc", "address": "192.0.2.7", "resource": "/v1/items",
}  # fmt: skip
LOCKS = [
    a_lock(ACME, "by caller", ends_in=10),
    a_lock("acme-inc", "by tenant", scope="tenant", ends_in=60),
    a_lock("192.0.2.7", "by address", scope="address", ends_in=20, action="tag"),
    a_lock("192.0.2.0/24", "by range", scope="range", ends_in=50, status=403),
    a_lock("192.0.0.0/8", "by a wider range", scope="range", ends_in=90, action="tag"),
    a_lock("/v1/items", "by resource", scope="resource", ends_in=30, status=503),
    a_lock("", "by all", scope="everyone", ends_in=40),
]


@pytest.mark.parametrize(
    "locks", [*combinations(LOCKS, 1), *combinations(LOCKS, 2), *combinations(LOCKS, 3), LOCKS]
)
def test_the_strictest_lock_decides_and_the_others_are_named(locks: tuple[Lock, ...]) -> None:
    decision = a_gate(*locks, a_lock("api_key:eve", "another")).check(**ALL_SCOPES)
    first, *others = sorted(locks, key=strictness)
    assert (decision.policy, decision.status, decision.until) == (first.policy, first.status, first.until)
    assert decision.allowed is (first.action == "tag")
    named = {lock.policy for lock in others if decision.allowed or lock.action == "deny"}
    assert set(decision.also) == named, "a refused client learns of nothing but what refuses it"
    assert set(decision.tags) == {lock.policy for lock in locks if lock.action == "tag"}


# -- addresses ------------------------------------------------------------------------------------

V6 = [
    "2001:db8::7", "2001:DB8::7", "2001:0db8:0000:0000:0000:0000:0000:0007", "2001:db8:0:0::7",
    "2001:db8::0.0.0.7", "2001:db8::7%eth0",
]  # fmt: skip
V4 = ["192.0.2.7", "::ffff:192.0.2.7", "::FFFF:c000:207", "0:0:0:0:0:ffff:192.0.2.7"]


@pytest.mark.parametrize("spelling", V6)
@pytest.mark.parametrize("locked", V6[:-1])
def test_all_spellings_of_an_ipv6_address_are_one_address(locked: str, spelling: str) -> None:
    assert applies(on(locked), address=spelling)
    assert applies(in_range(f"{locked}/64"), address=spelling)
    assert not applies(on(locked), address="2001:db8::8")


@pytest.mark.parametrize("spelling", V4)
@pytest.mark.parametrize("locked", V4)
def test_an_ipv4_mapped_address_is_the_ipv4_address(locked: str, spelling: str) -> None:
    assert applies(on(locked), address=spelling)
    assert not applies(on(locked), address="192.0.2.8")
    assert not applies(
        on(locked), address="::192.0.2.7"
    )  # IPv4-compatible addresses are another, deprecated thing
    assert applies(in_range("192.0.2.0/24"), address=spelling)
    assert applies(in_range("::ffff:192.0.2.0/120"), address=spelling)


@pytest.mark.parametrize(
    "spelling", ["192.0.2.07", "192.0.2", "0xc0000207", "3221225991", "192.0.2.7 ", "192.0.2.7:80", "é"]
)
def test_unusual_spellings_of_ipv4_are_not_addresses(spelling: str) -> None:
    """No client evades a lock by these: `address` is that of the connection, not a header's."""
    assert not applies(on("192.0.2.7"), address=spelling)
    assert not applies(in_range("0.0.0.0/0"), address=spelling)


def test_a_block_may_be_locked_in_the_scope_address() -> None:
    """A log may count the first 64 bits of an IPv6 address, and write the block as the address."""
    assert applies(on("2001:db8::/64"), address="2001:db8::abcd")
    assert not applies(on("2001:db8::/64"), address="2001:db8:0:1::")


@pytest.mark.parametrize("bits", ["9" * 5_000, "129", "-1", "", "٣", "64/64", "64 "])
def test_a_malformed_range_is_counted_and_harms_no_other_lock(bits: str) -> None:
    view = a_view(in_range(f"2001:db8::/{bits}"), a_lock(ACME))
    assert (len(view), view.ignored) == (1, {"malformed range": 1})


@pytest.mark.parametrize("key", ["0.0.0.0/0", "::/0"])
def test_a_range_may_contain_every_address_of_its_ip_version(key: str) -> None:
    found = [applies(in_range(key), address=address) for address in ("203.0.113.9", "2001:db8::1")]
    assert found == [key[0] == "0", key[0] == ":"]


@st.composite
def ranges(draw: st.DrawFn) -> tuple[str, ...]:
    version = draw(st.sampled_from([IPv4Address, IPv6Address]))
    bits = version(0).max_prefixlen
    numbers = st.integers(0, 2**bits - 1).map(lambda n: n & ~0 << draw(st.integers(0, bits)) & 2**bits - 1)
    return tuple(
        f"{version(draw(numbers))}/{draw(st.integers(0, bits))}" for _ in range(draw(st.integers(0, 4)))
    )


ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)


@given(st.lists(ranges(), max_size=3), ADDRESSES)
@example([("::ffff:10.0.0.0/104",)], "10.1.2.3")
def test_a_range_contains_the_addresses_that_the_standard_library_says(
    drawn: list[tuple[str, ...]], address: str
) -> None:
    """Against `ipaddress`, which does not treat IPv4-mapped addresses as IPv4."""
    keys = {key for keys in drawn for key in keys}
    # With the first address of each range, so that some ranges apply.
    inside = [str(ip_network(key, strict=False).network_address) for key in keys]
    gate = a_gate(*(a_lock(key, key, scope="range") for key in keys))
    for tried in (address, *inside):
        unmapped = without_mapping(ip_address(tried))
        expected = {key for key in keys if unmapped in network_without_mapping(key)}
        decision = gate.check(address=tried)
        assert {decision.policy, *decision.also} - {""} == expected


def without_mapping(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    return getattr(address, "ipv4_mapped", None) or address


def network_without_mapping(key: str) -> list[object] | object:
    network = ip_network(key, strict=False)
    if network.version == 6 and network.prefixlen >= 96 and network.network_address.ipv4_mapped:
        return ip_network(f"{network.network_address.ipv4_mapped}/{network.prefixlen - 96}")
    return network


# -- the cost -------------------------------------------------------------------------------------


class Counted(dict):
    """A table that counts its look-ups."""

    look_ups = 0

    def __contains__(self, key: object) -> bool:
        Counted.look_ups += 1
        return super().__contains__(key)


def counting(view: LockView) -> LockView:
    return replace(view, tables={name: Counted(table) for name, table in view.tables.items()})


@pytest.fixture
def counted() -> type[Counted]:
    Counted.look_ups = 0
    return Counted


REQUEST = {"caller": "api_key:zoe", "tenant": "z", "resource": "/z", "address": "203.0.113.1"}


@pytest.mark.parametrize("given", [*chain(*(combinations(REQUEST, n) for n in range(1, 5)))])
def test_each_scope_of_a_request_costs_one_look_up(counted: type[Counted], given: tuple[str, ...]) -> None:
    """Every scope has locks, but no range has one."""
    scopes = ("caller", "tenant", "resource", "address")
    gate = a_gate(*(a_lock("198.51.100.9", scope=scope) for scope in scopes))
    gate._set_fast_path(build_fast_path(counting(gate._runtime.knowledge.view)))
    assert gate.check(**{name: REQUEST[name] for name in given}) is ALLOWED
    # The caller is looked up even if it is "".
    assert counted.look_ups == len({"caller", *given})


def test_allow_costs_one_look_up(counted: type[Counted]) -> None:
    gate = a_gate(a_lock(ACME), in_range("10.0.0.0/8"))
    gate._set_fast_path(build_fast_path(counting(gate._runtime.knowledge.view)))
    assert gate.allow("api_key:zoe")
    assert counted.look_ups == 1


@pytest.mark.parametrize("address", ["203.0.113.1", "2001:db9::1"])
def test_only_prefix_lengths_in_use_are_looked_up(counted: type[Counted], address: str) -> None:
    """However many ranges there are of each length; the last range of a length takes the length with it."""
    wide = [in_range(f"{n}.0.0.0/8") for n in range(10, 60)]
    near = [in_range(f"10.{n}.0.0/16") for n in range(50)]
    six = [in_range(f"2001:db8:{n:x}::/48") for n in range(50)]
    view = apply(EMPTY, an_update(*map(Set, wide + near + six), since=None, to=1))
    assert view.lengths == {"range4": {8: 50, 16: 50}, "range6": {48: 50}}
    fewer = apply(view, an_update(*(Clear(lock.at) for lock in near[1:] + wide + six[1:])))
    assert fewer.lengths == {"range4": {16: 1}, "range6": {48: 1}}
    for locked, lengths4 in ((view, 2), (fewer, 1)):
        counted.look_ups = 0
        path = build_fast_path(counting(locked))
        assert path.ranges is not None
        assert not path.ranges.has_lock(address)
        if ":" not in address:  # IPv6 is looked up by the view, with `get`
            assert counted.look_ups == lengths4


def test_without_ranges_an_address_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = a_gate(a_lock(ACME), a_lock("/v1", scope="resource"))
    monkeypatch.setattr("gatekeeper.view.fast_path.AddressRanges.has_lock", None)
    monkeypatch.setattr("gatekeeper.view.lookup_keys.parse_address", None)
    assert gate.check("api_key:zoe", address="203.0.113.1", resource="/", tenant="z") is ALLOWED


# -- routes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("locked", "resource", "expected"),
    [
        ("/v1/items/{id}", "/v1/items/{item_id}", True),
        ("/v1/items/{id}", "/v1/items/{id}/", False),
        ("/v1/items/{id}", "/v1/items/7", False),
        ("/v1/{kind}/{id}", "/v1/{a}/{b}", True),
        ("/v1/{kind}", "/v1/items", False),
        ("{tenant}/x", "{other}/x", False),  # a parameter is a whole segment after a slash
        ("/v1/a{b}", "/v1/a{c}", False),
        ("", "", False),
    ],
)
def test_the_names_of_route_parameters_do_not_matter(locked: str, resource: str, expected: bool) -> None:
    assert applies(a_lock(locked, scope="resource"), resource=resource) is expected


def test_long_routes_and_plain_paths_are_not_cached() -> None:
    from gatekeeper.view.lookup_keys import _normalize_route

    before = _normalize_route.cache_info().currsize
    for n in range(100):
        assert normalize_route("/{a}/" + "x" * CACHED_ROUTE_CHARACTERS_MAX + str(n)).startswith("/{}/xxx")
        assert normalize_route(f"/plain/{n}") == f"/plain/{n}"
    assert _normalize_route.cache_info().currsize == before


def test_locks_and_requests_use_the_same_key_for_an_address() -> None:
    for spelling in V4 + V6:
        stored, parsed = table_key("address", spelling.partition("%")[0]), parse_address(spelling)
        assert stored is not None
        assert parsed is not None
        assert stored.key == (parsed.text if parsed.version == 4 else 1 << 128 | parsed.number)


def test_locks_of_all_scopes_come_and_go_with_the_feed() -> None:
    feed, clock = HandFeed(), ManualClock()
    gate = Gate(feed, clock=clock)
    assert gate.ready(1.0)
    for lock, request in SCOPES.values():
        feed.set(lock)
        clock.advance(0.5)
        assert not gate.check(**request)
        feed.clear(lock)
        clock.advance(0.5)
        assert gate.check(**request) is ALLOWED
        assert gate._runtime.knowledge.view.matching(RequestScopes(**request)) == []
    assert gate._runtime.knowledge.view.lengths == {}
