"""Texts that may name a caller: which columns have them, and what takes the place of the name.

Every text column is searched unless one of the lists below has its name, so a new one is. Names that stand
alone in a column are those of `renamed_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.callers.forgetting.renaming import Renaming
from analyzer.counting.records.sample_texts import FORGOTTEN
from analyzer.kernel.database import signed_rows
from analyzer.kernel.database.audit_log import RECORDS_RETRIED
from analyzer.kernel.database.dialects import dialect_of
from analyzer.kernel.database.engine import ROWS_AT_ONCE, slow_reading, writing
from analyzer.kernel.tables.counter_tables import named_callers
from analyzer.kernel.tables.outbox_tables import alert_messages, outbox
from analyzer.kernel.tables.replay_tables import replay_positions, replays
from analyzer.kernel.tables.schema import analyzers, catalog, events, gaps, gates, metadata, plans, rejects

NAMES = frozenset({"caller", "callers", "key", "name", "sample", "series", "subject"})
# Words of the program, digests, names of logs, of the configuration and of operators.
NAMELESS = frozenset({
    "act", "action", "cause", "fact", "format", "how", "join", "kind", "on_stale", "op", "origin",
    "outcome", "release", "result", "scope", "state", "subject_kind", "sum", "zone", "date", "content",
    "digest", "digest_before", "digest_key", "hashes", "id", "mark", "parts", "reason_digest", "reference",
    "salt", "series_digest", "customer_digest",
    "value", "address", "anchor", "cluster", "destination", "file", "files",
    "given", "grouping", "groupings", "instance", "job", "meter", "meters", "days", "place", "plan",
    "policy", "reads", "record_anchor", "record_plan", "record_tenant", "record_zone", "resource",
    "resume_token", "settled", "source", "stretches", "tenant", "topic", "topic_id", "accepted_by",
    "fields", "found_by", "holder", "mac", "owner", "swapped_by", "token", "who", "severity", "way", "secret",
    "receiver", "whole",
})  # fmt: skip
REASON_WORDS = frozenset({"rejects", "replayed_rejects", "refused_requests"})  # whose reasons are words
# Documents of programs, in which a text without a kind may be the name of anything.
DOCUMENTS = (
    plans.c.body,
    plans.c.pending,
    gates.c.told,
    analyzers.c.measured,
    catalog.c.meaning,
    outbox.c.body,
    alert_messages.c.listed,
)
QUOTED_RECORDS = gaps.c.why  # quotes a record, as samples do
FREE_TEXTS = tuple(
    column
    for table in metadata.sorted_tables
    for column in table.columns
    if isinstance(column.type, sa.Text | sa.LargeBinary)
    and column.name not in NAMES | NAMELESS
    and not (column.name == "reason" and table.name in REASON_WORDS)
    and column not in {*DOCUMENTS, QUOTED_RECORDS}
)


class _SignedTable(NamedTuple):
    """A table with rows whose texts the chain has digests of.

    Attributes:
        entry: Returns the entry of a row, in a transaction.
        is_signed: Whether a row has one.
    """

    entry: Callable[[sa.Connection, signed_rows.StoredRow], signed_rows.Given]
    is_signed: Callable[[signed_rows.StoredRow], bool] = lambda _: True


def _replay(db: sa.Connection, row: signed_rows.StoredRow) -> signed_rows.Given:
    of_replay = replay_positions.c.replay == row["id"]
    return signed_rows.replay(row, signed_rows.rows_of(db, replay_positions, of_replay))


SIGNED: Mapping[sa.Table, _SignedTable] = {
    plans: _SignedTable(lambda _, row: signed_rows.plan(row)),
    gaps: _SignedTable(lambda _, row: signed_rows.gap(row), lambda row: row["accepted_ms"] is not None),
    events: _SignedTable(lambda _, row: signed_rows.retry(row), lambda row: row["act"] == RECORDS_RETRIED),
    replays: _SignedTable(_replay, lambda row: row["state"] == "swapped"),
}
AT_ONCE = 500  # rows in one transaction

ReplaceValue = Callable[[Any], Any]


class NamedText(NamedTuple):
    """A text that names a caller.

    Attributes:
        column: Where it stands: "events.why".
        text: The text.
    """

    column: str
    text: str


class _ChangedValue(NamedTuple):
    column: sa.Column[Any]
    key: tuple[Any, ...]
    old: Any
    new: Any


def named_texts(engine: sa.Engine, caller: Renaming) -> list[NamedText]:
    """Returns the free texts that name a caller, with its kind or without. Raises StoreAway."""
    return [
        NamedText(f"{column.table.name}.{column.name}", change.old)
        for column in FREE_TEXTS
        for change in _changes(engine, column, caller.plain_spellings, caller.replaced_plain)
    ]


def replace(engine: sa.Engine, caller: Renaming, *, also_plain: bool) -> int:
    """Replaces the name in all texts, and samples that contain it; returns the number of rows.

    With `also_plain` it is replaced in free texts also where it has no kind in front.
    """

    def without_name(callers: str) -> str:
        return "\n".join(caller.pseudonym if name == caller.name else name for name in callers.split("\n"))

    def hidden(sample: bytes) -> bytes:
        return FORGOTTEN if caller.is_named_by(bytes(sample)) else sample

    typed, plain = (caller.spellings, caller.replaced), (caller.plain_spellings, caller.replaced_plain)
    of_columns: Mapping[sa.Column[Any], tuple[tuple[str, ...], ReplaceValue]] = {
        **dict.fromkeys(FREE_TEXTS, plain if also_plain else typed),
        **dict.fromkeys(DOCUMENTS, typed),
        QUOTED_RECORDS: plain,
        named_callers.c.callers: ((caller.name,), without_name),
        rejects.c.sample: (caller.plain_spellings, hidden),
    }
    changed = 0
    for column, (spellings, change) in of_columns.items():
        changes = list(_changes(engine, column, spellings, change))
        for first in range(0, len(changes), AT_ONCE):
            with writing(engine) as db:
                for value in changes[first : first + AT_ONCE]:
                    _store(db, value)
        changed += len(changes)
    return changed


def _store(db: sa.Connection, value: _ChangedValue) -> None:
    table = value.column.table
    is_row = sa.and_(*(column == part for column, part in zip(table.primary_key, value.key, strict=True)))
    # With its salt, the digest of a signed reason would tell whether a guessed text was the reason.
    salt = {table.c.salt: ""} if "salt" in table.c else {}
    changed = sa.update(table).where(is_row).values({value.column: value.new, **salt}).returning(*table.c)
    for row in db.execute(changed).mappings().all():
        if table in SIGNED and SIGNED[table].is_signed(row):
            signed_rows.sign_again(db, SIGNED[table].entry(db, row))


def _changes(
    engine: sa.Engine, column: sa.Column[Any], spellings: tuple[str, ...], change: ReplaceValue
) -> Iterator[_ChangedValue]:
    """Yields the values of a column that contain one of some texts and that `change` changes."""
    is_binary = isinstance(column.type, sa.LargeBinary)
    with slow_reading(engine) as db:
        position = dialect_of(db).position
        conditions = []
        for text in spellings:
            part: Any = sa.literal(text.encode(), sa.LargeBinary) if is_binary else sa.literal(text)
            conditions.append(position(column, part) > 0)
        statement = sa.select(*column.table.primary_key.columns, column).where(sa.or_(*conditions))
        with db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows:
            for *key, value in rows:
                if (new := change(value)) != value:
                    yield _ChangedValue(column, tuple(key), value, new)
