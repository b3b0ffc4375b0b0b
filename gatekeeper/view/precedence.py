"""Precedence: one decision from all locks that apply. The strictest decides, the others are named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gatekeeper.model import WITHOUT_END, Decision
from gatekeeper.view.lock_tuples import ACTION, DETAIL, END, POLICY, REASON, SLOW, STATUS, UNTIL, LockTuple


class SlowLimit(Protocol):
    """Counts the requests of locks with the action "slow" against their rates."""

    def check(self, lock: LockTuple) -> Decision:
        """Decides whether one more request may pass now at the lock's rate, and counts it if so."""

    def refund(self, lock: LockTuple) -> None:
        """Takes back the request that `check` allowed last."""

    def prune(self) -> None:
        """Keeps memory within its bounds. Called by the poller, never by a request."""


def decide(locks: Sequence[LockTuple], now_ns: int, slow_limit: SlowLimit | None) -> Decision:
    """The decision of these locks: at least one, all in force at `now_ns`.

    "deny" comes before "slow", "slow" before "tag"; among locks of one action the one that ends last. Where
    several slow, each of them must let the request through. `slow_limit` must be given if any of the locks
    slows.
    """
    by_end = sorted(locks, key=_latest_end_first)
    denying = next((lock for lock in by_end if lock[ACTION] == "deny"), None)
    if denying is not None:
        retry_after = None if denying[UNTIL] >= WITHOUT_END else (denying[END] - now_ns) / 1e9
        return _decision(denying, by_end, allowed=False, retry_after=retry_after)
    slowing = [lock for lock in by_end if lock[ACTION] == "slow"]
    if slowing and slow_limit is not None:
        return _decide_slow(slowing, by_end, slow_limit)
    return _decision(by_end[0], by_end, allowed=True, retry_after=0.0)


def _decide_slow(
    slowing: Sequence[LockTuple], by_end: Sequence[LockTuple], slow_limit: SlowLimit
) -> Decision:
    allowed_by: list[tuple[LockTuple, Decision]] = []
    for lock in slowing:
        rate_decision = slow_limit.check(lock)
        if not rate_decision.allowed:
            for counted, _ in allowed_by:  # a denied request takes nothing from the other rates
                slow_limit.refund(counted)
            denial = _decision(lock, by_end, allowed=False, retry_after=rate_decision.retry_after)
            limit, period_s = lock[SLOW]
            detail = f"{lock[DETAIL]}; slowed to {limit:,} in {period_s:g} s".removeprefix("; ")
            reset_after = rate_decision.reset_after
            return denial._replace(detail=detail, limit=limit, remaining=0, reset_after=reset_after)
        allowed_by.append((lock, rate_decision))
    lock, least = min(allowed_by, key=lambda allowed: allowed[1].remaining or 0)
    decision = _decision(lock, by_end, allowed=True, retry_after=0.0)
    return decision._replace(limit=least.limit, remaining=least.remaining, reset_after=least.reset_after)


def _decision(
    lock: LockTuple, locks: Sequence[LockTuple], *, allowed: bool, retry_after: float | None
) -> Decision:
    """The decision that `lock` gives, with the policies of the other `locks`.

    A refused client learns `also`, so a denial names there only what denies. A lock that slows was not asked
    where another one has denied.
    """
    shown = locks if allowed else [applying for applying in locks if applying[ACTION] == "deny"]
    policies = dict.fromkeys(applying[POLICY] for applying in shown)
    return Decision(
        allowed=allowed,
        policy=lock[POLICY],
        reason=lock[REASON],
        detail=lock[DETAIL],
        retry_after=retry_after,
        until=lock[UNTIL],
        status=lock[STATUS],
        also=tuple(policy for policy in policies if policy != lock[POLICY]),
        tags=tuple(dict.fromkeys(applying[POLICY] for applying in locks if applying[ACTION] == "tag")),
    )


def _latest_end_first(lock: LockTuple) -> tuple[int, str]:
    return -lock[END], lock[POLICY]
