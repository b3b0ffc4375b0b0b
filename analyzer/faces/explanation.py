"""The sentences and tables of `gatelock explain`: the state of a caller, and the reasons."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import islice

from analyzer.callers.caller_standing import CallerStanding, PolicyUse, held_by_brakes
from analyzer.callers.explained_caller import ExplainedCaller
from analyzer.delays.exceeded_overshoots import estimated_overshoots, exceeded
from analyzer.faces.table_rows import TableRows
from analyzer.gates.gate_health import NO_REPORTS, NOT_REPORTED, living_gates, met_locks
from analyzer.gates.gate_reports import reporting_gates
from analyzer.judging.kinds import policy_kind
from analyzer.judging.locks.lock_answers import describe_action
from analyzer.judging.locks.lock_outcomes import LockOutcome
from analyzer.kernel.database.clock import instant
from analyzer.kernel.database.engine import Engine
from analyzer.kernel.time_texts import format_second
from analyzer.plan.meter_units import amount_text
from analyzer.plan.policies import Policy
from gatekeeper.feed.feed_json import time_text
from gatekeeper.model import WITHOUT_END, Lock
from gatekeeper.view.lookup_keys import is_of_callers

HISTORY_MAX = 20  # locks that are shown; JSON has all


def explanation(engine: Engine, explained: ExplainedCaller, flush_every: float) -> Iterator[str | TableRows]:
    """Yields the present of a caller, and its past locks. Raises StoreAway."""
    yield from _present(explained.name, explained.standing, explained.resources)
    yield from _met(engine, explained.standing)
    yield from past_locks(explained.past, "in the time of the history")
    yield from overshoot_sentences(engine, explained.past, flush_every)


def overshoot_sentences(engine: Engine, past: Sequence[LockOutcome], flush_every: float) -> Iterator[str]:
    yield from map(str, exceeded(past, estimated_overshoots(engine, flush_every)))


def _present(
    name: str, standing: CallerStanding, resources: Sequence[tuple[str, int, int]]
) -> Iterator[str | TableRows]:

    facts = [f"plan {standing.plan}"] * bool(standing.plan) + [f"tenant {standing.tenant}"] * bool(
        standing.tenant
    )
    enforced = [lock for lock in standing.locks if lock.action not in ("shadow", "notify", "suspend")]
    about = f" ({', '.join(facts)})" if facts else ""
    yield f"{name}{about} is {'locked' if enforced else 'not locked'}"
    if any(lock.action == "suspend" for lock in standing.locks):
        yield "  all locks are suspended: `gatelock locks resume --reason TEXT`"
    for lock in standing.locks:
        if lock.action != "suspend":
            yield f"  {_lock_text(lock)}"
    for policy in held_by_brakes(standing):
        yield f"  not locked by {policy}: its brake holds the lock, {standing.braked[policy]}"
    for held in standing.held_off:
        until = time_text(instant(held.until_ms))
        yield f"  {held.at.policy} sets no lock before {until}: cleared by {held.who}, {held.reason}"
    for hint in next_commands(name, enforced, [use.policy for use in standing.uses]):
        yield f"  {hint}"
    columns = ["policy", "mode", "series", "used", "limit", "left", "window ends", "at this pace"]
    rows = [_use_row(use, standing) for use in standing.uses]
    yield TableRows(columns, rows, "no policy is in force: no caller is locked")
    if resources:
        yield TableRows(["resource, last day", "requests", "denied"], resources, "")


def next_commands(name: str, locks: Sequence[Lock], policies: Sequence[Policy]) -> Iterator[str]:
    """Yields what an operator may do about locks that refuse the caller, with the command for each."""
    for scope, key, resource in dict.fromkeys((lock.scope, lock.key, lock.resource) for lock in locks):
        if ":" in scope:  # by a named value: such a lock is not cleared by hand
            continue
        option = "--address" if scope == "range" else f"--{scope}"
        series = {"caller": [shlex.quote(name)], "everyone": [option]}.get(scope, [option, shlex.quote(key)])
        series += ["--resource", shlex.quote(resource)] if resource else []
        yield f"to admit it now: gatelock locks unlock {' '.join(series)} --reason WHY"
    by_name = {policy.name: policy for policy in policies}
    for policy in dict.fromkeys(lock.policy for lock in locks if is_of_callers(lock.scope)):
        caller = shlex.quote(name)
        if policy in by_name and policy_kind(by_name[policy]).whole_sum is None:
            change = f"{caller} --policy {policy} --amount AMOUNT"
            yield f"to allow it more: gatelock callers limit {change} --reason WHY"
        elif policy in by_name:  # a share has no limits of single callers
            yield f"to allow it all: gatelock callers allow {caller} --reason WHY"


def _lock_text(lock: Lock) -> str:

    on = " ".join(part for part in (lock.scope, lock.key, lock.resource) if part)
    began, until = (format_second(int(time.timestamp())) for time in (lock.began, lock.until))
    end = "without an end" if lock.until >= WITHOUT_END else f"to {until}"
    return f"{lock.policy}, {describe_action(lock)}, {began} {end}, on {on}: {lock.detail}"


def _mode(use: PolicyUse, standing: CallerStanding) -> str:
    if use.policy.name in standing.braked:
        return "braked"
    return "shadow" if use.policy.is_shadow else "enforce"


def _window_end(use: PolicyUse) -> str:
    if use.until_s is None:
        return "rolling"
    return "never" if use.until_s >= WITHOUT_END.timestamp() else format_second(use.until_s)


def _use_row(use: PolicyUse, standing: CallerStanding) -> list[str]:

    limit = amount_text(use.limit, use.unit)
    left = limit if use.is_unlimited else amount_text(max(0, use.limit - use.used), use.unit)
    return [
        use.policy.name,
        _mode(use, standing),
        f"{use.key} {use.resource}".strip(),
        amount_text(use.used, use.unit),
        "exempt" if use.is_exempt else limit,
        "" if use.is_exempt else left,
        _window_end(use),
        "" if use.reached_s is None or use.is_exempt else f"reached at {format_second(use.reached_s)}",
    ]


def _met(engine: Engine, standing: CallerStanding) -> Iterator[str]:
    """Yields whether gates have met the locks: one under a name that no gate is asked for refuses nothing."""
    gates = living_gates(reporting_gates(engine))
    met = met_locks(gates)
    for lock in standing.locks:
        if lock.action in ("deny", "slow", "tag") and met is not None:
            sentence = "a gate has been asked for it" if lock.at in met else NOT_REPORTED
            silent = "" if gates else f": {NO_REPORTS}"
            yield f"the lock by {lock.policy}: {sentence}{silent}"


def nearest_locks(history: Sequence[LockOutcome], begin_s: int, end_s: int) -> Iterator[str]:
    """Yields which locks came before and after a time without any; `history` has the latest first."""
    earlier = [lock for lock in history if lock.ended_ms is not None and lock.ended_ms <= begin_s * 1000]
    later = [lock for lock in history if lock.began_ms >= end_s * 1000]
    for phrase, nearest in (("the one before", earlier[:1]), ("the one after", later[-1:])):
        for lock in nearest:
            ended = "" if lock.ended_ms is None else f" to {format_second(lock.ended_ms // 1000)}"
            yield f"{phrase}: {lock.at.policy}, {format_second(lock.began_ms // 1000)}{ended}: {lock.detail}"


def past_locks(past: Sequence[LockOutcome], then: str) -> Iterator[str | TableRows]:
    """Yields locks; `then` says when there is none."""
    rows = [
        [
            format_second(outcome.began_ms // 1000),
            "" if outcome.ended_ms is None else format_second(outcome.ended_ms // 1000),
            outcome.at.policy,
            outcome.action,
            " ".join(part for part in outcome.at[:3] if part),
            f"plan {outcome.plan}" if outcome.plan else "by hand",
            "" if outcome.overshoot is None else f"{outcome.overshoot:,}",
            outcome.detail,
        ]
        for outcome in islice(past, HISTORY_MAX)
    ]
    columns = ["locked from", "to", "policy", "does", "on", "judged by", "beyond limit", "detail"]
    yield TableRows(columns, rows, f"no lock {then}")
    if len(past) > HISTORY_MAX:
        yield f"... and {len(past) - HISTORY_MAX:,} earlier ones: --json has all"
