"""Rules for values: what they cache, and mappings that cannot name a caller."""

from __future__ import annotations

import json
import sys

import pytest

from analyzer.billing.recount.single_values import parse_client
from analyzer.plan.mapping import AddressField, NumberField, SourceMapping, TextField
from analyzer.plan.value_rules import UNUSABLE, MemoizedRule, caller_rule
from tests.oracle.counter import slow_values
from tests.support.counting import counted, totals
from tests.support.vectors import FORWARDED, ForwardedVector


def test_callers_that_were_dropped_from_the_cache_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzer.plan.value_rules.CALLERS_BYTES_MAX", 700)  # some three names
    mapping = SourceMapping(caller=("api_key",), fields={"api_key": TextField(("api_key",))})
    records = [json.dumps({"api_key": f"c{n % 7}"}).encode() for n in range(70)]
    assert totals(counted(mapping, *records)) == {(f"api_key:c{n}", "requests"): (10, 0) for n in range(7)}


def test_a_rule_caches_as_many_values_as_fit_into_its_bound() -> None:
    rule = MemoizedRule(str.upper, bytes_max=100_000)
    sizes = []
    for number in range(2_000):
        rule.read([f"caller {number}"])
        sizes.append(len(rule))
    assert 300 < max(sizes) < 100_000 / (2 * sys.getsizeof("caller 1"))
    assert sizes.count(1) > 2, "it is emptied again and again"


def test_long_values_are_not_cached() -> None:
    """A log may have megabytes in place of names: they must not stay in memory."""
    rule = caller_rule("api_key", TextField(("key",)), 256)
    assert rule.read(["acme", "x" * 1000, "ann"]) == ["api_key:acme", UNUSABLE, "api_key:ann"]
    assert set(rule) == {"acme", "ann"}


@pytest.mark.parametrize("vector", FORWARDED, ids=str)
def test_a_list_of_addresses_names_the_client_behind_trusted_proxies(vector: ForwardedVector) -> None:
    """The vectors that the gate is tested by, for the counter and both recounts."""
    field = AddressField(("xff",), trusted_proxies=vector.trusted)
    rule = caller_rule("address", field, 256)
    assert rule.read([vector.forwarded]) == [f"address:{vector.address}" if vector.address else UNUSABLE]
    stored = {"prefix6": 128, "trusted_proxies": vector.trusted}
    assert parse_client(vector.forwarded, stored) == vector.address
    assert (slow_values.client_of(vector.forwarded, 128, vector.trusted) or "") == vector.address


@pytest.mark.parametrize(
    ("text", "caller"),
    [
        ("web1.example", "host:web1.example"),
        ("localhost", "host:localhost"),
        ("192.0.2.1", "address:192.0.2.1"),  # of a client whose name the server did not find
        ("192.0.2.1:4711", "address:192.0.2.1"),
        *((text, "unnamed:") for text in ("Nov", "Sun", "24", "2026-11-24T08:00:00Z", "20261124T080000Z")),
        *(
            (text, "unnamed:")
            for text in ("a,b", "web1:80", "[pod/web-1/nginx]", "[web1]", "a b", "a..b", ".")
        ),
    ],
)
def test_a_time_a_list_a_port_or_a_bracket_is_refused_as_a_host_name(text: str, caller: str) -> None:
    mapping = SourceMapping(
        caller=("host",), fields={"host": TextField(("c",)), "address": AddressField(("c",), 64)}
    )
    assert totals(counted(mapping, json.dumps({"c": text}).encode())) == {(caller, "requests"): (1, 0)}


def test_a_mapping_without_a_usable_caller_field_is_an_error() -> None:
    with pytest.raises(ValueError, match="caller: map one of the fields api_key"):
        counted(SourceMapping(caller=("api_key",), fields={"user": TextField(("user",))}))
    with pytest.raises(ValueError, match="n: a NumberField cannot name a caller"):
        counted(SourceMapping(caller=("n",), fields={"n": NumberField(("n",))}))
