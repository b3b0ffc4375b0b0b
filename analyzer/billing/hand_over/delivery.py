"""Delivers the events of a part to a billing service, so that each is counted there once.

    amounts behind the last acknowledged one, a chunk at a time
    store/reports/billed_days/usage_amounts.py ▼ store: acknowledged so far, and that the chunk is being
    sent       store/operations/handing_over/deliveries.py ▼ send the chunk, in requests as large as the
    service takes          event_requests.py ▼ the next chunk; at the end, store that all is acknowledged

After a kill the chunk that was being sent is sent again. Its events have the same identifiers, so the
service knows those that it had. Some services forget identifiers: what was sent so long ago without an
answer is not sent again by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol

from analyzer.billing.hand_over.billing_services import BillingService
from analyzer.billing.hand_over.deliveries import Delivery
from analyzer.billing.hand_over.event_requests import EventSender, Sent
from analyzer.billing.hand_over.live_usage import FIRST, Increment, LiveUsage
from analyzer.billing.hand_over.usage_events import EventMaker, UsageEvent
from analyzer.billing.reports.usage_amounts import UsageAmount, UsagePart, UsagePlace
from analyzer.counting.records.forgotten_callers import make_pseudonym
from analyzer.kernel.errors import DeliveryFailed

SENDERS = 4  # connections, for services that take few events in a request
CHUNK_EVENTS = 100  # between two writes to the database


class DeliveryRecord(Protocol):
    """The record of what was acknowledged; `Deliveries` implements it."""

    def of(self, part: UsagePart) -> Delivery: ...
    def now_ms(self) -> int: ...
    def trying(self, part: UsagePart, delivery: Delivery) -> None: ...
    def finished(self, part: UsagePart, delivery: Delivery) -> None: ...


class Chunk(NamedTuple):
    """Amounts that are sent between two writes."""

    events: Sequence[UsageEvent]
    place: UsagePlace  # of the last amount
    left_out: int
    left_out_amount: int
    settled: int = 0  # amounts that the service has in increments
    settled_amount: int = 0


class Courier:
    """Delivers parts to one service.

    Args:
        service: The destination's kind.
        senders: Connections to it, each used by one thread at a time.
        record: Of what was acknowledged.
        progress: Called with the number of amounts that were just dealt with.
        repeats: Whether to send again what was sent so long ago without an answer that the service may
            count it twice.
        live: What was pushed before days were closed.
    """

    def __init__(
        self,
        service: BillingService,
        senders: Sequence[EventSender],
        record: DeliveryRecord,
        progress: Callable[[int], None],
        *,
        repeats: bool = False,
        live: LiveUsage | None = None,
    ) -> None:
        self._service = service
        self._senders = senders
        self._record = record
        self._progress = progress
        self._repeats = repeats
        self._live = live

    def deliver(
        self,
        part: UsagePart,
        maker: EventMaker,
        amounts: Callable[[UsagePlace], Iterable[UsageAmount]],
    ) -> Delivery:
        """Delivers what is not acknowledged of a part; returns how far it is now.

        Raises DeliveryFailed; what was acknowledged until then is stored.
        """
        delivery = self._record.of(part)
        if delivery.finished_ms is not None:
            return delivery
        self._require_remembered(part, delivery)
        for chunk in _chunks(amounts(delivery.place), maker, partial(self._settled, part)):
            if chunk.events:
                self._record.trying(part, delivery)
            delivery = self._sent(delivery, chunk)
            self._progress(len(chunk.events) + chunk.left_out)
        self._record.finished(part, delivery)
        return self._record.of(part)

    def push(self, part: UsagePart, maker: EventMaker, live: LiveUsage) -> int:
        """Delivers the increments of a part that are planned; returns how many the service has acknowledged.

        Raises DeliveryFailed; what was acknowledged until then is stored.
        """
        pushed, after = 0, FIRST
        while increments := live.planned(part, CHUNK_EVENTS, after):
            after = increments[-1].series
            customers = [_customer_of(part, maker, increment) for increment in increments]
            if dropped := [one for one, name in zip(increments, customers, strict=True) if not name]:
                live.drop(part, dropped)
            sent = [one for one, name in zip(increments, customers, strict=True) if name]
            if not sent:
                continue
            self._require_answered(part, sent)
            names = list(filter(None, customers))
            events = [maker.increment(*pair) for pair in zip(sent, names, strict=True)]
            answers = self._answers(self._requests(events))
            known = sum(answer.known for answer in answers)
            live.acknowledge(part, sent, known, [maker.customer_digest(name) for name in names])
            pushed += len(sent)
        return pushed

    def _settled(self, part: UsagePart, amounts: Sequence[UsageAmount]) -> Collection[tuple[str, str]]:
        return () if self._live is None else self._live.settled(part, amounts)

    def _require_answered(self, part: UsagePart, increments: Sequence[Increment]) -> None:
        """Raises DeliveryFailed for increments that the service may have forgotten, or cannot take."""
        digits_max = self._service.digits_max
        longest = max((one.amount.value for one in increments), key=lambda value: len(str(abs(value))))
        if digits_max is not None and len(str(abs(longest))) > digits_max:
            raise DeliveryFailed(
                f"{part}: {longest} has more than the {digits_max} digits that the service takes"
            )
        remembers_s, planned_ms = self._service.remembers_s, min(one.planned_ms for one in increments)
        age_s = (self._record.now_ms() - planned_ms) / 1000
        if remembers_s is not None and age_s > remembers_s and not self._repeats:
            raise DeliveryFailed(
                f"{part}: increments that were pushed {age_s / 3600:.0f} hours ago have no answer, and the "
                "service may have forgotten their identifiers. Look there whether they arrived; "
                "`report send day --repeat` sends them again, and those that did count twice"
            )

    def _require_remembered(self, part: UsagePart, delivery: Delivery) -> None:
        remembers_s = self._service.remembers_s
        if delivery.tried_ms is None or remembers_s is None or self._repeats:
            return
        age_s = (self._record.now_ms() - delivery.tried_ms) / 1000
        if age_s > remembers_s:
            raise DeliveryFailed(
                f"{part}: at most {CHUNK_EVENTS} events behind the first {delivery.events:,} were sent "
                f"{age_s / 3600:.0f} hours ago without an answer, and the service may have forgotten their "
                "identifiers. Look there whether they arrived; --repeat sends them again, and those that "
                "did count twice"
            )

    def _sent(self, delivery: Delivery, chunk: Chunk) -> Delivery:
        """Sends a chunk; returns how far the delivery is then. Raises DeliveryFailed."""
        answers = self._answers(self._requests(chunk.events)) if chunk.events else []
        sent_amount = sum(event.amount.value for event in chunk.events)
        return Delivery(
            place=chunk.place,
            events=delivery.events + len(chunk.events) + chunk.settled,
            amount=delivery.amount + sent_amount + chunk.settled_amount,
            known=delivery.known + sum(answer.known for answer in answers),
            left_out=delivery.left_out + chunk.left_out,
            left_out_amount=delivery.left_out_amount + chunk.left_out_amount,
        )

    def _requests(self, events: Sequence[UsageEvent]) -> list[Sequence[UsageEvent]]:
        most = self._service.events_max
        return [events[index : index + most] for index in range(0, len(events), most)]

    def _answers(self, requests: Sequence[Sequence[UsageEvent]]) -> list[Sent]:
        """Returns the answer to each request. Raises DeliveryFailed when one failed; others may be sent."""
        share = len(self._senders)
        if len(requests) == 1:
            return [self._senders[0].send(requests[0])]
        with ThreadPoolExecutor(share) as pool:
            try:
                waiting = [
                    pool.submit(_send_all, sender, requests[number::share])
                    for number, sender in enumerate(self._senders)
                ]
                return [answer for future in waiting for answer in future.result()]
            except BaseException:
                for sender in self._senders:
                    sender.stop()
                raise


def _send_all(sender: EventSender, requests: Sequence[Sequence[UsageEvent]]) -> list[Sent]:
    return [sender.send(request) for request in requests]


def _customer_of(part: UsagePart, maker: EventMaker, increment: Increment) -> str | None:
    """Returns the customer of an increment; None or "" if the service has nothing of its series, and none is
    known. Raises DeliveryFailed for another customer than that of the increments before."""
    customer, earlier = maker.find_customer(increment.amount), increment.customer_digest
    if not earlier or (customer and maker.customer_digest(customer) == earlier):
        return customer
    amount = increment.amount
    name = make_pseudonym(amount.reference) if amount.name is None else amount.name
    now = f"is {customer} now" if customer else "has no customer now"
    raise DeliveryFailed(
        f"{part}: {name} {now}, and {increment.acknowledged:,} of this day were "
        "pushed to another customer or event: write the earlier ones into customers_file and events of "
        "[billing] until the day is handed over"
    )


def _chunks(
    amounts: Iterable[UsageAmount],
    maker: EventMaker,
    settled: Callable[[Sequence[UsageAmount]], Collection[tuple[str, str]]],
) -> Iterator[Chunk]:
    amounts = iter(amounts)
    while batch := list(islice(amounts, CHUNK_EVENTS)):
        in_increments = settled(batch)
        pushed = [amount for amount in batch if (amount.reference, amount.resource) in in_increments]
        others = [amount for amount in batch if (amount.reference, amount.resource) not in in_increments]
        customers = [(amount, maker.find_customer(amount)) for amount in others]
        left_out = [amount for amount, customer in customers if not customer]
        events = [maker.event(amount, customer) for amount, customer in customers if customer]
        lost, had = sum(amount.value for amount in left_out), sum(amount.value for amount in pushed)
        yield Chunk(events, batch[-1].place, len(left_out), lost, len(pushed), had)
