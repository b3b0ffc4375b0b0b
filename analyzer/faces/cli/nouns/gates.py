"""`gatelock gates`: the gates that report their status, and the locks that they met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.faces.cli.exit_codes import FOUND, reporting_errors
from analyzer.faces.cli.options import ConfigOption, JsonOption, ReasonOption, open_database
from analyzer.faces.cli.output import say

if TYPE_CHECKING:
    from collections.abc import Set

    from analyzer.gates.gate_health import GateHealth
    from analyzer.gates.unmet_locks import UnmetLock

app = typer.Typer(help="Gates that report their status, and the locks that they met.", no_args_is_help=True)

NO_GATES = "no gate has reported; over SQL gates report only when set up to: Gate(..., report_status=True)"


@app.command("list")
def list_(
    context: typer.Context,
    config: ConfigOption = None,
    json: JsonOption = False,
    every: Annotated[
        bool, typer.Option("--all", help="Also gates of replaced processes, for up to a day.")
    ] = False,
) -> None:
    """Show the gates that report their status.

    Lists for each gate the versions of its library and of its view, the age of the view, requests that met a
    lock, requests denied, and the share of its callers that the log knows. Then the clients that were refused
    in the last ten minutes, such as gates without a token. Exit code 1 if there are any, or if a gate has a
    problem.

    Example: gatelock gates list --all
    """
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.faces.cli.output import json_lines, table
        from analyzer.gates.gate_answers import listed_gates

        gates, refused, known = found = listed_gates(engine, every=every)
        if json:
            json_lines(found.as_objects())
        else:
            columns = ["application", "instance", "library", "version", "age", "heard", "checks", "denials",
                       "known", "state"]  # fmt: skip
            table(columns, [cells_of(*row, known) for row in gates], NO_GATES)
            for gate, sentences in gates:
                for sentence in sentences.values():
                    say(f"{name_of(gate)} {sentence}")
            for client in refused:
                say(f"{client.client} {client.sentence}")
        if refused or any(problems for _, problems in gates):
            raise typer.Exit(FOUND)


@app.command("locks")
def locks(context: typer.Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show how often each lock was met.

    Sums of the gates that report, since each of them started; the lock that was met most often comes first.
    Then the locks that no gate has met although requests of their callers are still counted: a gate is
    probably asked for these callers by another name. Exit code 1 if there are any.

    Example: gatelock gates locks
    """
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.faces.cli.output import json_lines, table
        from analyzer.gates.gate_health import hits_by_lock, living_gates, met_locks
        from analyzer.gates.gate_reports import reporting_gates
        from analyzer.gates.unmet_locks import unmet_locks

        gates = living_gates(reporting_gates(engine))
        found = hits_by_lock(gates)
        unmet = unmet_locks(engine, met_locks(gates))
        if json:
            json_lines(
                {**hits.at._asdict(), "checks": hits.checks, "denials": hits.denials, "gates": number}
                for hits, number in found
            )
            json_lines(
                {**lock.at._asdict(), "checks": 0, "denials": 0, "gates": 0, "counted": requests}
                for lock, requests in unmet
            )
        else:
            rows = [(*hits.at, hits.checks, hits.denials, number) for hits, number in found]
            rows += [(*lock.at, 0, 0, 0) for lock, _ in unmet]
            table(
                ["scope", "key", "resource", "policy", "checks", "denials", "gates"], rows, "no lock was met"
            )
            for lock in unmet:
                say(describe_unmet(lock))
        if unmet:
            raise typer.Exit(FOUND)


@app.command("forget")
def forget(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="An application, or one instance of it, as `gates list` shows it."
        ),
    ],
    reason: ReasonOption = "",
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Remove gates that will not report again.

    Otherwise they are removed after a day. A gate that still runs is listed again within a minute. Exit code
    1 if no gate has this name.

    Example: gatelock gates forget shop --reason "moved to another cluster"
    """
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.faces.cli.operator import operator_name
        from analyzer.faces.cli.output import outcome, plural
        from analyzer.gates.gate_reports import forget_gates

        number = forget_gates(engine, name, operator_name(), reason)
        if not number:
            say(f"no gate is named {name}: `gatelock gates list --all` shows the names", err=True)
            raise typer.Exit(FOUND)
        fields = {"name": name, "gates": number}
        outcome(f"{name}: {plural(number, 'gate')} forgotten", fields, as_json=json)


def describe_unmet(unmet: UnmetLock) -> str:
    """Returns the sentence about a lock that no gate has met."""
    from analyzer.faces.cli.output import plural

    lock = unmet.lock
    return (
        f"{lock.key}: no gate has met its lock by {lock.policy}, and {plural(unmet.requests, 'request')} "
        "were counted since: `gatelock doctor`"
    )


def name_of(gate: GateHealth) -> str:
    return f"{gate.status.application} {gate.status.instance}".strip()


def cells_of(gate: GateHealth, problems: Mapping[str, str], known: Set[str]) -> Sequence[object]:
    """The row of a gate in the table."""
    from analyzer.gates.gate_health import known_share

    status = gate.status
    share = known_share(status.callers, known)
    return [
        status.application, status.instance, status.library, "" if status.at is None else status.at.version,
        "" if gate.age_s is None else f"{gate.age_s:.1f} s", f"{gate.report_age_s:.0f} s ago",
        gate.checks, gate.denials, "" if share is None else f"{share:.0%} of {len(status.callers)}",
        ", ".join(problems) or status.mode or "fine",
    ]  # fmt: skip
