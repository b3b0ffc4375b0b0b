"""Which order of flushes is tried on which database: commits at once on SQLite, late ones on PostgreSQL."""

from __future__ import annotations

import pytest

from analyzer.flush.flush_executors import InlineFlushes
from tests.support.flush_orders import LateFlushes

IN_TEST = {("sqlite", InlineFlushes), ("postgresql", LateFlushes)}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves the other two pairs of database and order to `make deep`."""
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if {"database", "order"} <= params.keys() and (params["database"], params["order"]) not in IN_TEST:
            item.add_marker(pytest.mark.deep("the same order on the other database"))
