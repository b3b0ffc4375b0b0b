"""Sums of deliveries are those of their days, at each place; a forged delivery is found by each audit."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from analyzer.billing.audit.audit_outcomes import DayAudits, DeliveryAudits, outcomes
from analyzer.billing.audit.day_differences import AuditDifference
from analyzer.billing.audit.examined_days import examine_digests
from analyzer.billing.days.by_hand import Correction, correct
from analyzer.billing.days.day_rows import stored_days
from analyzer.billing.hand_over.delivered_sums import DeliveredSums, read_delivered_sums
from analyzer.billing.hand_over.deliveries import Delivery, delivering
from analyzer.billing.reports.usage_amounts import AmountKind, UsagePart, usage_amounts
from analyzer.kernel.database.engine import reading
from analyzer.kernel.tables.billing_tables import days, deliveries
from tests.store.days.test_day_audits import KEY, ClosedDays
from tests.store.flushing import ACME, ANN
from tests.support.tampered_tables import tamper

SERVICE = "https://billing.example/v1"
PARTS: tuple[tuple[AmountKind, str, str, int], ...] = (
    ("frozen", "caller", "requests", 0),
    ("frozen", "caller+resource", "slowest", 0),
    ("late", "caller", "requests", 2),
    ("correction", "caller", "requests", 2),
)


@pytest.fixture
def closed(engine: sa.Engine) -> ClosedDays:
    """Three closed days; on the third, late amounts of two callers and two corrections are booked."""
    closed = ClosedDays(engine)
    for name in (ACME, ANN):
        closed.count(name, 4, closed.first.begin_s + 120)
        correct(engine, closed.day(0), Correction("caller", name, "", "requests", 9), "ann@ops", "a lost log")
    closed.close()
    return closed


def deliver(closed: ClosedDays, kind: AmountKind, grouping: str, meter: str, day: int) -> list[DeliveredSums]:
    """Hands a part over, one amount at a time, each second one left out; returns its sums after each."""
    part = UsagePart(closed.day(day), grouping, meter, "sum", kind)
    seen, delivery = [], Delivery()

    def sums() -> DeliveredSums:
        [one] = [
            one
            for one in read_delivered_sums(closed.engine, [part.day])[part.day.id]
            if (one.stored.kind, one.stored.grouping, one.stored.meter) == (kind, grouping, meter)
        ]
        return one

    with delivering(closed.engine, SERVICE, "stripe", "ann", lambda: "mark") as record:
        record.trying(part, delivery)
        seen.append(sums())
        for number, amount in enumerate(usage_amounts(closed.engine, part)):
            names = ("left_out", "left_out_amount") if number % 2 else ("events", "amount")
            more = dict(zip(names, (1, amount.value), strict=True))
            delivery = delivery._replace(
                place=amount.place, **{name: getattr(delivery, name) + more[name] for name in names}
            )
            record.trying(part, delivery)
            seen.append(sums())
        record.finished(part, delivery)
    return [*seen, sums()]


@pytest.mark.parametrize(("kind", "grouping", "meter", "day"), PARTS)
def test_sums_are_equal_at_each_place(
    closed: ClosedDays, kind: AmountKind, grouping: str, meter: str, day: int
) -> None:
    seen = deliver(closed, kind, grouping, meter, day)
    assert len(seen) == 4, "two amounts"
    assert {one.difference for one in seen} == {""}
    assert seen[0].to_send == seen[0].of_day
    assert [one.to_send.amounts for one in seen] == [2, 1, 0, 0]
    of_day = seen[-1].of_day
    assert of_day is not None
    assert seen[-1].stored.delivery.amount + seen[-1].stored.delivery.left_out_amount == of_day.value
    assert "delivery" not in closed.kinds(day)


def delivery_differences(closed: ClosedDays) -> list[AuditDifference]:
    return [one for one in closed.audit(0).differences if one.kind == "delivery"]


NOTHING = "events = 0, amount = 0, left_out = 0, left_out_amount = 0"
FORGERIES = {
    "another sum": "amount = amount + 181",
    "another number": "events = events + 1",
    "what was left out": "left_out_amount = left_out_amount - 1",
    "the place": f'finished_ms = null, place = \'["g", ""]\', {NOTHING}',
    "no place": "finished_ms = null, place = '[7]'",
    "no JSON": "finished_ms = null, place = 'later'",
    "an end too early": f"place = '', {NOTHING}",
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_delivery_is_found_by_each_audit(closed: ClosedDays, forgery: str) -> None:
    deliver(closed, "frozen", "caller", "requests", 0)
    assert tamper(closed.engine, f"update deliveries set {FORGERIES[forgery]}") == 1
    [one] = delivery_differences(closed)
    assert (one.grouping, one.meter) == ("caller", "requests")
    assert one.what.startswith(f"requests by caller to {SERVICE}: ")
    found = examine_digests(closed.engine, [KEY])
    assert [one.kind for day in found.days for one in day.differences] == ["delivery"]


def test_the_sentence_has_all_sums(closed: ClosedDays) -> None:
    deliver(closed, "frozen", "caller", "requests", 0)
    tamper(closed.engine, "update deliveries set amount = 1836, events = 12")
    left_out = delivery_row(closed)["left_out_amount"]
    [one] = delivery_differences(closed)
    assert one.what == (
        f"requests by caller to {SERVICE}: 1,836 in 12 events acknowledged, {left_out} in 1 left out, 0 in 0 "
        "left to send; the day has 12 in 2"
    )


def delivery_row(closed: ClosedDays) -> sa.RowMapping:
    with closed.engine.connect() as db:
        return db.execute(sa.select(deliveries)).mappings().one()


def test_a_delivery_of_a_day_that_is_not_closed_is_found(closed: ClosedDays) -> None:
    deliver(closed, "frozen", "caller", "requests", 0)
    tamper(closed.engine, "update days set state = 'open' where id = 1")
    date = closed.first.date
    with reading(closed.engine) as db:
        [opened] = stored_days(db, days.c.id == 1)
    [sums] = read_delivered_sums(closed.engine, [opened])[1]
    assert sums.of_day is None
    assert sums.difference.endswith("was handed over, and the day is not closed")
    assert examine_digests(closed.engine, [KEY]).lost == [
        f"{date} (UTC): requests by caller to {SERVICE} was handed over, and the day is not closed"
    ]


def test_the_job_audits_a_day_again_when_its_deliveries_differ_and_when_they_do_not_any_more(
    closed: ClosedDays,
) -> None:
    audits = DayAudits(closed.engine, [KEY], "analyzer:1")
    deliveries_job = DeliveryAudits(closed.engine, [KEY], "analyzer:2")
    assert [audits.step() for _ in range(4)] == [1, 1, 1, 0]
    deliver(closed, "frozen", "caller", "requests", 0)

    def last() -> tuple[str, str]:
        assert deliveries_job.step() == 0
        [outcome] = [outcome for outcome in outcomes(closed.engine) if outcome.day == 1]
        return outcome.result, outcome.who

    assert last() == ("equal", "analyzer:1"), "they add up"
    tamper(closed.engine, "update deliveries set amount = amount + 1")
    assert last() == ("differs", "analyzer:2")
    tamper(closed.engine, "update day_audits set who = 'ann'")
    assert last() == ("differs", "ann"), "the outcome has this difference"
    tamper(closed.engine, "update deliveries set amount = amount - 1")
    assert last() == ("equal", "analyzer:2")


def test_rows_that_were_deleted_after_their_retention_are_not_compared(closed: ClosedDays) -> None:
    deliver(closed, "frozen", "caller", "requests", 0)
    tamper(
        closed.engine,
        "insert into deleted_days (day, content, at_ms) values (1, '', 0)",
        "delete from frozen_counts where day = 1",
    )
    [one] = read_delivered_sums(closed.engine, [closed.day(0)])[1]
    assert (one.of_day, one.difference) == (None, "")
