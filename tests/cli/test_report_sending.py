"""`gatelock billing report send`: each event reaches the service once, through kills and lost answers."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.billing.days.day_rows import add_day
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import writing
from analyzer.kernel.model import CountRow
from analyzer.kernel.tables.billing_tables import deliveries, referenced_names
from analyzer.kernel.tables.job_tables import leases
from analyzer.plan.meters import Meter
from analyzer.plan.plan import make_plan
from tests.store.flushing import flush, now_s
from tests.support.billing_server import KEY, Fault, billing_server
from tests.support.gatelock_processes import GatelockProcess

Gatelock = Callable[..., Any]
PLAN = make_plan(["tenant", "caller+resource"], [Meter("busy", "took"), Meter("peak", "took", "max")], [])
DAY_S = 86_400
CALLERS = 250
KILLS = 3
SERVICES = ("stripe", "lago", "cloudevents")

each_service = pytest.mark.parametrize("kind", SERVICES)
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@pytest.fixture
def configuration() -> str:
    return (
        "[billing]\ngrace = 0\nrecount = 'never'\nevents = { requests = 'api_requests' }\n"
        '[[sources]]\nname = "web"\nfile = "access.log"\n'
        '[sources.fields]\ntime = { path = "t", unit = "s" }\napi_key = "key"\n'
    )


@pytest.fixture
def store(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> SqlStore:
    monkeypatch.setenv("GATELOCK_SEND_TOKEN", KEY)
    store = SqlStore(engine, "one:7")
    store.activate(PLAN)
    return store


@pytest.fixture
def date() -> str:
    """Yesterday, as a date."""
    return f"{datetime.now(UTC) - timedelta(days=1):%Y-%m-%d}"


def count(store: SqlStore, engine: sa.Engine, callers: int = CALLERS, **other: int) -> dict[str, int]:
    """Counts requests and busy time of callers yesterday; returns their sums by meter."""
    minute = (now_s(engine) - DAY_S) // 60 * 60
    amounts = {
        f"api_key:{number:05}": {"requests": number + 1, "busy": 7 * number + 1} for number in range(callers)
    }
    amounts |= {name: {"requests": value} for name, value in other.items()}
    rows = [
        CountRow("caller", name, "", meter, 60, minute, value, 0)
        for name, meters in amounts.items()
        for meter, value in meters.items()
    ]
    flush(store, PLAN, rows)
    return {meter: sum(one.get(meter, 0) for one in amounts.values()) for meter in ("requests", "busy")}


def objects(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def send(
    gatelock: Gatelock, url: str, kind: str, *more: str, what: str = "day", when: str = "yesterday"
) -> Any:
    return gatelock("billing", "report", "send", what, when, "--to", url, "--format", kind, *more)


@each_service
def test_the_service_has_what_the_report_says_and_a_second_run_sends_nothing(
    gatelock: Gatelock, engine: sa.Engine, store: SqlStore, date: str, kind: str
) -> None:
    sums = count(store, engine)
    gatelock("billing", "days", "close", date, "--reason", "counted", "--yes")
    with billing_server(kind) as server:
        first = objects(send(gatelock, server.url, kind, "--json"))
        assert {one["meter"]: (one["events"], one["amount"]) for one in first} == {
            "busy": (CALLERS, sums["busy"]),
            "peak": (0, 0),
            "requests": (CALLERS, sums["requests"]),
        }
        assert server.totals() == {"api_requests": sums["requests"], "busy": sums["busy"]}
        assert {event.customer for event in server.events.values()} == {f"{n:05}" for n in range(CALLERS)}
        requests = server.requests
        again = send(gatelock, server.url, kind)
        assert (again.exit_code, server.requests) == (0, requests)
        assert f"{date} (UTC): requests: 250 events acknowledged, " in again.stdout
        assert "nothing was left to send" in again.stdout
        events = [
            one
            for line in gatelock("billing", "report", "day", "--format", kind).stdout.splitlines()
            if (one := json.loads(line))
        ]
        name = {"stripe": "identifier", "lago": "transaction_id", "cloudevents": "id"}[kind]
        assert {event[name] for event in events} == server.events.keys(), "a file has the same identifiers"
    listed = objects(gatelock("billing", "days", "list", "--json"))
    assert {delivery["complete"] for day in listed for delivery in day["deliveries"]} == {True}
    assert gatelock("billing", "days", "list").exit_code == 0


def test_a_delivery_that_was_written_by_hand_is_found(
    gatelock: Gatelock, engine: sa.Engine, store: SqlStore, date: str
) -> None:
    """The service has received nothing, and a row says that it has."""
    sums = count(store, engine, 10)
    gatelock("billing", "days", "close", date, "--reason", "counted", "--yes")
    with billing_server("lago") as server:
        assert send(gatelock, server.url, "lago").exit_code == 0
    assert gatelock("billing", "days", "list").exit_code == 0
    assert "acknowledged" not in gatelock("billing", "audit").stdout
    [sent] = [
        one
        for one in objects(gatelock("billing", "days", "list", date, "--json"))[0]["deliveries"]
        if one["meter"] == "requests"
    ]
    assert (sent["amount"], sent["to_send"], sent["of_day"], sent["difference"]) == (
        *(sums["requests"], 0, sums["requests"], ""),
    )
    with writing(engine) as db:
        forged = sa.update(deliveries).values(events=12, amount=1836)
        db.execute(forged.where(deliveries.c.meter == "requests"))
    sentence = (
        f"{date} (UTC): requests by caller to {server.url}/api/v1/events/batch: 1,836 in 12 events "
        f"acknowledged, 0 in 0 left out, 0 in 0 left to send; the day has {sums['requests']} in 10: NOT EQUAL"
    )
    for command in (["days", "list"], ["days", "list", date], ["audit"], ["audit", "--day", date]):
        result = gatelock("billing", *command)
        assert result.exit_code == 1
        assert sentence in result.stdout.splitlines()
    assert "\tdiffers" in gatelock("billing", "days", "list").stdout
    assert "the audit of " in gatelock("doctor").stdout, "the audit of the day has stored it"


def run(url: str, kind: str) -> GatelockProcess:
    """Begins to send; its output goes to the file `sending`."""
    with Path("sending").open("wb") as output:
        return GatelockProcess(
            ["billing", "report", "send", "day", "--to", url, "--format", kind], stdout=output, stderr=output
        )


FAULTS: tuple[Fault, ...] = ("lose the request", "lose the answer", "refuse", "refuse after", "later")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("database", "kind", "seed"),
    [
        *(
            pytest.param("sqlite", kind, seed, marks=[pytest.mark.deep("another service")] if seed else [])
            for seed, kind in enumerate(SERVICES)
        ),
        pytest.param("postgresql", "stripe", 3, marks=pytest.mark.deep("the other database")),
    ],
    indirect=["database"],
)
def test_a_killed_process_leaves_no_gap_and_no_double(
    engine: sa.Engine, store: SqlStore, gatelock: Gatelock, date: str, kind: str, seed: int
) -> None:
    """SIGKILL before and after requests are stored, and every way in which an answer can be lost."""
    drawn = random.Random(seed)
    callers = 120 if kind == "stripe" else CALLERS
    sums = count(store, engine, callers)
    gatelock("billing", "days", "close", date, "--reason", "counted", "--yes")
    running: list[subprocess.Popen[str]] = []
    kills = 0

    def fault(_number: int) -> Fault:
        nonlocal kills
        drawn_now = drawn.random()
        if kills < KILLS and drawn_now < (0.04 if kind == "stripe" else 0.5):
            kills += 1
            running[-1].send_signal(signal.SIGKILL)
            return drawn.choice(("lose the request", "lose the answer"))
        rate = 0.02 if kind == "stripe" else 0.4
        return drawn.choice(FAULTS) if drawn_now > 1 - rate else ""

    with billing_server(kind, fault) as server:
        for _ in range(8):
            running.append(run(server.url, kind))
            if running[-1].wait(120) != -signal.SIGKILL:
                break
            with writing(engine) as db:
                # In place of waiting for the end of the lease that the killed process held.
                db.execute(sa.update(leases).values(until_ms=0))
        assert running[-1].returncode == 0, Path("sending").read_text()
        assert kills == KILLS, "the test kills the process"
        assert server.totals() == {"api_requests": sums["requests"], "busy": sums["busy"]}
        assert len(server.events) == 2 * callers
        assert server.repeated, "some events were sent twice, and counted once"
    with engine.connect() as db:
        stored = db.execute(sa.select(deliveries.c.meter, deliveries.c.events, deliveries.c.amount)).all()
    assert {meter: (events, amount) for meter, events, amount in stored if events} == {
        meter: (callers, amount) for meter, amount in sums.items()
    }


@on_sqlite
def test_two_processes_do_not_send_to_one_destination(
    gatelock: Gatelock, engine: sa.Engine, store: SqlStore, date: str
) -> None:
    count(store, engine, 3)
    gatelock("billing", "days", "close", date, "--reason", "counted", "--yes")
    arrived, may_answer = threading.Event(), threading.Event()

    def fault(number: int) -> Fault:
        if number == 1:
            arrived.set()
            may_answer.wait(60)
        return ""

    with billing_server("lago", fault) as server:
        first = run(server.url, "lago")
        assert arrived.wait(60)
        second = send(gatelock, server.url, "lago")
        may_answer.set()
        assert (first.wait(60), second.exit_code) == (0, 1)
        assert (
            f"another process hands over to {server.url}/api/v1/events/batch; if it was killed, try again in"
            in (second.stderr)
        )


@on_sqlite
@each_service
def test_a_refused_event_stops_the_delivery_and_a_corrected_customer_continues_it(
    gatelock: Gatelock,
    engine: sa.Engine,
    store: SqlStore,
    date: str,
    kind: str,
    tmp_path: Path,
    configuration: str,
) -> None:
    sums = count(store, engine, 3)
    gatelock("billing", "days", "close", date, "--reason", "counted", "--yes")
    config = Path("gatelock.toml")
    config.write_text(config.read_text().replace("grace = 0", 'grace = 0\ncustomers_file = "customers.csv"'))
    file = Path("customers.csv")
    file.write_text("caller,customer\napi_key:00000,a\napi_key:00001,bad\n")
    with billing_server(kind) as server:
        result = send(gatelock, server.url, kind)
        assert (result.exit_code, server.requests) == (1, 0)
        assert (
            "callers without a known customer: api_key:00002. Add them to [billing] customers_file"
            in result.stderr
        )
        file.write_text(file.read_text() + "api_key:00002,\n")
        result = send(gatelock, server.url, kind)
        assert result.exit_code == 1
        assert f"{server.url} refuses " in result.stderr
        assert "bad" in result.stderr
        assert gatelock("billing", "days", "list").exit_code == 1, "it is not complete"
        file.write_text(file.read_text().replace("bad", "b"))
        assert send(gatelock, server.url, kind).exit_code == 0
        assert {event.customer for event in server.events.values()} == {"a", "b"}
        last = {"requests": 3, "busy": 15}
        assert server.totals() == {
            "api_requests": sums["requests"] - last["requests"],
            "busy": sums["busy"] - last["busy"],
        }
    left_out = {
        delivery["meter"]: delivery["left_out_amount"]
        for day in objects(gatelock("billing", "days", "list", "--json"))
        for delivery in day["deliveries"]
    }
    assert left_out == last | {"peak": 0}


@on_sqlite
def test_corrections_have_other_identifiers_and_negative_amounts(
    gatelock: Gatelock, engine: sa.Engine, store: SqlStore, date: str
) -> None:
    """Booked on the open day, it is delivered when that is closed."""
    earlier = f"{datetime.now(UTC) - timedelta(days=2):%Y-%m-%d}"
    count(store, engine, 2)
    minute = (now_s(engine) - 2 * DAY_S) // 60 * 60
    before = [
        CountRow("caller", "api_key:00000", "", meter, 60, minute, 10, 0) for meter in ("requests", "peak")
    ]
    flush(store, PLAN, before)
    two_days_ago_s = now_s(engine) - 2 * DAY_S
    with writing(engine) as db:
        add_day(db, "UTC", two_days_ago_s)
    assert gatelock("billing", "days", "close", earlier, "--reason", "counted", "--yes").exit_code == 0
    late = [row._replace(value=4) for row in before]
    flush(store, PLAN, late)
    correct = (
        "billing",
        "days",
        "correct",
        earlier,
        "--caller",
        "api_key:00000",
        "--amount=-3",
        "--reason",
        "a mistake",
    )
    assert gatelock(*correct).exit_code == 0
    result = gatelock("billing", "report", "corrections", date, "--format", "lago")
    assert (result.exit_code, result.stderr) == (
        1,
        f"{date} (UTC) is not closed: events are made of closed days alone\n",
    )
    assert gatelock("billing", "days", "close", date, "--reason", "counted", "--yes").exit_code == 0
    with billing_server("lago") as server:
        for day in (earlier, date):
            assert send(gatelock, server.url, "lago", when=day).exit_code == 0
        counted = dict(server.events)
        result = send(gatelock, server.url, "lago", what="corrections", when=date)
        assert result.exit_code == 0
        assert f"{date} (UTC): peak, late: left out, because largest values do not add up" in result.stderr
        booked = [event for key, event in server.events.items() if key not in counted]
        noon = int(datetime.fromisoformat(f"{date}T12:00:00+00:00").timestamp())
        assert sorted((event.value, event.more["day"], event.at) for event in booked) == [
            (-3, earlier, noon),
            (4, earlier, noon),
        ]


@on_sqlite
def test_an_identifier_outlasts_the_name_of_a_caller(
    gatelock: Gatelock, engine: sa.Engine, store: SqlStore, date: str
) -> None:
    count(store, engine, 1)
    gatelock("billing", "days", "close", date, "--reason", "counted", "--yes")
    before = objects(gatelock("billing", "report", "day", "--format", "lago"))
    with writing(engine) as db:
        [(reference, name)] = db.execute(sa.select(referenced_names)).all()
        db.execute(sa.update(referenced_names).values(name="api_key:another"))
    after = objects(gatelock("billing", "report", "day", "--format", "lago"))
    assert name == "api_key:00000"
    assert [one["transaction_id"] for one in before] == [one["transaction_id"] for one in after]
    assert {one["external_subscription_id"] for one in after} == {"another"}
    with writing(engine) as db:
        db.execute(sa.delete(referenced_names))
    with billing_server("lago") as server:
        result = send(gatelock, server.url, "lago")
        assert f"known customer: forgotten:{reference}." in result.stderr
        assert send(gatelock, server.url, "lago", "--skip-unknown").exit_code == 0
        assert not server.events


@on_sqlite
def test_events_that_a_service_may_have_forgotten_are_not_sent_again(
    gatelock: Gatelock, engine: sa.Engine, store: SqlStore, date: str
) -> None:
    count(store, engine, 2)
    gatelock("billing", "days", "close", date, "--reason", "counted", "--yes")
    with billing_server("stripe") as server:
        assert send(gatelock, server.url, "stripe", "--meter", "requests").exit_code == 0
        a_day_ago = now_s(engine) * 1000 - 24 * 3_600_000
        with writing(engine) as db:
            unanswered = {"finished_ms": None, "place": "", "events": 0, "amount": 0, "tried_ms": a_day_ago}
            db.execute(sa.update(deliveries).values(unanswered))
        requests = server.requests
        result = send(gatelock, server.url, "stripe", "--meter", "requests")
        assert (result.exit_code, server.requests) == (1, requests)
        assert "were sent 24 hours ago without an answer, and the service may have forgotten" in result.stderr
        again = send(gatelock, server.url, "stripe", "--meter", "requests", "--repeat")
        assert (
            "2 events acknowledged (2 it had already: `report reconcile` compares the amounts), 3 in all"
            in again.stdout
        )


@on_sqlite
@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        ("day today", 1, "is not closed: events are made of closed days alone"),
        ("day --to http://192.0.2.1/", 2, "use https, so that the key and the usage are encrypted"),
        ("day --to ftp://localhost/", 2, "--to expected https://host:port, got 'ftp://localhost/'"),
        (
            "day --to https://ann:secret@localhost/",
            2,
            "--to https://***@localhost/: expected host, port and path",
        ),
        ("day --token-file missing", 2, "--token-file missing: No such file or directory"),
        ("day --by tenant", 2, "--by tenant: "),
        ("day --meter byts", 2, "--meter: byts was never counted on these days"),
        ("day --dry-run", 0, ""),
    ],
)
def test_a_hand_over_that_cannot_be_done_is_refused_in_a_sentence(
    gatelock: Gatelock, engine: sa.Engine, store: SqlStore, date: str, arguments: str, code: int, why: str
) -> None:
    count(store, engine, 2)
    gatelock("billing", "days", "close", date, "--reason", "counted", "--yes")
    with billing_server("lago") as server:
        words = arguments.split()
        to = [] if "--to" in words else ["--to", server.url]
        result = gatelock("billing", "report", "send", *words, *to, "--format", "lago")
        assert (result.exit_code, server.requests) == (code, 0)
        assert why in result.stderr
        if not code:
            assert f"{date} (UTC): requests: 2 events to send, 3 in all" in result.stdout


@on_sqlite
@pytest.mark.parametrize(
    ("fault", "code", "why"),
    [("redirect", 1, "redirects to 'http://127.0.0.1:1/elsewhere'; write that address"), ("", 1, "401 ")],
)
def test_redirects_and_wrong_keys_end_a_delivery(
    gatelock: Gatelock,
    engine: sa.Engine,
    store: SqlStore,
    date: str,
    tmp_path: Path,
    fault: Fault,
    code: int,
    why: str,
) -> None:
    count(store, engine, 2)
    gatelock("billing", "days", "close", date, "--reason", "counted", "--yes")
    (tmp_path / "key").write_text("another\n")
    with billing_server("stripe", lambda _: fault) as server:
        result = send(gatelock, server.url, "stripe", "--token-file", "key")
    assert result.exit_code == code
    assert why in result.stderr
    assert "another" not in result.stderr.replace("another process", "")


@on_sqlite
def test_stripe_takes_no_event_that_is_older_than_35_days(
    gatelock: Gatelock, engine: sa.Engine, store: SqlStore
) -> None:
    minute = (now_s(engine) - 40 * DAY_S) // 60 * 60
    flush(store, PLAN, [CountRow("caller", "api_key:a", "", "requests", 60, minute, 1, 0)])
    old = f"{datetime.now(UTC) - timedelta(days=40):%Y-%m-%d}"
    assert gatelock("billing", "days", "close", old, "--reason", "counted", "--yes").exit_code == 0
    with billing_server("stripe") as server:
        result = send(gatelock, server.url, "stripe", when=old)
        assert (result.exit_code, server.requests) == (1, 0)
        assert "the service takes events of the last 35 days" in result.stderr


def test_usage_is_named_before_stripe_ceases_to_take_it(
    gatelock: Gatelock, engine: sa.Engine, store: SqlStore, date: str
) -> None:
    ages = {age: f"{datetime.now(UTC) - timedelta(days=age):%Y-%m-%d}" for age in (36, 32, 31, 28)}
    for age, old in ages.items():
        minute = (now_s(engine) - age * DAY_S) // 60 * 60
        flush(store, PLAN, [CountRow("caller", "api_key:a", "", "requests", 60, minute, age, 0)])
        assert gatelock("billing", "days", "close", old, "--reason", "counted", "--yes").exit_code == 0
    count(store, engine, 1)
    gatelock("billing", "days", "close", date, "--reason", "counted", "--yes")

    def warnings() -> list[str]:
        shown = [line for line in gatelock("billing", "days", "list").stdout.splitlines() if "until" in line]
        found = [line for line in gatelock("doctor").stdout.splitlines() if "not handed over" in line]
        assert len(found) == len(shown)
        return shown

    assert warnings() == [], "no other day was handed over"
    with billing_server("lago") as server:
        assert send(gatelock, server.url, "lago").exit_code == 0
    assert warnings() == [], "that service takes any day"
    with billing_server("stripe") as server:
        assert send(gatelock, server.url, "stripe").exit_code == 0
        first, second = warnings()
        assert first.startswith(
            f"{ages[32]} (UTC): 32 requests by caller not handed over to {server.url}/v1/billing/"
            "meter_events, which takes events of this day until "
        )
        assert second.startswith(f"{ages[31]} (UTC): 31 requests ")
        listed = gatelock("billing", "days", "list")
        assert listed.exit_code == 1
        command = (
            f"gatelock billing report send day {ages[32]} --zone UTC --by caller --to URL --format FORMAT"
        )
        assert f"{command}  # hand it over" in listed.stdout
        assert command in gatelock("doctor").stdout
        assert send(gatelock, server.url, "stripe", when=ages[32]).exit_code == 0
        assert warnings() == [second]
        listed = objects(gatelock("billing", "days", "list", "--json"))
        assert [day["day"] for day in listed if day["expiring"]] == [ages[31]]
