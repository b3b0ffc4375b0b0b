"""The locks of the database whose time is not over."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from analyzer.judging.locks.lock_feed import NOT_ENFORCED, are_in_shadow, lock_from_row
from analyzer.kernel.database.engine import ROWS_AT_ONCE, NowMs, slow_reading
from analyzer.kernel.tables.schema import locks
from analyzer.plan.policies import SHADOW
from gatekeeper.model import Lock


def in_force() -> list[sa.ColumnElement[bool]]:
    """Returns the conditions for locks that gates enforce at this time."""
    return [locks.c.until_ms > NowMs(), locks.c.action.not_in(NOT_ENFORCED)]


def locks_in_force(
    engine: sa.Engine, key: str | None = None, policy: str | None = None, *, in_shadow: bool = False
) -> Iterator[Lock]:
    """Yields the locks whose time is not over by the database's clock, the latest end first.

    Those that gates enforce, or with `in_shadow` those of policies in this mode; of a policy also those of
    its periods and of its candidate. In constant memory. Raises StoreAway.
    """
    conditions = [locks.c.until_ms > NowMs(), locks.c.action == SHADOW] if in_shadow else in_force()
    conditions += [locks.c.key == key] if key is not None else []
    if policy is not None:
        is_of_family = locks.c.policy.startswith(f"{policy}/", autoescape=True)
        conditions.append(sa.or_(locks.c.policy == policy, is_of_family))
    order = (locks.c.until_ms.desc(), locks.c.policy, locks.c.scope, locks.c.key, locks.c.resource)
    with slow_reading(engine) as db:
        statement = sa.select(locks).where(*conditions).order_by(*order)
        with db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows:
            yield from map(lock_from_row, rows)


def shadow_locks(engine: sa.Engine, policy: str) -> int:
    """Returns how many locks in shadow a policy has at this time. Raises StoreAway."""
    with slow_reading(engine) as db:
        of_policy = sa.select(sa.func.count()).where(*are_in_shadow(policy))
        return int(db.execute(of_policy).scalar_one())
