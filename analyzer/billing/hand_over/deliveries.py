"""Deliveries: how far a part of a closed day was acknowledged by a billing service.

One process at a time hands over to a destination, under a lease. It stores a place together with the fact
that it is about to send what stands behind it, and each of its writes keeps the lease: so after a kill at
any moment the next process knows what was acknowledged, and since when the events behind it may have been
sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.reports.usage_amounts import (
    AmountKind,
    UsagePart,
    UsagePlace,
    parse_place,
    place_text,
)
from analyzer.kernel.database import signed_rows
from analyzer.kernel.database.chain import require_witnessed, restored_ms
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import NowMs, insert, reading, writing
from analyzer.kernel.database.named_leases import Lease
from analyzer.kernel.errors import DeliveryLost, StoreAway
from analyzer.kernel.tables.billing_tables import deliveries
from gatekeeper.sources.timed_connection import ServerAddress

TEST_KEY = re.compile(r"[sr]k_test_")  # keys of Stripe's test mode, which has the URL of the live one
DELIVERIES = Lease(lease_ms=60_000)  # longer than a request to a service may take


class Delivery(NamedTuple):
    """The progress of a part.

    Attributes:
        place: Of the last amount that was acknowledged or left out; () before the first one.
        events: That were acknowledged; `amount` is their sum.
        known: Of these, that the service had already.
        left_out: Amounts without a customer; `left_out_amount` is their sum.
        tried_ms: Since when events behind `place` may have been sent; None: none were.
        finished_ms: When the last one was acknowledged; None: there are more.
    """

    place: UsagePlace = ()
    events: int = 0
    amount: int = 0
    known: int = 0
    left_out: int = 0
    left_out_amount: int = 0
    tried_ms: int | None = None
    finished_ms: int | None = None


class StoredDelivery(NamedTuple):
    """A delivery as operators see it."""

    destination: str
    format: str
    zone: str
    date: str
    grouping: str
    kind: AmountKind
    meter: str
    delivery: Delivery
    who: str
    began_ms: int
    acknowledged_ms: int


class Deliveries:
    """The deliveries to one destination, by the process that holds its lease; see `delivering`.

    All methods raise StoreAway, and those that write DeliveryLost when another process has taken the lease.
    """

    def __init__(self, engine: sa.Engine, destination: str, format_: str, who: str, holder: str) -> None:
        self._engine = engine
        self.destination = destination
        self.format = format_
        self._who = who
        self._holder = holder

    def of(self, part: UsagePart) -> Delivery:
        """Returns how far a part was acknowledged."""
        with reading(self._engine) as db:
            row = db.execute(sa.select(deliveries).where(*self._part_conditions(part))).mappings().first()
        return Delivery() if row is None else _delivery(row)

    def has(self, part: UsagePart) -> bool:
        """Whether anything of a part was ever sent, as far as this database knows."""
        with reading(self._engine) as db:
            known = sa.select(deliveries.c.began_ms).where(*self._part_conditions(part))
            return db.execute(known).first() is not None

    def restored_ms(self) -> int | None:
        """Returns when the database was last restored; None: never."""
        with reading(self._engine) as db:
            return restored_ms(db)

    def now_ms(self) -> int:
        """Returns the database's time."""
        with reading(self._engine) as db:
            return clock_ms(db)

    def keep(self) -> None:
        """Keeps the lease while nothing is stored."""
        with writing(self._engine) as db:
            self.require(db)

    def trying(self, part: UsagePart, delivery: Delivery) -> None:
        """Stores what is acknowledged, and that what stands behind it is sent from now on."""
        self._store(part, delivery, {"tried_ms": sa.func.coalesce(sa.literal(delivery.tried_ms), NowMs())})

    def finished(self, part: UsagePart, delivery: Delivery) -> None:
        """Stores that all is acknowledged."""
        self._store(part, delivery, {"tried_ms": None, "finished_ms": NowMs()})

    def _store(self, part: UsagePart, delivery: Delivery, changed: dict[str, object]) -> None:
        with writing(self._engine) as db:
            self.require(db)
            self.store_in(db, part, delivery, changed)

    def store_in(
        self, db: sa.Connection, part: UsagePart, delivery: Delivery, changed: Mapping[str, object]
    ) -> None:
        """Stores what is acknowledged, in a transaction that has kept the lease."""
        values = self._values(delivery) | dict(changed)
        added = insert(db, deliveries).values(**self._delivery_key(part), **values, began_ms=NowMs())
        stored = added.on_conflict_do_update(index_elements=deliveries.primary_key, set_=values)
        row = db.execute(stored.returning(*deliveries.c)).mappings().one()
        if row["finished_ms"] is not None:
            signed_rows.sign(db, signed_rows.delivery(row))

    def begin_in(self, db: sa.Connection, part: UsagePart) -> None:
        """Stores that a delivery begins, unless it has, in a transaction that has kept the lease."""
        row = self._delivery_key(part) | self._values(Delivery()) | {"tried_ms": None, "began_ms": NowMs()}
        db.execute(insert(db, deliveries).values(row).on_conflict_do_nothing())

    def _values(self, delivery: Delivery) -> dict[str, object]:
        return {
            "format": self.format, "place": place_text(delivery.place), "events": delivery.events,
            "amount": delivery.amount, "known": delivery.known, "left_out": delivery.left_out,
            "left_out_amount": delivery.left_out_amount, "who": self._who, "acknowledged_ms": NowMs(),
            "finished_ms": None,
        }  # fmt: skip

    def require(self, db: sa.Connection) -> None:
        """Keeps the lease in a transaction. Raises DeliveryLost without it."""
        if not DELIVERIES.keep(db, _delivery_lease(self.destination), self._holder):
            raise DeliveryLost(f"another process has begun to hand over to {self.destination}")

    def _delivery_key(self, part: UsagePart) -> dict[str, str]:
        return {
            "destination": self.destination, "zone": part.day.zone, "date": part.day.date,
            "grouping": part.grouping, "kind": part.kind, "meter": part.meter,
        }  # fmt: skip

    def _part_conditions(self, part: UsagePart) -> Iterator[sa.ColumnElement[bool]]:
        yield from (deliveries.c[name] == value for name, value in self._delivery_key(part).items())


