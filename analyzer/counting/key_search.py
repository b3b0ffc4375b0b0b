"""Search for keys by a part of their name, in bounded time however many there are.

An index serves names that begin with the text, as it is or behind the kind of a caller: in each stretch of
the time, a few rows are read for each beginning. Names with the text inside are searched among the newest
rows alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.counting.usage_windows import counted_range
from analyzer.kernel.database.engine import slow_reading, without_scans
from analyzer.kernel.tables.schema import buckets, callers
from analyzer.plan import catalog
from analyzer.plan.meters import WIDTHS_S

FOUND_MAX = 100
STRETCHES_MAX = 1_500  # buckets of one width that are read, the newest first: a day of minutes
SCANNED_MAX = 20_000  # newest rows in which a text may stand inside the name
LAST = "\U0010ffff"  # behind every character of a name


class FoundKeys(NamedTuple):
    """Keys with a text in their name.

    Attributes:
        keys: In the order of their names; at most `FOUND_MAX`.
        note: What was not looked at; "" if everything was.
    """

    keys: Sequence[str]
    note: str


def find_keys(
    engine: sa.Engine, grouping: str, text: str, kinds: Iterable[str], from_s: int, until_s: int
) -> FoundKeys:
    """Returns keys of `grouping` that were counted in [from_s, until_s), or have a plan or a tenant.

    `kinds` are those of callers, such as "api_key". Raises StoreAway.
    """
    if counted_range(engine, grouping) is None:
        return FoundKeys((), "")
    beginnings = [text, *(f"{kind}:{text}" for kind in sorted(set(kinds)) if ":" not in text)]
    found: set[str] = set()
    with slow_reading(engine) as db:
        number = catalog.load(db).groupings[grouping]
        without_scans(db)
        times = list(_times(db, number, from_s, until_s))
        for begin in beginnings:
            found |= set(db.execute(_known(begin)).scalars()) if grouping == "caller" else set()
            for width_s, bucket_s in times[:STRETCHES_MAX]:
                if len(found) >= FOUND_MAX:
                    break
                found |= set(db.execute(_beginning(number, width_s, bucket_s, begin)).scalars())
        scanned = 0
        for width_s, bucket_s in times:
            if scanned >= SCANNED_MAX or len(found) >= FOUND_MAX:
                break
            for (key,) in db.execute(_all(number, width_s, bucket_s, SCANNED_MAX - scanned)):
                scanned += 1
                if text.lower() in key.lower():
                    found.add(key)
    return FoundKeys(sorted(found)[:FOUND_MAX], _note(text, found, times, scanned))


def _note(text: str, found: set[str], times: Sequence[tuple[int, int]], scanned: int) -> str:
    sentences = []
    if len(found) >= FOUND_MAX:
        sentences.append(f"The first {FOUND_MAX}: write more of the name.")
    if scanned >= SCANNED_MAX:
        sentences.append(
            f"Names that begin with {text}, with or without their kind, are all here; those with it inside "
            f"are searched in the newest {SCANNED_MAX:,} counts only."
        )
    if len(times) > STRETCHES_MAX:
        sentences.append(f"Only the newest {STRETCHES_MAX:,} stretches of the time were searched.")
    return " ".join(sentences)


def _times(db: sa.Connection, grouping: int, from_s: int, until_s: int) -> list[tuple[int, int]]:
    """Returns width and begin of the buckets of a time that have rows, the newest first.

    From each begin the index leads to the one before it.
    """
    columns, times = buckets.c, list[tuple[int, int]]()
    for width_s in WIDTHS_S:
        before_s = until_s
        while len(times) <= 3 * STRETCHES_MAX:
            newest = sa.select(columns.bucket_s).where(
                columns.grouping == grouping, columns.page == 0, columns.width_s == width_s,
                columns.bucket_s < before_s, columns.bucket_s > from_s - width_s,
            )  # fmt: skip
            found_s = db.execute(newest.order_by(columns.bucket_s.desc()).limit(1)).scalar()
            if found_s is None:
                break
            before_s = found_s
            times.append((width_s, found_s))
    return sorted(times, key=lambda time: -time[1])


def _beginning(grouping: int, width_s: int, bucket_s: int, begin: str) -> sa.Select[Any]:
    columns = buckets.c
    return (
        _of_bucket(grouping, width_s, bucket_s)
        .where(columns.key >= begin, columns.key < begin + LAST)
        .order_by(columns.key)
        .limit(FOUND_MAX)
    )


def _all(grouping: int, width_s: int, bucket_s: int, most: int) -> sa.Select[Any]:
    return _of_bucket(grouping, width_s, bucket_s).limit(most)


def _of_bucket(grouping: int, width_s: int, bucket_s: int) -> sa.Select[Any]:
    columns = buckets.c
    return sa.select(columns.key).where(
        columns.grouping == grouping, columns.page == 0, columns.width_s == width_s,
        columns.bucket_s == bucket_s,
    )  # fmt: skip


def _known(begin: str) -> sa.Select[Any]:
    """Returns callers with facts by the begin of their name, or those whose tenant begins with it."""
    name = callers.c.caller
    return sa.select(name).where(name >= begin, name < begin + LAST).order_by(name).limit(FOUND_MAX)
