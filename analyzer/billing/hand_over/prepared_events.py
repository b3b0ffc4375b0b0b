"""The events of closed days before they are written or sent: their parts, and what stands in the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from analyzer.billing.hand_over.billing_services import BillingService
from analyzer.billing.hand_over.usage_events import Customers, EventMaker
from analyzer.billing.reports.day_origin import was_closed_after_restore
from analyzer.billing.reports.usage_amounts import UsageAmount, UsagePart
from analyzer.counting.records.forgotten_callers import make_pseudonym
from analyzer.plan.meter_units import STORED_IN

NAMED_MAX = 5  # callers in a sentence


class EventNames(NamedTuple):
    """The names by which a billing service knows meters and callers.

    Attributes:
        events: Names of events, by meter; of others it is the meter's name.
        units: Of meters, by name.
        customers: By the keys of a grouping.
    """

    events: Mapping[str, str]
    units: Mapping[str, str]
    customers: Customers

    def maker(self, secret: bytes, part: UsagePart) -> EventMaker:
        """Returns what makes the events of a part."""
        unit = STORED_IN.get(self.units.get(part.meter, ""), "")
        return EventMaker(secret, part, self.customers, self.events.get(part.meter, part.meter), unit)


class Examined(NamedTuple):
    """The amounts of a part.

    Attributes:
        events: That have a customer; `value` is their sum.
        left_out: Without one; `left_out_value` is their sum.
        unknown: The first of the keys whose customer is not known.
        too_long: The first amount with more digits than the service takes; "" without one.
    """

    events: int = 0
    value: int = 0
    left_out: int = 0
    left_out_value: int = 0
    unknown: Sequence[str] = ()
    too_long: str = ""


def examine(amounts: Iterable[UsageAmount], maker: EventMaker, service: BillingService) -> Examined:
    """Returns what the amounts come to, before any is sent."""
    events = value = left_out = left_out_value = 0
    unknown: dict[str, None] = {}
    too_long = ""
    for amount in amounts:
        customer = maker.find_customer(amount)
        if customer:
            events += 1
            value += amount.value
            if service.digits_max is not None and len(str(abs(amount.value))) > service.digits_max:
                too_long = too_long or str(amount.value)
            continue
        left_out += 1
        left_out_value += amount.value
        if customer is None and len(unknown) < NAMED_MAX:
            unknown[make_pseudonym(amount.reference) if amount.name is None else amount.name] = None
    return Examined(events, value, left_out, left_out_value, [*unknown], too_long)


def why_not(
    part: UsagePart, scanned: Examined, service: BillingService, now_s: float, *, skip_unknown: bool
) -> str:
    """Returns why a part cannot be delivered; "" if it can."""
    if not scanned.events and not scanned.unknown:
        return ""
    if service.past_s is not None and now_s - part.day.middle_s > service.past_s:
        return f"{part}: the service takes events of the last {service.past_s // 86_400 + 1} days"
    if scanned.too_long:
        return (
            f"{part}: {scanned.too_long} has more than the {service.digits_max} digits that the service takes"
        )
    if scanned.unknown and not skip_unknown:
        return (
            f"{part}: callers without a known customer: {', '.join(scanned.unknown)}. Add them to [billing] "
            "customers_file, with an empty customer if they are not billed; --skip-unknown leaves them "
            "out for good"
        )
    return ""


def why_unsure(part: UsagePart, service: BillingService, restored_ms: int | None) -> str:
    """Returns why a part that this database never sent may be at the service with other amounts, or twice.

    "" if it cannot be, or if the service knows the same amounts again. A day that was cut before the restore
    has the amounts that it had then: see docs/decisions/0080.
    """
    day = part.day
    if restored_ms is None or day.end_s * 1000 > restored_ms:
        return ""
    is_same = (day.cut_ms or restored_ms) < restored_ms and not was_closed_after_restore(day)
    if is_same and service.remembers_s is None:
        return ""
    if is_same:
        hours = (service.remembers_s or 0) // 3600
        why = f"the service remembers identifiers for {hours} hours alone"
    else:
        why = "it was closed again since, perhaps with other amounts"
    return (
        f"{part}: it may have been sent before the database was restored, and {why}. Compare first: "
        f"`gatelock billing report reconcile day {day.date} --from URL --format FORMAT`; --repeat sends it"
    )
