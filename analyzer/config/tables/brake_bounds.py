"""The `brake` of a policy: `{ callers = 100, traffic = 0.05, per = "5m" }`, or `"off"`."""

from __future__ import annotations

from collections.abc import Mapping

from analyzer.config.tables.shares import part_of_whole
from analyzer.config.values import suggestion, whole_number, whole_seconds
from analyzer.kernel.refused_values import quote, raise_fault
from analyzer.plan.policies import Brake
from analyzer.plan.windows import HOUR_S

KEYS = ("callers", "traffic", "per")
PER_S = (60, HOUR_S)
CALLERS_MAX = 1_000_000
NO_BRAKE = Brake()
CURE = 'write { callers = 100, traffic = 0.05, per = "5m" }, or "off"'


def brake_of_table(value: object) -> Brake:
    """A table of bounds, of which one is needed; or "off"."""
    if value == "off":
        return NO_BRAKE
    if not isinstance(value, Mapping):
        return raise_fault(f'must be a table or "off", not {quote(value)}', CURE)
    for name in value:
        if name not in KEYS:
            raise_fault(f"{quote(name)} is not a bound", suggestion(name, KEYS, CURE))
    if "callers" not in value and "traffic" not in value:
        raise_fault("has no bound", CURE)
    return Brake(
        callers=whole_number(value["callers"], 1, CALLERS_MAX) if "callers" in value else 0,
        traffic=part_of_whole(value["traffic"]) if "traffic" in value else 0,
        per_s=whole_seconds(value["per"], *PER_S) if "per" in value else Brake().per_s,
    )
