"""Decisions from numbers: of one rule, and of several limits together."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, Final

from gatekeeper.limits.engine.protocol import KeyStatus, Rule
from gatekeeper.limits.engine.units import SECOND_NS
from gatekeeper.model import Decision

# The last fields of a limiter's decision, from `until` on. A NamedTuple takes three times as long to create
# by its own constructor as by `tuple.__new__`, and that is most of what `check` costs beyond `allow`.
LAST_FIELDS: Final = Decision(True)[8:]


def to_decision(rule: Rule[Any], name: str, status: KeyStatus, wait_ns: int | None) -> Decision:
    """Returns the decision; `rule`, `status` and `wait_ns` are of the same moment."""
    remaining, reset_ns = status
    limit, reset_after = rule.decision_limit, reset_ns / SECOND_NS
    if wait_ns == 0:
        passed = (True, "", "", "", limit, remaining, 0.0, reset_after, *LAST_FIELDS)
        return tuple.__new__(Decision, passed)
    retry_after = None if wait_ns is None else wait_ns / SECOND_NS
    refused = (
        False,
        name,
        "limited",
        rule.description,
        limit,
        remaining,
        retry_after,
        reset_after,
        *LAST_FIELDS,
    )
    return tuple.__new__(Decision, refused)


def combined(decisions: Sequence[Decision], name: str) -> Decision:
    """Returns the one decision of several limits; `name` is the policy of a refusal without a name.

    A refusal is that of the limit with the longest wait, and `also` names the others that refuse. When
    all pass, limit and remaining are of the limit that has least left.
    """
    refusals = [decision for decision in decisions if not decision.allowed]
    if refusals:
        worst = max(refusals, key=lambda refusal: inf if refusal.retry_after is None else refusal.retry_after)
        also = tuple(refusal.policy for refusal in refusals if refusal is not worst and refusal.policy)
        return worst._replace(policy=worst.policy or name, also=also)
    tightest = min(decisions, key=lambda passed: inf if passed.remaining is None else passed.remaining)
    resets = [passed.reset_after for passed in decisions if passed.reset_after is not None]
    return tightest._replace(reset_after=max(resets, default=None))
