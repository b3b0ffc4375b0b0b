"""Gates that report their status, and clients that were refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from analyzer.gates.gate_health import GateHealth, gate_problems, known_share, living_gates, unknown_clients
from analyzer.gates.gate_reports import known_among, reporting_gates
from analyzer.gates.refused_clients import refused_clients
from analyzer.gates.refused_requests import RefusedRequests
from analyzer.kernel.database.engine import Engine


class ListedGates(NamedTuple):
    """Gates with their problems, the clients that are refused, and the callers that the log knows."""

    gates: Sequence[tuple[GateHealth, Mapping[str, str]]]
    refused: Sequence[RefusedRequests]
    known: Set[str]

    def as_objects(self) -> list[dict[str, object]]:
        """Returns an object for each gate, then one for each client."""
        return [*(gate_json(*gate, self.known) for gate in self.gates), *map(fields_of_refused, self.refused)]


def listed_gates(engine: Engine, *, every: bool = False) -> ListedGates:
    """Returns the gates that report, and with `every` those of replaced processes. Raises StoreAway."""
    reporting = reporting_gates(engine)
    gates = reporting if every else living_gates(reporting)
    known_callers = known_among(engine, {caller for gate in gates for caller in gate.status.callers}).known
    refused = unknown_clients(refused_clients(engine), reporting)
    return ListedGates([(gate, gate_problems(gate, known_callers)) for gate in gates], refused, known_callers)


def gate_json(gate: GateHealth, problems: Mapping[str, str], known_callers: Set[str]) -> dict[str, object]:
    """The JSON object of a gate; `known_callers` are those that the log has."""
    status = gate.status
    share = known_share(status.callers, known_callers)
    return {
        "application": status.application, "instance": status.instance, "library": status.library,
        "version": status.at and status.at.version, "mark": status.at and status.at.mark, "age_s": gate.age_s,
        "heard_s": gate.report_age_s, "uptime_s": status.uptime, "stale_after_s": status.stale_after,
        "clock_skew_s": status.clock_skew, "mode": status.mode, "ignored": status.ignored,
        "checks": gate.checks, "denials": gate.denials, "callers": len(status.callers),
        "known": None if share is None else round(share, 3),
        "unknown": [caller for caller in status.callers if caller not in known_callers],
        "locks": [
            {**hits.at._asdict(), "checks": hits.checks, "denials": hits.denials} for hits in status.locks
        ],
        "wrong": problems,
    }  # fmt: skip


def fields_of_refused(client: RefusedRequests) -> dict[str, object]:
    """The JSON object of a client that is refused and has reported nothing."""
    return {
        "application": "", "instance": client.instance, "address": client.address, "refused": client.reason,
        "requests": client.requests, "since_s": client.first_age_s, "heard_s": client.last_age_s,
        "wrong": {"refused": client.sentence},
    }  # fmt: skip
