"""The version of a database's tables, and the version that this program needs. Read without Alembic.

Before the first release one migration makes all tables, and its version is a digest of its text. From the
first release on, migrations are numbered and kept; see docs/decisions/0069.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.kernel.database.dialects import dialect_at
from analyzer.kernel.database.engine import open_engine, reading

RELEASED_FILE = re.compile(r"(?P<revision>r\d{4})_\w+\.py")  # applied in the order of the numbers
RELEASED = re.compile(r"r\d{4}")
UNRELEASED_FILE = "unreleased_tables.py"
UNRELEASED = re.compile(r"unreleased_[0-9a-f]{12}|\d{4}")  # numbers without r: before there was one migration

alembic_version = sa.table("alembic_version", sa.column("version_num", sa.Text))


def folder() -> Path:
    """Returns the folder of the migrations: next to the package in a source tree, inside it in a wheel."""
    shipped = Path(str(resources.files("analyzer"))) / "_migrations"
    return shipped if shipped.is_dir() else Path(str(resources.files("analyzer"))).parent / "migrations"


def unreleased_revision(path: Path) -> str:
    """Returns the version of the tables that this migration makes: another one for each text of the file."""
    return f"unreleased_{hashlib.sha256(path.read_text(encoding='utf-8').encode()).hexdigest()[:12]}"


@cache
def head() -> str:
    """Returns the version that this program needs. Raises RuntimeError if it has no migrations."""
    paths = sorted((folder() / "versions").iterdir())
    names = [name for path in paths if (name := RELEASED_FILE.fullmatch(path.name)) is not None]
    if names:
        return names[-1]["revision"]
    unreleased = folder() / "versions" / UNRELEASED_FILE
    if not unreleased.is_file():
        raise RuntimeError("this installation has no migrations")
    return unreleased_revision(unreleased)


def is_upgradable(revision: str) -> bool:
    """Whether this program has the migrations that lead from this version to its own."""
    is_older_release = all(map(RELEASED.fullmatch, (revision, head()))) and revision < head()
    return revision == head() or is_older_release


class SchemaProblem(NamedTuple):
    """The difference between the version of the tables and that of the program, and what to do."""

    what: str
    cure: str

    def __str__(self) -> str:
        return f"{self.what}: {self.cure}"


def schema_problem(
    revision: str | None, url: str | sa.URL, needed: str | None = None
) -> SchemaProblem | None:
    """Returns why the tables cannot be used, and what to do; None if they have the needed version.

    Args:
        revision: The version of the database's tables; None: there are none.
        url: Where the database is, for the commands that create it again. They contain no password.
        needed: The version that the program needs; None: `head()`.

    >>> str(schema_problem(None, "sqlite:///gatelock.db"))
    'the database has no tables yet: run `gatelock upkeep db upgrade`'
    >>> str(schema_problem("r0002", "sqlite:///gatelock.db", "r0001"))
    "the database's tables are at version r0002, this program needs r0001: run a newer program"
    """
    needed = needed or head()
    if revision == needed:
        return None
    if revision is None:
        return SchemaProblem("the database has no tables yet", "run `gatelock upkeep db upgrade`")
    versions = f"the database's tables are at version {revision}, this program needs {needed}"
    if RELEASED.fullmatch(revision):
        is_newer = not RELEASED.fullmatch(needed) or revision > needed
        return SchemaProblem(
            versions, "run a newer program" if is_newer else "run `gatelock upkeep db upgrade`"
        )
    if UNRELEASED.fullmatch(revision):
        return SchemaProblem(
            f"{versions}; an unreleased version made them, and what they hold is not carried over",
            f"stop all analyzers, create the database again with `{_remaking_command(url)}`, and run "
            "`gatelock upkeep db upgrade`",
        )
    return SchemaProblem(
        f"{versions}; another program than Gatelock uses this database", "name another one in [database] url"
    )


def _remaking_command(url: str | sa.URL) -> str:
    """Returns the command that empties the database: its files are removed, or it is dropped and created."""
    return dialect_at(url).remaking_command(sa.make_url(url).database or "")


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
