"""Digests of closed days: whether the rows fit them, and whether each day continues the one before.

A digest that was made with a key proves that its rows were written by a holder of the key. As it contains the
digest before, it proves the earlier days as well, those without a key included.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import sqlalchemy as sa

from analyzer.billing.audit.day_differences import AuditDifference
from analyzer.billing.days.day_digest import content_digest
from analyzer.billing.days.day_rows import Day, stored_days
from analyzer.billing.days.signed_reasons import changed_reasons
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.tables.billing_tables import day_audits, days

WITHOUT_KEY = "its digest was made without a key: damage is found, a forged digest is not"


def closed_days(db: sa.Connection, zone: str | None = None) -> list[Day]:
    """Returns the closed days, by zone and time."""
    of_zone = [] if zone is None else [days.c.zone == zone]
    return stored_days(db, days.c.state == "closed", *of_zone)


def digest_differences(db: sa.Connection, day: Day, keys: Sequence[DigestKey]) -> Iterator[AuditDifference]:
    """Yields a difference if the rows of a closed day do not fit its digest, or if that cannot be known.

    Reads everything that is stored about the day. `keys` are those that digests may be made with.
    """
    made_with = next((key for key in (*keys, DigestKey()) if key.fingerprint == day.digest_key), None)
    if made_with is None:
        fingerprints = ", ".join(key.fingerprint for key in keys if key.fingerprint) or "none"
        sentence = (
            f"its digest was made with the key {day.digest_key}, which is not there (known: {fingerprints})"
        )
        yield AuditDifference("key", f"{sentence}: its rows cannot be compared with it")
    elif made_with.chained(content_digest(db, day), day.digest_before) != day.digest:
        sentence = (
            "its digest does not fit: a row of it, its cut, or what was booked on it was changed, added or"
        )
        yield AuditDifference("digest", f"{sentence} lost since it was closed")
    yield from (AuditDifference("digest", reason) for reason in changed_reasons(db, day))


def chain_differences(
    closed: Sequence[Day], keys: Sequence[DigestKey]
) -> Mapping[int, list[AuditDifference]]:
    """Returns what is wrong in the order of the closed days of one zone, by the id of the day.

    Reads no rows. With a key, each day must have a digest by it, or be continued by one that has.
    """
    differences: dict[int, list[AuditDifference]] = {}
    by_digest = {day.digest: day for day in closed}
    first = min(closed, key=lambda day: (day.closed_ms or 0, day.id), default=None)
    fingerprints = {key.fingerprint for key in keys} - {""}
    proved = _proved_by_key(closed, by_digest, fingerprints)

    def add(day: Day, kind: str, sentence: str) -> None:
        differences.setdefault(day.id, []).append(AuditDifference(kind, sentence))

    for day in closed:
        if day.digest_before and day.digest_before not in by_digest:
            sentence = "it continues a digest that no day has: the day before it was changed, or deleted"
            add(day, "chain", sentence)
        if not day.digest_before and day is not first:
            add(day, "chain", "it continues no digest, although days were closed before it")
        if fingerprints and day.id not in proved:
            sentence = "neither its digest nor one that continues it was made with a key that is there"
            add(day, "key", f"{sentence}: any program could have written it")
    return differences


def _proved_by_key(
    closed: Sequence[Day], by_digest: Mapping[str, Day], fingerprints: Collection[str]
) -> set[int]:
    """Returns the ids of the days with a digest by one of these keys, and of all before them."""
    proved = set[int]()
    for day in closed:
        link: Day | None = day if day.digest_key in fingerprints else None
        while link is not None and link.id not in proved:
            proved.add(link.id)
            link = by_digest.get(link.digest_before)
    return proved


def lost_days(db: sa.Connection, zone: str | None = None) -> list[str]:
    """Returns the days that were audited once and are not closed any more, in words."""
    columns = day_audits.c
    statement = sa.select(columns.date, columns.zone).join(
        days, sa.and_(days.c.id == columns.day, days.c.state == "closed"), isouter=True
    )
    statement = statement.where(days.c.id.is_(None), *([] if zone is None else [columns.zone == zone]))
    rows = db.execute(statement.order_by(columns.zone, columns.date))
    return [
        f"{date} ({day_zone}) was closed and audited, and is not closed any more" for date, day_zone in rows
    ]
