"""References: what stands for callers, and for other keys, in the rows of closed days."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from analyzer.store.database.billing_tables import referenced_names, secrets
from analyzer.store.database.row_parameters import upsert_columns
from analyzer.store.database.stored_secrets import stored_secret
from gatekeeper.identity import NameDigest

NAMED = "references"  # the secret in the table of secrets


def references_of(db: sa.Connection, names: Iterable[str]) -> dict[str, str]:
    """Returns the reference of each name, and stores which name it stands for."""
    digest = NameDigest(stored_secret(db, NAMED))
    references = {name: digest.of(name) for name in names}
    if references:
        by_reference = sorted((reference, name) for name, reference in references.items())
        columns = {
            "reference": [reference for reference, _ in by_reference],
            "name": [name for _, name in by_reference],
        }
        upsert_columns(db, referenced_names, columns, _keep)
    return references


def known_digest(db: sa.Connection) -> NameDigest | None:
    """Returns the digest that makes references; None if no day was ever cut."""
    secret = db.execute(sa.select(secrets.c.value).where(secrets.c.name == NAMED)).scalar()
    return None if secret is None else NameDigest(bytes(secret))


def _keep(_dialect: str, table: sa.Table, _new: Any) -> Mapping[str, sa.ColumnElement[Any]]:
    return {"name": table.c.name}
