"""Concurrency in a store: each permit is a lease, which ends by itself when its process dies."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Awaitable
from typing import Final, NamedTuple, cast

from gatekeeper.limits.algorithms.concurrency import Concurrency
from gatekeeper.limits.engine.protocol import Key, LimiterStore, NanosecondClock, Period
from gatekeeper.limits.engine.units import MICROSECOND_NS, to_ns, to_seconds, wait_to_ns, whole_number
from gatekeeper.limits.engine.wait_queue import TaskWaker, ThreadWaker, Waker
from gatekeeper.limits.redis.script_calls import ScriptCall, ScriptStore, Sleep, StoreSteps
from gatekeeper.limits.redis.stored_limit import hash_tag, key_prefix
from gatekeeper.model import Decision

LEASE_S: Final = 60.0
POLL_S: Final = 0.05  # waiters poll, because no message announces a release in another process


class PermitLease(NamedTuple):
    """A permit that this process holds."""

    name: str  # "" for a permit of the local limiter, taken while the store failed
    ends_ns: int


class SharedConcurrency(Concurrency):
    """A `Concurrency` whose permits are leases in a store, counted for all processes together.

    Never more than `limit` leases run. A lease ends when it is released, or `lease` seconds after it was
    taken or extended, by the server's clock: a process that dies gives back what it held, and work that takes
    longer must call `extend` in time or is no longer counted. `release` gives back the leases that this
    process took, the oldest first.
    """

    __slots__ = ("_held", "_lease_us", "_local", "_script", "_store")

    def __init__(
        self,
        limit: int,
        *,
        store: LimiterStore | None = None,
        lease: Period | None = None,
        clock: NanosecondClock = time.monotonic_ns,
        name: str = "",
    ) -> None:
        if store is None:
            raise TypeError(f"{type(self).__name__}: expected store=RedisStore(...)")
        self._held: dict[Key, deque[PermitLease]] = {}
        super().__init__(limit, clock=clock, name=name)
        self._lease_us = -(-to_ns(LEASE_S if lease is None else lease, "lease") // MICROSECOND_NS)
        self._store = cast("ScriptStore", store)
        self._script = self._store.script("leases")
        self._local = self._local_limiter(limit)

    def init_process_state(self) -> None:
        """Starts with no leases and no waiters: those of a forked child are the parent's."""
        super().init_process_state()
        self._held = {}

    @property
    def store(self) -> LimiterStore:
        """The store that holds the leases."""
        return self._store

    @property
    def is_awaited(self) -> bool:
        """Whether decisions must be awaited (`check_async`), because the store's client is an asyncio one."""
        return self._store.awaited

    def configure(self, limit: int) -> None:
        """Applies another limit from now on, in this process and to its share while the store fails.

        Work in flight continues. Raises ValueError below 1.
        """
        super().configure(limit)
        share = self._local_limiter(limit)
        if share is None or self._local is None:
            self._local = share
        else:
            self._local.configure(share.limit)

    def _local_limiter(self, limit: int) -> Concurrency | None:
        """Returns the limiter that decides while the store fails; None without one, or for an empty share."""
        position = self._store.local_position
        if position is None:
            return None
        share = limit // position.nodes + (position.node < limit % position.nodes)
        return Concurrency(share, clock=self._clock, name=self.name) if share else None

    def _call(self, op: str, key: Key, cost: int, *names: str) -> ScriptCall:
        name = key_prefix(self._store.prefix, "Concurrency", self.name) + hash_tag(key)
        return ScriptCall(self._script, (name,), (op, self.limit, cost, self._lease_us, *names))

    def _decide_steps(self, op: str, key: Key, cost: int, *, is_waiter: bool = False) -> StoreSteps[Decision]:
        """Takes `cost` leases ("take"), or tests whether they could be taken ("peek")."""
        whole_number(cost, "cost", least=0)
        would_overtake = op == "take" and not is_waiter and bool(self._waiters.waiting(key))
        if would_overtake:
            op = "peek"
        token = secrets.token_hex(8)
        names = [f"{token}.{n}" for n in range(cost if op == "take" and cost <= self.limit else 0)]
        sent_ns = self._clock()
        reply = yield self._call(op, key, cost, *names)
        if reply is None:
            return self._decide_without_store(op, key, cost)
        granted, in_flight = reply
        if granted and names:
            self._hold(key, [PermitLease(name, sent_ns + self._lease_us * MICROSECOND_NS) for name in names])
        return self._decision_for(bool(granted) and not would_overtake, in_flight)

    def _decide_without_store(self, op: str, key: Key, cost: int) -> Decision:
        if self._store.on_error == "allow":
            return Decision(True, limit=self.limit)
        if self._local is None:
            return self._store.unavailable(self.name, self.limit)
        if op != "take":
            return self._local.peek(key, cost)
        decision = self._local.check(key, cost)
        if decision.allowed and cost:
            self._hold(key, [PermitLease("", self._clock() + self._lease_us * MICROSECOND_NS)] * cost)
        return decision

    def _hold(self, key: Key, leases: list[PermitLease]) -> None:
        with self._mutex:
            current = self._held.setdefault(key, deque())
            while current and current[0].name and current[0].ends_ns <= self._clock():
                current.popleft()  # it has ended, and no release will follow
            current.extend(leases)

    def _drop_oldest(self, key: Key, cost: int) -> list[PermitLease]:
        """Returns the oldest `cost` leases of this process that still run; it no longer holds them."""
        with self._mutex:
            current = self._held.get(key, deque())
            dropped: list[PermitLease] = []
            while current and len(dropped) < cost:
                lease = current.popleft()
                if not lease.name or lease.ends_ns > self._clock():
                    dropped.append(lease)
            if not current:
                self._held.pop(key, None)
            self._waiters.wake(key)
            return dropped

    def _release_steps(self, key: Key, cost: int) -> StoreSteps[None]:
        whole_number(cost, "cost", least=0)
        dropped = self._drop_oldest(key, cost)
        local = sum(not lease.name for lease in dropped)
        if local and self._local is not None:
            self._local.release(key, local)
        if names := [lease.name for lease in dropped if lease.name]:
            yield self._call("release", key, 0, *names)
            with self._mutex:
                self._waiters.wake(key)

    def _extend_steps(self, key: Key) -> StoreSteps[int]:
        with self._mutex:
            leases = list(self._held.get(key, ()))
        names = [lease.name for lease in leases if lease.name]
        sent_ns = self._clock()
        reply = (yield self._call("extend", key, 0, *names)) if names else None
        if reply is None:
            return len(leases) - len(names)
        ends_ns = sent_ns + self._lease_us * MICROSECOND_NS
        extended = {name.decode() if isinstance(name, bytes) else name for name in reply[2:]}
        with self._mutex:
            current = self._held.get(key, deque())
            for n, lease in enumerate(current):
                if lease.name in extended:
                    current[n] = lease._replace(ends_ns=ends_ns)
        return int(reply[0]) + len(leases) - len(names)

    def _count_steps(self, key: Key) -> StoreSteps[int]:
        reply = yield self._call("peek", key, 0)
        if reply is None:
            return 0 if self._local is None else self._local.in_flight(key)
        return int(reply[1])

    def _reset_steps(self, key: Key) -> StoreSteps[None]:
        with self._mutex:
            self._held.pop(key, None)
        if self._local is not None:
            self._local.reset(key)
        yield self._call("reset", key, 0)
        with self._mutex:
            self._waiters.wake(key)

    def _acquire_steps(
        self, key: Key, cost: int, timeout: float | None, waker: Waker
    ) -> StoreSteps[Decision]:
        """Waits until `cost` leases are taken; the first waiter of this process polls."""
        whole_number(cost, "cost", least=0)
        timeout_ns = wait_to_ns(timeout, "timeout")
        end_ns = None if timeout_ns is None else self._clock() + timeout_ns
        with self._mutex:
            self._waiters.join(key, waker, None)
        try:
            while True:
                first = self._is_first(key, waker)
                op = "take" if first else "peek"
                decision = yield from self._decide_steps(op, key, cost, is_waiter=True)
                if first and decision.allowed:
                    try:
                        yield Sleep(0, waker)  # a waiter that was cancelled during the call notices it here
                    except BaseException:
                        yield from self._release_steps(key, cost)
                        raise
                    return decision
                left_s = POLL_S if end_ns is None else to_seconds(end_ns - self._clock())
                if left_s <= 0 or cost > self.limit or decision.status != 429:
                    if not decision.allowed:
                        return decision
                    return self._decision_for(False, self.limit - (decision.remaining or 0))
                yield Sleep(min(left_s, POLL_S), waker)
        finally:
            with self._mutex:
                self._waiters.leave(key, waker)

    def _is_first(self, key: Key, waker: Waker) -> bool:
        with self._mutex:
            return self._waiters.is_first(key, waker)

    def allow(self, key: Key = "", cost: int = 1) -> bool:
        """Whether `cost` requests of `key` may begin now; if so `release` must follow."""
        return self.check(key, cost).allowed

    async def allow_async(self, key: Key = "", cost: int = 1) -> bool:
        """Decides as `allow` does."""
        return (await self.check_async(key, cost)).allowed

    def check(self, key: Key = "", cost: int = 1) -> Decision:
        """Decides as `allow` does; returns limit and remaining (after this request), too."""
        return self._store.run(self._decide_steps("take", key, cost))

    async def check_async(self, key: Key = "", cost: int = 1) -> Decision:
        """Decides as `check` does."""
        return await self._store.run_async(self._decide_steps("take", key, cost))

    def peek(self, key: Key = "", cost: int = 1) -> Decision:
        """Returns the decision that `check` would make now, with what remains before it; takes nothing."""
        return self._store.run(self._decide_steps("peek", key, cost))

    async def peek_async(self, key: Key = "", cost: int = 1) -> Decision:
        """Returns the decision as `peek` does."""
        return await self._store.run_async(self._decide_steps("peek", key, cost))

    def release(self, key: Key = "", cost: int = 1) -> None:
        """Ends `cost` requests of `key`; leases that this process does not hold stay."""
        self._store.run(self._release_steps(key, cost))

    async def release_async(self, key: Key = "", cost: int = 1) -> None:
        """Ends requests as `release` does."""
        await self._store.run_async(self._release_steps(key, cost))

    refund = release
    refund_async = release_async

    def leave(self, key: Key, cost: int) -> Awaitable[None] | None:
        """Releases `cost` permits of `key`; returns an awaitable if the store's client is an asyncio one."""
        if self._store.awaited:
            return self.release_async(key, cost)
        self.release(key, cost)
        return None

    def extend(self, key: Key = "") -> int:
        """Restarts the leases of `key` that this process holds; returns how many. Ended leases stay ended."""
        return self._store.run(self._extend_steps(key))

    async def extend_async(self, key: Key = "") -> int:
        """Restarts leases as `extend` does."""
        return await self._store.run_async(self._extend_steps(key))

    def reset(self, key: Key = "") -> None:
        """Forgets the work of `key` that is in flight, in all processes."""
        self._store.run(self._reset_steps(key))

    async def reset_async(self, key: Key = "") -> None:
        """Forgets as `reset` does."""
        await self._store.run_async(self._reset_steps(key))

    def in_flight(self, key: Key = "") -> int:
        """Returns how many requests of `key` are in flight, in all processes."""
        return self._store.run(self._count_steps(key))

    async def in_flight_async(self, key: Key = "") -> int:
        """Counts as `in_flight` does."""
        return await self._store.run_async(self._count_steps(key))

    def wait(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
        """Returns an allowed decision once `cost` requests of `key` may begin; `release` must follow.

        Waiters of this process are served in order of arrival; a release in another process is noticed
        within 50 ms.
        """
        return self._store.run(self._acquire_steps(key, cost, timeout, ThreadWaker(self._clock)))

    async def wait_async(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
        """Waits as `wait` does, as an asyncio task; cancelling it takes nothing."""
        steps = self._acquire_steps(key, cost, timeout, TaskWaker())
        return await self._store.run_async(steps, finish_calls=True)
