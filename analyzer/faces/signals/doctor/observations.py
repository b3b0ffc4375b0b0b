"""The installation that the checks of `gatelock doctor` look at, and the observations that they yield."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

import sqlalchemy as sa

from analyzer.config.settings import Settings
from analyzer.faces.signals.status import DatabaseStatus
from analyzer.flush.followed_partitions import FollowedPartition
from analyzer.gates.gate_health import GateHealth
from analyzer.gates.refused_requests import RefusedRequests

State = Literal["fine", "wrong", "away"]

LISTED_MAX = 3


class Finding(NamedTuple):
    """An observation with the name of its check, as `gatelock doctor` prints it."""

    check: str
    state: State
    what: str
    cure: str = ""


class Observation(NamedTuple):
    """The state of one part in one sentence, and the cure if it is not fine."""

    state: State
    what: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Installation:
    """Everything that several checks look at, read once."""

    settings: Settings
    engine: sa.Engine
    database: DatabaseStatus
    clock_ahead_s: float  # of the database's clock, against this machine's
    suspended_until: datetime | None
    braked: Mapping[str, str]  # policies whose brake acts, and how
    partitions: Sequence[FollowedPartition]
    gates: Sequence[GateHealth]
    refused: Sequence[RefusedRequests]

    def applications(self) -> dict[str, list[GateHealth]]:
        """The gates by the name of their application, both in alphabetical order."""
        gates_by_name: dict[str, list[GateHealth]] = {}
        for gate in sorted(self.gates, key=lambda gate: (gate.status.application, gate.status.instance)):
            gates_by_name.setdefault(gate.status.application or "(no name)", []).append(gate)
        return gates_by_name
