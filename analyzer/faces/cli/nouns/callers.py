"""`gatelock callers`: facts about callers, such as their plans and zones, and amounts granted to them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.faces.answers.foreseen_acts import Foreseen
from analyzer.faces.cli.confirmation import YesOption, is_confirmed
from analyzer.faces.cli.exit_codes import reporting_errors, usage_error
from analyzer.faces.cli.options import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    ReasonOption,
    counted_caller,
    open_database,
)
from analyzer.faces.cli.output import say
from analyzer.faces.cli.override_options import (
    EndOption,
    ForOption,
    PolicyOption,
    add_one,
    amount_of,
    asked_period,
    policy_of,
)
from analyzer.judging.judged_changes import JudgedChanges

if TYPE_CHECKING:
    from analyzer.callers.applied_facts import FactOrigin
    from analyzer.judging.caller_limits import Profile

PAUSE_MAX_S = 1.0  # between two transactions of an import, on SQLite

app = typer.Typer(help="Callers: plan, tenant, zone, anchor, grants.", no_args_is_help=True)

CallerName = Annotated[
    str, typer.Argument(metavar="CALLER", help="The caller, with its kind in front: api_key:acme.")
]


@app.command("list")
def list_(
    context: typer.Context,
    plan: Annotated[str | None, typer.Option(metavar="NAME", help="Only those with this plan.")] = None,
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this tenant.")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show the callers with a plan, a tenant, a zone or an anchor.

    Example: gatelock callers list --plan free
    """
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.callers.caller_answers import COLUMNS
        from analyzer.callers.caller_changes import known_callers
        from analyzer.faces.cli.output import json_lines, table

        found = ((one.caller, *one.profile) for one in known_callers(engine, plan, tenant))
        if json:
            json_lines(dict(zip(COLUMNS, row, strict=True)) for row in found)
        else:
            table(COLUMNS, found, "no caller has a plan, a tenant, a zone or an anchor")


@app.command("show")
def show(
    context: typer.Context, caller: CallerName, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """Show a caller, and what each policy allows it.

    Lists its plan, tenant, zone and anchor, and where each comes from: set by an operator, or stated by a
    record.

    Example: gatelock callers show api_key:acme
    """
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.callers.applied_facts import origins_of
        from analyzer.callers.caller_answers import shown_caller
        from analyzer.callers.caller_changes import profile_of
        from analyzer.faces.cli.output import json_lines, table
        from analyzer.plan.meter_units import amount_text

        name = counted_caller(context, config, engine, caller)
        if json:
            json_lines([shown_caller(engine, name)])
            return
        profile, limits = profile_of(engine, name)
        origins = origins_of(engine, name)
        say(f"{name}: {describe(profile)}")
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


@app.command("set")
def set_(
    context: typer.Context,
    caller: CallerName,
    plan: Annotated[str | None, typer.Option(metavar="NAME", help='The plan; "" for none.')] = None,
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help='The tenant; "" for none.')] = None,
    zone: Annotated[
        str | None, typer.Option(metavar="ZONE", help='The time zone, Europe/Berlin; "" for none.')
    ] = None,
    anchor: Annotated[
        str | None, typer.Option(metavar="DATE", help='The day on which its periods begin; "" for none.')
    ] = None,
    reason: ReasonOption = "",
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Set a caller's plan, tenant, time zone or anchor.

    Its limits and windows hold at once: it is locked if it is above a limit, and freed if it is below.

    Example: gatelock callers set api_key:acme --plan pro --anchor 2026-01-31
    """
    stated = {"plan": plan, "tenant": tenant, "zone": zone, "anchor": anchor}
    given = {key: value for key, value in stated.items() if value is not None}
    if not given:
        raise usage_error("write --plan, --tenant, --zone or --anchor")
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.callers.caller_changes import profile_of, set_callers
        from analyzer.faces.cli.operator import operator_name
        from analyzer.faces.cli.output import outcome
        from analyzer.judging.caller_limits import Profile
        from analyzer.judging.locks.lock_feed import new_mark

        name = counted_caller(context, config, engine, caller)
        profiles = {name: checked(Profile(**given), name)}
        done = JudgedChanges(set_callers(engine, profiles, operator_name(), reason, new_mark, list(given)))
        profile, _ = profile_of(engine, name)
        outcome(
            f"{name}: {describe(profile)}; {done.sentence}",
            {"caller": name, **profile._asdict(), **done.fields},
            as_json=json,
        )


@app.command("import")
def import_(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="With a header line.")],
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
        from analyzer.callers.caller_changes import set_callers
        from analyzer.callers.changed_limits import CALLERS_MAX
        from analyzer.faces.cli.operator import operator_name
        from analyzer.faces.cli.output import outcome
        from analyzer.judging.locks.lock_feed import new_mark
        from analyzer.kernel.errors import StoreAway

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


@app.command("grant")
def grant(
    context: typer.Context,
    caller: CallerName,
    amount: Annotated[str, typer.Argument(metavar="+AMOUNT", help="Added to the limit: +50000.")],
    policy: PolicyOption = None,
    until: EndOption = None,
    for_: ForOption = None,
    reason: ReasonOption = "",
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Add an amount to a caller's limit for a time.

    Grants add up. A caller that is below its limit again is freed at once. `gatelock overrides list` shows
    grants, and `gatelock overrides end` ends one.

    Example: gatelock callers grant api_key:acme +50000 --for 30d
    """
    period = asked_period(None, until, for_)
    if not amount.startswith("+"):
        raise usage_error(f"{amount}: write a plus sign in front, +{amount}: it is added to the limit")
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.callers.caller_changes import OverrideRequest
        from analyzer.judging.caller_limits import Subject

        judged = policy_of(engine, policy)
        granted = amount_of(judged, "+AMOUNT", amount.removeprefix("+"))
        name = counted_caller(context, config, engine, caller)
        _, ends = period.within(engine)
        asked = OverrideRequest("grant", Subject("caller", name), judged.name, granted, until_ms=ends)
        add_one(engine, asked, reason, as_json=json)