def destination_name(server: ServerAddress, path: str, account: str, token: str) -> str:
    """Returns the name of a destination in the record of deliveries; `path` is the service's own one."""
    mode = account or ("test" if TEST_KEY.match(token) else "")
    return f"{server.display_name}{'' if server.prefix else path} {mode}".strip()


@contextmanager
def delivering(
    engine: sa.Engine, destination: str, format_: str, who: str, random_mark: Callable[[], str]
) -> Iterator[Deliveries]:
    """Holds the lease of a destination.

    Raises DeliveryLost if another process does, StoreAway; ChainCut, WitnessAway.
    """
    require_witnessed(engine)
    holder, name = random_mark(), _delivery_lease(destination)
    with writing(engine) as db:
        if not DELIVERIES.take(db, name, holder):
            left_s = -(-DELIVERIES.left_ms(db, name) // 1000)
            raise DeliveryLost(
                f"another process hands over to {destination}; if it was killed, try again in {left_s} s"
            )
    try:
        yield Deliveries(engine, destination, format_, who, holder)
    finally:
        with suppress(StoreAway), writing(engine) as db:
            DELIVERIES.release(db, name, holder)


def _delivery_lease(destination: str) -> str:
    return f"delivery {destination}"


def _delivery(row: sa.RowMapping) -> Delivery:
    return Delivery(parse_place(row["place"]), *(row[name] for name in Delivery._fields[1:]))


def unknown_deliveries(engine: sa.Engine, dates: Collection[tuple[str, str]]) -> list[str]:
    """Returns what is not known to be handed over of some days, by zone and date, in sentences.

    To the destinations that were ever handed over to. Raises StoreAway.
    """
    columns = deliveries.c
    with reading(engine) as db:
        destinations = set(db.scalars(sa.select(columns.destination)))
        known = {tuple(row) for row in db.execute(sa.select(columns.destination, columns.zone, columns.date))}
    return [
        f"{date} ({zone}): it is not known whether it was handed over to {destination}: "
        f"`gatelock billing report reconcile day {date} --from URL --format FORMAT` asks the service"
        for destination in sorted(destinations)
        for zone, date in sorted(dates)
        if (destination, zone, date) not in known
    ]


def stored_deliveries(db: sa.Connection, *conditions: sa.ColumnElement[bool]) -> list[StoredDelivery]:
    """Returns the deliveries that meet the conditions, the newest last."""
    columns = deliveries.c
    order = (
        columns.acknowledged_ms.desc(),
        columns.destination,
        columns.zone,
        columns.date,
        columns.grouping,
        columns.kind,
        columns.meter,
    )
    rows = db.execute(sa.select(deliveries).where(*conditions).order_by(*order)).mappings().all()
    plain = [name for name in StoredDelivery._fields if name != "delivery"]
    return [
        StoredDelivery(**{name: row[name] for name in plain}, delivery=_delivery(row)) for row in rows[::-1]
    ]
