"""`count_if`: a record whose condition does not hold does not count under its caller's name."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from analyzer.plan.mapping import AddressField, Condition, Field, Not, TextField
from tests.support.counting import Counted, a_record, mapping_of, reasons, totals

VICTIM = "api_key:acme"
ADDRESS, UNNAMED = "address:192.0.2.9", "unnamed:"
FIELDS: dict[str, Field] = {
    "address": AddressField(("ip",)), "status": TextField(("status",)), "user": TextField(("user",))
}  # fmt: skip
REFUSED = Condition("status", Not(("401", "403")))
MAPPING = mapping_of(FIELDS, caller=("api_key", "user"), count_if=(REFUSED,))


def callers(found: Any) -> dict[str, tuple[int, int]]:
    return {caller: counts for (caller, _), counts in totals(found).items()}


@pytest.mark.parametrize("status", [401, 403, "401", "403"])
def test_a_wrong_secret_uses_up_nothing_of_the_named_caller(counted: Counted, status: Any) -> None:
    wrong = a_record(status=status, ip="192.0.2.9", user="ann")
    found = counted(MAPPING, *[wrong] * 3, a_record(status=200, ip="192.0.2.1"))
    assert callers(found) == {ADDRESS: (3, 0), VICTIM: (1, 0)}
    [progress] = found.parts
    assert (progress.seen, progress.counted, progress.renamed) == (4, 4, 3)


@pytest.mark.parametrize("ip", [None, "", "-", "nowhere", 7, [1]], ids=str)
def test_without_an_address_it_counts_as_unnamed_and_rejects_nothing(counted: Counted, ip: Any) -> None:
    found = counted(MAPPING, a_record(status=401, ip=ip))
    assert callers(found) == {UNNAMED: (1, 0)}
    assert reasons(found) == []
    assert found.parts[0].renamed == 1


def test_a_source_without_addresses_counts_it_as_unnamed(counted: Counted) -> None:
    mapping = mapping_of({"status": TextField(("status",))}, count_if=(REFUSED,))
    assert callers(counted(mapping, a_record(status=401))) == {UNNAMED: (1, 0)}


@pytest.mark.parametrize("status", [[], {"code": 200}, 2.5, 10**30], ids=str)
@pytest.mark.parametrize("is_not", [False, True])
def test_no_condition_holds_on_a_value_that_cannot_be_compared(
    counted: Counted, status: Any, is_not: bool
) -> None:
    mapping = mapping_of(FIELDS, count_if=(Condition("status", Not(("200",)) if is_not else ("200",)),))
    found = counted(mapping, a_record(status=status, ip="192.0.2.9"), a_record(status=200 + is_not))
    assert callers(found) == {ADDRESS: (1, 0), VICTIM: (1, 0)}
    assert reasons(found) == []


def test_a_missing_status_is_none_of_the_listed_ones(counted: Counted) -> None:
    assert callers(counted(MAPPING, a_record())) == {VICTIM: (1, 0)}
    wanted = mapping_of(FIELDS, count_if=(Condition("status", ("200-299",)),))
    found = counted(wanted, a_record(), a_record(status=204), a_record(status=300))
    assert callers(found) == {UNNAMED: (2, 0), VICTIM: (1, 0)}


def test_all_conditions_must_hold(counted: Counted) -> None:
    both = mapping_of(FIELDS, count_if=(REFUSED, Condition("user", ("", "ann"))))
    records = [a_record(user="ann"), a_record(user="bob"), a_record(user="ann", status=401)]
    assert callers(counted(both, *records)) == {VICTIM: (1, 0), UNNAMED: (2, 0)}


def test_a_condition_on_a_field_that_is_not_mapped_never_holds(counted: Counted) -> None:
    absent = mapping_of(FIELDS, count_if=(Condition("absent", Not(("401",))),))
    assert callers(counted(absent, a_record(status=200))) == {UNNAMED: (1, 0)}


def test_requests_that_a_gate_denied_keep_their_caller(counted: Counted) -> None:
    """A policy may deny with the status 403: that of the gate, which checks no secret."""
    mapping = mapping_of(
        FIELDS | {"gate": TextField(("gate",))},
        count_if=(REFUSED,),
        deny_if=(Condition("gate", ("denied",)),),
    )
    found = counted(mapping, a_record(status=403, gate="denied"), a_record(status=403, ip="192.0.2.9"))
    assert callers(found) == {VICTIM: (0, 1), ADDRESS: (1, 0)}
    assert [verdict.caller for verdict in found.verdicts] == [VICTIM]


def test_records_without_a_readable_caller_are_rejected_as_before(counted: Counted) -> None:
    found = counted(MAPPING, a_record(key=None, status=401), a_record(key=7, status=401))
    assert reasons(found) == ["bad-caller"]
    assert [(row.key, row.value) for row in found.rows] == [(UNNAMED, 1)]


def test_a_record_that_gives_no_name_is_not_called_renamed(counted: Counted) -> None:
    found = counted(MAPPING, a_record(key="", status=401, ip="192.0.2.9"))
    assert callers(found) == {ADDRESS: (1, 0)}
    assert found.parts[0].renamed == 0


def test_other_groupings_and_sources_without_it_are_not_affected(counted: Counted) -> None:
    fields = FIELDS | {"tenant": TextField(("org",))}
    record = a_record(status=401, org="o1", ip="192.0.2.9")
    found = counted(mapping_of(fields, count_if=(REFUSED,)), record, groupings=("caller", "tenant"))
    assert {(row.grouping, row.key) for row in found.rows} == {("caller", ADDRESS), ("tenant", "o1")}
    for nothing in ((), UNSET):
        assert callers(counted(mapping_of(fields, count_if=nothing), record)) == {VICTIM: (1, 0)}
