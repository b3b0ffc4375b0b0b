"""Rows go into a statement and come out of it as they were, whatever is in the names."""

from __future__ import annotations

import sqlalchemy as sa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from analyzer.store.database.engine import reading
from analyzer.store.database.row_parameters import as_parameters, rows_given
from analyzer.store.database.schema import TOTAL_MAX, totals

COLUMNS = [totals.c[name] for name in ("key", "used", "resource")]

# The counter lets no NUL and no lone surrogate through; everything else may be in a name one day.
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
odd = st.sampled_from(
    ["", "NULL", "{}", "{a,b}", '"', "\\", "\x1f", "a\x1fb", "%s", "%(x)s", ":x", "\U0001f600", "1", " "]
)
rows = st.lists(
    st.tuples(names | odd, st.integers(-TOTAL_MAX, TOTAL_MAX), names | odd), min_size=1, max_size=8
)


def test_rows_come_back_in_their_order(engine: sa.Engine) -> None:
    """In their order, because row locks are taken in it."""

    statement = sa.select(rows_given(engine.dialect.name, COLUMNS))

    @settings(max_examples=150)
    @given(rows)
    @example([("", 0, "")])
    @example([("", 0, ""), ("", 1, "")])
    @example([("\x1f", 0, "a"), ("b\x1f", TOTAL_MAX, "")])
    @example([("\x1f1", 0, "\x1f"), ("\x1f", -1, "1\x1f11"), ("", 0, "1")])
    def compare(wanted: list[tuple[str, int, str]]) -> None:
        found = db.execute(statement, as_parameters(engine.dialect.name, COLUMNS, wanted))
        assert [tuple(row) for row in found] == wanted

    with reading(engine) as db:
        compare()
