"""Amounts as operators write them."""

from __future__ import annotations

from analyzer.config.tables.policy_values import readings_from_text
from analyzer.plan.policies import Policy


def parsed_amount(policy: Policy, text: str) -> int:
    """Returns an amount in the unit of the policy's meter. Raises ValueError if the text is not one."""
    digits = text.replace("_", "").replace(",", "")
    amounts = readings_from_text(int(digits) if digits.isascii() and digits.isdecimal() else text)
    if policy.meter_unit not in amounts:
        unit = policy.meter_unit or "whole numbers"
        raise ValueError(f"{text}: {policy.meter} of the policy {policy.name} is in {unit}")
    return amounts[policy.meter_unit]
