"""The version of a database's tables, and the version that this program needs. Read without Alembic."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import sqlalchemy as sa

from analyzer.kernel.database.engine import open_engine, reading

FILE = re.compile(r"(?P<revision>\d{4})_\w+\.py")  # applied in the order of the numbers

alembic_version = sa.table("alembic_version", sa.column("version_num", sa.Text))


def folder() -> Path:
    """Returns the folder of the migrations: next to the package in a source tree, inside it in a wheel."""
    shipped = Path(str(resources.files("analyzer"))) / "_migrations"
    return shipped if shipped.is_dir() else Path(str(resources.files("analyzer"))).parent / "migrations"


def revisions() -> list[str]:
    """Returns every version that this program knows, in order."""
    names = (FILE.fullmatch(path.name) for path in (folder() / "versions").iterdir())
    return sorted(name["revision"] for name in names if name is not None)


def head() -> str:
    """Returns the version that this program needs."""
    known_revisions = revisions()
    if not known_revisions:
        raise RuntimeError("this installation has no migrations")
    return known_revisions[-1]


def behind_text(revision: str | None, needed: str) -> str:
    """Returns a sentence, with its cure, about a database whose tables are of another version.

    >>> behind_text(None, "0029")
    'the database has no tables yet: run `gatelock upkeep db upgrade`'
    """
    if revision is None:
        return "the database has no tables yet: run `gatelock upkeep db upgrade`"
    is_newer = revision.isdigit() and revision > needed
    cure = "run a newer program" if is_newer else "run `gatelock upkeep db upgrade`"
    return f"the database's tables are at version {revision}, this program needs {needed}: {cure}"


def stored_revision(db: sa.Connection) -> str | None:
    """Returns the version of the tables; None for a database without tables."""
    if not sa.inspect(db).has_table(alembic_version.name):
        return None
    revision: str | None = db.execute(sa.select(alembic_version.c.version_num)).scalar_one_or_none()
    return revision


def current(url: str | sa.URL) -> str | None:
    """Returns the version of the tables; None for a database without tables. Raises StoreAway."""
    engine = open_engine(url)
    try:
        with reading(engine) as db:
            return stored_revision(db)
    finally:
        engine.dispose()
