"""Records: values, times, numbers, conditions and resources, and the reason for a rejection."""

from __future__ import annotations

import json
from zoneinfo import ZoneInfo

import pytest

from analyzer.plan.mapping import (
    AddressField,
    Condition,
    Field,
    Not,
    NumberField,
    NumberKind,
    NumberUnit,
    ResourceField,
    TextField,
    TimeField,
    TimeUnit,
)
from analyzer.plan.meters import Meter
from analyzer.plan.timestamps import rfc3339_ms
from tests.support.counting import Counted, a_record, mapping_of, reasons, totals
from tests.support.recordsets import NOW_MS

DAY_MS = 86_400_000
FIELDS: dict[str, Field] = {"bytes": NumberField(("bytes",)), "status": TextField(("status",))}
VOLUME = Meter("volume", "bytes")

REJECTED = {
    "tombstone": None,
    "too-large": a_record(x="x" * 1000),
    "bad-utf8": a_record()[:-1] + b',"x":"\xff"',
    "bad-json": a_record()[:-1],
    "bad-caller": a_record(key=7),
    "bad-time": a_record(ts="now"),
    "bad-number": a_record(bytes="seven"),
    "bad-field": a_record(status=[429]),
    "future": a_record(ts=NOW_MS + 300_001),
    "past": a_record(ts=NOW_MS - 35 * DAY_MS - 1),
}


@pytest.mark.parametrize(("reason", "value"), REJECTED.items(), ids=REJECTED.keys())
def test_a_rejected_record_has_its_reason_and_a_sample(
    counted: Counted, reason: str, value: bytes | None
) -> None:
    mapping = mapping_of(
        FIELDS, value_bytes_max=999, deny_if=(Condition("status", ("429",)),), sample_bytes=20
    )
    found = counted(mapping, a_record(), value, a_record(), meters=[VOLUME])
    (rejected,) = found.rejected
    assert (rejected.part.topic, rejected.offset, rejected.reason) == ("access-log", 1, reason)
    assert rejected.sample == (value or b"")[:20]
    assert rejected.value_bytes == (None if value is None else len(value))
    assert rejected.kafka_ms == NOW_MS
    (progress,) = found.parts
    late = reason == "past"
    assert (progress.seen, progress.counted, progress.dead, progress.late) == (3, 2, 1 - late, late)
    assert [(row.meter, row.value) for row in found.rows] == [("requests", 2)]


@pytest.mark.parametrize(
    ("reason", "faults"),
    [
        ("bad-caller", {"key": 1, "ts": "now", "bytes": -1, "status": []}),
        ("bad-time", {"ts": "now", "bytes": -1, "status": []}),
        ("bad-number", {"ts": NOW_MS * 2, "bytes": -1, "status": []}),
        ("bad-field", {"ts": NOW_MS * 2, "status": []}),
        ("future", {"ts": NOW_MS * 2}),
    ],
)
def test_the_first_of_several_faults_is_the_reason(
    counted: Counted, reason: str, faults: dict[str, object]
) -> None:
    mapping = mapping_of(FIELDS, deny_if=(Condition("status", ("429",)),))
    assert reasons(counted(mapping, a_record(**faults), meters=[VOLUME])) == [reason]


def test_a_field_that_the_plan_does_not_need_rejects_no_record(counted: Counted) -> None:
    assert totals(counted(mapping_of(FIELDS), a_record(bytes="many", status=[], x={"y": [1e5]}))) == {
        ("api_key:acme", "requests"): (1, 0)
    }


# ------------------------------------------------------------------------------------------------- JSON

GOOD = {
    "half a surrogate pair in a field that is not read": b'"x":"\\ud800"',
    "a number beyond all floats": b'"x":1e999',
    "five thousand digits": b'"x":' + b"9" * 5000,
    "arrays in arrays": b'"x":' + b"[" * 100_000 + b"]" * 100_000,
    "objects in objects": b'"x":' + b'{"x":' * 100_000 + b"1" + b"}" * 100_000,
    "two megabytes": b'"x":"' + b"x" * 2_000_000 + b'"',
    "the key written by escapes": b'"key":"other","\\u006bey":"acme"',
    "the last of equal keys": b'"key":7,"key":"acme"',
    "control characters by escapes": b'"x":"\\u0000\\u001f\\u202e"',
}


