"""The entries of the chain that rows must have: those that a bill takes as given.

The act that writes a row appends the entry, and the audit expects it: both by the function of its kind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.kernel.database.chain import EntryKind, append
from analyzer.kernel.tables.chain_tables import chain_entries, chain_salts

StoredRow = Mapping[Any, Any]  # of a table, by the names of its columns


class Given(NamedTuple):
    """An entry as its row demands it.

    Attributes:
        kind: Of the entry.
        subject: Tells rows of the kind apart, without names.
        fields: That must not change.
        texts: Texts that may name callers, which the entry has digests of.
    """

    kind: EntryKind
    subject: str
    fields: Mapping[str, object]
    texts: Mapping[str, str] = {}


def sign(db: sa.Connection, given: Given) -> None:
    """Appends the entry of a row, in the transaction that writes the row. Raises StoreRefused."""
    append(db, given.kind, given.subject, given.fields, given.texts)


def sign_again(db: sa.Connection, given: Given) -> None:
    """Appends the entry of a row from whose texts a name was taken, and destroys the salts of those before.

    Without its salt the digest in an earlier entry does not tell whether a guessed name was in the text.
    """
    same = sa.select(chain_entries.c.number).where(
        chain_entries.c.kind == given.kind, chain_entries.c.subject == given.subject
    )
    db.execute(sa.delete(chain_salts).where(chain_salts.c.number.in_(same)))
    sign(db, given)


def _fields(row: StoredRow, *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names}


def _partition(row: StoredRow) -> str:
    return json.dumps([row["cluster"], row["topic_id"], row["partition"]])


def plan(row: StoredRow) -> Given:
    """Returns the entry of a row of `plans`."""
    return Given("plan", f"{row['version']} {row['mark']}", _fields(row, "at_ms"), _fields(row, "body"))


def gap(row: StoredRow) -> Given:
    """Returns the entry of a row of `gaps` that was accepted."""
    fields = _fields(row, "kind", "start", "accepted_to", "accepted_ms") | {"partition": _partition(row)}
    return Given("gap", str(row["id"]), fields, _fields(row, "accepted_by", "reason"))


def retry(row: StoredRow) -> Given:
    """Returns the entry of a row of `events` about a retry."""
    return Given("retry", str(row["id"]), _fields(row, "at_ms"), _fields(row, "who", "about", "why"))


def left_out(row: StoredRow) -> Given:
    """Returns the entry of a row of `day_positions` that was left out."""
    subject = f"{row['day']} {_partition(row)}"
    return Given("left out", subject, _fields(row, "reason_digest"), _fields(row, "who"))


def correction(row: StoredRow) -> Given:
    """Returns the entry of a row of `corrections`."""
    signed = ("day", "booked", "grouping", "reference", "meter", "amount", "reason_digest", "at_ms")
    return Given("correction", str(row["id"]), _fields(row, *signed), _fields(row, "resource", "who"))


def closing(row: StoredRow) -> Given:
    """Returns the entry of a row of `days` that is closed.

    What flushes have decided, by which plans offsets were counted and which verdicts they did not believe, is
    in `given` of the row, and so in its digest.
    """
    fields = _fields(row, "id", "cut_ms", "closed_ms", "rows", "requests", "digest", "digest_before")
    return Given("closing", f"{row['zone']} {row['date']}", fields)


def deletion(row: StoredRow) -> Given:
    """Returns the entry of a row of `deleted_days`."""
    return Given("deletion", str(row["day"]), _fields(row, "content", "at_ms"))


def replay(row: StoredRow, positions: list[StoredRow]) -> Given:
    """Returns the entry of a row of `replays` that was swapped in, with those of `replay_positions`."""
    ranges = [[_partition(of), of["begin"], of["end"], of["stretches"]] for of in positions]
    digest = sha256(json.dumps(sorted(ranges)).encode()).hexdigest()
    fields = _fields(row, "plan", "mark", "parts", "swapped_ms", "rows", "days") | {"ranges": digest}
    return Given("replay", str(row["id"]), fields, _fields(row, "swapped_by", "reason"))


DELIVERED = ("destination", "zone", "date", "grouping", "kind", "meter")


def delivery(row: StoredRow) -> Given:
    """Returns the entry of a row of `deliveries` that is finished."""
    fields = _fields(row, "events", "amount", "left_out", "left_out_amount", "finished_ms")
    return Given("delivery", json.dumps([row[name] for name in DELIVERED]), fields)


def rows_of(db: sa.Connection, table: sa.Table, *conditions: sa.ColumnElement[bool]) -> list[StoredRow]:
    """Returns the rows of a table that meet the conditions, in the order of its key."""
    statement = sa.select(table).where(*conditions).order_by(*table.primary_key.columns)
    return [dict(row) for row in db.execute(statement).mappings()]
