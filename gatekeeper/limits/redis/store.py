"""`RedisStore`: limiters that several processes share; each decision is one script in one round trip.

The store runs the steps of a decision (`script_calls.StoreSteps`) in a thread or in an asyncio task: it
sends calls of scripts, sleeps, and opens its circuit breaker when a call fails. A failed call's result is
None, and the steps then decide as `on_error` says. Exceptions are thrown into the steps, which give back
what they had.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Final, TypeVar, cast

from gatekeeper.limits.engine.protocol import NanosecondClock
from gatekeeper.limits.engine.units import SECOND_NS, whole_number
from gatekeeper.limits.engine.wait_queue import TaskWaker, ThreadWaker
from gatekeeper.limits.redis.circuit_breaker import CircuitBreaker
from gatekeeper.limits.redis.clients import AsyncioClient, BlockingClient, is_asyncio_client, is_failure
from gatekeeper.limits.redis.script_calls import (
    LuaScript,
    NodePosition,
    OnError,
    ScriptCall,
    ScriptCalls,
    Sleep,
    StoreStep,
    StoreSteps,
    build_script,
    read_time_code,
)
from gatekeeper.limits.redis.shared_limiters import shared_class
from gatekeeper.model import Decision

L = TypeVar("L")
T = TypeVar("T")


class RedisStore:
    """Store for limiters in Redis 6 or newer: `SlidingLog(100, 10, store=RedisStore(redis.Redis()))`.

    Each decision is one Lua script: atomic, in one round trip, by the server's clock in whole microseconds
    (a period that is not a whole number of them becomes the next longer one). Every key that it writes
    expires by itself. The client decides which form of a limiter's methods works: with
    `redis.asyncio.Redis` the awaited one (`check_async`), with `redis.Redis` the other; the wrong form
    raises TypeError.

    A key that was refused is refused from memory until its wait ends. A refund, a reset, a cancelled
    booking or a raised limit in *another* process is noticed when that time is over (`remember` bounds it),
    and by `peek` at once. `failing` says whether the last call failed, so that `on_error` decides.

    Args:
        client: A `redis.Redis`, `redis.RedisCluster`, or one of their asyncio forms. Of a plain client only
            the settings are used, not the connections.
        on_error: Decides while Redis does not answer: "allow", the default, admits every request; "deny"
            refuses with status 503, and `retry_after` until the next attempt; "local" decides in memory, by
            this process's share of the limit.
        nodes: Processes that share the limits; required for "local".
        node: This process's number among them, from 0, which is the default.
        timeout: Seconds that a call may take; above 0, 0.2 by default. With a client that blocks, waiting for
            a free connection, connecting and the call may each take that long.
        pause: Seconds after a failure in which no call is made; then one caller tries. 1 by default.
        remember: Seconds for which a refusal is remembered at most; 0 calls Redis for each decision. None,
            the default, remembers it to its end.
        prefix: Text before the name of each Redis key, without braces; "gatelock" by default.
        clock: Returns the time in whole nanoseconds, for pauses and for refusals in memory;
            `time.monotonic_ns` by default.

    Raises:
        ValueError: An unknown `on_error`, "local" without `nodes` or with a `node` that is not below it, a
            timeout of 0, a negative pause or remember, or a prefix that is empty or has braces.
        TypeError: A client that is not one of redis.

    Example:
        >>> import redis
        >>> from gatekeeper.limits import TokenBucket
        >>> store = RedisStore(redis.Redis(), on_error="deny")  # connects with the first decision
        >>> TokenBucket(100, 60, name="uploads", store=store)
        <SharedTokenBucket 'uploads': 100 per 60 s, 100 at once>
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
        if on_error not in ("allow", "deny", "local"):
            raise ValueError(f"on_error: expected 'allow', 'deny' or 'local', got {on_error!r}")
        if on_error == "local" and (nodes is None or not 0 <= node < whole_number(nodes, "nodes")):
            raise ValueError(
                f"nodes, node: expected a number of processes, and one below it, got {nodes!r}, {node!r}"
            )
        if not timeout > 0 or not pause >= 0 or (remember is not None and not remember >= 0):
            shown = f"got {timeout!r}, {pause!r}, {remember!r}"
            raise ValueError(
                f"timeout, pause, remember: expected seconds above 0, from 0 and from 0, {shown}"
            )
        if not prefix or set("{}") & set(prefix):
            raise ValueError(
                f"prefix: expected text without braces, which mark the hash tag of a cluster, got {prefix!r}"
            )
        self.on_error: Final[OnError] = on_error
        self.remember_ns: Final = None if remember is None else round(remember * SECOND_NS)
        self.prefix: Final = prefix
        self.local_position: Final = (
            NodePosition(node, nodes) if on_error == "local" and nodes is not None else None
        )
        self._circuit = CircuitBreaker(pause, clock)
        self.awaited: Final = is_asyncio_client(client)
        self._blocking = None if self.awaited else BlockingClient(client, timeout)
        self._asyncio = AsyncioClient(client, timeout) if self.awaited else None
        self._time_code = read_time_code()

    @property
    def failing(self) -> bool:
        """Whether the last call failed, so that `on_error` decides."""
        return self._circuit.failing

    def class_for(self, kind: type[L]) -> type[L]:
        """Returns the subclass of `kind` whose keys are in a store, such as SharedTokenBucket.

        Raises TypeError for a limiter that a store cannot hold.
        """
        return shared_class(kind)

    def decision_script(self, kinds: frozenset[str]) -> LuaScript:
        """Returns the script that decides over limits of these kinds."""
        return build_script(self._time_code, "head", *sorted(kinds), "decide")

    def script(self, name: str) -> LuaScript:
        """Returns the script in `lua/NAME.lua`."""
        return build_script(self._time_code, name)

    def unavailable(self, name: str, limit: int) -> Decision:
        """Returns the refusal of every request while Redis does not answer."""
        return Decision(
            False,
            name,
            "temporary-reduced-capacity",
            "the store of limits does not answer",
            limit,
            retry_after=self._circuit.seconds_left(),
            status=503,
        )

    def run(self, steps: StoreSteps[T]) -> T:
        """Returns the result of `steps`, run in this thread. Raises TypeError for an asyncio client."""
        if self._blocking is None:
            steps.close()
            raise TypeError("this store's client is one of asyncio: await the form that ends in _async")
        try:
            step = next(steps)
            while True:
                try:
                    result = self._do(self._blocking, step)
                except BaseException as error:  # noqa: BLE001 - the steps raise it again
                    step = steps.throw(error)  # after they have given back what they had
                else:
                    step = steps.send(result)
        except StopIteration as done:
            returned: T = done.value
            return returned

    def _do(self, client: BlockingClient, step: StoreStep) -> Any:
        if isinstance(step, Sleep):
            if step.duration != 0:
                cast("ThreadWaker", step.waker).wait(step.duration)
            return None
        if not self._circuit.permits_call():
            return None
        try:
            result = client.call(step) if isinstance(step, ScriptCall) else client.call_many(step.calls)
        except Exception as error:
            if not is_failure(error):
                raise
            self._circuit.failed(error, self.on_error)
            return None
        self._circuit.succeeded()
        return result

    async def run_async(self, steps: StoreSteps[T], *, finish_calls: bool = False) -> T:
        """Returns the result of `steps`, run in this task. Raises TypeError for a client that blocks.

        With `finish_calls` a cancelled task still receives the result of its call, which takes no longer than
        the time-out, so that the steps can give back what it took; the next sleep raises the cancellation.
        """
        if self._asyncio is None:
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
                        await self._sleep(step, cancelled)
                        result = None
                    elif finish_calls:
                        result, cancelled = await _finished(self._call(self._asyncio, step), cancelled)
                    else:
                        result = await self._call(self._asyncio, step)
                except BaseException as error:  # noqa: BLE001 - the steps raise it again
                    cancelled = None
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as done:
            if cancelled is not None:
                raise cancelled from None
            returned: T = done.value
            return returned

    async def _sleep(self, step: Sleep, cancelled: asyncio.CancelledError | None) -> None:
        if cancelled is not None:
            raise cancelled
        if step.duration != 0:
            await cast("TaskWaker", step.waker).wait(step.duration)

    async def _call(self, client: AsyncioClient, step: ScriptCall | ScriptCalls) -> Any:
        if not self._circuit.permits_call():
            return None
        try:
            result = await (
                client.call(step) if isinstance(step, ScriptCall) else client.call_many(step.calls)
            )
        except Exception as error:
            if not is_failure(error):
                raise
            self._circuit.failed(error, self.on_error)
            return None
        self._circuit.succeeded()
        return result

    def close(self) -> None:
        """Closes the connections; a later decision opens new ones."""
        if self._blocking is not None:
            self._blocking.close()

    async def aclose(self) -> None:
        """Closes the connections of an asyncio client; a later decision opens new ones."""
        if self._asyncio is not None:
            await self._asyncio.close()


async def _finished(
    call: Coroutine[Any, Any, Any], earlier: asyncio.CancelledError | None
) -> tuple[Any, asyncio.CancelledError | None]:
    """Returns the result of `call`, and the cancellation of this task, now or before."""
    task = asyncio.ensure_future(call)
    cancelled = earlier
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # noqa: BLE001, S110 - `task.result()` raises it
            pass
    return task.result(), cancelled
