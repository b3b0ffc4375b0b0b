"""The outcome of the last audit of each closed day, and the jobs that audit days."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.audit.day_differences import AuditedDay
from analyzer.billing.audit.digest_chain import closed_days
from analyzer.billing.audit.examined_days import examine_day, newest_days
from analyzer.billing.days.day_rows import stored_days
from analyzer.billing.hand_over.delivered_sums import read_delivered_sums
from analyzer.kernel.database.clock import clock_ms, instant
from analyzer.kernel.database.engine import NowMs, insert, reading, writing
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.tables.billing_tables import DIFFERS, EQUAL, day_audits, days

log = logging.getLogger(__name__)

AGAIN_MS = 7 * 86_400_000  # rows that are changed by hand are found without a command


class AuditOutcome(NamedTuple):
    """The outcome of the last audit of a day."""

    day: int  # its id
    date: str
    zone: str
    at: datetime
    who: str
    result: str
    differences: Sequence[str]  # sentences
    remarks: Sequence[str]


def store_outcome(engine: sa.Engine, audited: AuditedDay, who: str) -> None:
    """Stores the outcome of an audit in place of the one before. Raises StoreAway."""
    day = audited.day
    row = {
        "day": day.id, "zone": day.zone, "date": day.date, "at_ms": NowMs(), "who": who, "digest": day.digest,
        "result": EQUAL if audited.equal else DIFFERS,
        "differences": json.dumps([entry.what for entry in audited.differences], ensure_ascii=False),
        "remarks": json.dumps(audited.remarks, ensure_ascii=False),
    }  # fmt: skip
    with writing(engine) as db:
        added = insert(db, day_audits).values(row)
        changed = {name: added.excluded[name] for name in row if name != "day"}
        db.execute(added.on_conflict_do_update(index_elements=["day"], set_=changed))


def outcomes(engine: sa.Engine, *, differing: bool = False) -> list[AuditOutcome]:
    """Returns the stored outcomes, by zone and date; with `differing` those that found something.

    Raises StoreAway.
    """
    columns = day_audits.c
    statement = sa.select(
        columns.day,
        columns.date,
        columns.zone,
        columns.at_ms,
        columns.who,
        columns.result,
        columns.differences,
        columns.remarks,
    ).order_by(columns.zone, columns.date)
    if differing:
        statement = statement.where(columns.result != EQUAL)
    with reading(engine) as db:
        return [
            AuditOutcome(
                day, date, zone, instant(at_ms), who, result, json.loads(differences), json.loads(remarks)
            )
            for day, date, zone, at_ms, who, result, differences, remarks in db.execute(statement)
        ]


def differing_in_words(engine: sa.Engine) -> dict[str, str]:
    """Returns a sentence for each day whose last audit found something, by the day. Raises StoreAway."""
    sentences = {}
    for outcome in outcomes(engine, differing=True):
        day = f"{outcome.date} ({outcome.zone})"
        more = f", and {len(outcome.differences) - 1} more" if len(outcome.differences) > 1 else ""
        sentences[day] = f"the audit of {day} found: {outcome.differences[0]}{more}"
    return sentences


class DayAudits:
    """Audits each closed day as soon as it is closed, and again each AGAIN_MS, the most overdue first.

    Args:
        engine: Of the database.
        keys: That digests may be made with.
        who: The name of this process.
    """

    def __init__(self, engine: sa.Engine, keys: Sequence[DigestKey], who: str) -> None:
        self._engine = engine
        self._keys = keys
        self._who = who

    def step(self) -> int:
        """Audits the day that is due for longest; returns 1, or 0 without one.

        Raises StoreAway.
        """
        columns = day_audits.c
        same = sa.and_(columns.day == days.c.id, columns.digest == days.c.digest)
        audited_ms = sa.func.coalesce(columns.at_ms, 0)
        statement = (
            sa.select(days.c.id)
            .join(day_audits, same, isouter=True)
            .order_by(audited_ms, days.c.closed_ms, days.c.id)
            .limit(1)
        )
        with reading(self._engine) as db:
            is_due = audited_ms < clock_ms(db) - AGAIN_MS
            number = db.execute(statement.where(days.c.state == "closed", is_due)).scalar()
            unaudited = stored_days(db, days.c.id == number)
        if not unaudited:
            return 0
        audited = examine_day(self._engine, unaudited[0], self._keys)
        store_outcome(self._engine, audited, self._who)
        if audited.equal:
            log.info("%s: audited, equal", audited.day)
        return 1


class DeliveryAudits:
    """Audits days again whose deliveries do not add up any more, or add up again.

    A day is handed over after its first audit, so that one cannot know what is wrong with its deliveries.

    Args:
        engine: Of the database.
        keys: That digests may be made with.
        who: The name of this process.
    """

    def __init__(self, engine: sa.Engine, keys: Sequence[DigestKey], who: str) -> None:
        self._engine = engine
        self._keys = keys
        self._who = who

    def step(self) -> int:
        """Compares the deliveries of the newest days with what these have; leaves nothing to do.

        Raises StoreAway.
        """
        with reading(self._engine) as db:
            newest = newest_days(closed_days(db))
        audited = {outcome.day: outcome for outcome in outcomes(self._engine)}
        sums = read_delivered_sums(self._engine, newest)
        for day in newest:
            if not sums[day.id] or (before := audited.get(day.id)) is None:
                continue
            differences = {delivery.difference for delivery in sums[day.id]} - {""}
            is_repaired = before.result == DIFFERS and not differences
            if is_repaired or not differences <= set(before.differences):
                store_outcome(self._engine, examine_day(self._engine, day, self._keys), self._who)
        return 0
