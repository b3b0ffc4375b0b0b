"""How the gates of an installation fare, by what they told of themselves."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import NamedTuple

from gatekeeper.model import GateStatus, LockHits, LockKey

SILENT_S = 90.0  # one that goes on tells every five seconds, or a minute after it could not
BEHIND_S = 10.0  # a gate polls some times a second, and what it tells is some seconds old when it is written
SKEW_S = 2.0  # locks end by the gate's clock, late or early by as much
KNOWN_MIN = 0.9  # of the callers that a gate is asked for


class GateHealth(NamedTuple):
    """One gate in one process."""

    told: GateStatus
    heard_s: float  # seconds ago, by the database's clock
    first_s: float  # ... that it was heard for the first time
    # Its view is of this feed, but lacked the next version for so long when it told; 0.0 when there was none.
    missed_s: float = 0.0
    strange: bool = False  # the version that its view is of was never this feed's

    @property
    def silent(self) -> bool:
        return self.heard_s > SILENT_S

    @property
    def checks(self) -> int:
        """Requests that met a lock, once for each lock."""
        return self.told.more[0] + sum(met.checks for met in self.told.locks)

    @property
    def denials(self) -> int:
        """Those among them that were refused."""
        return self.told.more[1] + sum(met.denials for met in self.told.locks)


def share(callers: Iterable[str], known: Set[str]) -> float | None:
    """How many of these callers are known; None when there are none.

    >>> share(["user:ann", "user:bob"], {"user:bob"})
    0.5
    """
    each = list(callers)
    return sum(caller in known for caller in each) / len(each) if each else None


def troubles(gate: GateHealth, known: Set[str]) -> dict[str, str]:
    """What is wrong with a gate, by one word; a sentence each."""
    told, found = gate.told, {}
    if gate.silent:
        found["silent"] = f"was not heard of for {gate.heard_s:.0f} s"
    if told.mode == "process":
        found["off"] = "is switched off by GATEKEEPER=off: it refuses nobody"
    if told.age is None or told.age > told.stale_after:
        age = "never had an answer" if told.age is None else f"had its last answer {told.age:.0f} s before"
        found["stale"] = f"{age}: its view is stale"
    if gate.strange:
        found["strange"] = "holds a version that was never this feed's: it reads another database, or a copy"
    elif gate.missed_s > BEHIND_S:
        found["behind"] = (
            f"lacked a version that had been there for {gate.missed_s:.0f} s: it reads a replica"
        )
    if abs(told.clock_skew) > SKEW_S:
        ahead = "ahead" if told.clock_skew > 0 else "behind"
        found["clock"] = f"has a clock that is {abs(told.clock_skew):.1f} s {ahead}: locks end by it"
    if told.ignored:
        found["old"] = f"does not know, and passes over: {', '.join(told.ignored)}"
    part = share(told.callers, known)
    if part is not None and part < KNOWN_MIN:
        found["strangers"] = f"is asked for callers of whom the log knows {part:.0%}"
    return found


def living(gates: Iterable[GateHealth]) -> list[GateHealth]:
    """Those that are heard of; of an application of which none is, the one that was heard last. That a
    process was replaced is no news."""
    each = sorted(gates, key=lambda gate: gate.heard_s)
    heard = {gate.told.application for gate in each if not gate.silent}
    last: dict[str, GateHealth] = {}
    for gate in each:
        last.setdefault(gate.told.application, gate)
    alone = [gate for name, gate in last.items() if name not in heard]
    return [gate for gate in each if not gate.silent or gate in alone]


def met(gates: Iterable[GateHealth]) -> list[tuple[LockHits, int]]:
    """How often each lock was met in all of them, those met most often first, and by how many gates."""
    sums: dict[LockKey, tuple[int, int, int]] = {}
    for gate in gates:
        for at, checks, denials in gate.told.locks:
            before = sums.get(at, (0, 0, 0))
            sums[at] = before[0] + checks, before[1] + denials, before[2] + 1
    each = [(LockHits(at, checks, denials), number) for at, (checks, denials, number) in sums.items()]
    return sorted(each, key=lambda pair: (-pair[0].checks, pair[0].at))
