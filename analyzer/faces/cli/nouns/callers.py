"""`gatelock callers`: facts about callers, such as their plans and zones, and amounts granted to them."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from click import Context

from analyzer.callers.applied_facts import fact_origins
from analyzer.callers.caller_acts import checked_profile, facts_in_words
from analyzer.callers.caller_answers import COLUMNS, origin_values, shown_caller
from analyzer.callers.caller_changes import caller_profile, set_callers
from analyzer.callers.changed_limits import CALLERS_MAX
from analyzer.faces.cli.described_options import Argument
from analyzer.faces.cli.exit_codes import reporting_errors, usage_error
from analyzer.faces.cli.operator import operator_name
from analyzer.faces.cli.options import (
    ConfigOption,
    JsonOption,
    ReasonOption,
    counted_caller,
    open_database,
)
from analyzer.faces.cli.output import json_lines, outcome, say, table
from analyzer.judging.caller_limits import Profile
from analyzer.judging.judged_changes import JudgedChanges
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.kernel.errors import StoreAway
from analyzer.kernel.logs import printable
from analyzer.plan.meter_units import amount_text
from analyzer.plan.windows import is_zone

if TYPE_CHECKING:
    from analyzer.callers.applied_facts import FactOrigin

PAUSE_MAX_S = 1.0  # between two transactions of an import, on SQLite


CallerArgument = Annotated[
    str, Argument(metavar="CALLER", help="The caller, with its kind in front: api_key:acme.")
]


def show(
    context: Context, caller: CallerArgument, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """Show a caller, and what each policy allows it.

    Lists its plan, tenant, zone and anchor, and where each comes from: set by an operator, or stated by a
    record.

    Example: gatelock callers show api_key:acme
    """
    with reporting_errors(), open_database(context, config) as engine:
        name = counted_caller(context, config, engine, caller)
        if json:
            json_lines([shown_caller(engine, name)])
            return
        profile, limits = caller_profile(engine, name)
        origins = fact_origins(engine, name)
        say(f"{name}: {facts_in_words(profile)}")
        for one in origins:
            say(f"  {one.fact} {one.value}{_unknown(one)}: {describe_origin(one)}")
        rows = [
            (
                one.policy,
                "exempt" if one.limit is None else amount_text(one.limit, one.unit),
                amount_text(one.stated, one.unit),
            )
            for one in limits
        ]
        table(["policy", "limit", "stated for all"], rows, "no policy limits callers")


def import_(
    context: Context,
    file: Annotated[Path, Argument(metavar="FILE.csv", help="With a header line.")],
    reason: ReasonOption = "",
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Set many callers from a CSV file: plans, tenants, zones, anchors.

    Its first line names the columns: caller, and one or more of plan, tenant, zone, anchor. What the file
    does not have stays as it is. The file is checked before anything is changed; then 1,000 callers at a time
    are stored and judged.

    Example: gatelock callers import customers.csv
    """
    with reporting_errors(), open_database(context, config) as engine:
        fields, found = read_file(file)
        names, done = sorted(found), JudgedChanges()
        for first in range(0, len(names), CALLERS_MAX):
            began_s = time.monotonic()
            chunk = {name: found[name] for name in names[first : first + CALLERS_MAX]}
            try:
                done.add(set_callers(engine, chunk, operator_name(), reason, new_mark, fields))
            except StoreAway:
                say(f"{first:,} of {len(names):,} callers are set; import again to set the rest", err=True)
                raise
            if engine.dialect.name == "sqlite" and names[first + CALLERS_MAX :]:
                # Flushes wait for the file as well, and SQLite has no queue.
                time.sleep(min(PAUSE_MAX_S, time.monotonic() - began_s))
        outcome(
            f"{len(names)} callers set; {done.sentence}", {"callers": len(names), **done.fields}, as_json=json
        )


def describe_origin(origin: FactOrigin) -> str:
    """Returns where a fact comes from: "set by command", "access-log[3], offset 57, 2026-11-20T21:14:04Z"."""
    record = origin_values(origin)
    if origin.record is None:
        return "set by command"
    return "{topic}[{partition}], offset {offset}, {since}".format_map(record)


def _unknown(origin: FactOrigin) -> str:

    is_unknown = origin.fact == "zone" and not is_zone(origin.value)
    return " (unknown here, so it has no effect)" if is_unknown else ""


def checked(profile: Profile, where: str) -> Profile:
    """Returns the profile. Exits with 2 if a value cannot be what it stands for."""
    try:
        return checked_profile(profile)
    except ValueError as error:
        raise usage_error(printable(f"{where}: {error}")) from error


def read_file(file: Path) -> tuple[list[str], Mapping[str, Profile]]:
    """Returns the columns that a CSV file states, and its callers.

    Exits with 2 for the first line that is wrong.
    """
    found: dict[str, Profile] = {}
    if not file.is_file():
        raise usage_error(f"{file} is not a file")
    with file.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.DictReader(lines, strict=True)
        columns = list(reader.fieldnames or ())
        _require_columns(file, columns)
        for number, row in _numbered(file, reader):
            where = f"{file}, line {number}"
            caller = (row["caller"] or "").strip()
            if ":" not in caller.strip(":"):
                raise usage_error(f"{where}: {caller!r} has no kind of name in front, as in api_key:acme")
            if caller in found:
                raise usage_error(f"{where}: {caller} is in the file twice")
            profile = Profile(*((row.get(name) or "").strip() for name in Profile._fields))
            found[caller] = checked(profile, where)
    return [name for name in columns if name != "caller"], found


def _require_columns(file: Path, given: Sequence[str]) -> None:

    unknown = [name for name in given if name not in COLUMNS]
    if "caller" not in given or len(given) < 2 or unknown:
        raise usage_error(f"{file}: the first line must name the columns: {','.join(COLUMNS)}")


def _numbered(file: Path, reader: object) -> Iterator[tuple[int, dict[str, str]]]:

    assert isinstance(reader, csv.DictReader)  # noqa: S101 - as it was made
    try:
        for row in reader:
            if None in row or None in row.values():
                raise usage_error(f"{file}, line {reader.line_num}: another number of columns than the first")
            yield reader.line_num, row
    except (csv.Error, UnicodeDecodeError) as error:
        raise usage_error(f"{file}, line {reader.line_num}: {error}") from error
