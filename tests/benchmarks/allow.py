"""The cost of asking a gate on a clear view, beside a method with as many look-ups in dicts."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from gatekeeper import Gate
from gatekeeper.model import Feedback, Lock
from gatekeeper.sources.fixed import FixedSource

NOW = datetime.now(UTC)
LATER = NOW + timedelta(days=1)


class OneLookUp:
    def __init__(self) -> None:
        self._locks: dict[str, bool] = {}

    def allow(self, caller: str) -> bool:
        return caller not in self._locks


class Heard(FixedSource):
    """Hears what a gate tells of itself, with whom it was asked for."""

    feedback = True

    def hear(self, told: Feedback) -> None:
        """It is heard."""


SCOPES = {  # what is asked for, and a lock on somebody else, so that the scope is in use
    "caller": ("api_key:acme", ("caller", "api_key:eve")),
    "tenant": ("acme", ("tenant", "eve")),
    "resource": ("/v1/items", ("resource", "/v1/export")),
    "address": ("192.0.2.7", ("address", "198.51.100.1")),
    "range": ("", ("range", "203.0.113.0/24")),
    "more ranges": ("", ("range", "10.0.0.0/8")),
}


def figures(rounds: int = 7, calls: int = 200_000) -> dict[str, float]:
    """Nanoseconds of each way to ask, the best of several rounds in turn."""
    methods: dict[str, tuple[Callable[..., object], str]] = {
        "one look-up": (OneLookUp().allow, "'api_key:acme'")
    }
    gates, asked, locks = [], [], []
    for name, (what, (scope, key)) in SCOPES.items():
        if what:
            asked.append(repr(what) if name == "caller" else f"{name}={what!r}")
        locks.append(Lock(scope, key, "p", NOW, LATER))
        gates.append(Gate(FixedSource(*locks)))
        methods[f"check by {', '.join(list(SCOPES)[: len(locks)])}"] = (gates[-1].check, ", ".join(asked))
    gates.append(Gate(FixedSource(*(Lock("caller", f"user:{n}", "p", NOW, LATER) for n in range(100_000)))))
    methods["allow among 100,000 locks"] = (gates[-1].allow, "'api_key:acme'")
    gates.append(Gate(Heard(*locks[:1])))
    methods["allow of a gate that tells"] = (gates[-1].allow, "'api_key:acme'")
    methods["allow"] = (gates[0].allow, "'api_key:acme'")
    for gate in gates:
        assert gate.ready(60)
    best = dict.fromkeys(methods, 1e9)
    for _ in range(rounds):
        for name, (method, arguments) in methods.items():
            took_s = timeit.timeit(f"ask({arguments})", globals={"ask": method}, number=calls)
            best[name] = min(best[name], took_s / calls * 1e9)
    for gate in gates:
        gate.close()
    return best


def run(rounds: int = 7, calls: int = 200_000) -> None:
    best = figures(rounds, calls)
    for name, ns in best.items():
        print(f"{name}: {ns:.0f} ns, {ns / best['one look-up']:.2f}x a method with one look-up")
