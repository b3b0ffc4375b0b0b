"""The installation that the checks look at, and the findings that `gatelock doctor` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.config.settings import Settings
from analyzer.faces.signals.signal_kinds import Observation, State
from analyzer.faces.signals.status import DatabaseStatus, InstallationStatus
from analyzer.flush.analyzers import LIVING_MS, KnownAnalyzer
from analyzer.flush.followed_partitions import FollowedPartition
from analyzer.gates.gate_health import GateHealth
from analyzer.gates.refused_requests import RefusedRequests
from analyzer.kernel.outbox import Severity
from analyzer.plan.plan import Plan

Begins = Mapping[tuple[str, str], str]  # when signals began, by name and subject
NO_BEGINS: Begins = {}


class Finding(NamedTuple):
    """An observation with the name of its check, as `gatelock doctor` prints it."""

    check: str
    state: State
    what: str
    cure: str = ""
    name: str = ""
    subject: str = ""
    severity: Severity | None = None
    since: str | None = None  # when the job saw it first; None: it has not, or nothing is to be seen

    @classmethod
    def of(cls, check: str, observation: Observation, begins: Begins = NO_BEGINS) -> Finding:
        """Returns the finding of a check."""
        since = begins.get((observation.name, observation.subject))
        return cls(check, *observation, observation.severity, since)


@dataclass(frozen=True, slots=True)
class Installation:
    """Everything that several checks look at, read once."""

    settings: Settings
    engine: sa.Engine
    database: DatabaseStatus
    clock_ahead_s: float  # of the database's clock, against this machine's
    status: InstallationStatus
    partitions: Sequence[FollowedPartition]
    gates: Sequence[GateHealth]
    refused: Sequence[RefusedRequests]
    plan: Plan  # in force; an empty one where there is none, or where it cannot be read here
    plan_unreadable: str  # why it cannot be read here; "": it can
    analyzers: Sequence[KnownAnalyzer]

    @property
    def living_analyzers(self) -> list[KnownAnalyzer]:
        """The analyzers that have sent a heartbeat lately."""
        return [analyzer for analyzer in self.analyzers if analyzer.age_ms <= LIVING_MS]

    def applications(self) -> dict[str, list[GateHealth]]:
        """The gates by the name of their application, both in alphabetical order."""
        gates_by_name: dict[str, list[GateHealth]] = {}
        for gate in sorted(self.gates, key=lambda gate: (gate.status.application, gate.status.instance)):
            gates_by_name.setdefault(gate.status.application or "(no name)", []).append(gate)
        return gates_by_name
