"""Meters of distinct values, and weights of sources: the plan that they become, and faults."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from analyzer.config.diagnostics.faults import ConfigInvalid
from analyzer.config.settings import Settings
from analyzer.faces.cli.verbs.check import describe_meter
from analyzer.judging.plan_sums import plan_sums
from analyzer.plan.mapping import Condition, NumberField, TextField
from analyzer.plan.meters import REQUESTS, Meter
from analyzer.plan.plan import plan_from

Read = Callable[[str], Settings]

SOURCE = """
    [[sources]]
    topic   = "access-log"
    caller  = "user"
    [sources.fields]
    user     = "user"
    address  = "ip"
    resource = { path = "path" }
    status   = "status"
    took     = { path = "took", unit = "ms" }
    size     = "size"
    time     = { path = "ts", unit = "ms" }
"""


def meter(keys: str) -> str:
    return f'{SOURCE}\n[[meters]]\nname = "several"\n{keys}\n'


def faults(read: Read, text: str) -> list[str]:
    with pytest.raises(ConfigInvalid) as raised:
        read(text)
    return [f"{fault.where}: {fault.what}" for fault in raised.value.faults]


def test_a_meter_of_distinct_values_reads_its_field_as_text(read: Read) -> None:
    settings = read(meter('distinct = "user"\nwhere = { status = "401" }'))
    several = Meter("several", "user", "distinct", (Condition("status", ("401",)),))
    assert settings.plan().meters == (REQUESTS, several)
    assert settings.mappings()["access-log"].fields["user"] == TextField(("user",))
    assert settings.units() == {}
    assert describe_meter(several, None) == (
        "several: distinct values of user where status is 401; kept for policies only, in no report"
    )


@pytest.mark.parametrize("field", ["address", "resource", "status"])
def test_values_of_any_text_can_be_counted(read: Read, field: str) -> None:
    [_, several] = read(meter(f'distinct = "{field}"')).plan().meters
    assert (several.field, several.join) == (field, "distinct")


def test_values_of_numbers_are_a_fault(read: Read) -> None:
    for name in ("took", "time"):
        assert faults(read, meter(f'distinct = "{name}"')) == [
            f'[[meters]] "several", distinct: "{name}" is not text'
        ]
    both = meter('distinct = "size"') + '[[meters]]\nname = "size"\nsum = "size"\n'
    assert faults(read, both) == ['[[meters]] "several", distinct: "size" is not text']
    assert isinstance(
        read(both.replace('"size"\n[[', '"status"\n[[')).mappings()["access-log"].fields["size"], NumberField
    )


def test_a_field_that_no_source_has_is_a_fault(read: Read) -> None:
    [fault] = faults(read, meter('distinct = "agent"'))
    assert fault.startswith('[[meters]] "several", distinct: no field is named "agent"')


def test_a_meter_has_one_value(read: Read) -> None:
    found = faults(read, meter('distinct = "user"\nsum = "size"'))
    assert found == [
        '[[meters]] "several", distinct: a meter takes exactly one of count, sum, max and distinct'
    ]


@pytest.mark.parametrize(
    ("window", "kind", "layout"),
    [
        ('{ per = "day" }', "quota", ("caller", 60, "several")),
        ('{ rolling = "1h" }', "quota", ("caller", 300, "several")),
        ('{ rolling = "60s" }', "surge", ("caller", 5, "several")),
    ],
)
def test_a_policy_on_distinct_values_needs_the_values_of_its_window(
    read: Read, window: str, kind: str, layout: tuple[str, int, str]
) -> None:
    plan = read(meter('distinct = "user"') + on_several(f'kind = "{kind}"\nwindow = {window}')).plan()
    assert plan_sums(plan).distinct_layouts == [layout]
    assert plan_sums(plan).slot_layouts == []
    assert [(sum_.meter, sum_.join) for sum_ in plan_sums(plan).policies_by_sum] == [("several", "distinct")]


def test_distinct_values_have_no_long_rolling_windows_no_shares_and_no_units(read: Read) -> None:
    several = meter('distinct = "user"')
    [long] = faults(read, several + on_several('window = { rolling = "2h" }'))
    assert long == (
        '[[policies]] "scan", window: "several" counts distinct values, which are kept for rolling windows of'
        " at most 1h"
    )
    share = on_several('kind = "share"\nof = "everyone"\nfloor = "1/s"\nwindow = { rolling = "60s" }', "0.5")
    [shares] = faults(read, several + share)
    assert shares == '[[policies]] "scan", meter: "several" counts distinct values, which cannot be divided'
    network = on_several('kind = "surge"\nper = "address/24"\nwindow = { rolling = "60s" }')
    [one] = faults(read, several + network)
    assert one == '[[policies]] "scan", per: "address/24" would be locked for what one of its addresses does'
    sums = plan_sums(read(meter('distinct = "address"') + network).plan())
    assert (sums.distinct_layouts, sums.slot_layouts) == ([("address/24", 5, "several")], [])
    [unit] = faults(read, several + on_several('window = { per = "day" }', '"5 MB"'))
    assert unit == '[[policies]] "scan", limit: "several" has no unit'


def on_several(keys: str, limit: str = "5") -> str:
    return f'[[policies]]\nname = "scan"\nmeter = "several"\nlimit = {limit}\n{keys}\n'


WEIGHTED = SOURCE.replace('caller  = "user"', 'caller = "user"\n    weight = "size"')


def test_a_weight_makes_its_field_a_number(read: Read) -> None:
    mapping = read(WEIGHTED).mappings()["access-log"]
    assert (mapping.weight, mapping.fields["size"]) == ("size", NumberField(("size",)))


def test_a_weight_changes_the_digest_of_its_source_and_no_other(read: Read) -> None:
    plain, weighted = read(SOURCE).plan(), read(WEIGHTED).plan()
    assert "weight" not in plain.to_json()
    assert {name for name in plain.parts if plain.parts[name] != weighted.parts[name]} == {
        "source access-log"
    }
    assert plan_from(weighted.to_json()) == weighted


@pytest.mark.parametrize("name", ["took", "time", "address", "resource"])
def test_a_weight_that_is_not_a_whole_number_is_a_fault(read: Read, name: str) -> None:
    assert faults(read, WEIGHTED.replace('weight = "size"', f'weight = "{name}"')) == [
        f'[[sources]] "access-log", weight: "{name}" is not a whole number'
    ]


def test_faults_of_the_field_of_a_weight(read: Read) -> None:
    [unknown] = faults(read, WEIGHTED.replace('weight = "size"', 'weight = "sise"'))
    assert unknown == '[[sources]] "access-log", weight: no field is named "sise"'
    text = WEIGHTED.replace('size     = "size"', 'size = { path = "size", kind = "text" }')
    assert faults(read, text) == [
        '[[sources]] "access-log", fields.size.kind: must not be "text": its value is taken as a number'
    ]
    default = WEIGHTED.replace('size     = "size"', 'size = { path = "size", default = 3 }')
    assert faults(read, default) == [
        '[[sources]] "access-log", fields.size.default: '
        "has no effect: a record without a weight stands for one request"
    ]
    assert read(default + '[[meters]]\nname = "size"\nsum = "size"\n')
    assert read(WEIGHTED.replace('size     = "size"', 'size = { path = "size", required = true }'))
    distinct = WEIGHTED + '[[meters]]\nname = "several"\ndistinct = "size"\n'
    assert faults(read, distinct) == ['[[meters]] "several", distinct: "size" is not text']
    caller = WEIGHTED.replace('caller = "user"', 'caller = ["user", "size"]')
    assert faults(read, caller) == ['[[sources]] "access-log", caller: "size" cannot identify a caller']
