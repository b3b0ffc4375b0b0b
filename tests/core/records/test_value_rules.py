"""Rules for values: what they cache, and mappings that cannot name a caller."""

from __future__ import annotations

import json
import sys

import pytest

from analyzer.core.records.mapping import NumberField, SourceMapping, TextField
from analyzer.core.records.value_rules import UNUSABLE, MemoizedRule, caller_rule
from tests.support.counting import counted, totals


def test_callers_that_were_dropped_from_the_cache_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzer.core.records.value_rules.CALLERS_BYTES_MAX", 700)  # some three names
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


def test_a_mapping_without_a_usable_caller_field_is_an_error() -> None:
    with pytest.raises(ValueError, match="caller: map one of the fields api_key"):
        counted(SourceMapping(caller=("api_key",), fields={"user": TextField(("user",))}))
    with pytest.raises(ValueError, match="n: a NumberField cannot name a caller"):
        counted(SourceMapping(caller=("n",), fields={"n": NumberField(("n",))}))
