"""The names in a large table, in one dict: to look there takes a third of the time that a shard takes."""

from __future__ import annotations

from collections.abc import Container, Iterator

from gatekeeper import tables
from gatekeeper.pieces import Breath, in_pieces
from gatekeeper.places import Key
from gatekeeper.tables import Spread, Table

GROWS = (43_690, 87_381)  # entries of a dict that makes room when there is one more
NAMES_MAX = 170_000  # the dict would grow next at 174,763, and for that stop everybody for 1.9 ms


class Names:
    """A dict that the poller alone writes to, while requests look. It may have names that the table has
    not: they are judged, and pass then. It never lacks one."""

    def __init__(self) -> None:
        # With a key that is no text, CPython keeps each hash beside its key: to make room for 87,000 more
        # takes 0.9 ms. Without, it reads the names for it, which are all over the memory: 3 ms.
        self._all: dict[Key, None] = {0: None}
        self._of: Table = tables.EMPTY  # what it was made of

    def grown(self, table: Table) -> Container[object]:
        """Where to look for the names of `table`. Call `shrink` when nobody begins to look at the last table
        any more."""
        if not _fits(table):
            return table
        breath = Breath()
        for key in in_pieces(_only_in(table, self._of)):
            if len(self._all) in GROWS:
                breath.take(at_once=True)  # not on top of other work
            self._all[key] = None
        return self._all

    def shrink(self, table: Table) -> None:
        """Forget the names that `table`, which was grown for, has not."""
        if _fits(table):
            for key in in_pieces(_only_in(self._of, table)):
                if key not in table:
                    self._all.pop(key, None)
            self._of = table
        elif len(self._all) > 1:
            for _ in in_pieces(range(len(self._all) - 1)):
                self._all.popitem()  # the last first, and so never the 0
            self._all, self._of = {0: None}, tables.EMPTY


def _fits(table: Table) -> bool:
    return isinstance(table, Spread) and len(table) <= NAMES_MAX


def _only_in(table: Table, other: Table) -> Iterator[Key]:
    """The keys in those parts of `table` that `other` does not share."""
    shared = {id(shard) for shard in tables.shards_of(other)}
    return (key for shard in tables.shards_of(table) if id(shard) not in shared for key in shard)
