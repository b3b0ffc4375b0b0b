"""Options that commands share, and the parsing of their values."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.cli.exit_codes import usage_error

if TYPE_CHECKING:
    import sqlalchemy as sa

    from analyzer.config.settings import Settings

CONFIG_HELP = "TOML file; default: $GATELOCK_CONFIG, ./gatelock.toml, /etc/gatelock/gatelock.toml."
TIME_FORMS = "2026-11-20 (UTC), 2026-11-20T14:00:00Z, today, yesterday, or an age: 30m, 2h, 7d"

ConfigOption = Annotated[Path | None, typer.Option("--config", help=CONFIG_HELP, show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
ReasonOption = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Kept with your name; see `gatelock events list`.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--from", "--since", metavar="TIME", help=f"Begin, inclusive: {TIME_FORMS}. Default: no limit."
    ),
]
UntilOption = Annotated[
    str | None, typer.Option("--to", metavar="TIME", help="End, exclusive; as --from. Default: no limit.")
]


def config_file(context: typer.Context, config: Path | None) -> Path | None:
    """The configuration file, from --config before or after the command. Raises ConfigMissing."""
    from analyzer.config.settings import find

    return find(config or context.obj)


def add_a_source(file: Path | None) -> str:
    """The cure for a configuration without sources."""
    place = "./gatelock.toml, or to one that --config names" if file is None else str(file)
    return f'add [[sources]] with topic = "..." or file = "..." to {place}'


def load_to_run(file: Path | None) -> Settings:
    """The settings of a configuration that an analyzer can run with. Raises ConfigInvalid."""
    from analyzer.config.diagnostics.faults import ConfigFault, ConfigInvalid
    from analyzer.config.settings import load

    settings = load(file)
    if not settings.sources:
        shown = str(file) if file is not None else "no file"
        raise ConfigInvalid([ConfigFault(shown, None, "sources", "nothing is read", add_a_source(file))])
    return settings


def load_settings(context: typer.Context, config: Path | None) -> Settings:
    """The settings of the configuration file. Raises ConfigMissing, ConfigInvalid."""
    from analyzer.config.settings import load

    return load(config_file(context, config))


def counted_caller(context: typer.Context, config: Path | None, engine: sa.Engine, name: str) -> str:
    """The name that a caller is counted by, given in clear; without its kind where one such is counted.

    Exits with 2 if the kind is missing and none or several are. Raises ConfigMissing, ConfigInvalid,
    StoreAway.
    """
    return caller_as_counted(engine, load_settings(context, config), name)


def caller_as_counted(engine: sa.Engine, settings: Settings, name: str) -> str:
    """Returns what `counted_caller` does, with settings that are read already."""
    from analyzer.answers.counted_names import counted_as, has_kind, is_address, never_counted

    if has_kind(name):
        return settings.counted_name(name)
    text = name.strip(":")
    found = counted_as(engine, settings, text)
    if len(found) == 1:
        return found[0]
    if is_address(text):
        return f"address:{text}"
    if found:
        raise usage_error(f"{name}: write which one: {' or '.join(found)}")
    form = f"{name}: write the kind of name in front, as in api_key:{text}"
    near = never_counted(engine, text)
    raise usage_error(form if near is None or not near.near else f"{form}; {near}")


@contextmanager
def open_database(context: typer.Context, config: Path | None) -> Iterator[sa.Engine]:
    """The configured database with tables of this version. Does not create anything.

    Raises ConfigMissing, ConfigInvalid, StoreAway, SchemaBehind.
    """
    from analyzer.errors import SchemaBehind
    from analyzer.store.database.engine import open_batch_engine, require_file
    from analyzer.store.database.revisions import head
    from analyzer.store.reports.status import installation_status

    settings = load_settings(context, config)
    require_file(settings.database.address)
    engine = open_batch_engine(settings.database.address)
    try:
        revision = installation_status(engine, head()).revision
        if revision != head():
            raise SchemaBehind(
                f"the database's tables are at version {revision or 'none'}, this program needs {head()}: "
                "run `gatelock db upgrade`, or a newer program if the tables are newer"
            )
        yield engine
    finally:
        engine.dispose()


def parse_time(text: str | None, zone: tzinfo = UTC) -> int | None:
    """The time in whole seconds since 1970; None for None. Days begin at midnight of `zone`.

    Exits with 2 if the text is not a time.
    """
    from analyzer.answers.time_expressions import second_of

    try:
        return None if text is None else second_of(text, datetime.now(UTC), zone)
    except ValueError as error:
        raise usage_error(str(error)) from error


def parse_stretch(text: str | None) -> tuple[int, int] | None:
    """The begin and the exclusive end of a time, in seconds: a day, a minute or a second, as it is written.

    None for None. Exits with 2 if the text is not a time.
    """
    from analyzer.answers.time_expressions import stretch_of

    try:
        return None if text is None else stretch_of(text, datetime.now(UTC))
    except ValueError as error:
        raise usage_error(str(error)) from error


def parse_length_ms(option: str, text: str, days_max: int) -> int:
    """Milliseconds in a length such as "90d", "12h", "30m" or "45s". Exits with 2 if the text is not one."""
    from analyzer.answers.asked_changes import length_ms

    try:
        return length_ms(text, days_max)
    except ValueError as error:
        raise usage_error(f"{option} {error}") from error


def require_reason(text: str, option: str = "--reason") -> str:
    """The reason without surrounding blanks. Exits with 2 if nothing is left."""
    if not text.strip():
        raise usage_error(f"{option}: write a reason; it is kept with your name")
    return text.strip()


def require_name(option: str, name: str | None, known: Collection[str]) -> None:
    """Exits with 2 if there is nothing of this name: a list without rows would read as good news."""
    from analyzer.config.values import suggestion
    from analyzer.logs import printable

    if name is not None and name not in known:
        otherwise = f"use one of {', '.join(sorted(known))}" if known else "there is none yet"
        raise usage_error(printable(f"{option} {name}: no such name; {suggestion(name, known, otherwise)}"))
