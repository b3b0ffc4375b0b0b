"""An analyzer with one promise taken out, to show that the tests would notice: mutant.py MUTATION ARGS..."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from analyzer.core.model import Lag, Partition, Progress
from analyzer.store import store
from analyzer.store.schema import offsets


def without_compare_and_set() -> None:
    """The offset moves from wherever it is; two analyzers of one partition both count."""
    at = sa.and_(
        offsets.c.cluster == sa.bindparam("at_cluster"),
        offsets.c.topic_id == sa.bindparam("at_topic_id"),
        offsets.c.partition == sa.bindparam("at_partition"),
        sa.bindparam("from", type_=sa.BigInteger) >= 0,
    )
    move = store.MOVE_OFFSET
    move._where_criteria = (at,)


def offsets_in_a_transaction_of_their_own() -> None:
    """The offset is committed first, the counts a moment later: a kill in between loses them."""
    move = store.Flush.move_offsets

    def apart(self: store.Flush, parts: Sequence[Progress], lags: Mapping[Partition, Lag]) -> None:
        with self._db.engine.begin() as alone:
            move(store.Flush(alone, self._owner, self._random_mark), parts, lags)
        time.sleep(0.1)  # as a slower disk would

    store.Flush.move_offsets = apart  # type: ignore[method-assign]


MUTATIONS = {each.__name__: each for each in (without_compare_and_set, offsets_in_a_transaction_of_their_own)}

if __name__ == "__main__":
    MUTATIONS[sys.argv.pop(1)]()
    from analyzer.cli import main

    main()
