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

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple, Protocol

from analyzer.billing.hand_over.billing_services import BillingService
from analyzer.billing.hand_over.deliveries import Delivery
from analyzer.billing.hand_over.event_requests import EventSender, Sent
from analyzer.billing.hand_over.usage_events import EventMaker, UsageEvent
from analyzer.billing.reports.usage_amounts import UsageAmount, UsagePart, UsagePlace
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


class Courier:
    """Delivers parts to one service.

    Args:
        service: The destination's kind.
        senders: Connections to it, each used by one thread at a time.
        record: Of what was acknowledged.
        progress: Called with the number of amounts that were just dealt with.
        repeats: Whether to send again what was sent so long ago without an answer that the service may
            count it twice.
    """

    def __init__(
        self,
        service: BillingService,
        senders: Sequence[EventSender],
        record: DeliveryRecord,
        progress: Callable[[int], None],
        *,
        repeats: bool = False,
    ) -> None:
        self._service = service
        self._senders = senders
        self._record = record
        self._progress = progress
        self._repeats = repeats

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
        for chunk in _chunks(amounts(delivery.place), maker):
            if chunk.events:
                self._record.trying(part, delivery)
            delivery = self._sent(delivery, chunk)
            self._progress(len(chunk.events) + chunk.left_out)
        self._record.finished(part, delivery)
        return self._record.of(part)

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
        most = self._service.events_max
        requests = [chunk.events[index : index + most] for index in range(0, len(chunk.events), most)]
        answers = self._answers(requests) if requests else []
        return Delivery(
            place=chunk.place,
            events=delivery.events + len(chunk.events),
            amount=delivery.amount + sum(event.amount.value for event in chunk.events),
            known=delivery.known + sum(answer.known for answer in answers),
            left_out=delivery.left_out + chunk.left_out,
            left_out_amount=delivery.left_out_amount + chunk.left_out_amount,
        )

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


def _chunks(amounts: Iterable[UsageAmount], maker: EventMaker) -> Iterator[Chunk]:
    amounts = iter(amounts)
    while batch := list(islice(amounts, CHUNK_EVENTS)):
        customers = [(amount, maker.find_customer(amount)) for amount in batch]
        left_out = [amount for amount, customer in customers if not customer]
        events = [maker.event(amount, customer) for amount, customer in customers if customer]
        lost = sum(amount.value for amount in left_out)
        yield Chunk(events, batch[-1].place, len(left_out), lost)
