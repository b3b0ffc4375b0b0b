"""Which version a database's tables are of, and which one this program needs.

Without Alembic: importing it takes a second, and an analyzer that was killed is to be back within three.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import sqlalchemy as sa

from analyzer.errors import SchemaBehind
from analyzer.store.database.engine import open_engine, reading

FILE = re.compile(r"(?P<revision>\d{4})_\w+\.py")  # in the order of their numbers, each after the one before

alembic_version = sa.table("alembic_version", sa.column("version_num", sa.Text))


def folder() -> Path:
    """Where the migrations are: beside this package in a source tree, inside it in a wheel."""
    shipped = Path(str(resources.files("analyzer"))) / "_migrations"
    return shipped if shipped.is_dir() else Path(str(resources.files("analyzer"))).parent / "migrations"


def revisions() -> list[str]:
    """Every version that this program knows, in order."""
    names = (FILE.fullmatch(path.name) for path in (folder() / "versions").iterdir())
    return sorted(name["revision"] for name in names if name is not None)


def head() -> str:
    """The version that this program needs."""
    known = revisions()
    if not known:
        raise RuntimeError("this installation has no migrations")
    return known[-1]


def revision_of(db: sa.Connection) -> str | None:
    """The version of the tables; None for a database without any."""
    if not sa.inspect(db).has_table(alembic_version.name):
        return None
    found: str | None = db.execute(sa.select(alembic_version.c.version_num)).scalar_one_or_none()
    return found


def current(url: str | sa.URL) -> str | None:
    """The version of the tables; None for a database without any. Raises StoreAway."""
    engine = open_engine(url)
    try:
        with reading(engine) as db:
            return revision_of(db)
    finally:
        engine.dispose()


def require_head(url: str | sa.URL) -> None:
    """Make sure that the tables are this program's: a database without any gets them, one of another
    version is left alone. Raises SchemaBehind, StoreAway."""
    have = current(url)
    if have is None:
        from analyzer.store.database.migrate import upgrade

        upgrade(url)
    elif have != head():
        cure = (
            "run `gatelock db upgrade`" if have in revisions() else "it was upgraded by a newer one, run that"
        )
        raise SchemaBehind(f"the database is at version {have}, this program needs {head()}: {cure}")
