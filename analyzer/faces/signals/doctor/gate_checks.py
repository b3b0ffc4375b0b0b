"""Checks of enforcement: gates, what they ask, locks that they do not meet, brakes and attacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analyzer.faces.signals.connections import gate_connections
from analyzer.faces.signals.doctor.observations import Installation
from analyzer.faces.signals.signal_kinds import LISTED_MAX, Observation, fine, raised
from analyzer.gates.gate_health import (
    CURES,
    KNOWN_MIN,
    NO_REPORTS,
    NOT_REPORTED,
    REPORTS_CURE,
    GateHealth,
    gate_problems,
    met_locks,
    unknown_clients,
)
from analyzer.gates.gate_reports import known_among
from analyzer.gates.unasked_values import unasked_values
from analyzer.gates.unknown_callers import LogKnowledge, cause, spellings
from analyzer.gates.unmet_locks import unmet_locks
from analyzer.judging.kinds import policy_kind
from analyzer.judging.locks.verdict_decisions import UNKNOWN_POLICY
from analyzer.judging.sql.usual_history import policies_without_history
from analyzer.plan.mapping import CALLER_FIELDS
from gatekeeper.feed.feed_json import time_text

SQL_GATES_MAX = 50  # half of the connections that PostgreSQL allows by default, for all its clients
POLLS_MIN = 3  # requests for locks: a gate polls on, a port scanner asks once


def disbelieved_verdicts(installation: Installation) -> Iterator[Observation]:
    disbelieved = installation.database.disbelieved
    for policy, requests in sorted(disbelieved.items(), key=lambda item: -item[1])[:LISTED_MAX]:
        phrase = {"": "", UNKNOWN_POLICY: " by a policy that is not in force"}.get(policy, f" by {policy}")
        yield raised(
            "disbelieved-verdicts",
            policy,
            f"{requests:,} requests of the last hour were logged as denied{phrase}, and count, because no "
            "such lock was in force",
            "see who writes this into the log: an application that passes the header `Gatelock` on, its own "
            "429 in a `deny_if` by status, a gate on another database, or a clock that is wrong",
        )


def suspension(installation: Installation) -> Iterator[Observation]:
    until = installation.status.suspended_until
    if until is not None:
        yield raised(
            "locks-suspended",
            "",
            f"all locks are suspended until {time_text(until)}: every gate is open",
            "run `gatelock locks resume --reason TEXT` to end it; `gatelock upkeep events list` shows the "
            "operator and the reason",
        )


def gate_states(installation: Installation) -> Iterator[Observation]:
    if not installation.gates:
        yield fine(f"{NO_REPORTS}; {REPORTS_CURE}")
    for name, gates in installation.applications().items():
        problems: dict[str, list[tuple[GateHealth, str]]] = {}
        for gate in gates:
            for problem, sentence in gate_problems(gate, set(gate.status.callers)).items():
                problems.setdefault(problem, []).append((gate, sentence))
        for problem, named in problems.items():
            gate, sentence = named[0]
            more = f"; {len(named) - 1} more with this problem" if len(named) > 1 else ""
            cure = CURES.get(problem) or (gate.refused.cure if gate.refused else "")
            what = f"{name} {gate.status.instance} {sentence}{more}"
            yield raised(f"gate-{problem}", name, what, cure)
        if not problems:
            oldest_s = max(gate.status.age or 0.0 for gate in gates)
            yield fine(f"{name}: {len(gates)} report, their views at most {oldest_s:.1f} s old")


def values_unasked(installation: Installation) -> Iterator[Observation]:
    for unasked in unasked_values(installation.plan.policies, installation.gates):
        yield raised("unasked-value", unasked.policy, unasked.sentence, unasked.cure)


def refused_by_server(installation: Installation) -> Iterator[Observation]:
    unknown = [
        client
        for client in unknown_clients(installation.refused, installation.gates)
        if client.requests >= POLLS_MIN
    ]
    for client in unknown[:LISTED_MAX]:
        yield raised("client-refused", client.client, f"{client.client} {client.sentence}", client.cure)
    if len(unknown) > LISTED_MAX:
        more = f"{len(unknown) - LISTED_MAX} more clients are refused"
        yield raised("client-refused", "", more, "see `gatelock upkeep gates list`")


def locks_unmet(installation: Installation) -> Iterator[Observation]:
    unmet = unmet_locks(installation.engine, met_locks(installation.gates))
    for lock, requests in unmet[:LISTED_MAX]:
        name = "the client's address (`behind`)" if lock.key.startswith("address:") else lock.key
        met = "no gate has met the lock" if installation.gates else f"{NOT_REPORTED}, as {NO_REPORTS}"
        yield raised(
            "lock-unmet",
            lock.policy,
            f"{lock.key} is locked by {lock.policy}, and {requests:,} of its requests were counted since: "
            + met,
            f"guard the application that it calls, and have its gate ask for {name}"
            + ("" if installation.gates else f"; if it does: {REPORTS_CURE}"),
        )
    if len(unmet) > LISTED_MAX:
        more = f"{len(unmet) - LISTED_MAX} more locks that no gate has met"
        yield raised("lock-unmet", "", more, "see `gatelock locks list`")


def waiting_judgements(installation: Installation) -> Iterator[Observation]:
    number = installation.status.waiting_judgements
    if number:
        lag_s = max((part.behind_s for part in installation.partitions), default=0.0)
        yield raised(
            "judgements-wait",
            "",
            f"judgements wait: {number:,} totals, the analyzers are {lag_s:.0f} s behind",
            "no surge or share is locked until the backlog is counted; add analyzers if it grows",
        )


def usual_histories(installation: Installation) -> Iterator[Observation]:
    for policy in policies_without_history(installation.engine):
        yield fine(policy.sentence)


def gates_over_sql(installation: Installation) -> Iterator[Observation]:
    connections = gate_connections(installation.engine)
    if connections is not None and connections.gates > SQL_GATES_MAX:
        yield raised(
            "sql-gates",
            "",
            f"{connections.gates} gates hold a connection each to the database, which allows "
            f"{connections.connections_max} for all clients",
            'let them read over HTTP, Gate("https://HOST:PORT"), from `gatelock run` or `gatelock serve`',
        )


def checked_callers(installation: Installation) -> Iterator[Observation]:
    for name, gates in installation.applications().items():
        callers = {caller for gate in gates for caller in gate.status.callers}
        counted = known_among(installation.engine, callers)
        unknown = sorted(callers - counted.known)
        if not callers:
            yield fine(f"{name}: no caller was checked yet")
        elif (share := 1 - len(unknown) / len(callers)) >= KNOWN_MIN:
            yield fine(f"{name}: the log knows {share:.0%} of {len(callers)} callers checked")
        else:
            reason, cure = _explain_unknown(installation, unknown, counted.overflow)
            shown = ", ".join(unknown[:LISTED_MAX])
            sentence = f"{name}: the log knows {share:.0%} of {len(callers)} callers checked, but not {shown}"
            yield raised("unknown-callers", name, f"{sentence}: {reason}", cure)


def _explain_unknown(installation: Installation, unknown: Sequence[str], overflow: bool) -> tuple[str, str]:
    """The likeliest reason why the log does not know these callers, and the cure."""
    kinds = tuple(dict.fromkeys(kind for source in installation.settings.sources for kind in source.callers))
    spelled = {other.name for caller in unknown for other in spellings(caller, kinds or CALLER_FIELDS)}
    lag_s = max((part.behind_s for part in installation.partitions), default=0.0)
    return cause(
        unknown, LogKnowledge(known_among(installation.engine, spelled).known, kinds, lag_s, overflow)
    )


def acting_brakes(installation: Installation) -> Iterator[Observation]:
    """Policies that their brake holds or slows."""
    for policy, text in installation.status.braked.items():
        cure = f"see whom it locks: `gatelock policies list {policy}`, then change its limit or release it"
        yield raised("brake", policy, f"the brake of policy {policy} acts: {text}", cure)


def attacks(installation: Installation) -> Iterator[Observation]:
    """Policies of a kind that means an attack, while they lock."""
    for policy in installation.plan.policies:
        held = installation.status.active_locks.get(policy.name, 0)
        if held and not policy.is_shadow and policy_kind(policy).means_attack:
            plural = "s" if held > 1 else ""
            yield raised(
                "attack",
                policy.name,
                f"an attack: {policy.name} holds {held:,} lock{plural}",
                f"see who it is: `gatelock locks list --policy {policy.name}`",
            )


def policies_in_shadow(installation: Installation) -> Iterator[Observation]:
    """Policies in shadow that would lock."""
    for policy, number in sorted(installation.status.shadow_locks.items()):
        yield raised(
            "shadow-locks",
            policy,
            f"{policy} is in shadow, and would lock {number:,} caller{'s' if number > 1 else ''} now",
            f"see whom: `gatelock locks list --shadow --policy {policy}`; to enforce it: "
            f"`gatelock policies enforce {policy} --reason TEXT`",
        )
