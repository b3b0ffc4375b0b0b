"""Options that commands share, and the parsing of their values."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from click import Context

from analyzer.acting.parameters import Length
from analyzer.callers.counted_names import counted_as, has_kind, is_address, never_counted
from analyzer.config.diagnostics.faults import ConfigFault, ConfigInvalid
from analyzer.config.settings import find, load
from analyzer.config.values import suggestion
from analyzer.faces.cli.described_options import CONFIG_HELP, Option
from analyzer.faces.cli.exit_codes import usage_error
from analyzer.faces.signals.status import installation_status
from analyzer.kernel.database.chain import signed
from analyzer.kernel.database.clock import database_now
from analyzer.kernel.database.engine import open_batch_engine, require_file
from analyzer.kernel.database.revisions import head, schema_problem
from analyzer.kernel.errors import SchemaBehind
from analyzer.kernel.logs import printable
from analyzer.kernel.time_expressions import parse_second, parse_stretch

if TYPE_CHECKING:
    import sqlalchemy as sa

    from analyzer.config.settings import Settings

TIME_FORMS = "2026-11-20 (UTC), 2026-11-20T14:00:00Z, today, yesterday, or an age: 30m, 2h, 7d"

ConfigOption = Annotated[Path | None, Option("--config", help=CONFIG_HELP)]
JsonOption = Annotated[bool, Option("--json", help="Print JSON, one object per line.")]
ReasonOption = Annotated[
    str, Option("--reason", metavar="TEXT", help="Kept with your name; see `gatelock upkeep events list`.")
]
DryRunOption = Annotated[bool, Option("--dry-run", help="Show what would change, and change nothing.")]
SinceOption = Annotated[
    str | None,
    Option("--from", "--since", metavar="TIME", help=f"Begin, inclusive: {TIME_FORMS}. Default: no limit."),
]
UntilOption = Annotated[
    str | None, Option("--to", metavar="TIME", help="End, exclusive; as --from. Default: no limit.")
]


def config_file(context: Context, config: Path | None) -> Path | None:
    """The configuration file, from --config before or after the command. Raises ConfigMissing."""
    return find(config or context.obj)


def add_a_source(file: Path | None) -> str:
    """The cure for a configuration without sources."""
    place = "./gatelock.toml, or to one that --config names" if file is None else str(file)
    return f'add [[sources]] with topic = "..." or file = "..." to {place}'


def load_to_run(file: Path | None) -> Settings:
    """The settings of a configuration that an analyzer can run with. Raises ConfigInvalid."""
    settings = load(file)
    if not settings.sources:
        shown = str(file) if file is not None else "no file"
        raise ConfigInvalid([ConfigFault(shown, None, "sources", "nothing is read", add_a_source(file))])
    return settings


def load_settings(context: Context, config: Path | None) -> Settings:
    """The settings of the configuration file. Raises ConfigMissing, ConfigInvalid."""
    return load(config_file(context, config))


def counted_caller(context: Context, config: Path | None, engine: sa.Engine, name: str) -> str:
    """The name that a caller is counted by, given in clear; without its kind where one such is counted.

    Exits with 2 if the kind is missing and none or several are. Raises ConfigMissing, ConfigInvalid,
    StoreAway.
    """
    return caller_as_counted(engine, load_settings(context, config), name)


def caller_as_counted(engine: sa.Engine, settings: Settings, name: str) -> str:
    """Returns what `counted_caller` does, with settings that are read already."""
    if has_kind(name):
        return settings.counted_name(name)
    text = name.strip(":")
    kinds = [kind for source in settings.sources for kind in source.callers]
    names = counted_as(engine, kinds, settings.counted_name, text)
    if len(names) == 1:
        return names[0]
    if is_address(text):
        return settings.counted_name(f"address:{text}")
    if names:
        raise usage_error(f"{name}: write which one: {' or '.join(names)}")
    form = f"{name}: write the kind of name in front, as in api_key:{text}"
    near = never_counted(engine, text)
    raise usage_error(form if near is None or not near.near else f"{form}; {near}")


@contextmanager
def open_database(context: Context, config: Path | None) -> Iterator[sa.Engine]:
    """The configured database with tables of this version. Does not create anything.

    Raises ConfigMissing, ConfigInvalid, StoreAway, SchemaBehind.
    """
    settings = load_settings(context, config)
    require_file(settings.database.address)
    engine = signed(open_batch_engine(settings.database.address), settings.signer())
    try:
        revision = installation_status(engine, head()).revision
        if problem := schema_problem(revision, settings.database.address):
            raise SchemaBehind(str(problem))
        yield engine
    finally:
        engine.dispose()


class AskedTime(NamedTuple):
    """A time as it was written, of a known form.

    Which time `today` and `2h` are depends on the clock: that of the database decides, because counts, locks
    and judgements have their times by it.
    """

    text: str
    zone: tzinfo = UTC

    def second(self, engine: sa.Engine) -> int:
        """Returns the time in whole seconds since 1970. Raises StoreAway."""
        return parse_second(self.text, database_now(engine), self.zone)

    def stretch(self, engine: sa.Engine) -> tuple[int, int]:
        """Returns its begin and exclusive end, in seconds: a day, a minute or a second, as it is written.

        Raises StoreAway.
        """
        return parse_stretch(self.text, database_now(engine), self.zone)


def parse_time(text: str | None, zone: tzinfo = UTC) -> AskedTime | None:
    """The time that is written; None for None. Days begin at midnight of `zone`.

    Exits with 2 if the text is not a time.
    """
    try:
        if text is not None:
            parse_second(text, datetime.now(UTC), zone)
    except ValueError as error:
        raise usage_error(str(error)) from error
    return None if text is None else AskedTime(text, zone)


def range_at(
    engine: sa.Engine, begin: AskedTime | None, end: AskedTime | None
) -> tuple[int | None, int | None]:
    """The seconds of a begin and an end, None for None. Exits with 2 for an end that is not later."""
    from_s, until_s = (None if moment is None else moment.second(engine) for moment in (begin, end))
    if begin and end and from_s is not None and until_s is not None and from_s >= until_s:
        raise usage_error(f"--from {begin.text} is not before --to {end.text}")
    return from_s, until_s


def second_at(engine: sa.Engine, moment: AskedTime | None) -> int:
    """The second of a time, 0 for None: from then on. Raises StoreAway."""
    return 0 if moment is None else moment.second(engine)


def parse_length_ms(option: str, text: str, days_max: int) -> int:
    """Milliseconds in a length such as "90d", "12h", "30m" or "45s". Exits with 2 if the text is not one."""
    try:
        return int(Length(days_max).read(text))
    except ValueError as error:
        raise usage_error(f"{option} {error}") from error


def require_reason(text: str, option: str = "--reason") -> str:
    """The reason without surrounding blanks. Exits with 2 if nothing is left."""
    if not text.strip():
        raise usage_error(f"{option}: write a reason; it is kept with your name")
    return text.strip()


def require_name(option: str, name: str | None, names: Collection[str]) -> None:
    """Exits with 2 if there is nothing of this name: a list without rows would read as good news."""
    if name is not None and name not in names:
        otherwise = f"use one of {', '.join(sorted(names))}" if names else "there is none yet"
        raise usage_error(printable(f"{option} {name}: no such name; {suggestion(name, names, otherwise)}"))
