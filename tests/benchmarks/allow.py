"""The cost of a gate's decision compared with a method that has as many look-ups in dicts."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from gatekeeper import Gate
from gatekeeper.model import Lock
from gatekeeper.sources.fixed import FixedSource

NOW = datetime.now(UTC)
LATER = NOW + timedelta(days=1)
MANY = 100_000


class LookUps:
    """Methods that look up one, two, three or four names, each in another dict."""

    def __init__(self) -> None:
        self._a: dict[str, bool] = {}
        self._b: dict[str, bool] = {}
        self._c: dict[str, bool] = {}
        self._d: dict[str, bool] = {}

    def one(self, caller: str = "", *, tenant: str = "", resource: str = "", address: str = "") -> bool:
        return caller not in self._a

    def two(self, caller: str = "", *, tenant: str = "", resource: str = "", address: str = "") -> bool:
        return caller not in self._a and tenant not in self._b

    def three(self, caller: str = "", *, tenant: str = "", resource: str = "", address: str = "") -> bool:
        return caller not in self._a and tenant not in self._b and resource not in self._c

    def four(self, caller: str = "", *, tenant: str = "", resource: str = "", address: str = "") -> bool:
        return (
            caller not in self._a
            and tenant not in self._b
            and resource not in self._c
            and address not in self._d
        )

    def allow(self, caller: str) -> bool:
        return caller not in self._a


class Pair(NamedTuple):
    """A call of the gate, and the method that it is compared with."""

    decide: Callable[..., object]
    look_up: Callable[..., object]
    arguments: str


# A lock of another caller in each scope, so that all scopes are in use.
LOCKS = {
    "caller": ("caller", "api_key:eve"),
    "tenant": ("tenant", "eve"),
    "resource": ("resource", "/v1/export"),
    "address": ("address", "198.51.100.1"),
}
ARGUMENTS = ("'api_key:acme'", "tenant='acme'", "resource='/v1/items'", "address='192.0.2.7'")


def gate_on(*locks: tuple[str, str]) -> Gate:
    gate = Gate(FixedSource(*(Lock(scope, key, "p", NOW, LATER) for scope, key in locks)))
    assert gate.ready(60)
    return gate


def pairs(many: int) -> tuple[dict[str, Pair], list[Gate]]:
    plain, few = LookUps(), gate_on(*LOCKS.values())
    large = gate_on(*(("caller", f"user:{n}") for n in range(many)))
    one_range = gate_on(*LOCKS.values(), ("range", "203.0.113.0/24"))
    four_ranges = gate_on(*LOCKS.values(), *(("range", f"10.0.0.0/{length}") for length in (8, 12, 16, 24)))
    found = {
        "allow": Pair(few.allow, plain.allow, ARGUMENTS[0]),
        f"allow among {many:,} locks": Pair(large.allow, plain.allow, ARGUMENTS[0]),
    }
    methods = (plain.one, plain.two, plain.three, plain.four)
    for number, look_up in enumerate(methods, 1):
        scopes = ", ".join(list(LOCKS)[:number])
        found[f"check by {scopes}"] = Pair(few.check, look_up, ", ".join(ARGUMENTS[:number]))
    found["check by all, a range in use"] = Pair(one_range.check, plain.four, ", ".join(ARGUMENTS))
    found["check by all, 4 prefix lengths in use"] = Pair(four_ranges.check, plain.four, ", ".join(ARGUMENTS))
    return found, [few, large, one_range, four_ranges]


def figures(rounds: int = 100, calls: int = 5_000, many: int = MANY) -> dict[str, tuple[float, float]]:
    """Returns ns of thread time per call, of gate and method: the best of many interleaved rounds."""
    found, gates = pairs(many)
    best = dict.fromkeys(found, (1e9, 1e9))
    for _ in range(rounds):
        for name, pair in found.items():
            took = tuple(
                timeit.timeit(
                    f"call({pair.arguments})", globals={"call": call}, number=calls, timer=time.thread_time
                )
                / calls
                * 1e9
                for call in (pair.decide, pair.look_up)
            )
            best[name] = (min(best[name][0], took[0]), min(best[name][1], took[1]))
    for gate in gates:
        gate.close()
    return best


def run(rounds: int = 100, calls: int = 5_000, many: int = MANY) -> None:
    print(f"a gate's decision beside a method with as many look-ups, ns, best of {rounds} rounds")
    print(f"  {'':42} {'gate':>6}  {'method':>6}  gate / method")
    for name, (gate_ns, method_ns) in figures(rounds, calls, many).items():
        print(f"  {name:42} {gate_ns:6.0f}  {method_ns:6.0f}  {gate_ns / method_ns:13.2f}")
