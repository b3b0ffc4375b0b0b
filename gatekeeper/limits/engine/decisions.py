"""Decisions from numbers: of one rule, and of several limits together."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from gatekeeper.limits.engine.protocol import KeyStatus, Rule
from gatekeeper.limits.engine.units import to_seconds
from gatekeeper.model import Decision


def to_decision(rule: Rule[Any], name: str, status: KeyStatus, wait_ns: int | None) -> Decision:
    """Returns the decision; `rule`, `status` and `wait_ns` are of the same moment."""
    remaining, reset_ns = status
    if wait_ns == 0:
        return Decision(True, "", "", "", rule.limit, remaining, 0.0, to_seconds(reset_ns))
    retry_after = None if wait_ns is None else to_seconds(wait_ns)
    return Decision(
        False, name, "limited", rule.description, rule.limit, remaining, retry_after, to_seconds(reset_ns)
    )


def combined(decisions: Sequence[Decision], name: str) -> Decision:
    """Returns the one decision of several limits; `name` is the policy of a refusal without a name.

    A refusal is that of the limit with the longest wait, and `also` names the others that refuse. When
    all pass, limit and remaining are of the limit that has least left.
    """
    refusals = [decision for decision in decisions if not decision.allowed]
    if refusals:
        worst = max(refusals, key=lambda refusal: inf if refusal.retry_after is None else refusal.retry_after)
        also = tuple(other.policy for other in refusals if other is not worst and other.policy)
        return worst._replace(policy=worst.policy or name, also=also)
    tightest = min(decisions, key=lambda passed: inf if passed.remaining is None else passed.remaining)
    resets = [passed.reset_after for passed in decisions if passed.reset_after is not None]
    return tightest._replace(reset_after=max(resets, default=None))
