"""`gatelock billing report reconcile`: lost, doubled and invented events are found, by customer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import writing
from analyzer.kernel.tables.billing_tables import referenced_names
from tests.cli.test_report_sending import (
    CALLERS,
    configuration,
    count,
    date,
    each_service,
    objects,
    on_sqlite,
    send,
    store,
)
from tests.support.billing_server import BillingServer, Fault, Received, billing_server

__all__ = ["configuration", "date", "store"]  # fixtures

Gatelock = Callable[..., Any]


@pytest.fixture
def sums(gatelock: Gatelock, engine: sa.Engine, store: SqlStore, date: str) -> dict[str, int]:
    """The sums of yesterday, which is closed."""
    sums = count(store, engine)
    gatelock("billing", "days", "close", date, "--reason", "counted", "--yes")
    return sums


def reconcile(gatelock: Gatelock, server: BillingServer, *more: str) -> Any:
    asked = ("--from", server.url, "--format", server.kind)
    return gatelock("billing", "report", "reconcile", "day", *asked, *more)


def first_row(result: Any) -> list[str]:
    """Returns the cells of the first row of a table."""
    return list(filter(None, result.stdout.splitlines()[1].split()))


def lose(server: BillingServer, customer: str, name: str) -> Received:
    """Loses the event of a customer."""
    [identifier] = [
        identifier
        for identifier, event in server.events.items()
        if (event.customer, event.name) == (customer, name)
    ]
    return server.events.pop(identifier)


@on_sqlite
@each_service
def test_sums_are_equal_and_the_customer_of_a_lost_or_doubled_event_is_named(
    gatelock: Gatelock, sums: dict[str, int], kind: str
) -> None:
    with billing_server(kind) as server:
        assert send(gatelock, server.url, kind).exit_code == 0
        equal = reconcile(gatelock, server)
        assert (equal.exit_code, equal.stdout.splitlines()[-1]) == (
            0,
            f"{2 * CALLERS} sums compared: equal",
        )
        every = objects(reconcile(gatelock, server, "--json"))
        assert len(every) == 2 * CALLERS, "each customer and meter"
        assert sum(one["acknowledged"] for one in every if one["event"] == "api_requests") == sums["requests"]
        assert {one["difference"] for one in every} == {0}
        lost = lose(server, "00042", "api_requests")
        result = reconcile(gatelock, server)
        assert result.exit_code == 1
        assert first_row(result) == ["api_requests", "00042", "43", "0", "-43"]
        assert result.stdout.splitlines()[-1] == f"{2 * CALLERS} sums compared: 1 NOT EQUAL"
        for number in range(2):
            server.events[f"again {number}"] = lost
        first, second = objects(reconcile(gatelock, server, "--json"))[:2]
        assert first == {
            "event": "api_requests", "customer": "00042", "acknowledged": 43, "at_service": 86,
            "difference": 43,
        }  # fmt: skip
        assert second["difference"] == 0


@on_sqlite
@pytest.mark.parametrize(("kind", "customer"), [("lago", "eve"), ("cloudevents", "(others)")])
def test_usage_of_a_customer_that_we_do_not_have_is_found(
    gatelock: Gatelock, sums: dict[str, int], kind: str, customer: str
) -> None:
    """Stripe has summaries by customer alone."""
    with billing_server(kind) as server:
        assert send(gatelock, server.url, kind).exit_code == 0
        one = lose(server, "00042", "busy")
        server.events |= {"a": one, "b": one._replace(customer="eve", value=7)}
        result = reconcile(gatelock, server)
        assert result.exit_code == 1
        assert first_row(result) == ["busy", customer, "0", "7", "7"]


@on_sqlite
def test_a_delivery_without_events_at_the_service_is_found(
    gatelock: Gatelock, engine: sa.Engine, sums: dict[str, int]
) -> None:
    """A row of deliveries with the right sums, for events that were never sent; no table shows it."""
    with billing_server("stripe") as server:
        assert send(gatelock, server.url, "stripe", "--meter", "requests").exit_code == 0
        server.events.clear()
        assert gatelock("billing", "days", "list").exit_code == 0
        result = reconcile(gatelock, server)
        assert result.exit_code == 1
        assert result.stdout.splitlines()[-1] == f"{CALLERS} sums compared: {CALLERS} NOT EQUAL"


@on_sqlite
def test_amounts_that_are_left_to_send_are_not_compared(
    gatelock: Gatelock, engine: sa.Engine, sums: dict[str, int]
) -> None:
    with billing_server("lago", lambda number: "redirect" if number == 3 else "") as server:
        assert send(gatelock, server.url, "lago", "--meter", "requests").exit_code == 1
        assert len(server.events) == 200, "of 250"
        result = reconcile(gatelock, server)
        assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "200 sums compared: equal")


@on_sqlite
def test_a_customer_that_is_not_known_any_more_is_a_difference(
    gatelock: Gatelock, engine: sa.Engine, sums: dict[str, int], date: str
) -> None:
    with billing_server("stripe") as server:
        assert send(gatelock, server.url, "stripe", "--meter", "requests").exit_code == 0
        with writing(engine) as db:
            db.execute(sa.delete(referenced_names).where(referenced_names.c.name == "api_key:00042"))
        result = reconcile(gatelock, server)
        assert result.exit_code == 1
        whole = sums["requests"]
        assert (
            f"{date} (UTC): requests by caller: {whole:,} acknowledged, and {whole - 43:,} is of callers "
            "whose customers are known now: NOT EQUAL"
        ) in result.stdout.splitlines()


@on_sqlite
def test_a_customer_that_stripe_does_not_have_has_nothing_there(
    gatelock: Gatelock, engine: sa.Engine, store: SqlStore, date: str
) -> None:
    count(store, engine, 1, **{"api_key:gone": 5})
    gatelock("billing", "days", "close", date, "--reason", "counted", "--yes")
    with billing_server("stripe") as server:
        assert send(gatelock, server.url, "stripe").exit_code == 0
        result = reconcile(gatelock, server)
        assert first_row(result) == ["api_requests", "gone", "5", "0", "-5"]


@on_sqlite
@pytest.mark.parametrize(
    ("fault", "arguments", "code", "why"),
    [
        ("", "day --account another", 1, "was handed over to "),
        ("", "day --token-file other", 1, "401 "),
        ("", "day --token-file other", 1, "write its key, see --token-file"),
        ("", "day --format cloudevents --account x", 1, "nothing of "),
        ("", "day --from http://192.0.2.1/", 2, "--from http://192.0.2.1/: use https"),
        (
            "",
            "day --from http://127.0.0.1:1/v2",
            2,
            "its path must end with /api/v1/events/batch",
        ),
        ("redirect", "day", 1, "redirects to 'http://127.0.0.1:1/elsewhere'; write that address"),
    ],
)
def test_a_service_that_cannot_be_asked_is_a_sentence(
    gatelock: Gatelock, sums: dict[str, int], fault: Fault, arguments: str, code: int, why: str
) -> None:
    Path("other").write_text("another\n")
    is_asked = False
    with billing_server("lago", lambda _: fault if is_asked else "") as server:
        assert send(gatelock, server.url, "lago").exit_code == 0
        is_asked = True
        words = arguments.split()
        defaults = {"--from": server.url, "--format": "lago"}
        more = [word for name, value in defaults.items() if name not in words for word in (name, value)]
        result = gatelock("billing", "report", "reconcile", *words, *more)
        assert (result.exit_code, result.stdout) == (code, "")
        assert why in result.stderr


@on_sqlite
def test_a_service_of_another_kind_and_one_without_the_meter_are_named(
    gatelock: Gatelock, engine: sa.Engine, sums: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with billing_server("cloudevents") as server:
        assert send(gatelock, server.url, "cloudevents").exit_code == 0
        monkeypatch.setattr(server, "_names", lambda: ["busy"])
        assert (
            "the service has no meter of the event api_requests: create it"
            in reconcile(gatelock, server).stderr
        )
        monkeypatch.setattr(server, "read", lambda *_: (200, {"data": []}))
        result = reconcile(gatelock, server)
        assert (result.exit_code, result.stdout) == (1, "")
        assert f"{server.url} answers in another form than this service: write its --format" in result.stderr
        monkeypatch.setattr(server, "read", lambda *_: (403, {"detail": "no scope"}))
        assert "write a key that may read meters, events and usage" in reconcile(gatelock, server).stderr
