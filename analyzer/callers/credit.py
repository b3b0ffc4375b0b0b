"""Credit: grants to limits whose window does not begin again, and what of each was used.

What is used is taken from the grant that ends first. When a grant ends, the rest of it expires; what was used
of it stays a part of the limit, or the same requests would be taken from another grant once more. So each
grant knows what its series had used when it began and when it ended, and between two such moments the growth
is divided among the grants that were in force.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise
from math import inf
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.judging.caller_limits import Subject
from analyzer.judging.kinds import policy_kind
from analyzer.judging.sql import plans
from analyzer.judging.sql.totals import used_by
from analyzer.kernel.tables.schema import overrides
from analyzer.plan import catalog
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.sums import sum_text
from analyzer.plan.windows import Calendar, window_at


class Credit(NamedTuple):
    """A grant to a limit whose window does not begin again.

    Attributes:
        id: Of the override.
        amount: What was granted.
        from_ms: When it began.
        until_ms: When it ends, or has ended; None: never.
        used_from: What its series had used when it began.
        used_until: What it had used when the grant ended; None: it has not ended.
    """

    id: str
    amount: int
    from_ms: int
    until_ms: int | None
    used_from: int
    used_until: int | None = None


def used_of_each(grants: Collection[Credit], used: int) -> Mapping[str, int]:
    """Returns what was used of each grant, by its id, of a series that has used so much by now.

    >>> first, second = Credit("a", 100, 0, 9_000, 0), Credit("b", 50, 5_000, None, 60)
    >>> used_of_each([second, first], 130)
    {'a': 100, 'b': 30}
    """
    moments = {(credit.from_ms, credit.used_from) for credit in grants}
    moments |= {
        (credit.until_ms, credit.used_until)
        for credit in grants
        if credit.until_ms is not None and credit.used_until is not None
    }
    taken = {credit.id: 0 for credit in sorted(grants)}
    in_order = [*sorted(moments), (inf, used)]
    for begin, (_, after) in pairwise(in_order):
        growth = max(0, after - begin[1])
        in_force = (
            credit for credit in grants if (credit.from_ms, credit.used_from) <= begin < _ended(credit)
        )
        for credit in sorted(in_force, key=_end):
            part = min(growth, credit.amount - taken[credit.id])
            taken[credit.id] += part
            growth -= part
    return taken


def _began(credit: Credit) -> tuple[float, int]:
    return credit.from_ms, credit.used_from


def _ended(credit: Credit) -> tuple[float, int]:
    """Returns when a grant has ended, and what was used by then; one that has not lasts."""
    if credit.used_until is None or credit.until_ms is None:
        return inf, 0
    return credit.until_ms, credit.used_until


def _end(credit: Credit) -> tuple[float, int, str]:
    return inf if credit.until_ms is None else credit.until_ms, credit.from_ms, credit.id


def used_by_subject(db: sa.Connection, policy: str, subject: Subject, now_s: int) -> int | None:
    """Returns what a caller or tenant has used of a policy whose window does not begin again.

    None for other policies, and where a grant is for each caller of a tenant. Flushes must be blocked.
    """
    stored = plans.stored(db)
    judged = None if stored is None else stored.plan.policy(policy)
    if judged is None:
        return None
    sum_ = policy_kind(judged).judged_sum(judged)
    grouping = parse_grouping(judged.per)
    if not isinstance(sum_.window, Calendar) or sum_.window.repeats:
        return None
    if not grouping.is_of_subjects or grouping.scope != subject.kind:
        return None
    number = catalog.load(db).sums.get(sum_text(sum_))
    if number is None:
        return 0
    window = window_at(sum_.window, now_s)
    return used_by(db, number, window.start_s, [(subject.name, "")]).get((subject.name, ""), 0)


def credits_of(db: sa.Connection, policy: str, subject: Subject) -> list[Credit]:
    """Returns the grants to a limit whose window does not begin again, ended ones among them."""
    columns = overrides.c
    statement = sa.select(
        columns.id, columns.granted, columns.from_ms, columns.until_ms, columns.used_from, columns.used_until
    ).where(
        columns.subject_kind == subject.kind,
        columns.subject == subject.name,
        columns.policy == policy,
        columns.used_from.is_not(None),
    )
    return [Credit(*row) for row in db.execute(statement)]
