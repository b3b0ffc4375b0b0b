"""The explanation of a caller: its locks, its use of each policy, its resources, its past locks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from analyzer.callers.caller_standing import CallerStanding, caller_standing, held_by_brakes
from analyzer.callers.counted_names import NeverCounted, never_counted
from analyzer.counting.usage import UsageQuery, usage_rows
from analyzer.judging.locks.lock_outcomes import LockedName, LockOutcome, lock_outcomes
from analyzer.kernel.database.engine import Engine
from analyzer.kernel.time_texts import format_second
from gatekeeper.feed.feed_json import change_fields
from gatekeeper.model import Set

ROUTES_MAX = 5
DAY_S = 86_400


class ExplainedCaller(NamedTuple):
    """The explanation of a caller by `gatelock explain`.

    Attributes:
        name: The name that it is counted by.
        standing: Its locks, and its use of each policy.
        history: Its locks since a time, the latest first.
        past: Those of them that were asked for.
        resources: Its busiest resources of the last day, each with requests and denied ones.
        absence: What is near to the name, if nothing was ever counted for it.
    """

    name: str
    standing: CallerStanding
    history: Sequence[LockOutcome]
    past: Sequence[LockOutcome]
    resources: Sequence[tuple[str, int, int]]
    absence: NeverCounted | None = None

    @property
    def is_unknown(self) -> bool:
        """Whether nothing was ever counted, stated or locked under this name: it is probably a wrong one."""
        standing = self.standing
        facts = standing.plan or standing.tenant or standing.held_off
        return self.absence is not None and not (facts or standing.locks or self.history)

    def as_object(self) -> Mapping[str, object]:
        """Returns everything but the history before what was asked for."""
        counted = {"counted": self.absence is None, "near": list(self.absence.near if self.absence else ())}
        return {**_object(self.name, self.standing, self.past, self.resources), **counted}


def explained_caller(
    engine: Engine, name: str, since_s: int, then: tuple[int, int] | None = None
) -> ExplainedCaller:
    """Returns the present of a caller and its locks since `since_s`, or those in force in a stretch.

    `then` is the begin and the exclusive end of the stretch, in seconds. Raises StoreAway, SchemaBehind.
    """
    standing = caller_standing(engine, name)
    first_ms = min(since_s, since_s if then is None else then[0]) * 1000
    history = sorted(lock_outcomes(engine, first_ms, names=standing.names), key=_begin, reverse=True)
    past = (
        history
        if then is None
        else [outcome for outcome in history if overlaps(outcome, *then, standing.now_ms)]
    )
    resources = busiest_resources(engine, name, standing.now_ms // 1000)
    is_counted = resources or any(use.used for use in standing.uses)  # mostly, without another query
    absence = None if is_counted else never_counted(engine, name)
    return ExplainedCaller(name, standing, history, past, resources, absence)


def busiest_resources(engine: Engine, caller: str, now_s: int) -> list[tuple[str, int, int]]:
    """Returns the resources with the most requests of the last day; none if they are not counted."""
    query = UsageQuery("caller+resource", DAY_S, now_s - DAY_S, now_s + 1, key=caller, top=2 * ROUTES_MAX)
    sums: dict[str, tuple[int, int]] = {}
    for row in usage_rows(engine, query):
        value, denied = sums.get(row.resource, (0, 0))
        sums[row.resource] = value + row.value, denied + row.denied
    largest = sorted(sums.items(), key=lambda item: -sum(item[1]))[:ROUTES_MAX]
    return [(resource or "(none)", *amounts) for resource, amounts in largest]


def _object(
    name: str,
    standing: CallerStanding,
    past: Sequence[LockOutcome],
    resources: Sequence[tuple[str, int, int]],
) -> Mapping[str, object]:

    present = [change_fields(Set(lock)) for lock in standing.locks]
    return {
        "caller": name,
        "plan": standing.plan,
        "tenant": standing.tenant,
        "locks": [{key: value for key, value in lock.items() if key != "op"} for lock in present],
        "held_off": [
            {"policy": hold.at.policy, "until": format_second(hold.until_ms // 1000), "who": hold.who,
             "reason": hold.reason}
            for hold in standing.held_off
        ],
        "held_by_brakes": held_by_brakes(standing),
        "policies": list(_policy_fields(standing)),
        "resources": [dict(zip(("resource", "requests", "denied"), row, strict=True)) for row in resources],
        "history": [
            {
                "scope": row.at.scope, "key": row.at.key, "resource": row.at.resource,
                "policy": row.at.policy, "action": row.action, "began": format_second(row.began_ms // 1000),
                "ended": None if row.ended_ms is None else format_second(row.ended_ms // 1000),
                "plan": row.plan, "detail": row.detail, "used": row.used, "overshoot": row.overshoot,
            }
            for row in past
        ],
    }  # fmt: skip


def _policy_fields(standing: CallerStanding) -> Iterator[dict[str, object]]:

    for use in standing.uses:
        yield {
            "policy": use.policy.name,
            "mode": "shadow" if use.policy.is_shadow else "enforce",
            "brake": standing.braked.get(use.policy.name),
            "key": use.key,
            "resource": use.resource,
            "exempt": use.is_exempt,
            "used": use.used,
            "limit": None if use.is_unlimited else use.limit,
            "until": None if use.until_s is None else format_second(use.until_s),
            "reached": None if use.reached_s is None else format_second(use.reached_s),
        }


def overlaps(lock: LockOutcome, begin_s: int, end_s: int, now_ms: int) -> bool:
    """Whether a lock was in force at any time of a stretch, as far as that is over."""
    ended_ms = now_ms + 1 if lock.ended_ms is None else lock.ended_ms
    return lock.began_ms < end_s * 1000 and ended_ms > begin_s * 1000


def _begin(outcome: LockOutcome) -> tuple[int, LockedName]:
    return outcome.began_ms, outcome.at[:2]
