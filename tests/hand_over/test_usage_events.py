"""Events: identifiers that never change, customers, and the form and the limits of each service."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.billing.hand_over.billing_services import SERVICES, Answer
from analyzer.billing.hand_over.prepared_events import examine, why_not
from analyzer.billing.hand_over.usage_events import Customers, EventMaker, InvalidCustomers
from analyzer.billing.reports.usage_amounts import is_place, parse_place, place_text
from tests.support.usage_events import DAY, SECRET, amount, event, part


def test_an_identifier_depends_on_what_makes_an_amount_one_and_on_nothing_else() -> None:
    # That of earlier versions: another one would be billed again.
    assert event().identifier == "51038c791ef7e922a64bff0e837e0aa2630aec7c"
    equal = [
        event(amount(value=9, denied=4)),
        event(amount(name="api_key:renamed")),
        event(amount(name=None)),
    ]
    assert {one.identifier for one in equal} == {event().identifier}
    others = [
        event(amount(reference="0f3d")),
        event(amount(resource="/v1/items")),
        event(amount(day="2026-03-28")),
        event(amount(number=1)),
        event(whole=part("late")),
        event(whole=part("correction")),
        event(whole=part(meter="bytes")),
        event(whole=part(grouping="tenant")),
        event(whole=part(day=DAY._replace(zone="UTC"))),
        event(whole=part(day=DAY._replace(date="2026-03-30"))),
        event(secret=b"a secret of another one....."),
    ]
    assert len({one.identifier for one in [event(), *others]}) == 1 + len(others)


def test_the_time_of_an_event_is_the_middle_of_its_day() -> None:
    assert event().at_s == 1_774_780_200  # half past twelve by clocks that were set forward
    assert SERVICES["cloudevents"].fields(event())["time"] == "2026-03-29T10:30:00Z"


@given(st.lists(st.one_of(st.integers(0, 2**62), st.text(max_size=5)), max_size=3))
def test_a_place_is_read_as_it_was_stored(values: list[int | str]) -> None:
    assert parse_place(place_text(tuple(values))) == tuple(values)


@pytest.mark.parametrize(
    ("name", "is_caller", "customer"),
    [
        ("api_key:acme", True, "acme"),
        ("user:ann:2", True, "ann:2"),
        ("address:192.0.2.1", True, ""),
        ("unnamed:", True, ""),
        ("folded:", True, ""),
        ("overflow:", True, ""),
        ("acme:x", False, "acme:x"),
        ("", False, ""),
        ("forgotten:0f3c", True, None),
    ],
)
def test_without_a_file_the_customer_is_the_name_without_its_kind(
    name: str, is_caller: bool, customer: str | None
) -> None:
    assert Customers().of(name, is_caller=is_caller) == customer


def test_a_file_says_who_is_billed(tmp_path: Path) -> None:
    file = tmp_path / "customers.csv"
    file.write_text(
        "\ufeffcaller,customer\r\napi_key:acme, cus_1\r\n\r\naddress:192.0.2.1,cus_2\r\napi_key:probe,\r\n"
    )
    customers = Customers.read(file)
    names = (
        "api_key:acme",
        "address:192.0.2.1",
        "api_key:probe",
        "api_key:new",
        "address:192.0.2.9",
        "forgotten:1",
    )
    found = [customers.of(name, is_caller=True) for name in names]
    assert found == ["cus_1", "cus_2", "", None, "", None]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the first line must be caller,customer"),
        ("customer,caller\n", "the first line must be"),
        ("caller,customer\na,b\na,c\n", r":3: write each caller once"),
        ("caller,customer\na\n", r":2: write each caller once, with its customer"),
    ],
)
def test_a_file_that_is_not_clear_is_refused(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "customers.csv"
    file.write_text(text)
    with pytest.raises(InvalidCustomers, match=why):
        Customers.read(file)


def test_each_service_gets_the_event_in_its_form() -> None:
    one = event(amount(value=-3, resource="/a"), whole=part(grouping="caller+resource"))
    assert parse_qs(SERVICES["stripe"].content([one]).decode()) == {
        "event_name": ["api_requests"],
        "identifier": [one.identifier],
        "timestamp": ["1774780200"],
        "payload[stripe_customer_id]": ["acme"],
        "payload[value]": ["-3"],
    }
    [in_lago] = json.loads(SERVICES["lago"].content([one]))["events"]
    assert in_lago == {
        "transaction_id": one.identifier,
        "external_subscription_id": "acme",
        "code": "api_requests",
        "timestamp": 1_774_780_200,
        "properties": {"value": -3, "day": "2026-03-29", "resource": "/a"},
    }
    [cloud] = json.loads(SERVICES["cloudevents"].content([one._replace(unit="bytes")]))
    required = ("specversion", "id", "source", "type", "subject")
    assert [cloud[name] for name in required] == ["1.0", one.identifier, "gatelock", "api_requests", "acme"]
    assert cloud["data"] == {"value": -3, "day": "2026-03-29", "unit": "bytes", "resource": "/a"}


def test_answers_name_what_a_service_had_already() -> None:
    first, second = event(), event(amount(reference="0f3d"))
    stripe, lago = SERVICES["stripe"].answer, SERVICES["lago"].answer
    known = {"error": {"message": f"An event already exists with identifier {first.identifier}."}}
    assert stripe(400, json.dumps(known).encode(), [first]) == Answer(frozenset({0}))
    assert stripe(400, json.dumps(known).encode(), [second]).refusal, "of another event"
    assert stripe(401, b"not JSON", [first]).refusal == "401 not JSON"
    exists = {"transaction_id": ["value_already_exist"]}

    def unprocessable(details: object) -> Answer:
        return lago(422, json.dumps({"error_details": details}).encode(), [first, second])

    assert unprocessable({"0": exists, "1": exists}) == Answer(frozenset({0, 1}))
    assert unprocessable({"1": exists}) == Answer(frozenset({1}), is_whole=False)
    assert unprocessable({"0": {"code": ["blank"]}, "1": exists}).refusal == '422 {"acme":{"code":["blank"]}}'
    assert unprocessable({"0": exists | {"code": ["blank"]}}).refusal
    assert unprocessable([]).refusal
    assert (
        SERVICES["cloudevents"].answer(400, b'{"title":"Bad Request"}', [first]).refusal == "400 Bad Request"
    )


def test_an_amount_beyond_a_limit_of_the_service_is_refused_before_anything_is_sent() -> None:
    stripe, now_s = SERVICES["stripe"], DAY.end_s + 3_600
    maker = EventMaker(SECRET, part(), Customers(), "requests", "")
    fits = examine([amount(10**15 - 1), amount(-(10**15) + 1)], maker, stripe)
    assert why_not(part(), fits, stripe, now_s, skip_unknown=False) == ""
    long = examine([amount(10**15)], maker, stripe)
    assert "1000000000000000 has more than the 15 digits" in why_not(
        part(), long, stripe, now_s, skip_unknown=False
    )
    assert why_not(part(), fits, stripe, now_s + 36 * 86_400, skip_unknown=False).endswith(
        "of the last 35 days"
    )
    assert not examine([amount(10**15)], maker, SERVICES["lago"]).too_long


def test_text_that_is_not_a_place_is_one_that_no_amount_has() -> None:
    for text in ("later", "7", '{"a": 1}', '["0f3c"]'):
        assert not is_place("frozen", parse_place(text)), text
    assert is_place("frozen", ()), "the begin"
    assert is_place("frozen", ("0f3c", ""))
    assert is_place("late", (1, "0f3c", ""))
    assert not is_place("late", ("0f3c", ""))
    assert is_place("correction", (1,))
