"""What commands are given: the configuration, a database to read, moments, reasons."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.cli.exit_codes import usage_error

if TYPE_CHECKING:
    import sqlalchemy as sa

    from analyzer.config.settings import Settings

ConfigOption = Annotated[Path | None, typer.Option("--config", help="The configuration.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs: JSON, an object per line.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it is kept with your name.")]
SinceOption = Annotated[
    str | None,
    typer.Option("--from", "--since", help="First moment: a date, a time with its zone, today, 2h (ago)."),
]


def config_file(context: typer.Context, config: Path | None) -> Path | None:
    """The file that holds the configuration, named behind the command or before it. Raises ConfigMissing."""
    from analyzer.config.settings import find

    return find(config or context.obj)


def a_source_to_add(file: Path | None) -> str:
    """What to do about a configuration, perhaps none, in which nothing is read."""
    place = "./gatelock.toml, or to one that --config names" if file is None else str(file)
    return f'add [[sources]] with topic = "..." or file = "..." to {place}'


def settings_of(context: typer.Context, config: Path | None) -> Settings:
    """The configuration. Raises ConfigMissing, Faulty."""
    from analyzer.config.settings import load

    return load(config_file(context, config))


@contextmanager
def database_of(context: typer.Context, config: Path | None) -> Iterator[sa.Engine]:
    """The configured database, to read from. Nothing is created. Raises StoreAway, SchemaBehind, Faulty."""
    from analyzer.errors import SchemaBehind
    from analyzer.store.database.engine import open_engine
    from analyzer.store.database.revisions import head
    from analyzer.store.reports.status import installation_status

    settings = settings_of(context, config)
    must_exist(settings)
    engine = open_engine(settings.database.address)
    try:
        revision = installation_status(engine, head()).revision
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
        raise StoreAway(
            f"there is no file {Path(url.database or '').absolute()} "
            "(`gatelock run` and `gatelock db upgrade` make it)"
        )


def second_given(text: str | None) -> int | None:
    """The moment in whole seconds since 1970. Ends the command when it is none."""
    from analyzer.cli.time_expressions import second_of

    try:
        return None if text is None else second_of(text, datetime.now(UTC))
    except ValueError as error:
        raise usage_error(str(error)) from error


def length_given_ms(option: str, text: str, days_max: int) -> int:
    """How long "90d", "12h", "30m", "45s" are. Ends the command when it is no such length."""
    from analyzer.config.values import DAY_S, DURATION, UNITS_S

    parts = DURATION.fullmatch(text.strip())
    length_ms = 0 if parts is None else round(float(parts[1]) * UNITS_S[parts[2]] * 1000)
    if not 0 < length_ms <= days_max * DAY_S * 1000:
        raise usage_error(f"{option} {text}: write how long, as in 30m, 12h, 7d; at most {days_max:,}d")
    return length_ms


def reason_given(text: str, option: str = "--reason", what: str = "why") -> str:
    """The reason without blanks around it. Ends the command when nothing is left."""
    if not text.strip():
        raise usage_error(f"{option}: say {what}; it is kept with your name")
    return text.strip()


def caller_given(name: str | None) -> str | None:
    """A caller's whole name. Ends the command when it has no kind in front: nobody is called so."""
    if name is not None and ":" not in name:
        raise usage_error(f"--caller {name}: write the kind of name in front, as in api_key:{name}")
    return name
