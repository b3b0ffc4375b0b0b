"""References: what stands for callers, and for other keys, in the rows of closed days."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from analyzer.counting.records.forgotten_callers import reference_in
from analyzer.kernel.database.installation_secrets import REFERENCES, stored_secret
from analyzer.kernel.database.row_parameters import upsert_columns
from analyzer.kernel.tables.billing_tables import referenced_names
from gatekeeper.identity import NameDigest


def store_references(
    db: sa.Connection, names: Iterable[str], forgotten: Collection[str] = ()
) -> dict[str, str]:
    """Returns the reference of each name, and stores which name it stands for.

    That of a pseudonym is the one in it, which stands for no name any more; neither does one of `forgotten`.
    """
    digest = NameDigest(stored_secret(db, REFERENCES))
    references = {name: reference_in(name) or digest.of(name) for name in names}
    hidden = frozenset(forgotten)
    by_reference = sorted(
        (reference, name)
        for name, reference in references.items()
        if not reference_in(name) and reference not in hidden
    )
    if by_reference:
        columns = {
            "reference": [reference for reference, _ in by_reference],
            "name": [name for _, name in by_reference],
        }
        upsert_columns(db, referenced_names, columns, _keep)
    return references


def _keep(_dialect: str, table: sa.Table, _new: Any) -> Mapping[str, sa.ColumnElement[Any]]:
    return {"name": table.c.name}
