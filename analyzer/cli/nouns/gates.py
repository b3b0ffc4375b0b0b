"""`gatelock gates`: who asks for locks, how old its view is, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.cli.exit_codes import FOUND, reporting_errors
from analyzer.cli.options import ConfigOption, JsonOption, ReasonOption, database_of

if TYPE_CHECKING:
    from collections.abc import Set

    from analyzer.core.fleet.gate_health import GateHealth

app = typer.Typer(help="Who asks for locks, and what came of it.", no_args_is_help=True)

NOBODY = "no gate has told of itself; over SQL they do so only when asked to: Gate(..., feedback=True)"


@app.command("list")
def list_(
    context: typer.Context,
    config: ConfigOption = None,
    json: JsonOption = False,
    every: Annotated[bool, typer.Option("--all", help="Those that were replaced, too, for a day.")] = False,
) -> None:
    """Show the gates that tell of themselves.

    Each with the version of its library and of its view, how old that is, how often its locks were met and
    refused, and how many of the callers that it was asked for the log knows. Exit code 1 when something is
    wrong with one of them.
    """
    with reporting_errors(), database_of(context, config) as engine:
        from analyzer.cli.output import json_lines, table
        from analyzer.core.fleet.gate_health import living, troubles
        from analyzer.store.reports.gate_reports import known_among, reporting_gates

        found = reporting_gates(engine)
        shown = found if every else living(found)
        known = known_among(engine, {caller for gate in shown for caller in gate.told.callers}).known
        wrong = [troubles(gate, known) for gate in shown]
        if json:
            json_lines(fields_of(*each, known) for each in zip(shown, wrong, strict=True))
        else:
            columns = ["application", "instance", "library", "version", "age", "heard", "checks", "denials",
                       "known", "state"]  # fmt: skip
            table(columns, [cells_of(*each, known) for each in zip(shown, wrong, strict=True)], NOBODY)
            for gate, found_wrong in zip(shown, wrong, strict=True):
                for sentence in found_wrong.values():
                    typer.echo(f"{name_of(gate)} {sentence}")
        if any(wrong):
            raise typer.Exit(FOUND)


@app.command("locks")
def locks(context: typer.Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show how often each lock was met.

    Those that were met most often first, since the gates that are heard of began: who goes on calling
    although he is refused, and which locks meet nobody.
    """
    with reporting_errors(), database_of(context, config) as engine:
        from analyzer.cli.output import json_lines, table
        from analyzer.core.fleet.gate_health import living, met
        from analyzer.store.reports.gate_reports import reporting_gates

        found = met(living(reporting_gates(engine)))
        if json:
            json_lines(
                {**each.at._asdict(), "checks": each.checks, "denials": each.denials, "gates": number}
                for each, number in found
            )
            return
        rows = [(*each.at, each.checks, each.denials, number) for each, number in found]
        table(["scope", "key", "resource", "policy", "checks", "denials", "gates"], rows, "no lock was met")


@app.command("forget")
def forget(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="An application, or one instance, as `gates list` names it.")],
    reason: ReasonOption = "",
    config: ConfigOption = None,
) -> None:
    """Wait no longer for gates that are gone for good.

    Without this they are forgotten after a day. One that goes on is there again within a minute. Exit code
    1 when there was none.
    """
    with reporting_errors(), database_of(context, config) as engine:
        from analyzer.cli.operator import operator_name
        from analyzer.store.reports.gate_reports import forget_gates as forgotten

        number = forgotten(engine, name, operator_name(), reason)
        if not number:
            typer.echo(f"no gate is called {name}: `gatelock gates list --all` names them", err=True)
            raise typer.Exit(FOUND)
        typer.echo(f"{name}: {number} gate{'s' * (number != 1)} forgotten")


def name_of(gate: GateHealth) -> str:
    return f"{gate.told.application} {gate.told.instance}".strip()


def fields_of(gate: GateHealth, wrong: dict[str, str], known: Set[str]) -> dict[str, object]:
    from analyzer.core.fleet.gate_health import share

    status = gate.told
    part = share(status.callers, known)
    return {
        "application": status.application, "instance": status.instance, "library": status.library,
        "version": status.at and status.at.version, "mark": status.at and status.at.mark, "age_s": status.age,
        "heard_s": gate.heard_s, "uptime_s": status.uptime, "stale_after_s": status.stale_after,
        "clock_skew_s": status.clock_skew, "mode": status.mode, "ignored": status.ignored,
        "checks": gate.checks, "denials": gate.denials, "callers": len(status.callers),
        "known": None if part is None else round(part, 3),
        "unknown": [caller for caller in status.callers if caller not in known],
        "locks": [{**met.at._asdict(), "checks": met.checks, "denials": met.denials} for met in status.locks],
        "wrong": wrong,
    }  # fmt: skip


def cells_of(gate: GateHealth, wrong: dict[str, str], known: Set[str]) -> Sequence[object]:
    from analyzer.core.fleet.gate_health import share

    status = gate.told
    part = share(status.callers, known)
    return [
        status.application, status.instance, status.library, "" if status.at is None else status.at.version,
        "" if status.age is None else f"{status.age:.1f} s", f"{gate.heard_s:.0f} s ago",
        gate.checks, gate.denials, "" if part is None else f"{part:.0%} of {len(status.callers)}",
        ", ".join(wrong) or status.mode or "fine",
    ]  # fmt: skip
