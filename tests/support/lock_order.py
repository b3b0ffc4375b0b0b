"""The order in which transactions lock rows, and a recorder that compares every transaction with it.

Two transactions that lock rows of two tables in opposite order may wait for each other. One order for all
excludes every such pair, which no test of some pairs does. The order of rows within a table, and what
happens, is what `tests/interleavings` looks at.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from tests.interleavings.footprints import ROWS, Mode, footprint_of

# docs/architecture.md, "The transaction", says why. Shared totals come again behind the rejected records.
ORDER = (
    "leases job_runs",
    "replays replay_positions replayed_counts replayed_rejects",
    "offsets gaps",
    "plans analyzers callers overrides directory_versions refills corrections",
    "catalog stretches days day_positions disbelieved",
    "totals distinct_values slots_0 slots_1 slots_2",
    "buckets proofs day_counts changed_quarters referenced_names adjustments frozen_counts",
    "rejects record_facts waiting_facts",
    "locks postponed notices brakes lock_history",
    "feed feed_versions lock_changes",
)
PLACES = {table: place for place, table in enumerate(" ".join(ORDER).split())}
# Who locks rows of these holds the row of their partition in `offsets`.
OF_PARTITIONS = {"event_ids", "named_callers"}
# Inserted with a random number: nothing waits for such a row.
NEVER_AWAITED = {"events", "outbox"}
# One who holds the plans' table lock meets no transaction that has locked two tables behind the plan, and
# so may lock them in any order.
BEHIND_THE_PLAN = set(PLACES) - set(" ".join(ORDER[:3]).split()) - {"plans"}

# Pairs that some transaction locks, in this order, without the plan's row or table lock. One that has the
# table lock keeps to the order of these, too.
WITHOUT_THE_PLAN = {
    *(
        ("days", "day_positions"),
        ("buckets", "proofs"),
        ("buckets", "changed_quarters"),
        ("overrides", "lock_history"),
    ),
    *combinations(("feed", "feed_versions", "lock_changes"), 2),
    *product(("referenced_names", "locks", "lock_history"), ("feed", "feed_versions", "lock_changes")),
    ("locks", "lock_history"),
}

FOR_SHARE_OF = re.compile(r"\bfor (?:key )?share of (\w+)")
LOCKING = (Mode.WRITE, Mode.SHARE, Mode.LOCK, Mode.DROP)


class Taken(NamedTuple):
    """A statement's lock of rows of a table, or of the table."""

    table: str
    mode: Mode
    waits: bool = True  # for other transactions; not with SKIP LOCKED


def locks_of(statement: str) -> list[Taken]:
    """Returns what a statement locks; nothing for one that is none of SQL's usual ones."""
    try:
        footprint = footprint_of(statement)
    except ValueError:
        return []
    text = " ".join(statement.lower().split())
    shared = FOR_SHARE_OF.search(text)
    return [
        Taken(table.split(ROWS)[0], mode, "skip locked" not in text)
        for table, mode in sorted(footprint, key=str)
        if mode in LOCKING and not (mode is Mode.SHARE and shared and table != shared[1])
    ]


def violations(transaction: Sequence[Sequence[Taken]]) -> list[str]:
    """Returns each pair of tables that a transaction locks against the order, from its locks by statement.

    Example:
        >>> violations([[Taken("job_runs", Mode.WRITE)], [Taken("leases", Mode.WRITE)]])
        ['job_runs before leases']
    """
    held: dict[str, bool] = {}  # whether the plans' table lock was held before
    has_lock, is_planned = False, False
    wrong = []
    for statement in transaction:
        for table, mode, waits in statement:
            if table == "plans":
                has_lock = has_lock or mode is Mode.LOCK
                is_planned = True
            if table in held or table not in PLACES:
                continue
            for before, had_lock in held.items() if waits else ():
                both_behind = {before, table} <= BEHIND_THE_PLAN
                if PLACES[before] > PLACES[table] and not (
                    had_lock and both_behind and (table, before) not in WITHOUT_THE_PLAN
                ):
                    wrong.append(f"{before} before {table}")
                elif both_behind and not is_planned and (before, table) not in WITHOUT_THE_PLAN:
                    wrong.append(f"{before} before {table} without the plan's lock")
        held |= {table: has_lock for table, *_ in statement if table in PLACES and table not in held}
    return wrong


class LockRecorder:
    """Notes the locks of the transactions on PostgreSQL that the analyzer's code begins and commits."""

    def __init__(self) -> None:
        self.wrong: dict[str, str] = {}  # the place in the code, by violation

    @contextmanager
    def recording(self) -> Iterator[None]:
        hooks = {"begin": self._begin, "before_cursor_execute": self._execute, "commit": self._commit}
        for name, hook in hooks.items():
            sa.event.listen(sa.Engine, name, hook)
        try:
            yield
        finally:
            for name, hook in hooks.items():
                sa.event.remove(sa.Engine, name, hook)

    def _begin(self, db: sa.Connection) -> None:
        db.info["locks"] = [] if db.dialect.name == "postgresql" and begun_by() else None

    def _execute(self, db: sa.Connection, _cursor: Any, statement: str, *_rest: Any) -> None:
        if (statements := db.info.get("locks")) is not None and (taken := locks_of(statement)):
            statements.append(taken)

    def _commit(self, db: sa.Connection) -> None:
        if statements := db.info.pop("locks", None):
            for wrong in violations(statements):
                self.wrong.setdefault(wrong, begun_by())


def begun_by() -> str:
    """Returns the functions of the analyzer that have begun the transaction; "" for a test's own one."""
    names, frame = [], sys._getframe(1)
    while frame is not None and len(names) < 8:
        path = Path(frame.f_code.co_filename)
        if "analyzer" in path.parts and path.name != "engine.py":
            names.append(frame.f_code.co_name)
        elif "tests" in path.parts and path.name != Path(__file__).name:
            break
        frame = frame.f_back  # type: ignore[assignment]
    # A test that calls the steps of a flush has another order.
    return "" if names[:1] == ["_migrating"] or names in ([], ["transaction"]) else " < ".join(names)
