"""What commands are given: the configuration, and a database to read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import sqlalchemy as sa

    from analyzer.settings import Settings

Config = Annotated[Path | None, typer.Option("--config", help="The configuration.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]


def config_file(context: typer.Context, config: Path | None) -> Path | None:
    """The file that holds the configuration, named behind the command or before it. Raises ConfigMissing."""
    from analyzer.settings import find

    return find(config or context.obj)


def settings_of(context: typer.Context, config: Path | None) -> Settings:
    """The configuration. Raises ConfigMissing, Faulty."""
    from analyzer.settings import load

    return load(config_file(context, config))


@contextmanager
def database_of(context: typer.Context, config: Path | None) -> Iterator[sa.Engine]:
    """The configured database, to read from. Nothing is created. Raises StoreAway, SchemaBehind, Faulty."""
    from analyzer.errors import SchemaBehind
    from analyzer.store.engine import open_engine
    from analyzer.store.glance import glance
    from analyzer.store.revisions import head

    settings = settings_of(context, config)
    must_exist(settings)
    engine = open_engine(settings.database.address)
    try:
        revision = glance(engine, head()).revision
        if revision != head():
            raise SchemaBehind(
                f"the database's tables are at version {revision or 'none'}, this program needs {head()}: "
                "run `gatelock db upgrade`"
            )
        yield engine
    finally:
        engine.dispose()


def must_exist(settings: Settings) -> None:
    """SQLite would make an empty file wherever a command is run by mistake. Raises StoreAway."""
    import sqlalchemy as sa

    from analyzer.errors import StoreAway

    url = sa.make_url(settings.database.address)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        raise StoreAway(f"there is no file {url.database}; `gatelock run` and `gatelock db upgrade` make it")
