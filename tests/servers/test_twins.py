"""Twins on the second database are left to `make deep`, but for tests about databases, and by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.twins import ON_BOTH, twins


class Item(SimpleNamespace):
    """A hashable namespace."""

    def __hash__(self) -> int:
        return hash(self.nodeid)


def made(nodeid: str, database: str | None = None) -> Any:
    return Item(nodeid=nodeid, callspec=SimpleNamespace(params={"database": database}))


SQLITE = made("tests/cli/test_a.py::test_a[sqlite-x]", "sqlite")
POSTGRESQL = made("tests/cli/test_a.py::test_a[postgresql-x]", "postgresql")


def test_the_twin_on_postgresql_is_left_out() -> None:
    assert twins([SQLITE, POSTGRESQL]) == {POSTGRESQL}


def test_a_test_that_is_asked_for_by_name_runs() -> None:
    assert twins([POSTGRESQL]) == set()


def test_a_test_of_one_database_runs() -> None:
    alone = made("tests/cli/test_a.py::test_b[postgresql]", "postgresql")
    about = made("tests/cli/test_a.py::test_c[postgresql]")  # a word of a case, no database
    other = made("tests/cli/test_a.py::test_c[sqlite]")
    assert twins([SQLITE, alone, about, other]) == set()


@pytest.mark.parametrize("place", ON_BOTH)
def test_tests_about_databases_run_on_both(place: str) -> None:
    both = [made(f"{place}/test_a.py::test_a[{name}]", name) for name in ("sqlite", "postgresql")]
    assert twins(both) == set()
