"""Live usage: what a service has of a day is what the signed day has, through kills and refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.billing.audit.examined_days import given_differences
from analyzer.billing.days.day_rows import Day, stored_days
from analyzer.billing.hand_over.billing_services import SERVICES
from analyzer.billing.hand_over.delivered_sums import read_delivered_sums
from analyzer.billing.hand_over.deliveries import delivering
from analyzer.billing.hand_over.delivery import Courier
from analyzer.billing.hand_over.live_push import LiveDays, LiveDestination, LivePush, event_senders
from analyzer.billing.hand_over.live_usage import FIRST, LiveUsage, SeriesTotal
from analyzer.billing.hand_over.prepared_events import EventNames
from analyzer.billing.hand_over.reconciliation import acknowledged_usage
from analyzer.billing.hand_over.usage_events import Customers
from analyzer.billing.reports.day_report import read_report, report_rows
from analyzer.billing.reports.usage_amounts import COUNTED, UsagePart, usage_amounts, usage_parts
from analyzer.kernel.database.chain import accept_restore
from analyzer.kernel.database.engine import reading
from analyzer.kernel.database.installation_secrets import REFERENCES, ensure_secret
from analyzer.kernel.errors import DeliveryFailed
from analyzer.kernel.tables.billing_tables import days, live_usage, referenced_names
from analyzer.kernel.tables.schema import buckets
from analyzer.plan import catalog
from analyzer.plan.windows import Window
from gatekeeper.sources.timed_connection import parse_server_url
from tests.store.days.test_day_reports import Installation
from tests.store.flushing import ACME, ANN
from tests.support.billing_server import KEY, BillingServer, billing_server
from tests.support.tampered_tables import tamper

CALLERS = [ACME, ANN, "api_key:cy"]
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


class Killed(BaseException):
    """The process ends here."""


class Pushes:
    """An installation whose open day is pushed to a server.

    Args:
        here: The installation.
        server: The billing service.
    """

    def __init__(self, here: Installation, server: BillingServer) -> None:
        self.here, self.engine, self.server = here, here.engine, server
        self.customers = Customers()
        address = parse_server_url(server.url)
        self.destination = LiveDestination(
            "https://service.example", server.kind, address, KEY, "UTC", "caller", 60.0
        )

    def names(self) -> EventNames:
        return EventNames({}, {}, self.customers)

    def new_push(self) -> LivePush:
        """Returns what pushes in a new process."""
        return LivePush(self.engine, self.destination, self.names, "one:7", lambda: "mark")

    def push(self) -> int:
        return self.new_push().push()

    def hand_over(self, day: Day, *, repeats: bool = False) -> None:
        """Hands a closed day over, as `report send day` does."""
        secret = ensure_secret(self.engine, REFERENCES)
        name, kind = self.destination.name, self.destination.format
        with (
            delivering(self.engine, name, kind, "ann", lambda: "mark") as record,
            event_senders(self.destination, record) as senders,
        ):
            live = LiveUsage(self.engine, record)
            courier = Courier(SERVICES[kind], senders, record, lambda _: None, repeats=repeats, live=live)
            LiveDays(self.engine, record, live, courier, self.names()).settle("UTC", [day.date])
            for part in usage_parts(self.engine, "UTC", [day.date], "caller", None, COUNTED):
                maker = self.names().maker(secret, part)
                courier.deliver(part, maker, lambda place, part=part: usage_amounts(self.engine, part, place))

    def day(self, date: str) -> Day:
        with reading(self.engine) as db:
            [day] = stored_days(db, days.c.date == date)
        return day

    def at_service(self, date: str) -> Counter[tuple[str, str]]:
        """Returns what the service has of a day, by event and customer."""
        sums: Counter[tuple[str, str]] = Counter()
        for event in self.server.events.values():
            text = str(event.at)
            at = datetime.fromtimestamp(int(text), UTC) if text.isdigit() else datetime.fromisoformat(text)
            if f"{at:%Y-%m-%d}" == date and event.name != "slowest":
                sums[event.name, event.customer] += event.value
        return +sums

    def counted(self, date: str) -> Counter[tuple[str, str]]:
        """Returns what was counted of a day so far, by meter and customer."""
        report = read_report(self.engine, "UTC", date, date, "caller")
        return Counter(
            {
                (meter, row.name.partition(":")[2]): value
                for row in report_rows(self.engine, report)
                for meter, (value, _) in row.amounts.items()
                if not row.name.startswith("address:") and meter != "slowest" and value
            }
        )

    of_day = counted  # of a closed day, what was frozen

    def acknowledged(self, date: str) -> Counter[tuple[str, str]]:
        """Returns what the reconciliation compares with the service."""
        day, secret = self.day(date), ensure_secret(self.engine, REFERENCES)
        period = Window(day.begin_s, day.end_s)
        usage = acknowledged_usage(self.engine, self.destination.name, period, self.names(), secret)
        assert usage.remarks == []
        return Counter(
            {
                (event, customer): value
                for event, by_customer in usage.events.items()
                for customer, value in by_customer.items()
                if value and event != "slowest"
            }
        )

    def differences(self, date: str) -> list[str]:
        sums = read_delivered_sums(self.engine, [self.day(date)])
        return [one.difference for of_day in sums.values() for one in of_day if one.difference]


@pytest.fixture
def kind() -> str:
    return "lago"


@pytest.fixture
def pushes(engine: sa.Engine, kind: str) -> Iterator[Pushes]:
    with billing_server(kind) as server:
        yield Pushes(Installation(engine, past=1), server)


@contextmanager
def killed(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    """Ends the process where it calls a method of LiveUsage or a sender."""
    calls = 0

    def kill(*_: Any, **__: Any) -> None:
        nonlocal calls
        calls += 1
        raise Killed

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(name, kill)
        yield
    assert calls


BEFORE_ANSWER = "analyzer.billing.hand_over.live_usage.LiveUsage.acknowledge"
BEFORE_SENDING = "analyzer.billing.hand_over.event_requests.EventSender.send"


def shrink(pushes: Pushes, name: str, value: int) -> None:
    """Changes what was counted of a caller on open days, as a replay by another mapping does."""
    with pushes.engine.begin() as db:
        numbers = catalog.load(db)
        meter, columns = numbers.meters["requests"], buckets.c
        of_caller = [columns.grouping == numbers.groupings["caller"], columns.key == name]
        row = {f"value_{meter.place}": value}
        db.execute(sa.update(buckets).where(*of_caller, columns.page == meter.page).values(row))


@pytest.mark.parametrize(
    ("database", "kind", "past"),
    [("sqlite", "stripe", 2), ("postgresql", "lago", 2), ("sqlite", "cloudevents", 1)],
    indirect=["database"],
)
def test_the_service_has_what_the_day_has_through_kills_at_any_moment(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch, kind: str, past: int
) -> None:
    """Some days of random growth, pushes, kills, late records, and amounts that are taken away."""
    random = Random(7)
    with billing_server(kind) as server:
        pushes = Pushes(Installation(engine, past=past), server)
        here = pushes.here
        for day in range(past):
            date = here.date(day)
            for _ in range(random.randrange(1, 3)):
                for name in random.sample(CALLERS, random.randrange(1, 4)):
                    amounts = {"m1": random.randrange(1, 50), "slowest": random.randrange(1, 9)}
                    here.count(*here.requests(name, random.randrange(1, 9), day, **amounts))
                for where in random.sample([BEFORE_ANSWER, BEFORE_SENDING], random.randrange(3)):
                    here.count(*here.requests(ACME, 1, day))
                    with killed(monkeypatch, where):
                        pushes.push()
                pushes.push()
                assert pushes.at_service(date) == pushes.acknowledged(date) == pushes.counted(date)
                requests = server.requests
                assert (pushes.push(), server.requests) == (0, requests), "nothing has grown"
            shrink(pushes, CALLERS[2], day)  # to nothing on the first day
            here.count(*here.requests(ACME, 5, day), *here.requests("api_key:dee", 3, day))
            here.count(*here.requests("address:192.0.2.1", 4, day))
            assert here.closing.step() == 1
            here.count(*here.requests(ACME, 100, day))  # an adjustment
            if day % 2:
                pushes.push()  # the job makes the day exact before it is handed over
            for where in [BEFORE_SENDING] if day % 2 else [BEFORE_ANSWER, BEFORE_SENDING]:
                with killed(monkeypatch, where):
                    pushes.hand_over(pushes.day(date))
            pushes.hand_over(pushes.day(date))
            assert pushes.at_service(date) == pushes.of_day(date) == pushes.acknowledged(date)
            assert pushes.differences(date) == []
            requests = server.requests
            pushes.hand_over(pushes.day(date))
            assert server.requests == requests
        assert server.repeated > 0, "some were sent again, by the identifiers that they had"
        assert any(event.value < 0 for event in server.events.values()), "what was taken away"


@on_sqlite
def test_an_increment_says_that_it_is_provisional_and_the_last_one_does_not(pushes: Pushes) -> None:
    here, date = pushes.here, pushes.here.date()
    here.count(*here.requests(ACME, 3))
    assert pushes.push() == 1
    here.count(*here.requests(ACME, 2))
    assert here.closing.step() == 1
    assert pushes.push() == 1
    assert [(event.value, event.more) for event in pushes.server.events.values()] == [
        (3, {"value": 3, "day": date, "provisional": True}),
        (2, {"value": 2, "day": date}),
    ]


@on_sqlite
def test_a_push_is_due_once_in_each_interval_and_waits_for_a_hand_over(
    pushes: Pushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, now_ms = pushes.here, 600_000
    monkeypatch.setattr("analyzer.billing.hand_over.live_push.clock_ms", lambda _: now_ms)
    push = pushes.new_push()
    here.count(*here.requests(ACME, 3))
    with delivering(pushes.engine, pushes.destination.name, "lago", "ann", lambda: "other"):
        assert push.step() == 0
    assert push.step() == 1
    here.count(*here.requests(ACME, 1))
    assert push.step() == 0
    now_ms += 60_000
    assert push.step() == 1


@on_sqlite
def test_a_day_that_began_before_a_restore_is_pushed_no_further_and_handed_over_after_a_comparison(
    pushes: Pushes,
) -> None:
    here = pushes.here
    here.count(*here.requests(ACME, 3))
    assert pushes.push() == 1
    accept_restore(pushes.engine, "ann", "the disk broke", is_known=True)
    here.count(*here.requests(ACME, 2))
    with pytest.raises(DeliveryFailed, match="what was pushed of it is not known"):
        pushes.push()
    assert here.closing.step() == 1
    with pytest.raises(DeliveryFailed, match="with --repeat makes it exact by what is known here"):
        pushes.push()
    assert [event.value for event in pushes.server.events.values()] == [3]


@on_sqlite
def test_a_day_that_is_being_closed_gets_no_increments(pushes: Pushes) -> None:
    here = pushes.here
    here.count(*here.requests(ACME, 3))
    with pushes.engine.begin() as db:
        db.execute(sa.update(days).values(state="closing"))
    assert (pushes.push(), pushes.server.events) == (0, {})


@on_sqlite
def test_an_increment_is_planned_once_and_not_of_a_day_that_was_cut_meanwhile(pushes: Pushes) -> None:
    here, name = pushes.here, pushes.destination.name
    part = UsagePart(here.first, "caller", "requests", "sum", "live")
    with delivering(pushes.engine, name, "lago", "ann", lambda: "mark") as record:
        live = LiveUsage(pushes.engine, record)
        for value in (3, 5):
            live.plan_growth(part, [SeriesTotal(ACME, "", value)])
        [increment] = live.planned(part, 10, FIRST)
        assert (increment.amount.value, increment.amount.number) == (3, 1)
        with pushes.engine.begin() as db:
            db.execute(sa.update(days).values(state="closing"))
        live.plan_growth(part, [SeriesTotal(ANN, "", 3)])
        assert live.planned(part, 10, FIRST) == [increment]


@on_sqlite
def test_a_day_whose_first_push_had_no_answer_is_made_exact(
    pushes: Pushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, date = pushes.here, pushes.here.date()
    here.count(*here.requests(ACME, 3))
    with killed(monkeypatch, BEFORE_ANSWER):
        pushes.push()
    here.count(*here.requests(ACME, 4))
    assert here.closing.step() == 1
    pushes.hand_over(pushes.day(date))
    assert pushes.at_service(date) == pushes.acknowledged(date) == {("requests", "acme"): 7}


@on_sqlite
def test_a_refused_customer_is_corrected_and_another_one_is_refused(pushes: Pushes) -> None:
    here, date = pushes.here, pushes.here.date()
    here.count(*here.requests(ACME, 3), *here.requests(ANN, 1))
    pushes.customers = Customers({ACME: "bad", ANN: "ann"})
    with pytest.raises(DeliveryFailed, match="invalid"):
        pushes.push()
    pushes.customers = Customers({ACME: "acme", ANN: ""})
    assert pushes.push() == 1
    pushes.customers = Customers({ACME: "acme", ANN: "ann"})
    assert pushes.push() == 1
    here.count(*here.requests(ACME, 2))
    pushes.customers = Customers({ACME: "other", ANN: "ann"})
    sentence = (
        f"{ACME} is other now, and 3 of this day were pushed to another customer or event: write the earlier"
    )
    with pytest.raises(DeliveryFailed, match=sentence):
        pushes.push()
    assert here.closing.step() == 1
    with pytest.raises(DeliveryFailed, match=sentence):
        pushes.hand_over(pushes.day(date))
    here.count(*here.requests(ANN, 9, day=1))
    with pytest.raises(DeliveryFailed, match=sentence):
        pushes.push()
    assert pushes.at_service(here.date(1)) == {("requests", "ann"): 9}, "it stops no other day"
    pushes.customers = Customers({ACME: "acme", ANN: "ann"})
    pushes.hand_over(pushes.day(date))
    assert pushes.at_service(date) == pushes.of_day(date)


@on_sqlite
@pytest.mark.parametrize("changed", [{"name": "https://other.example"}, {"grouping": "caller+resource"}])
def test_a_day_is_pushed_in_one_way(pushes: Pushes, changed: dict[str, str]) -> None:
    here, date = pushes.here, pushes.here.date()
    here.count(*here.requests(ACME, 3))
    assert pushes.push() == 1
    earlier, pushes.destination = pushes.destination, pushes.destination._replace(**changed)
    sentence = f"{date} .UTC. is pushed to {earlier.name} by caller, so its usage would count twice"
    with pytest.raises(DeliveryFailed, match=sentence):
        pushes.push()
    assert here.closing.step() == 1
    pushes.destination = earlier
    assert pushes.push() == 0
    pushes.destination = earlier._replace(**changed)
    here.count(*here.requests(ACME, 5, day=1))
    pushes.push()
    assert pushes.server.totals() == {"requests": 3 + 5 * ("name" in changed)}


@on_sqlite
def test_a_caller_may_be_forgotten_between_a_push_and_the_hand_over(pushes: Pushes) -> None:
    here, date = pushes.here, pushes.here.date()
    here.count(*here.requests(ACME, 3))
    assert pushes.push() == 1
    here.count(*here.requests(ACME, 2))
    assert here.closing.step() == 1
    with pushes.engine.begin() as db:
        reference = db.execute(sa.select(live_usage.c.reference)).scalar_one()
        db.execute(sa.delete(referenced_names))
    with pytest.raises(DeliveryFailed, match=f"forgotten:{reference} has no customer now"):
        pushes.hand_over(pushes.day(date))
    pushes.customers = Customers({f"forgotten:{reference}": "acme"})
    pushes.hand_over(pushes.day(date))
    assert pushes.at_service(date) == {("requests", "acme"): 5}


@on_sqlite
@pytest.mark.parametrize(("kind", "is_forgotten"), [("stripe", True), ("lago", False)])
def test_an_increment_that_a_service_may_have_forgotten_is_not_sent_again(
    pushes: Pushes, monkeypatch: pytest.MonkeyPatch, is_forgotten: bool
) -> None:
    here = pushes.here
    here.count(*here.requests(ACME, 3))
    with killed(monkeypatch, BEFORE_ANSWER):
        pushes.push()
    with pushes.engine.begin() as db:
        db.execute(sa.update(live_usage).values(planned_ms=live_usage.c.planned_ms - 24 * 3_600_000))
    if not is_forgotten:
        assert pushes.push() == 1
        return
    with pytest.raises(DeliveryFailed, match="pushed 24 hours ago have no answer"):
        pushes.push()
    assert here.closing.step() == 1
    pushes.hand_over(pushes.day(here.date()), repeats=True)
    assert pushes.at_service(here.date()) == {("requests", "acme"): 3}


@on_sqlite
@pytest.mark.parametrize(
    ("forgery", "difference"),
    [
        ("update live_usage set acknowledged = 4", "3 in 1 event acknowledged; its 1 series have 4"),
        ("update deliveries set amount = 2 where kind = 'live'", "2 in 1 event acknowledged; its 1 series"),
        ("update frozen_counts set {value} = 9", "3 acknowledged; the day has 9 in 1 series"),
    ],
)
def test_sums_that_were_changed_by_hand_are_named(pushes: Pushes, forgery: str, difference: str) -> None:
    here, date = pushes.here, pushes.here.date()
    here.count(*here.requests(ACME, 3))
    assert pushes.push() == 1
    assert here.closing.step() == 1
    pushes.hand_over(pushes.day(date))
    assert pushes.differences(date) == []
    assert compare_given(pushes) == []
    [value] = [meter.columns[1] for meter in pushes.day(date).meters if meter.name == "requests"]
    tamper(pushes.engine, forgery.format(value=value))
    assert any(difference in sentence for sentence in pushes.differences(date))
    is_signed = "deliveries" in forgery
    assert len(compare_given(pushes)) == is_signed, "a finished delivery is in the chain"


def compare_given(pushes: Pushes) -> list[str]:
    return given_differences(pushes.engine, pushes.day(pushes.here.date()), [])


@on_sqlite
@pytest.mark.parametrize(("clock_s", "expected_s"), [(3_600, 3_600), (43_201, 43_200)])
def test_an_increment_has_the_time_of_its_push_and_from_noon_on_the_middle_of_the_day(
    pushes: Pushes, monkeypatch: pytest.MonkeyPatch, clock_s: int, expected_s: int
) -> None:
    begin_s = pushes.here.first.begin_s
    clock_ms = (begin_s + clock_s) * 1000
    monkeypatch.setattr("analyzer.billing.hand_over.live_usage.clock_ms", lambda _: clock_ms)
    pushes.here.count(*pushes.here.requests(ACME, 3))
    pushes.push()
    assert [event.at for event in pushes.server.events.values()] == [begin_s + expected_s]
