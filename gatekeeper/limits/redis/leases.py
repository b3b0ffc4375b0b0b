"""Concurrency in a store: each permit is a lease, which ends by itself when its process does not."""

from __future__ import annotations

import secrets
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gatekeeper.limits.algorithms.concurrency import Concurrency
from gatekeeper.limits.engine.protocol import Key, NanosecondClock, Period
from gatekeeper.limits.engine.reservations import wait_to_ns
from gatekeeper.limits.engine.units import MICROSECOND_NS, to_ns, to_seconds, whole_number
from gatekeeper.limits.engine.wait_queue import TaskWaker, ThreadWaker, Waker
from gatekeeper.limits.redis.script_calls import ScriptCall, Sleep, StoreSteps
from gatekeeper.limits.redis.stored_limit import hash_tag, key_prefix
from gatekeeper.model import Decision, Refused

if TYPE_CHECKING:
    from gatekeeper.limits.redis.store import RedisStore

LEASE_S: Final = 60.0
ASK_AGAIN_S: Final = 0.05  # nobody tells a waiter of what ends in another process


class PermitLease(NamedTuple):
    """One permit that this process holds."""

    name: str  # "" for one of this process's share, while the store was failing
    ends_ns: int


class SharedConcurrency(Concurrency):
    """Concurrency whose permits a store counts, for all processes together.

    Promise: never more than `limit` leases that run. A lease ends when it is released, or `lease`
    seconds after it was taken or extended, by the server's clock: so a process that dies gives back
    what it held, and work that takes longer must call `extend` meanwhile or is counted no more.
    `release` gives back the leases that this process took, the oldest first.
    """

    __slots__ = ("_held", "_lease_us", "_local", "_script", "_store")

    def __init__(
        self,
        limit: int,
        *,
        store: RedisStore,
        lease: Period | None = None,
        clock: NanosecondClock = time.monotonic_ns,
        name: str = "",
    ) -> None:
        """Raises ValueError for a limit below 1, or a lease of no time."""
        self._held: dict[Key, deque[PermitLease]] = {}
        super().__init__(limit, clock=clock, name=name)
        self._lease_us = -(-to_ns(LEASE_S if lease is None else lease, "lease") // MICROSECOND_NS)
        self._store = store
        self._script = store.piece("leases")
        self._local = store.local_concurrency(limit, clock, name)

    def renew(self) -> None:
        """In a forked child: what was taken is the parent's."""
        super().renew()
        self._held = {}

    def configure(self, limit: int) -> None:
        """Another limit from now on, in this process, and for its share while the store is failing; those in
        flight stay. Raises ValueError below 1."""
        super().configure(limit)
        share = self._store.local_concurrency(limit, self._clock, self._name)
        if share is None or self._local is None:
            self._local = share
        else:
            self._local.configure(share.limit)

    def _call(self, do: str, key: Key, cost: int, *names: str) -> ScriptCall:
        front_ = key_prefix(self._store.prefix, "Concurrency", self._name)
        return ScriptCall(
            self._script, (front_ + hash_tag(key),), (do, self.limit, cost, self._lease_us, *names)
        )

    def _asking(self, do: str, key: Key, cost: int, *, in_line: bool = False) -> StoreSteps[Decision]:
        """Take `cost` leases, or look whether they could be taken."""
        whole_number(cost, "cost", least=0)
        if do == "take" and not in_line and self._lines.waiting(key):
            do, overtakes = "look", True
        else:
            overtakes = False
        token = secrets.token_hex(8)
        names = [f"{token}.{n}" for n in range(cost if do == "take" and cost <= self.limit else 0)]
        asked_ns = self._clock()
        answer = yield self._call(do, key, cost, *names)
        if answer is None:
            return self._alone(do, key, cost)
        done, in_flight = answer
        if done and names:
            self._hold(key, [PermitLease(name, asked_ns + self._lease_us * MICROSECOND_NS) for name in names])
        return self._told(bool(done) and not overtakes, in_flight)

    def _alone(self, do: str, key: Key, cost: int) -> Decision:
        if self._store.on_error == "allow":
            return Decision(True, limit=self.limit)
        if self._local is None:
            return self._store.unavailable(self._name, self.limit)
        if do != "take":
            return self._local.peek(key, cost)
        answer = self._local.check(key, cost)
        if answer.allowed and cost:
            self._hold(key, [PermitLease("", self._clock() + self._lease_us * MICROSECOND_NS)] * cost)
        return answer

    def _hold(self, key: Key, leases: list[PermitLease]) -> None:
        with self._mutex:
            held = self._held.setdefault(key, deque())
            while held and held[0].name and held[0].ends_ns <= self._clock():
                held.popleft()  # its time is over, and nobody will release it
            held.extend(leases)

    def _let_go(self, key: Key, cost: int) -> list[PermitLease]:
        """The oldest `cost` leases of this process that still run."""
        with self._mutex:
            held = self._held.get(key, deque())
            gone: list[PermitLease] = []
            while held and len(gone) < cost:
                lease = held.popleft()
                if not lease.name or lease.ends_ns > self._clock():
                    gone.append(lease)
            if not held:
                self._held.pop(key, None)
            self._lines.wake(key)
            return gone

    def _releasing(self, key: Key, cost: int) -> StoreSteps[None]:
        whole_number(cost, "cost", least=0)
        gone = self._let_go(key, cost)
        here = sum(not lease.name for lease in gone)
        if here and self._local is not None:
            self._local.release(key, here)
        if names := [lease.name for lease in gone if lease.name]:
            yield self._call("give back", key, 0, *names)
            with self._mutex:
                self._lines.wake(key)

    def _extending(self, key: Key) -> StoreSteps[int]:
        with self._mutex:
            leases = list(self._held.get(key, ()))
        names = [lease.name for lease in leases if lease.name]
        asked_ns = self._clock()
        answer = (yield self._call("renew", key, 0, *names)) if names else None
        if answer is None:
            return len(leases) - len(names)
        ends_ns = asked_ns + self._lease_us * MICROSECOND_NS
        renewed = {name.decode() if isinstance(name, bytes) else name for name in answer[2:]}
        with self._mutex:
            held = self._held.get(key, deque())
            for n, lease in enumerate(held):
                if lease.name in renewed:
                    held[n] = lease._replace(ends_ns=ends_ns)
        return int(answer[0]) + len(leases) - len(names)

    def _looking(self, key: Key) -> StoreSteps[int]:
        answer = yield self._call("look", key, 0)
        if answer is None:
            return 0 if self._local is None else self._local.in_flight(key)
        return int(answer[1])

    def _resetting(self, key: Key) -> StoreSteps[None]:
        with self._mutex:
            self._held.pop(key, None)
        if self._local is not None:
            self._local.reset(key)
        yield self._call("reset", key, 0)
        with self._mutex:
            self._lines.wake(key)

    def _waiting(self, key: Key, cost: int, timeout: float | None, waker: Waker) -> StoreSteps[Decision]:
        whole_number(cost, "cost", least=0)
        timeout_ns = wait_to_ns(timeout, "timeout")
        end_ns = None if timeout_ns is None else self._clock() + timeout_ns
        with self._mutex:
            self._lines.join(key, waker, None)
        try:
            while True:
                first = self._is_first(key, waker)
                answer = yield from self._asking("take" if first else "look", key, cost, in_line=True)
                if first and answer.allowed:
                    try:
                        yield Sleep(0, waker)  # whoever was cancelled meanwhile hears of it here
                    except BaseException:
                        yield from self._releasing(key, cost)
                        raise
                    return answer
                left_s = ASK_AGAIN_S if end_ns is None else to_seconds(end_ns - self._clock())
                if left_s <= 0 or cost > self.limit or answer.status != 429:
                    return (
                        answer
                        if not answer.allowed
                        else self._told(False, self.limit - (answer.remaining or 0))
                    )
                yield Sleep(min(left_s, ASK_AGAIN_S), waker)
        finally:
            with self._mutex:
                self._lines.leave(key, waker)

    def _is_first(self, key: Key, waker: Waker) -> bool:
        with self._mutex:
            return self._lines.is_first(key, waker)

    def allow(self, key: Key = "", cost: int = 1) -> bool:
        """Whether `cost` of `key` may begin now; `release` must follow when they may."""
        return self.check(key, cost).allowed

    async def allow_async(self, key: Key = "", cost: int = 1) -> bool:
        """The same for a task."""
        return (await self.check_async(key, cost)).allowed

    def check(self, key: Key = "", cost: int = 1) -> Decision:
        """The same, with limit and remaining, after this one."""
        return self._store.run(self._asking("take", key, cost))

    async def check_async(self, key: Key = "", cost: int = 1) -> Decision:
        """The same for a task."""
        return await self._store.run_async(self._asking("take", key, cost))

    def peek(self, key: Key = "", cost: int = 1) -> Decision:
        """What `check` would decide now, with what remains before it."""
        return self._store.run(self._asking("look", key, cost))

    async def peek_async(self, key: Key = "", cost: int = 1) -> Decision:
        """The same for a task."""
        return await self._store.run_async(self._asking("look", key, cost))

    async def enforce_async(self, key: Key = "", cost: int = 1) -> Decision:
        """As `check_async`, but a refusal is raised."""
        decision = await self.check_async(key, cost)
        if not decision.allowed:
            raise Refused(decision)
        return decision

    def release(self, key: Key = "", cost: int = 1) -> None:
        """`cost` of `key` are over; what this process does not hold it cannot release."""
        self._store.run(self._releasing(key, cost))

    async def release_async(self, key: Key = "", cost: int = 1) -> None:
        """The same for a task."""
        await self._store.run_async(self._releasing(key, cost))

    refund = release
    refund_async = release_async

    def leave(self, key: Key, cost: int) -> Any:
        """The guarded work is over; something to await when the store's client is one of asyncio."""
        return self.release_async(key, cost) if self._store.awaited else self.release(key, cost)

    def extend(self, key: Key = "") -> int:
        """How many leases of `key` that this process holds begin anew; those that are over do not."""
        return self._store.run(self._extending(key))

    async def extend_async(self, key: Key = "") -> int:
        """The same for a task."""
        return await self._store.run_async(self._extending(key))

    def reset(self, key: Key = "") -> None:
        """Forget who is in flight for `key`, in all processes."""
        self._store.run(self._resetting(key))

    async def reset_async(self, key: Key = "") -> None:
        """The same for a task."""
        await self._store.run_async(self._resetting(key))

    def in_flight(self, key: Key = "") -> int:
        """How many of `key` are at work, in all processes."""
        return self._store.run(self._looking(key))

    async def in_flight_async(self, key: Key = "") -> int:
        """The same for a task."""
        return await self._store.run_async(self._looking(key))

    def wait(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
        """Allowed once `cost` of `key` may begin; `release` must follow.

        First come, first served in this process; what ends in another is seen within 50 ms.
        """
        return self._store.run(self._waiting(key, cost, timeout, ThreadWaker(self._clock)))

    async def wait_async(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
        """The same for a task; cancelling it takes nothing."""
        return await self._store.run_async(self._waiting(key, cost, timeout, TaskWaker()), to_the_end=True)
