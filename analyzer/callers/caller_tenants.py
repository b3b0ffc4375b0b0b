"""The tenants of some callers, for lists of them."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from analyzer.judging.sql.directory import read_directory
from analyzer.kernel.database.engine import reading


def tenants_of(engine: sa.Engine, callers: Collection[str]) -> dict[str, str]:
    """Returns the tenant of each of these callers that has one. Raises StoreAway."""
    if not callers:
        return {}
    with reading(engine) as db:
        directory = read_directory(db, callers)
    tenants = {caller: directory.caller_group(caller).tenant for caller in callers}
    return {caller: tenant for caller, tenant in tenants.items() if tenant}
