"""The plan: what every flush must agree on. What is counted for whom, and what is judged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from analyzer.core.counting.meters import REQUESTS, Meter
from analyzer.core.judging.policies import Quota


@dataclass(frozen=True, slots=True)
class Plan:
    groupings: tuple[str, ...] = ("caller",)
    meters: tuple[Meter, ...] = (REQUESTS,)
    policies: tuple[Quota, ...] = ()

    def policy(self, name: str) -> Quota | None:
        return next((policy for policy in self.policies if policy.name == name), None)

    @property
    def limits(self) -> dict[str, int]:
        """From which total on a series is judged, by policy."""
        return {policy.name: policy.limit for policy in self.policies}

    def to_json(self) -> str:
        """The plan as it is stored; equal plans give equal text."""
        return msgspec.json.encode(self, order="deterministic").decode()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def plan_of(groupings: Iterable[str], meters: Iterable[Meter], policies: Iterable[Quota]) -> Plan:
    """A plan in one fixed order, whatever the order in the configuration.

    "caller" is always counted, because the audit rests on it, and so is the meter `requests`.
    """
    policies = sorted(policies, key=lambda policy: policy.name)
    wanted = {"caller", *groupings, *(policy.per for policy in policies)}
    kept = {REQUESTS.name: REQUESTS} | {meter.name: meter for meter in meters}
    return Plan(tuple(sorted(wanted)), tuple(kept[name] for name in sorted(kept)), tuple(policies))


def plan_from(text: str) -> Plan:
    """The plan that `to_json` wrote. Raises msgspec.ValidationError when it was written by a version with
    other kinds of policy than this one knows."""
    return msgspec.json.decode(text, type=Plan)
