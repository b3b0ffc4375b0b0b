"""Reasons that digests of closed days sign: by a salted digest each, so that a name can be taken out of them.

The digest of a day has `reason_digest` in place of the reason, so it holds when the reason of an operator
changes because a caller in it is forgotten. The salt is destroyed then: with it, the digest would tell
whether a guessed text was the reason.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from hashlib import sha256

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day
from analyzer.kernel.sentences import plural
from analyzer.kernel.tables.billing_tables import corrections, day_positions

SALT_BYTES = 16


def reason_signature(reason: str) -> dict[str, str]:
    """Returns the columns `salt` and `reason_digest` of a reason."""
    salt = secrets.token_hex(SALT_BYTES)
    return {"salt": salt, "reason_digest": _digest(salt, reason)}


def is_signed(reason: str, salt: str, digest: str) -> bool:
    """Whether a reason fits its digest; without its salt, whether both are there or neither."""
    return _digest(salt, reason) == digest if salt else bool(reason) == bool(digest)


def changed_reasons(db: sa.Connection, day: Day) -> Iterator[str]:
    """Yields a sentence for each reason of a closed day that does not fit its digest."""
    for what, reason, salt, digest in _reasons(db, day):
        if not is_signed(reason, salt, digest):
            yield f"the reason of {what} was changed since it was written"


def unproved_reasons(db: sa.Connection, day: Day) -> list[str]:
    """Returns a sentence about the reasons of a closed day that have no salt any more; none without one."""
    count = sum(bool(digest and not salt) for _, _, salt, digest in _reasons(db, day))
    return [f"a forgotten caller was taken out of {plural(count, 'reason')}: not compared"] if count else []


def _digest(salt: str, reason: str) -> str:
    return sha256(f"{salt}{reason}".encode()).hexdigest()


def _reasons(db: sa.Connection, day: Day) -> Iterator[tuple[str, str, str, str]]:
    """Yields what each row of a day has a reason for, the reason, its salt and its digest."""
    booked = sa.select(corrections).where(corrections.c.booked == day.id).order_by(corrections.c.id)
    for row in db.execute(booked):
        yield f"correction {row.id}", row.reason, row.salt, row.reason_digest
    columns = day_positions.c
    positions = sa.select(day_positions).where(columns.day == day.id)
    for row in db.execute(positions.order_by(columns.topic, columns.partition)):
        yield f"{row.topic}[{row.partition}]", row.left_out, row.salt, row.reason_digest