@pytest.mark.parametrize("more", GOOD.values(), ids=GOOD.keys())
def test_unusual_but_valid_json_is_read(counted: Counted, more: bytes) -> None:
    value = a_record()[:-1] + b"," + more + b"}"
    found = counted(mapping_of(value_bytes_max=1 << 24), value)
    assert totals(found) == {("api_key:acme", "requests"): (1, 0)}


BAD = {
    "NaN": b'"x":NaN',
    "Infinity": b'"x":-Infinity',
    "a leading zero": b'"x":01',
    "a bare point": b'"x":1.',
    "a control character": b'"x":"\x01"',
    "an unknown escape": b'"x":"\\x41"',
    "a comma at the end": b'"x":1,',
    "brackets that do not match": b'"x":[1}',
    "brackets that are not closed": b'"x":' + b"[" * 100_000,
    "single quotes": b"'x':1",
    "a comment": b'"x":1/**/',
}


@pytest.mark.parametrize("more", BAD.values(), ids=BAD.keys())
def test_invalid_json_is_rejected(counted: Counted, more: bytes) -> None:
    assert reasons(counted(mapping_of(), a_record()[:-1] + b"," + more + b"}")) == ["bad-json"]


@pytest.mark.parametrize(
    "value", [b"", b"[]", b'"acme"', b"null", a_record() + b"{}", b"\xef\xbb\xbf" + a_record()]
)
def test_any_value_other_than_one_object_is_rejected(counted: Counted, value: bytes) -> None:
    assert reasons(counted(mapping_of(), value)) == ["bad-json"]


def test_half_a_character_in_each_of_two_records_makes_both_invalid(counted: Counted) -> None:
    """A counter may decode the values of several records together."""
    first, second = a_record()[:-2] + b"\xc3", b"\xa9" + a_record()
    assert reasons(counted(mapping_of(), first, second)) == ["bad-utf8", "bad-utf8"]


def test_a_path_leads_into_objects_only(counted: Counted) -> None:
    mapping = mapping_of({"user": TextField(("http", "user"))}, caller=("api_key", "user"))
    found = counted(
        mapping,
        *(
            a_record(key=None, http=http)
            for http in ({"user": "ann"}, {"user": None}, [{"user": "ann"}], "ann", 7)
        ),
        a_record(key=None)[:-1] + b',"http":{"user":"ann"},"http":null}',
        a_record(key="acme", http=None),
    )
    assert {row.key: row.value for row in found.rows} == {"api_key:acme": 1, "unnamed:": 5, "user:ann": 1}


def test_a_key_may_contain_quotation_marks_dots_and_any_letter(counted: Counted) -> None:
    mapping = mapping_of({"api_key": TextField(('a "key".\\', "ключ"))})
    value = json.dumps({"ts": NOW_MS, 'a "key".\\': {"ключ": "acme"}}).encode()
    assert totals(counted(mapping, value)) == {("api_key:acme", "requests"): (1, 0)}


# ------------------------------------------------------------------------------------------------ times


@pytest.mark.parametrize(
    ("unit", "written"),
    [
        ("s", b"1795216000.000999999999999"),
        ("s", b"1795216e3"),
        ("ms", b"1795216000000"),
        ("us", b"1795216000000999"),
        ("ns", b"1795216000000999999"),
        ("rfc3339", b'"2026-11-20T23:06:40.0009Z"'),
        ("clf", b'"21/Nov/2026:00:06:40 +0100"'),
    ],
)
def test_a_time_is_read_exactly_in_its_unit(counted: Counted, unit: TimeUnit, written: bytes) -> None:
    """Each text is the same time: the last millisecond that is not in the future."""
    mapping = mapping_of(time=TimeField(("ts",), unit))
    value = b'{"key":"acme","ts":%b}' % written
    assert not counted(mapping, value, kafka_ms=NOW_MS - 300_000).rejected
    assert reasons(counted(mapping, value, kafka_ms=NOW_MS - 300_001)) == ["future"]


