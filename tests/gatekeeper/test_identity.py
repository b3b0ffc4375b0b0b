"""The typed names of callers; tests/core tests the counter with the same vectors."""

from __future__ import annotations

import pytest

from gatekeeper.identity import (
    NAME_BYTES_MAX,
    UNNAMED,
    TrustedProxies,
    address_of,
    caller_of,
    client_address,
    is_name,
    typed,
)
from tests.support.vectors import FORWARDED, VECTORS, ForwardedVector, Vector


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_each_caller_has_one_name(vector: Vector) -> None:
    assert (caller_of(prefix6=vector.prefix6, **vector.names) or UNNAMED) == vector.caller


@pytest.mark.parametrize("vector", FORWARDED, ids=str)
def test_the_log_reads_forwarded_addresses_as_the_gate_does(vector: ForwardedVector) -> None:
    proxies = TrustedProxies(vector.trusted)
    assert (client_address(vector.forwarded, trusted=proxies) or "") == vector.address
    # A gate also knows the peer, which it must trust to read the header at all.
    behind = TrustedProxies([*vector.trusted, "127.0.0.1"])
    assert behind.client("127.0.0.1", [vector.forwarded]) == vector.address


def test_a_name_has_at_most_256_bytes() -> None:
    assert is_name("x" * NAME_BYTES_MAX)
    assert not is_name("x" * (NAME_BYTES_MAX + 1))
    assert is_name("é" * 128)
    assert not is_name("é" * 128 + "x")
    assert not is_name("")


def test_a_canonical_address_does_not_change() -> None:
    """Idempotent, so that both sides may normalise."""
    for address in ("192.0.2.1", "2001:db8::1", "::"):
        assert address_of(address) == address


def test_a_network_never_passes_for_an_address() -> None:
    assert address_of("2001:db8::", 128) == "2001:db8::"
    assert address_of("2001:db8::", 64) == "2001:db8::/64"


def test_a_typed_name_begins_with_its_kind() -> None:
    assert typed("api_key", "user:ann") == "api_key:user:ann"
