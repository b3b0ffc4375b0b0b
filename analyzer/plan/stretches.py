"""Which offsets were counted by which plan: a row per partition and change of plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.kernel.database.engine import insert
from analyzer.kernel.database.partition_keys import PartitionKey, is_partition, key_tuple, key_values
from analyzer.kernel.model import PartitionProgress
from analyzer.kernel.tables.schema import stretches


class Stretch(NamedTuple):
    """Offsets from `start` on, up to the next stretch, counted by a plan."""

    start: int
    plan: int  # version
    mark: str


class KnownStretches:
    """The plan of the last stretch of each partition, as far as this process has stored it."""

    def __init__(self) -> None:
        self._known: dict[PartitionKey, tuple[int, str]] = {}

    def forget(self) -> None:
        """Forgets everything: a transaction has failed, or its outcome is unknown."""
        self._known.clear()

    def note(self, db: sa.Connection, parts: Sequence[PartitionProgress], plan: int, mark: str) -> None:
        """Stores where a plan begins, for partitions whose last stretch has another one.

        The caller holds the offsets of `parts`.
        """
        for progress in parts:
            key = key_tuple(progress.part)
            if progress.next == progress.start or self._known.get(key) == (plan, mark):
                continue
            last = last_stretch(db, progress)
            if last is None or (last.plan, last.mark) != (plan, mark):
                row = key_values(progress.part) | {"start": progress.start, "plan": plan, "mark": mark}
                begun = insert(db, stretches).values(row)
                # A plan that had no records: after a restore, or a file that was read from its start again.
                replaced = begun.on_conflict_do_update(
                    index_elements=stretches.primary_key, set_={"plan": plan, "mark": mark}
                )
                db.execute(replaced)
            self._known[key] = (plan, mark)


def last_stretch(db: sa.Connection, progress: PartitionProgress) -> Stretch | None:
    """Returns the stretch that the partition is in; None when it has none yet."""
    statement = sa.select(stretches.c.start, stretches.c.plan, stretches.c.mark)
    newest = (
        statement.where(is_partition(stretches, progress.part)).order_by(stretches.c.start.desc()).limit(1)
    )
    row = db.execute(newest).first()
    return None if row is None else Stretch(*row)
