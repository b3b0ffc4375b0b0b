"""The health of the gates of an installation, by the status that they report."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import NamedTuple

from analyzer.gates.refused_requests import RefusedRequests
from gatekeeper.model import GateStatus, LockHits, LockKey

SILENT_S = 90.0  # a living gate reports every five seconds, or a minute after a report that failed
UNREPORTED_S = 5.0  # between two reports of a living gate
BEHIND_S = 10.0  # a gate polls several times a second; its report is stored some seconds later
SKEW_S = 2.0  # locks end by the gate's clock, early or late by as much
KNOWN_MIN = 0.9  # the share of a gate's callers that the log must know

NOT_REPORTED = "not reported by any gate"
NO_REPORTS = "no gate reports, so that it is not known which locks are met"
# Over HTTP gates report unless report_status is False; over SQL they need a right for it.
REPORTS_CURE = (
    "over SQL, write Gate(..., report_status=True) and let its role write into the table gates; over HTTP, "
    "check that an application with a gate runs, without report_status=False"
)

# The cure for each problem of a gate. That of "refused" depends on the reason.
CURES = {
    "silent": "check that the application runs; if it is gone for good, run "
    "`gatelock upkeep gates forget NAME --reason TEXT`",
    "off": "unset GATEKEEPER when it is no longer needed",
    "stale": "see the application's log, logger `gatekeeper`",
    "foreign": "compare its URL with [database] url here",
    "behind": "let it read the primary",
    "clock": "synchronise the clock of its machine (NTP)",
    "old": "upgrade gatelock there",
}


class GateHealth(NamedTuple):
    """The last report of one gate in one process, with what the database knows about it.

    Attributes:
        status: The report.
        report_age_s: Seconds since the report, by the database's clock.
        first_report_age_s: Seconds since the first report of this gate.
        missed_s: For how long a newer version existed when the gate reported; 0.0 if there was none.
        is_foreign: Whether the version that the gate holds was never one of this feed.
        refused: Its refused requests, if it has reported nothing since the first of them.
    """

    status: GateStatus
    report_age_s: float
    first_report_age_s: float
    missed_s: float = 0.0
    is_foreign: bool = False
    refused: RefusedRequests | None = None

    @property
    def is_silent(self) -> bool:
        return self.report_age_s > SILENT_S

    @property
    def is_alive(self) -> bool:
        """Whether its process runs: it reports, or asks and is refused."""
        return self.refused is not None or not self.is_silent

    @property
    def age_s(self) -> float | None:
        """Seconds since its last answer, as far as is known; None if it never had one.

        Counts on after the last report: a gate that is refused can report nothing.
        """
        return None if self.status.age is None else self.status.age + self.report_age_s

    @property
    def checks(self) -> int:
        """Requests that a lock applied to, counted once per lock."""
        return self.status.more[0] + sum(hits.checks for hits in self.status.locks)

    @property
    def denials(self) -> int:
        """Requests that were denied, counted once per lock."""
        return self.status.more[1] + sum(hits.denials for hits in self.status.locks)


def known_share(callers: Iterable[str], known_callers: Set[str]) -> float | None:
    """Returns the share of these callers that are known; None without callers.

    >>> known_share(["user:ann", "user:bob"], {"user:bob"})
    0.5
    """
    sample = list(callers)
    return sum(caller in known_callers for caller in sample) / len(sample) if sample else None


def gate_problems(gate: GateHealth, known_callers: Set[str]) -> dict[str, str]:
    """Returns the problems of a gate, a sentence by name of problem. `known_callers` are those in the log."""
    status, problems = gate.status, {}
    if gate.refused is not None:
        problems["refused"] = f"{gate.refused.sentence}, from {gate.refused.address}"
    elif gate.is_silent:
        problems["silent"] = f"sent its last report {gate.report_age_s:.0f} s ago"
    if status.mode == "process":
        problems["off"] = "is switched off by GATEKEEPER=off: it denies no request"
    if sentence := _stale(gate):
        problems["stale"] = sentence
    if gate.is_foreign:
        problems["foreign"] = (
            "holds a version that was never this feed's: it reads another database, or a copy"
        )
    elif gate.missed_s > BEHIND_S:
        problems["behind"] = f"lacked a version that was {gate.missed_s:.0f} s old: it reads a replica"
    if abs(status.clock_skew) > SKEW_S:
        direction = "ahead" if status.clock_skew > 0 else "behind"
        problems["clock"] = f"has a clock that is {abs(status.clock_skew):.1f} s {direction}: locks end by it"
    if status.ignored:
        problems["old"] = f"does not know, and ignores: {', '.join(status.ignored)}"
    share = known_share(status.callers, known_callers)
    if share is not None and share < KNOWN_MIN:
        problems["unknown-callers"] = f"is asked for callers of which the log knows {share:.0%}"
    return problems


def _stale(gate: GateHealth) -> str:
    """Returns a sentence about a view that is stale; "" if it is not known to be."""
    status = gate.status
    if status.age is None:
        return "never had an answer: its view is stale"
    if status.age > status.stale_after:
        return f"had its last answer {status.age:.0f} s before: its view is stale"
    if gate.is_alive and gate.report_age_s > status.stale_after + UNREPORTED_S:
        return f"has reported nothing for {gate.report_age_s:.0f} s: its view is probably stale"
    return ""


def living_gates(gates: Iterable[GateHealth]) -> list[GateHealth]:
    """Returns the gates that report or are refused, and of an application without any the last that did.

    So a process that was replaced is not reported as silent.
    """
    by_age = sorted(gates, key=lambda gate: gate.report_age_s)
    reporting = {gate.status.application for gate in by_age if gate.is_alive}
    last: dict[str, GateHealth] = {}
    for gate in by_age:
        last.setdefault(gate.status.application, gate)
    last_of_silent = [gate for application, gate in last.items() if application not in reporting]
    return [gate for gate in by_age if gate.is_alive or gate in last_of_silent]


def gate_refusal(
    instance: str, report_age_s: float, refused: Iterable[RefusedRequests]
) -> RefusedRequests | None:
    """Returns the refused requests in the name of a gate that has reported nothing since the first of them.

    A client may use any name: of a gate that reports, the refused requests are of another client.
    """
    return next((client for client in refused if _is_of_gate(client, instance, report_age_s)), None)


def unknown_clients(refused: Iterable[RefusedRequests], gates: Iterable[GateHealth]) -> list[RefusedRequests]:
    """Returns the refused clients that are none of these gates."""
    ages_s = {gate.status.instance: gate.report_age_s for gate in gates}
    return [
        client
        for client in refused
        if client.instance not in ages_s or not _is_of_gate(client, client.instance, ages_s[client.instance])
    ]


def _is_of_gate(client: RefusedRequests, instance: str, report_age_s: float) -> bool:
    return client.instance == instance and report_age_s + UNREPORTED_S >= client.first_age_s


def met_locks(gates: Iterable[GateHealth]) -> Set[LockKey] | None:
    """Returns the locks that these gates have met; None if a gate has met more than it can report."""
    living = list(gates)
    if any(gate.status.more[0] for gate in living):
        return None
    return {hits.at for gate in living for hits in gate.status.locks}


def hits_by_lock(gates: Iterable[GateHealth]) -> list[tuple[LockHits, int]]:
    """Returns the hits of each lock in all gates, most checks first, with the number of gates."""
    sums: dict[LockKey, tuple[int, int, int]] = {}
    for gate in gates:
        for key, checks, denials in gate.status.locks:
            previous = sums.get(key, (0, 0, 0))
            sums[key] = previous[0] + checks, previous[1] + denials, previous[2] + 1
    hits = [(LockHits(key, checks, denials), number) for key, (checks, denials, number) in sums.items()]
    return sorted(hits, key=lambda lock: (-lock[0].checks, lock[0].at))
