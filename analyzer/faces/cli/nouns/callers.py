"""`gatelock callers`: facts about callers, such as their plans and zones, and amounts granted to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from click import Context

from analyzer.callers.applied_facts import fact_origins
from analyzer.callers.caller_answers import facts_in_words, origin_values, shown_caller
from analyzer.callers.caller_changes import caller_profile
from analyzer.faces.cli.described_options import Argument
from analyzer.faces.cli.exit_codes import reporting_errors
from analyzer.faces.cli.options import (
    ConfigOption,
    JsonOption,
    counted_caller,
    open_database,
)
from analyzer.faces.cli.output import json_lines, say, table
from analyzer.plan.meter_units import amount_text
from analyzer.plan.windows import is_zone

if TYPE_CHECKING:
    from analyzer.callers.applied_facts import FactOrigin

PAUSE_MAX_S = 1.0  # between two transactions of an import, on SQLite


CallerArgument = Annotated[
    str,
    Argument(metavar="CALLER", help="The caller, with its kind in front: api_key:acme; or tenant:acme."),
]


def show(
    context: Context, caller: CallerArgument, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """Shows its plan, tenant, zone and anchor, where each comes from (an operator, or a record), and what
    each policy allows it.
    """
    with reporting_errors(), open_database(context, config) as engine:
        name = counted_caller(context, config, engine, caller)
        if json:
            json_lines([shown_caller(engine, name)])
            return
        profile, limits = caller_profile(engine, name)
        origins = fact_origins(engine, name)
        say(f"{name}: {facts_in_words(profile)}")
        for entry in origins:
            say(f"  {entry.fact} {entry.value}{_unknown(entry)}: {describe_origin(entry)}")
        rows = [
            (
                entry.policy,
                "exempt" if entry.limit is None else amount_text(entry.limit, entry.unit),
                amount_text(entry.stated, entry.unit),
            )
            for entry in limits
        ]
        table(["policy", "limit", "stated for all"], rows, "no policy limits callers")


def describe_origin(origin: FactOrigin) -> str:
    """Returns where a fact comes from: "set by command", "access-log[3], offset 57, 2026-11-20T21:14:04Z"."""
    record = origin_values(origin)
    if origin.record is None:
        return "set by command"
    return "{topic}[{partition}], offset {offset}, {since}".format_map(record)


def _unknown(origin: FactOrigin) -> str:

    is_unknown = origin.fact == "zone" and not is_zone(origin.value)
    return " (unknown here, so it has no effect)" if is_unknown else ""
