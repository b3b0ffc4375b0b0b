"""Options and parsers of the commands about locks that are set by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.faces.cli.exit_codes import usage_error
from analyzer.faces.cli.options import caller_as_counted

if TYPE_CHECKING:
    import sqlalchemy as sa

    from analyzer.config.settings import Settings
    from analyzer.judging.locks.locks_by_hand import Effect, LockTarget

COLUMNS = ("scope", "key", "resource")
SCOPES = ("caller", "tenant", "address", "range", "resource", "everyone")
FILE_ROWS_MAX = 100_000

OfCallerOption = Annotated[
    str | None, typer.Option("--caller", metavar="NAME", help="One caller: api_key:acme.", show_default=False)
]
OfTenantOption = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="All requests of a tenant.", show_default=False)
]
OfAddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="CIDR",
        help="An address or a range: 192.0.2.7, 203.0.113.0/24.",
        show_default=False,
    ),
]
OfResourceOption = Annotated[
    str | None,
    typer.Option(
        "--resource",
        metavar="ROUTE",
        help="All requests of a resource; with another option, only those of it.",
        show_default=False,
    ),
]
OfEveryoneOption = Annotated[bool, typer.Option("--everyone", help="All requests.")]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="FILE.csv",
        help="Several at once: columns scope, key and, if wanted, resource.",
        show_default=False,
    ),
]
ActionOption = Annotated[
    str,
    typer.Option("--action", metavar="ACTION", help="deny, slow or tag; see --status and --rate."),
]
StatusOption = Annotated[int, typer.Option("--status", min=400, max=599, help="HTTP status of denials.")]
RateOption = Annotated[
    str | None,
    typer.Option("--rate", metavar="RATE", help="Admitted by each process with --action slow: 10/s."),
]
OfPolicyOption = Annotated[
    str | None, typer.Option("--policy", metavar="NAME", help="Only the lock of this policy.")
]


def series_of(
    caller: str | None,
    tenant: str | None,
    address: str | None,
    resource: str | None,
    file: Path | None,
    *,
    everyone: bool,
) -> list[LockTarget]:
    """Returns the series that a command names. Exits with 2 unless it names some, in one way."""
    from analyzer.judging.locks.locks_by_hand import LockTarget

    narrowed = resource or ""
    named = [
        *([("caller", caller)] if caller else []),
        *([("tenant", tenant)] if tenant else []),
        *([network(address, "--address")] if address else []),
        *([("everyone", "")] if everyone else []),
    ]
    if file is not None and not named and not resource:
        return list(_in_file(file))
    if file is None and not named and resource:
        return [LockTarget("resource", resource)]
    if file is None and len(named) == 1:
        return [LockTarget(*named[0], narrowed)]
    raise usage_error(
        "write one of --caller, --tenant, --address, --resource, --everyone and --file; --resource may stand "
        "beside another one, and narrows it"
    )


def as_counted(series: Iterable[LockTarget], settings: Settings, engine: sa.Engine) -> list[LockTarget]:
    """Returns the series, callers by the names that they are counted by. Exits as `counted_caller`."""
    return [
        one._replace(key=caller_as_counted(engine, settings, one.key)) if one.scope == "caller" else one
        for one in series
    ]


def network(text: str, where: str) -> tuple[str, str]:
    """Returns the scope and the key of an address or a range. Exits with 2 if the text is neither."""
    from analyzer.faces.answers.asked_changes import network_of

    try:
        return network_of(text)
    except ValueError as error:
        raise usage_error(f"{where} {error}") from error


def effect_of(action: str, status: int, rate: str | None) -> Effect:
    """Returns the effect of a lock. Exits with 2 if the options do not fit."""
    from analyzer.faces.answers import asked_changes

    if action not in ("deny", "slow", "tag"):
        raise usage_error(f"--action {action}: write deny, slow or tag")
    if (action == "slow") is not (rate is not None):
        raise usage_error("--action slow and --rate go together: --action slow --rate 10/s")
    try:
        return asked_changes.effect_of(action, status, rate)
    except ValueError as fault:
        raise usage_error(f"--rate {rate}: {fault}") from fault


def _in_file(file: Path) -> Iterator[LockTarget]:
    """Yields the series of a file. Exits with 2 at the first row that names none."""
    import csv

    from analyzer.judging.locks.locks_by_hand import LockTarget

    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened)
            columns = set(reader.fieldnames or ())
            if not {"scope", "key"} <= columns <= set(COLUMNS):
                raise usage_error(f"{file}: its first line must be scope,key or scope,key,resource")
            for row in reader:
                if reader.line_num > FILE_ROWS_MAX:
                    raise usage_error(f"{file}: at most {FILE_ROWS_MAX:,} rows")
                yield LockTarget(*_checked(row, f"{file}:{reader.line_num}:"), row.get("resource") or "")
    except (OSError, UnicodeError, csv.Error) as error:
        raise usage_error(f"{file}: {error}") from error


def _checked(row: dict[str, str | None], where: str) -> tuple[str, str]:
    from analyzer.callers.counted_names import has_kind

    scope, key = row["scope"] or "", row["key"] or ""
    if scope not in SCOPES:
        raise usage_error(f"{where} {scope or 'nothing'} is not a scope; write one of {', '.join(SCOPES)}")
    if bool(key) is (scope == "everyone"):
        of = scope if key else f"a {scope}"
        raise usage_error(f"{where} the key of {of} is {'not empty' if key else 'empty'}")
    if scope in ("address", "range"):
        return network(key, where)
    if scope == "caller" and not has_kind(key):
        raise usage_error(f"{where} {key}: write the kind of name in front, as in api_key:{key}")
    return scope, key
