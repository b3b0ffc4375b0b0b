"""This process's share of a limit, for the time in which the store does not answer."""

from __future__ import annotations

from typing import Any

from gatekeeper.limits.algorithms.gcra import GcraRule
from gatekeeper.limits.algorithms.leaky_queue import QueueRule
from gatekeeper.limits.algorithms.sliding_counter import CounterRule
from gatekeeper.limits.algorithms.sliding_log import LogRule
from gatekeeper.limits.composites.split import split
from gatekeeper.limits.engine.units import SECOND_NS


def local_share(limiter: Any, nodes: int, node: int) -> Any:
    """A limiter in memory of the same class, with the share of `node`. Of a burst
    everybody has one at least; the places in a queue are rounded up."""
    rule, keys = limiter._rule, limiter._keys
    kind: Any = type(limiter).__mro__[1]  # the class itself, without the methods that ask
    share = split(rule.limit, nodes)[node]
    numbers = (share.limit, rule.period_ns * share.periods / SECOND_NS)
    options = {
        "max_keys": keys.max_keys,
        "overflow": keys.overflow,
        "clock": keys.clock,
        "name": limiter._name,
    }
    match rule:
        case GcraRule(strict=True):
            return kind.strict(*numbers, **options)
        case GcraRule():
            return kind(*numbers, _at_least_one(rule.burst, nodes, node), **options)
        case QueueRule():
            return kind(*numbers, -(-rule.queue // nodes), **options)
        case CounterRule() | LogRule():
            return kind(*numbers, **options)
        case _:
            return kind(*numbers, aligned=rule.aligned, **options)


def _at_least_one(burst: int, nodes: int, node: int) -> int:
    return split(burst, nodes)[node].limit if burst >= nodes else 1
