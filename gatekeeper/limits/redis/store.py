"""RedisStore: limiters that many processes share, each decision one script in one round trip."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Final, Literal, TypeVar, cast

from gatekeeper.limits.algorithms.concurrency import Concurrency
from gatekeeper.limits.composites.all_of import AllOf
from gatekeeper.limits.engine.protocol import NanosecondClock
from gatekeeper.limits.engine.units import SECOND_NS, whole_number
from gatekeeper.limits.engine.wait_queue import TaskWaker, ThreadWaker
from gatekeeper.limits.redis.circuit_breaker import CircuitBreaker
from gatekeeper.limits.redis.clients import AsyncioClient, BlockingClient, is_awaited, is_failure
from gatekeeper.limits.redis.leases import SharedConcurrency
from gatekeeper.limits.redis.local_fallback import local_share
from gatekeeper.limits.redis.script_calls import ScriptCall, ScriptCalls, Sleep, StoreSteps
from gatekeeper.limits.redis.scripts import LuaScript, deciding, piece, script
from gatekeeper.limits.redis.shared_limiters import shared_class
from gatekeeper.limits.redis.shared_state import SharedState
from gatekeeper.limits.redis.stored_limit import StoredLimit
from gatekeeper.model import Decision

L = TypeVar("L")
T = TypeVar("T")
StoreStep = ScriptCall | ScriptCalls | Sleep
OnError = Literal["allow", "deny", "local"]


class RedisStore:
    """Keeps limiters in Redis 6 or newer: `SlidingLog(100, 10, store=RedisStore(redis.Redis()))`.

    Each decision is one script, atomic, in one round trip, by the server's clock in whole microseconds;
    a period that is none becomes the next longer one. Everything that it writes expires by itself. The
    client says which form of the methods works: `redis.asyncio.Redis` the awaited one, `redis.Redis`
    the other. Whoever was refused is refused from memory until its time comes; a refund, a reset, a
    cancelled booking or a raised limit in *another* process is seen when that time is over (`remember`
    bounds it), and by `peek` at once.
    """

    def __init__(
        self,
        client: Any,
        *,
        on_error: OnError = "allow",
        nodes: int | None = None,
        node: int = 0,
        timeout: float = 0.2,
        pause: float = 1.0,
        remember: float | None = None,
        prefix: str = "gatelock",
        clock: NanosecondClock = time.monotonic_ns,
    ) -> None:
        """`on_error`: what a limiter answers while Redis does not: "allow", "deny" (503, `retry_after` as
        long as nobody asks), or "local": a limiter in memory with this process's share of the limit, which
        is that of `node`, counted from 0, among `nodes`.

        A call waits `timeout` seconds at most, once more to connect; after a failure nobody asks for `pause`
        seconds, and then one caller does for all. A refusal is remembered until its end, or for `remember`
        seconds at most; 0 asks each time. Raises ValueError for what cannot be.
        """
        if on_error not in ("allow", "deny", "local"):
            raise ValueError(f"on_error: expected 'allow', 'deny' or 'local', got {on_error!r}")
        if on_error == "local" and (nodes is None or not 0 <= node < whole_number(nodes, "nodes")):
            raise ValueError(
                f"nodes: expected how many share a limit, and node below that, got {nodes!r}, {node!r}"
            )
        if not timeout > 0 or not pause >= 0 or (remember is not None and not remember >= 0):
            raise ValueError("timeout: expected seconds above 0, and pause and remember none below")
        if not prefix or set("{}") & set(prefix):
            raise ValueError(
                f"prefix: expected text without braces, which mark what a cluster looks at, got {prefix!r}"
            )
        self.on_error: Final = on_error
        self.remember_ns: Final = None if remember is None else round(remember * SECOND_NS)
        self.prefix: Final = prefix
        self._nodes, self._node = nodes, node
        self._circuit = CircuitBreaker(pause, clock)
        self.awaited: Final = is_awaited(client)
        self._plain = None if self.awaited else BlockingClient(client, timeout)
        self._async = AsyncioClient(client, timeout) if self.awaited else None
        self._time = piece("time")

    @property
    def failing(self) -> bool:
        """Whether the last call failed, so that `on_error` answers."""
        return self._circuit.failing

    def script(self, kinds: frozenset[str]) -> LuaScript:
        """The script that decides over limits of these kinds."""
        return deciding(self._time, kinds)

    def piece(self, name: str) -> LuaScript:
        """The script of one piece alone."""
        return script(self._time, name)

    def shared(self, kind: type[L]) -> type[L]:
        """`kind`, with methods that ask a store."""
        return cast(
            "type[L]", SharedConcurrency if issubclass(kind, Concurrency) else shared_class(cast(Any, kind))
        )

    def attach(self, limiter: Any) -> None:
        """Let `limiter` keep its keys here. Raises ValueError for numbers that a script cannot hold."""
        part = StoredLimit(type(limiter).__name__, limiter._rule, limiter._name, self.prefix)
        limiter._sharing = SharedState(self, (part,), limiter._name, limiter._keys.clock)
        limiter._sharing.local = self.share_of(limiter)

    def attach_all(self, limiter: Any) -> None:
        """The same for an AllOf. Raises ValueError for two parts with the same keys."""
        parts = tuple(part for each in limiter._parts for part in each._sharing.parts)
        if len({part.key(b"") for part in parts}) < len(parts):
            raise ValueError("AllOf: expected limiters with a name each where their numbers are equal")
        sharing = SharedState(self, parts, limiter._name, limiter._keys.clock)
        if self.on_error == "local":
            sharing.local = AllOf(*(each._sharing.local for each in limiter._parts), name=limiter._name)
        limiter._sharing = sharing

    def share_of(self, limiter: Any) -> Any:
        """What decides in memory for `limiter` while Redis does not answer; None where nothing does."""
        if self.on_error != "local" or self._nodes is None:
            return None
        return local_share(limiter, self._nodes, self._node)

    def local_concurrency(self, limit: int, clock: NanosecondClock, name: str) -> Concurrency | None:
        """The same for what is at work at once; None also for a node whose share is none at all."""
        if self.on_error != "local" or self._nodes is None:
            return None
        share = limit // self._nodes + (self._node < limit % self._nodes)
        return Concurrency(share, clock=clock, name=name) if share else None

    def unavailable(self, name: str, limit: int) -> Decision:
        """The refusal of everybody while Redis does not answer."""
        return Decision(
            False,
            name,
            "temporary-reduced-capacity",
            "the store of limits does not answer",
            limit,
            retry_after=self._circuit.left(),
            status=503,
        )

    def run(self, steps: StoreSteps[T]) -> T:
        """What `steps` come to, in this thread. Raises TypeError when the client is one of asyncio."""
        if self._plain is None:
            steps.close()
            raise TypeError("this store's client is one of asyncio: await the form that ends in _async")
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._do(self._plain, step)
                except BaseException as error:  # noqa: BLE001 - the steps raise it again
                    step = steps.throw(error)  # ... once they have given back what they had
                else:
                    step = steps.send(answer)
        except StopIteration as done:
            came_to: T = done.value
            return came_to

    def _do(self, calls: BlockingClient, step: StoreStep) -> Any:
        if isinstance(step, Sleep):
            if step.duration != 0:
                cast("ThreadWaker", step.waker).wait(step.duration)
            return None
        if not self._circuit.lets_ask():
            return None
        try:
            answer = calls.one(step) if isinstance(step, ScriptCall) else calls.many(step.calls)
        except Exception as error:
            if not is_failure(error):
                raise
            self._circuit.failed(error, self.on_error)
            return None
        self._circuit.succeeded()
        return answer

    async def run_async(self, steps: StoreSteps[T], *, to_the_end: bool = False) -> T:
        """The same in a task. With `to_the_end` a cancelled task still hears what its call came to,
        which takes no longer than the time-out, so that `steps` can give it back."""
        if self._async is None:
            steps.close()
            raise TypeError(
                "this store's client blocks, which would stop the event loop: call the form without _async, "
                "or give the store a redis.asyncio.Redis"
            )
        cancelled: asyncio.CancelledError | None = None
        try:
            step = next(steps)
            while True:
                try:
                    if isinstance(step, Sleep):
                        await self._nap(step, cancelled)
                        answer = None
                    elif to_the_end:
                        answer, cancelled = await _to_the_end(self._ask(self._async, step), cancelled)
                    else:
                        answer = await self._ask(self._async, step)
                except BaseException as error:  # noqa: BLE001 - the steps raise it again
                    cancelled = None
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as done:
            if cancelled is not None:
                raise cancelled from None
            came_to: T = done.value
            return came_to

    async def _nap(self, nap: Sleep, cancelled: asyncio.CancelledError | None) -> None:
        if cancelled is not None:
            raise cancelled
        if nap.duration != 0:
            await cast("TaskWaker", nap.waker).wait(nap.duration)

    async def _ask(self, calls: AsyncioClient, step: ScriptCall | ScriptCalls) -> Any:
        if not self._circuit.lets_ask():
            return None
        try:
            answer = await (calls.one(step) if isinstance(step, ScriptCall) else calls.many(step.calls))
        except Exception as error:
            if not is_failure(error):
                raise
            self._circuit.failed(error, self.on_error)
            return None
        self._circuit.succeeded()
        return answer

    def close(self) -> None:
        """Give back the connections; asking again afterwards makes new ones."""
        if self._plain is not None:
            self._plain.close()

    async def aclose(self) -> None:
        """The same for a client of asyncio."""
        if self._async is not None:
            await self._async.close()


async def _to_the_end(
    asking: Coroutine[Any, Any, Any], before: asyncio.CancelledError | None
) -> tuple[Any, asyncio.CancelledError | None]:
    """The answer, and by what this task was cancelled, now or before."""
    task = asyncio.ensure_future(asking)
    cancelled = before
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # noqa: BLE001, S110 - `task.result()` raises it
            pass
    return task.result(), cancelled