@app.command("forget")
def forget(
    context: typer.Context,
    caller: CallerName,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for the audit log; without the name.")],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Replace a caller's name by a pseudonym, everywhere and for good.

    Its counts, closed days and sums stay. Its locks, overrides and facts are deleted; requests that are
    counted later, replays too, are counted under the pseudonym. Asks first: the name cannot be brought back.

    Example: gatelock callers forget api_key:acme --reason "contract ended"
    """
    if not reason.strip():
        raise usage_error("write a reason, for the audit log")
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.callers.forgetting.forget_caller import foresee_forgetting, forget_caller
        from analyzer.faces.cli.operator import operator_name
        from analyzer.faces.cli.output import outcome, plural
        from analyzer.judging.locks.lock_feed import new_mark

        name = counted_caller(context, config, engine, caller)
        effect = foresee_forgetting(engine, name)
        sentence = (
            f"forgetting {name} puts a pseudonym in its place for good: {effect.requests:,} requests stay "
            f"counted, {plural(effect.locks, 'lock')} and {plural(effect.overrides, 'override')} end"
        )
        foreseen = Foreseen([sentence], effect._asdict())
        if not is_confirmed(foreseen, yes=yes, dry_run=dry_run, as_json=json):
            return
        done = forget_caller(engine, name, operator_name(), reason, new_mark)
        outcome(
            f"the caller is {done.pseudonym} from now on; {plural(done.rows, 'row')} had its name",
            {"pseudonym": done.pseudonym, "rows": done.rows, "is_new": done.is_new},
            as_json=json,
        )


def describe(profile: Profile) -> str:
    """Returns facts about a caller as a phrase: "plan pro, tenant (none), zone (none), anchor 2026-01-31"."""
    return ", ".join(f"{name} {value or '(none)'}" for name, value in profile._asdict().items())


def describe_origin(origin: FactOrigin) -> str:
    """Returns where a fact comes from: "set by command", "access-log[3], offset 57, 2026-11-20T21:14:04Z"."""
    from analyzer.callers.caller_answers import origin_values

    record = origin_values(origin)
    if origin.record is None:
        return "set by command"
    return "{topic}[{partition}], offset {offset}, {since}".format_map(record)


def _unknown(origin: FactOrigin) -> str:
    from analyzer.plan.windows import is_zone

    is_unknown = origin.fact == "zone" and not is_zone(origin.value)
    return " (unknown here, so it has no effect)" if is_unknown else ""


def checked(profile: Profile, where: str) -> Profile:
    """Returns the profile. Exits with 2 if a value cannot be what it stands for."""
    from analyzer.faces.answers.asked_changes import checked_profile
    from analyzer.kernel.logs import printable

    try:
        return checked_profile(profile)
    except ValueError as error:
        raise usage_error(printable(f"{where}: {error}")) from error


def read_file(file: Path) -> tuple[list[str], Mapping[str, Profile]]:
    """Returns the columns that a CSV file states, and its callers.

    Exits with 2 for the first line that is wrong.
    """
    import csv

    from analyzer.judging.caller_limits import Profile

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
    from analyzer.callers.caller_answers import COLUMNS

    unknown = [name for name in given if name not in COLUMNS]
    if "caller" not in given or len(given) < 2 or unknown:
        raise usage_error(f"{file}: the first line must name the columns: {','.join(COLUMNS)}")


def _numbered(file: Path, reader: object) -> Iterator[tuple[int, dict[str, str]]]:
    import csv

    assert isinstance(reader, csv.DictReader)  # noqa: S101 - as it was made
    try:
        for row in reader:
            if None in row or None in row.values():
                raise usage_error(f"{file}, line {reader.line_num}: another number of columns than the first")
            yield reader.line_num, row
    except (csv.Error, UnicodeDecodeError) as error:
        raise usage_error(f"{file}, line {reader.line_num}: {error}") from error
