"""Distinct values: the values of a field, each once for a slot and a series, as digests."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from analyzer.kernel.model import DistinctLayout, DistinctTable, DrainedCounts, Records, SlotLayout
from analyzer.plan.mapping import AddressField, Condition, ResourceField, TextField
from analyzer.plan.meters import Meter
from gatekeeper.identity import NameDigest
from tests.support.counters import CounterClass
from tests.support.counting import PART, Counted, a_record, mapping_of, reasons, some_records
from tests.support.recordsets import NOW_MS

ACME, ANN = "api_key:acme", "api_key:ann"
SECOND = NOW_MS // 3_600_000 * 3_600  # at which a slot of each width begins
FIELDS = {
    "resource": ResourceField(("path",), ("/items/{id}", "/search")),
    "address": AddressField(("ip",), 64),
    "user": TextField(("user",)),
    "gate": TextField(("gate",)),
    "status": TextField(("status",)),
}
MAPPING = mapping_of(FIELDS, deny_if=(Condition("gate", ("denied",)),))
PATHS = Meter("paths", "resource", "distinct")
USERS = Meter("users", "user", "distinct")
FAILED = Meter("failed", "user", "distinct", where=(Condition("status", ("401",)),))
PATHS_BY_CALLER = DistinctLayout("caller", 10, "paths")


def at(ms: int = 0, **fields: Any) -> bytes:
    """Returns a request some milliseconds after the hour begins."""
    return a_record(ts=SECOND * 1000 + ms, **fields)


def digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def entries(found: DrainedCounts) -> list[tuple[Any, ...]]:
    [table] = found.distinct
    slots_s = [bucket_s - SECOND for bucket_s in table.buckets_s]
    return list(zip(slots_s, table.keys, table.resources, table.values, strict=True))


def users_of(counted: Counted, *users: Any, **mapping: Any) -> list[int]:
    """Returns the values that records of these users have."""
    found = counted(
        mapping_of(FIELDS, **mapping), *[at(user=user) for user in users],
        meters=[USERS], distinct=[DistinctLayout("caller", 60, "users")],
    )  # fmt: skip
    assert not found.rejected
    return [value for *_, value in entries(found)]


def test_each_value_is_there_once_for_its_slot_and_series(counted: Counted) -> None:
    records = [
        at(0, path="/items/1"), at(1, path="/items/2"), at(2, path="/search"), at(9_999, path="/search"),
        at(10_000, path="/search"), at(3, path="/search", key="ann"),
    ]  # fmt: skip
    found = counted(MAPPING, *records, meters=[PATHS], distinct=[PATHS_BY_CALLER])
    items, search = digest("/items/{id}"), digest("/search")
    assert entries(found) == [
        *sorted([(0, ACME, "", items), (0, ACME, "", search)]),
        (0, ANN, "", search),
        (10, ACME, "", search),
    ]
    assert found.distinct[0][:3] == ("caller", "paths", 10)


def test_a_digest_is_the_same_on_every_machine(counted: Counted) -> None:
    assert users_of(counted, "ann") == [-8270052116146162779]


def test_a_series_may_have_a_resource_or_no_key(counted: Counted) -> None:
    layouts = [DistinctLayout("everyone", 60, "users"), DistinctLayout("caller+resource", 5, "users")]
    records = [
        at(user="ann", path="/search"),
        at(user="bob", path="/items/1"),
        at(user="bob", path="/items/2"),
    ]
    found = counted(
        MAPPING,
        *records,
        groupings=["caller", "caller+resource", "everyone"],
        meters=[USERS],
        distinct=layouts,
    )
    ann, bob = digest("ann"), digest("bob")
    assert found.distinct == [
        DistinctTable(
            "caller+resource",
            "users",
            5,
            (SECOND, SECOND),
            (ACME, ACME),
            ("/items/{id}", "/search"),
            (bob, ann),
        ),
        DistinctTable(
            "everyone", "users", 60, (SECOND, SECOND), ("", ""), ("", ""), tuple(sorted([ann, bob]))
        ),
    ]


def test_denied_requests_and_those_outside_of_the_conditions_add_no_value(counted: Counted) -> None:
    records = [
        at(user="denied", gate="denied", status=401), at(user="fine", status=200),
        at(user="tried", status=401),
    ]  # fmt: skip
    found = counted(MAPPING, *records, meters=[FAILED], distinct=[DistinctLayout("caller", 60, "failed")])
    assert entries(found) == [(0, ACME, "", digest("tried"))]


def test_a_record_without_the_field_adds_no_value(counted: Counted) -> None:
    assert users_of(counted, None, "", "ann") == [digest("ann")]
    layout = DistinctLayout("caller", 60, "users")
    assert counted(mapping_of(), at(user="ann"), meters=[USERS], distinct=[layout]).distinct == []
    assert counted(MAPPING, at(), meters=[USERS], distinct=[layout]).distinct == []


def test_values_are_compared_as_text_of_any_length(counted: Counted) -> None:
    long = "x" * 1_000
    values = users_of(counted, 7, "7", True, "true", "a\u0000b", long + "1", long + "2")
    assert values == sorted(map(digest, ["7", "true", "a\u0000b", long + "1", long + "2"]))
    [half] = users_of(counted, "\ud800")
    assert half not in map(digest, ["", "?"])


def test_addresses_have_one_spelling(counted: Counted) -> None:
    records = [
        at(ip=ip) for ip in ("::ffff:192.0.2.1", "192.0.2.1", "2001:db8::1", "2001:db8::2", "nonsense")
    ]
    found = counted(
        MAPPING, *records, meters=[Meter("addresses", "address", "distinct")],
        distinct=[DistinctLayout("caller", 60, "addresses")],
    )  # fmt: skip
    assert [value for *_, value in entries(found)] == sorted([digest("192.0.2.1"), digest("2001:db8::/64")])


def test_a_value_that_is_not_text_rejects_its_record(counted: Counted) -> None:
    found = counted(
        MAPPING, at(user=["ann"]), at(user=1.5), at(user="ann"),
        meters=[USERS], distinct=[DistinctLayout("caller", 60, "users")],
    )  # fmt: skip
    assert reasons(found) == ["bad-field", "bad-field"]
    # A meter that no layout asks for is not read.
    assert reasons(counted(MAPPING, at(user=["ann"]), meters=[USERS])) == []


def test_values_of_a_field_with_a_digest_need_its_secret(counted: Counted) -> None:
    found = set()
    for secret in ("the first of the secrets", "the second of the secrets"):
        named = NameDigest(secret)
        fields = FIELDS | {"user": TextField(("user",), named.fingerprint)}
        counts = counted(
            mapping_of(fields), at(user="ann"), at(user="ann"), at(user="\ud800"),
            meters=[USERS], distinct=[DistinctLayout("caller", 60, "users")], digests=[named],
        )  # fmt: skip
        assert len(entries(counts)) == 2
        found |= {value for *_, value in entries(counts)}
    assert len(found) == 4
    assert digest("ann") not in found


def test_a_meter_of_distinct_values_is_in_no_table(counted: Counted) -> None:
    found = counted(MAPPING, at(path="/search"), meters=[PATHS], distinct=[PATHS_BY_CALLER])
    assert [list(table.meters) for table in found.tables] == [["requests"]]
    assert {row.meter for row in found.rows} == {"requests"}
    denied = counted(MAPPING, at(path="/search", gate="denied"), meters=[PATHS], distinct=[PATHS_BY_CALLER])
    assert [verdict.values for verdict in denied.verdicts] == [(1,)]


def test_the_values_of_partitions_are_joined(counter_class: CounterClass) -> None:
    counter = counter_class({"log": MAPPING}, ["caller"], [PATHS], distinct=[PATHS_BY_CALLER])
    for number in range(2):
        part = PART._replace(number=number)
        counter.feed(some_records(0, at(path="/search"), at(path=f"/items/{number}"), part=part))
    assert len(entries(counter.drain())) == 2
    assert counter.drain().distinct == []


def test_values_in_memory_make_a_counter_full(counter_class: CounterClass) -> None:
    def is_full(users: int) -> bool:
        layout = DistinctLayout("caller", 60, "users")
        counter = counter_class({"log": MAPPING}, ["caller"], [USERS], distinct=[layout], rows_max=20)
        counter.feed(some_records(0, *[at(user=f"user-{n % users}") for n in range(40)]))
        return counter.full()

    assert is_full(19)  # and one row
    assert not is_full(18)


def test_values_do_not_change_the_width_of_buckets(counter_class: CounterClass) -> None:
    layout = DistinctLayout("caller", 1, "users")
    counter = counter_class({"log": MAPPING}, ["caller"], [USERS], distinct=[layout], rows_max=20)
    counter.feed(Records.of(PART, 0, 0, []))
    counter.feed(some_records(0, *[at(1_000 * n) for n in range(20)]))
    assert not counter.full()


@pytest.mark.parametrize(
    "layout",
    [DistinctLayout("tenant", 5, "paths"), DistinctLayout("caller", 0, "paths")],
    ids=["grouping", "width"],
)
def test_values_of_what_is_not_counted_are_an_error(
    counter_class: CounterClass, layout: DistinctLayout
) -> None:
    with pytest.raises(ValueError, match="not counted"):
        counter_class({"log": MAPPING}, ["caller"], [PATHS], distinct=[layout])


def test_slots_have_no_meter_of_distinct_values(counter_class: CounterClass) -> None:
    with pytest.raises(ValueError, match="not counted"):
        counter_class({"log": MAPPING}, ["caller"], [PATHS], slots=[SlotLayout("caller", 5, ("paths",))])
    with pytest.raises((ValueError, KeyError), match="volume"):
        counter_class({"log": MAPPING}, ["caller"], [PATHS], distinct=[DistinctLayout("caller", 5, "volume")])