def test_a_record_without_a_time_field_has_its_kafka_time(counted: Counted) -> None:
    mapping = mapping_of(time=None)
    assert [row.bucket_s for row in counted(mapping, a_record(ts=None), kafka_ms=119_999).rows] == [60]
    assert reasons(counted(mapping, a_record(ts=None), kafka_ms=None)) == ["bad-time"]
    assert reasons(counted(mapping, a_record(ts=None), kafka_ms=-1)) == ["bad-time"]


def test_a_record_without_a_kafka_time_is_bounded_by_the_calendar_alone(counted: Counted) -> None:
    last_ms = 253_339_228_800_000  # the year 9998: a window that begins later may end beyond the calendar
    found = counted(mapping_of(), *(a_record(ts=ms) for ms in (0, -1, last_ms - 1, last_ms)), kafka_ms=None)
    assert [(rejected.offset, rejected.reason) for rejected in found.rejected] == [
        (1, "bad-time"),
        (3, "bad-time"),
    ]


# ---------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("kind", "unit", "written", "amount"),
    [
        ("whole", "s", b"9007199254740992", 9007199254740992),
        ("whole", "s", b"-0", 0),
        ("decimal", "s", b"0.29", 290_000),
        ("decimal", "s", b"1.0000019", 1_000_001),
        ("decimal", "s", b"9007199254.740992", 9007199254740992),
        ("decimal", "s", b"1.5e-05", 15),
        ("decimal", "s", b"0.0009400000000000001", 940),
        ("money", "s", b"1.5e-05", 15_000),
        ("money", "s", b"1.35E-05", 13_500),
        ("money", "s", b"1e-07", 100),
        ("money", "s", b"7.5e-8", 75),
        ("money", "s", b"0.0009400000000000001", 940_000),
        ("money", "s", b"2.5e+1", 25_000_000_000),
        ("money", "s", b"12", 12_000_000_000),
        ("money", "s", b"9007199.254740992", 9007199254740992),
        ("duration", "s", b"0.004", 4_000),
        ("duration", "ms", b"0.29", 290),
        ("duration", "us", b"7.9", 7),
        ("duration", "ns", b"1999", 1),
        ("duration", "s", b"5e-324", 0),
    ],
)
def test_numbers_are_scaled_from_their_digits(
    counted: Counted, kind: NumberKind, unit: NumberUnit, written: bytes, amount: int
) -> None:
    mapping = mapping_of({"n": NumberField(("n",), kind, unit)})
    found = counted(mapping, a_record(key="one")[:-1] + b',"n":%b}' % written, meters=[Meter("n", "n")])
    assert [row.value for row in found.rows if row.meter == "n"] == ([amount] if amount else [])
    assert not found.rejected


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        *(
            ("whole", text)
            for text in (b"-1", b"1.0", b"1e3", b"9007199254740993", b'"1.0"', b'"1 "', b"true", b"[]")
        ),
        *(("money", text) for text in (b"-1e-07", b"9007199.254740993", b"1e8", b'"1e-07 "', b"true")),
        *(("decimal", text) for text in (b"-0.1", b"9007199254.740993", b"1e400", b"1e9999999999", b'".1"')),
    ],
)
def test_an_invalid_amount_is_rejected(counted: Counted, kind: NumberKind, written: bytes) -> None:
    mapping = mapping_of({"n": NumberField(("n",), kind)})
    value = a_record()[:-1] + b',"n":%b}' % written
    assert reasons(counted(mapping, value, meters=[Meter("n", "n")])) == ["bad-number"]


@pytest.mark.parametrize(
    ("kind", "unit", "written", "amount"),
    [
        ("whole", "s", b"345", 345),
        ("whole", "s", b"007", 7),
        ("decimal", "s", b"0.29", 290_000),
        ("money", "s", b"1.5e-05", 15_000),
        ("duration", "s", b"0.003", 3_000),
        ("duration", "ms", b"15e-1", 1_500),
    ],
)
def test_a_number_in_quotes_is_read(
    counted: Counted, kind: NumberKind, unit: NumberUnit, written: bytes, amount: int
) -> None:
    """nginx writes each value of its JSON in quotes, and a hyphen for none."""
    mapping = mapping_of({"n": NumberField(("n",), kind, unit, default=2)})
    records = [a_record()[:-1] + b',"n":"%b"}' % text for text in (written, b"-", b"")]
    found = counted(mapping, *records, meters=[Meter("n", "n")])
    assert [row.value for row in found.rows if row.meter == "n"] == [amount + 2 * 2]
    assert not found.rejected


