"""What the locks that apply to one request amount to: the strictest answers, the others are named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gatekeeper.model import Decision
from gatekeeper.view.lock_tuples import ACTION, DETAIL, END, POLICY, REASON, SLOW, STATUS, UNTIL, LockTuple


class SlowLimit(Protocol):
    """Lets a stated rate through."""

    def check(self, held: LockTuple) -> Decision:
        """Whether one more request may pass now, by this lock's rate; it is counted when it may."""

    def refund(self, held: LockTuple) -> None:
        """Take back the last yes."""

    def tidy(self) -> None:
        """Hold what is remembered within its bounds; called by the poller, never by a request."""


def decide(locks: Sequence[LockTuple], now_ns: int, slowing: SlowLimit | None) -> Decision:
    """The answer of these locks, at least one and all in force at `now_ns`; `slowing` is there if one slows.

    To deny is stricter than to slow, which is stricter than to tag. Of locks that do the same, the one that
    ends last answers. Where several slow, all must let the request through.
    """
    by_end = sorted(locks, key=_latest_end_first)
    denying = next((held for held in by_end if held[ACTION] == "deny"), None)
    if denying is not None:
        return _decision(denying, by_end, allowed=False, retry_after=(denying[END] - now_ns) / 1e9)
    slowing_down = [held for held in by_end if held[ACTION] == "slow"]
    if slowing_down and slowing is not None:
        return _decide_slow(slowing_down, by_end, slowing)
    return _decision(by_end[0], by_end, allowed=True, retry_after=0.0)


def _decide_slow(slow: Sequence[LockTuple], by_end: Sequence[LockTuple], slowing: SlowLimit) -> Decision:
    passed: list[tuple[LockTuple, Decision]] = []
    for held in slow:
        one = slowing.check(held)
        if not one.allowed:
            for before, _ in passed:  # a request that is refused takes nothing from the others
                slowing.refund(before)
            said = _decision(held, by_end, allowed=False, retry_after=one.retry_after)
            limit, period_s = held[SLOW]
            detail = f"{held[DETAIL]}; slowed to {limit:,} in {period_s:g} s".removeprefix("; ")
            return said._replace(detail=detail, limit=limit, remaining=0, reset_after=one.reset_after)
        passed.append((held, one))
    held, least = min(passed, key=lambda each: each[1].remaining or 0)
    said = _decision(held, by_end, allowed=True, retry_after=0.0)
    return said._replace(limit=least.limit, remaining=least.remaining, reset_after=least.reset_after)


def _decision(
    held: LockTuple, every: Sequence[LockTuple], *, allowed: bool, retry_after: float | None
) -> Decision:
    policies = dict.fromkeys(other[POLICY] for other in every)
    return Decision(
        allowed=allowed,
        policy=held[POLICY],
        reason=held[REASON],
        detail=held[DETAIL],
        retry_after=retry_after,
        until=held[UNTIL],
        status=held[STATUS],
        also=tuple(policy for policy in policies if policy != held[POLICY]),
        tags=tuple(dict.fromkeys(other[POLICY] for other in every if other[ACTION] == "tag")),
    )


def _latest_end_first(held: LockTuple) -> tuple[int, str]:
    return -held[END], held[POLICY]
