"""Acts on gates."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Annotated

from analyzer.acting.act import ActContext, Done, Listing, ListRow, Note, NothingFound
from analyzer.acting.parameters import OfText, Param, Switch
from analyzer.gates.gate_answers import listed_gates
from analyzer.gates.gate_health import GateHealth, known_share
from analyzer.gates.gate_reports import forget_gates
from analyzer.kernel.sentences import plural


def list_gates(
    context: ActContext,
    *,
    all_: Annotated[
        bool, Param(Switch(), "Also gates of replaced processes, for up to a day.", True)
    ] = False,
) -> Listing:
    """Show the gates that report their status, then refused clients.

    Lists for each gate the versions of its library and of its view, the age of the view, requests that met a
    lock, requests denied, and the share of its callers that the log knows. Then the clients that were refused
    in the last ten minutes, such as gates without a token. Exit code 1 if there are any, or if a gate has a
    problem.
    """
    listed = listed_gates(context.engine, every=all_)
    objects = listed.as_objects()
    for number, (gate, problems) in enumerate(listed.gates):
        yield ListRow((number,), objects[number], _cells(gate, problems, listed.known), bool(problems))
    for gate, problems in listed.gates:
        for sentence in problems.values():
            yield Note(f"{name_of(gate)} {sentence}", is_answer=True)
    for number, client in enumerate(listed.refused, len(listed.gates)):
        yield ListRow((number,), objects[number], None, is_wrong=True)
        yield Note(f"{client.client} {client.sentence}", is_answer=True)


def forget(
    context: ActContext,
    name: Annotated[
        str,
        Param(OfText(metavar="NAME"), "An application, or one instance of it, as the list shows it.", "shop"),
    ],
) -> Done:
    """Remove gates that will not report again.

    Otherwise they are removed after a day. A gate that still runs is listed again within a minute. Exit code
    1 if no gate has this name.
    """
    number = forget_gates(context.engine, name, context.by.who, context.by.why)
    if not number:
        raise NothingFound(f"no gate is named {name}: `gatelock upkeep gates list --all` shows the names")
    return Done([{"name": name, "gates": number}], [f"{name}: {plural(number, 'gate')} forgotten"])


def name_of(gate: GateHealth) -> str:
    return f"{gate.status.application} {gate.status.instance}".strip()


def _cells(gate: GateHealth, problems: Mapping[str, str], known: Set[str]) -> Mapping[str, object]:
    """The row of a gate in the table."""
    status = gate.status
    share = known_share(status.callers, known)
    return {
        "application": status.application,
        "instance": status.instance,
        "library": status.library,
        "version": "" if status.at is None else status.at.version,
        "age": "" if gate.age_s is None else f"{gate.age_s:.1f} s",
        "heard": f"{gate.report_age_s:.0f} s ago",
        "checks": gate.checks,
        "denials": gate.denials,
        "known": "" if share is None else f"{share:.0%} of {len(status.callers)}",
        "state": ", ".join(problems) or status.mode or "fine",
    }
