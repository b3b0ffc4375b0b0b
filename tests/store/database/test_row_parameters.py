"""Rows as parameters of a statement: values of any content arrive unchanged and in order."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from analyzer.kernel.database.engine import reading
from analyzer.kernel.database.row_parameters import LookUp, as_parameters, rows_given
from analyzer.kernel.tables.schema import TOTAL_MAX, slots, totals
from tests.support.depth import deeper

COLUMNS = [totals.c[name] for name in ("key", "used", "resource")]

# The counter rejects names with NUL or a lone surrogate; any other text may be a name.
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
odd = st.sampled_from(
    ["", "NULL", "{}", "{a,b}", '"', "\\", "\x1f", "a\x1fb", "%s", "%(x)s", ":x", "\U0001f600", "1", " "]
)
rows = st.lists(
    st.tuples(names | odd, st.integers(-TOTAL_MAX, TOTAL_MAX), names | odd), min_size=1, max_size=8
)


def test_rows_arrive_unchanged_and_in_order(engine: sa.Engine) -> None:
    """Row locks are taken in this order."""

    statement = sa.select(rows_given(engine.dialect.name, COLUMNS))

    @settings(max_examples=deeper(50))
    @given(rows)
    @example([("", 0, "")])
    @example([("", 0, ""), ("", 1, "")])
    @example([("\x1f", 0, "a"), ("b\x1f", TOTAL_MAX, "")])
    @example([("\x1f1", 0, "\x1f"), ("\x1f", -1, "1\x1f11"), ("", 0, "1")])
    def compare(given_rows: list[tuple[str, int, str]]) -> None:
        found = db.execute(statement, as_parameters(engine.dialect.name, COLUMNS, given_rows))
        assert [tuple(row) for row in found] == given_rows

    with reading(engine) as db:
        compare()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_given_rows_are_looked_up_without_statistics(engine: sa.Engine) -> None:
    """SQLite would read all slots of the sum, and all given series for each of them."""
    table = slots[0]
    listed = rows_given("sqlite", [table.c.key, table.c.resource])
    is_listed = sa.and_(table.c.sum == 1, table.c.key == listed.c.key, table.c.resource == listed.c.resource)
    statement = sa.select(table.c.value).select_from(LookUp(listed, table, is_listed)).compile(engine)
    with engine.connect() as db:
        rows = db.exec_driver_sql(f"explain query plan {statement}", ("$[0]", "$[1]", "[]", 1)).all()
    planned = [row[3] for row in rows if "slots_0" in row[3]]
    assert planned == ["SEARCH slots_0 USING PRIMARY KEY (sum=? AND key=? AND resource=?)"]