@pytest.mark.parametrize(
    ("field", "written"),
    [
        (TimeField(("ts",), "s"), f"{NOW_MS // 1000}.250"),
        (TimeField(("ts",), "ms"), f"{NOW_MS + 250}"),
        (TimeField(("ts",), "rfc3339"), "2026-11-21 00:06:40,250 +0100"),
        (TimeField(("ts",), "rfc3339"), "2026-11-20T23:06:40.250 UTC"),
        (TimeField(("ts",), "rfc3339", "Europe/Berlin"), "2026-11-21T00:06:40.25"),
        (TimeField(("ts",), "rfc3339", "Europe/Berlin"), "2026-11-20T23:06:40.25Z"),
    ],
    ids=str,
)
def test_a_time_in_the_forms_of_logs_is_read(counted: Counted, field: TimeField, written: str) -> None:
    mapping = mapping_of({}, time=field, future_ms_max=250)
    assert counted(mapping, a_record(ts=written)).parts[0].counted == 1
    earlier = mapping_of({}, time=field, future_ms_max=249)
    assert reasons(counted(earlier, a_record(ts=written))) == ["future"]


def test_of_an_hour_that_a_clock_shows_twice_a_time_is_in_the_first() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    assert rfc3339_ms("2026-10-25T02:30:00", berlin) == rfc3339_ms("2026-10-25T02:30:00+02:00")
    assert rfc3339_ms("2026-03-29T02:30:00", berlin) == rfc3339_ms("2026-03-29T03:30:00+02:00")
    assert rfc3339_ms("2026-03-29T02:30:00") is None


def test_a_missing_number_is_the_default_or_rejects_the_record(counted: Counted) -> None:
    meters = [Meter("n", "n")]
    missing = [a_record(), a_record()[:-1] + b',"n":null}']
    assert totals(counted(mapping_of({"n": NumberField(("n",), default=5)}), *missing, meters=meters)) == {
        ("api_key:acme", "requests"): (2, 0),
        ("api_key:acme", "n"): (10, 0),
    }
    found = counted(mapping_of({"n": NumberField(("n",), default=None)}), *missing, meters=meters)
    assert reasons(found) == ["bad-number"] * 2


# ------------------------------------------------------------------------------- conditions and resources


def test_conditions_compare_texts_and_ranges_of_whole_numbers(counted: Counted) -> None:
    mapping = mapping_of(FIELDS, deny_if=(Condition("status", ("denied", "true", "500-599")),))
    statuses = ["denied", True, 500, "599", 600, 499, None, "", "5xx", "true", -500, "0500", 1]
    held = [bool(row.denied) for status in statuses for row in counted(mapping, a_record(status=status)).rows]
    assert held == [True, True, True, True, False, False, False, False, False, True, False, True, False]


def test_a_negated_condition_holds_for_every_value_that_can_be_compared_and_is_not_listed(
    counted: Counted,
) -> None:
    unlisted = Condition("status", Not(("denied", "500-599")))
    statuses = ["denied", 'denied;policy="x"', 500, "599", 600, "", None]
    records = [a_record(status=status) for status in statuses]
    requests, others = ("api_key:acme", "requests"), ("api_key:acme", "others")
    denied = counted(mapping_of(FIELDS, deny_if=(unlisted,)), *records)
    assert totals(denied) == {requests: (4, 3)}
    of_meter = counted(mapping_of(FIELDS), *records, meters=[Meter("others", where=(unlisted,))])
    assert totals(of_meter) == {requests: (7, 0), others: (3, 0)}
    not_mapped = mapping_of({}, deny_if=(Condition("absent", Not(("1",))),))
    assert totals(counted(not_mapped, a_record())) == {requests: (1, 0)}
    not_comparable = counted(mapping_of(FIELDS, deny_if=(unlisted,)), a_record(status=[500]))
    assert reasons(not_comparable) == ["bad-field"]


