"""The gates of an installation in a few numbers, by application."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from analyzer.gates.gate_health import GateHealth, gate_problems, living_gates

HEALTHY = "fine"


class FleetSummary(NamedTuple):
    """Numbers about the gates that report.

    Attributes:
        gates: How many there are, by application and state: "fine", "shadow", "fleet" while all locks are
            suspended, or the first of the gate's problems, as `gatelock upkeep gates list` names them.
        view_ages_s: The age of the oldest view, by application; without gates that never had an answer.
    """

    gates: Mapping[tuple[str, str], int] = {}
    view_ages_s: Mapping[str, float] = {}


def fleet_summary(gates: Iterable[GateHealth]) -> FleetSummary:
    """Returns the summary of the gates that report, and of the last one of applications that are silent."""
    living = living_gates(gates)
    ages_s: dict[str, float] = {}
    for gate in living:
        if gate.age_s is not None:
            name = gate.status.application
            ages_s[name] = max(ages_s.get(name, 0.0), gate.age_s)
    return FleetSummary(Counter((gate.status.application, _gate_state(gate)) for gate in living), ages_s)


def _gate_state(gate: GateHealth) -> str:
    # Whether the log knows a gate's callers takes another look into the database: they are taken as known.
    problems = gate_problems(gate, frozenset(gate.status.callers))
    return next(iter(problems), gate.status.mode or HEALTHY)
