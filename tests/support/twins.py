"""Tests that run once on each database, and where both are worth their time in `make test`.

Statements, locks and plans of queries differ between databases: the folders below are about them. Elsewhere a
test is about what stands above the statements; its twin on PostgreSQL runs in `make deep`. A test that is
asked for by its own name runs always.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

ON_BOTH = (
    *("tests/contracts", "tests/interleavings", "tests/migrations", "tests/store/transaction"),
    *("tests/store/database", "tests/store/test_no_scans.py"),
)


def twins(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Returns the items on PostgreSQL outside of ON_BOTH whose twin on SQLite is among `items`, too."""
    present = {item.nodeid for item in items}
    return {
        item
        for item in items
        if "[postgresql" in item.nodeid or "-postgresql" in item.nodeid
        if getattr(getattr(item, "callspec", None), "params", {}).get("database") == "postgresql"
        if not item.nodeid.startswith(ON_BOTH)
        if item.nodeid.replace("postgresql", "sqlite") in present
    }