def test_a_condition_holds_for_the_header_of_a_refusal_of_any_policy(counted: Counted) -> None:
    """Envoy, Traefik and Caddy log the whole header."""
    gate, path = {"gate": TextField(("gate",))}, {"resource": ResourceField(("gate",), ("/a", "/a;b"))}
    values = ["denied", 'denied;policy="daily"', "denied;", "denied ;", "deniedx", ";denied", "x;denied", ""]
    for fields, field, condition, held in (
        (gate, "gate", "denied", [True, True, True, False, False, False, False, False]),
        (path, "resource", "/a", [False] * 8),
    ):
        mapping = mapping_of(FIELDS | fields, deny_if=(Condition(field, (condition,)),))
        rows = [row for text in values for row in counted(mapping, a_record(gate=text)).rows]
        assert [bool(row.denied) for row in rows] == held
    mapping = mapping_of(FIELDS | path, deny_if=(Condition("resource", ("/a",)),))
    assert totals(counted(mapping, a_record(gate="/a;b"))) == {("api_key:acme", "requests"): (1, 0)}


def test_a_condition_compares_a_resource_without_routes_as_its_path_without_the_query(
    counted: Counted,
) -> None:
    mapping = mapping_of(
        FIELDS | {"resource": ResourceField(("path",))}, deny_if=(Condition("resource", ("/.env",)),)
    )
    found = counted(mapping, *(a_record(path=path) for path in ("/.env", "/.env?x=1#y", "/.env/", "", None)))
    assert totals(found) == {("api_key:acme", "requests"): (3, 2)}


def test_all_conditions_must_hold(counted: Counted) -> None:
    mapping = mapping_of(
        FIELDS | {"gate": TextField(("gate",))},
        deny_if=(Condition("gate", ("no",)), Condition("status", ("429",))),
    )
    records = [a_record(gate=gate, status=status) for gate in ("no", "yes") for status in (429, 200)]
    assert totals(counted(mapping, *records)) == {("api_key:acme", "requests"): (3, 1)}


def test_a_resource_is_the_most_specific_route_that_matches(counted: Counted) -> None:
    routes = ("/v1/{kind}/{id}", "/v1/items/{id}", "/v1/items/new", "/v1/{kind}/new/{tag}", "/")
    mapping = mapping_of({"resource": ResourceField(("path",), routes, "none")})
    paths = {
        "/v1/items/7": "/v1/items/{id}",
        "/v1/items/7?x=/v1/users/7": "/v1/items/{id}",
        "/v1/items/7#new": "/v1/items/{id}",
        "/v1/items/new": "/v1/items/new",
        "/v1/users/new": "/v1/{kind}/{id}",
        "/v1/items/new/x": "/v1/{kind}/new/{tag}",
        "/": "/",
        "/v1/items/": "none",
        "/v1/items": "none",
        "/v1//7": "none",
        "v1/items/7": "none",
        "/v1/items/7/": "none",
        "/v1/a\nb/\ud800": "/v1/{kind}/{id}",
    }
    for path, resource in paths.items():
        found = counted(mapping, a_record(path=path), groupings=["resource"])
        assert [row.key for row in found.rows] == [resource], path


def test_a_record_that_lacks_the_field_of_a_grouping_has_an_empty_key(counted: Counted) -> None:
    fields: dict[str, Field] = {
        "tenant": TextField(("org",)),
        "resource": ResourceField(("path",)),
        "address": AddressField(("ip",)),
    }
    records = [a_record(), a_record(org="", path="", ip=""), a_record(org=None, path="/", ip="192.0.2.1")]
    groupings = ("tenant", "caller+resource", "address", "address/24+resource", "address6/56", "everyone")
    found = counted(mapping_of(fields), *records, groupings=groupings)
    assert {(row.grouping, row.key, row.resource): row.value for row in found.rows} == {
        ("tenant", "", ""): 3,
        ("caller+resource", "api_key:acme", ""): 2,
        ("caller+resource", "api_key:acme", "/"): 1,
        ("address", "", ""): 2,
        ("address", "192.0.2.1", ""): 1,
        ("address/24+resource", "", ""): 2,
        ("address/24+resource", "192.0.2.0/24", "/"): 1,
        ("address6/56", "", ""): 3,
        ("everyone", "", ""): 3,
    }
