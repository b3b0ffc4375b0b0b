"""The two kinds of client, and how each runs scripts within a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from gatekeeper.limits.redis.script_calls import ScriptCall

try:
    import redis
    import redis.asyncio
    from redis import exceptions
except ImportError as missing:
    raise ImportError("gatekeeper.limits.redis needs redis: install gatelock[redis]") from missing

CONNECTIONS_MAX: Final = 100  # of one store in one process; who finds none free waits within the time-out

# The server, the way to it, or its memory is not there. Any other error is a bug, and is raised.
FAILURES: Final = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.ClusterDownError,
    exceptions.MasterDownError,
    exceptions.TryAgainError,
    exceptions.RedisClusterException,
    OSError,  # also asyncio's time-out
)
FAILING_WORDS: Final = ("OOM", "READONLY", "MISCONF", "NOREPLICAS", "BUSY", "LOADING", "MASTERDOWN")


def is_failure(error: BaseException) -> bool:
    """Whether this is of a store that cannot answer, rather than of a question that is wrong."""
    if isinstance(error, FAILURES):
        return True
    return isinstance(error, exceptions.ResponseError) and str(error).startswith(FAILING_WORDS)


def is_awaited(client: object) -> bool:
    """Whether `client` is one of asyncio. Raises TypeError when it is no client at all."""
    if isinstance(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster)):
        return True
    if isinstance(client, (redis.Redis, redis.RedisCluster)):
        return False
    raise TypeError(f"client: expected redis.Redis or redis.asyncio.Redis, got {type(client).__name__}")


def _settings(pool: Any, timeout: float) -> dict[str, Any]:
    """How `pool` reaches its server, with our time-outs and without retries: a script that was
    perhaps run must not be run again. What a pool keeps there for itself is its own."""
    own = {"himport_registry", "maint_notifications_pool_handler", "retry_on_error", "retry_on_timeout"}
    kept = {k: v for k, v in pool.connection_kwargs.items() if k not in own and not k.startswith("orig_")}
    ours = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "decode_responses": False}
    if kept.get("path"):
        del ours["socket_connect_timeout"]  # a socket file has none
    return {**kept, **ours}


def _words(call: ScriptCall, command: str) -> tuple[Any, ...]:
    script = call.script.sha if command == "EVALSHA" else call.script.text
    return (command, script, len(call.keys), *call.keys, *call.words)


def _lacking(replies: Sequence[Any]) -> list[int]:
    """Which calls met a server that does not know the script yet. Raises the first other error."""
    for reply in replies:
        if isinstance(reply, Exception) and not isinstance(reply, exceptions.NoScriptError):
            raise reply
    return [n for n, reply in enumerate(replies) if isinstance(reply, exceptions.NoScriptError)]


class BlockingClient:
    """Runs scripts through a client that blocks.

    A plain client lends its settings, not its connections: its own time-outs and retries would let a
    request wait for many seconds. A cluster's client, or one with a pool of another kind (Sentinel's),
    is taken as it is, and so are its time-outs.
    """

    def __init__(self, client: Any, timeout: float) -> None:
        self.client = client
        self._own: Any = None
        pool: Any = getattr(client, "connection_pool", None)
        if type(pool) in {redis.ConnectionPool, redis.BlockingConnectionPool}:
            from redis.backoff import NoBackoff
            from redis.retry import Retry

            self._own = redis.BlockingConnectionPool(  # type: ignore[no-untyped-call]  # redis gives it no types
                max_connections=CONNECTIONS_MAX,
                timeout=timeout,
                connection_class=pool.connection_class,
                **{**_settings(pool, timeout), "retry": Retry(NoBackoff(), 0)},
            )
            self.client = redis.Redis(connection_pool=self._own)

    def one(self, call: ScriptCall) -> Any:
        """The script's answer."""
        try:
            return self.client.execute_command(*_words(call, "EVALSHA"))
        except exceptions.NoScriptError:  # the first call since this server started
            return self.client.execute_command(*_words(call, "EVAL"))

    def many(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """The answers to all, in one round trip."""
        replies = self._piped(calls, "EVALSHA")
        if lacking := _lacking(replies):
            again = self._piped([calls[n] for n in lacking], "EVAL")
            _lacking(again)
            for n, reply in zip(lacking, again, strict=True):
                replies[n] = reply
        return replies

    def close(self) -> None:
        """Give back the connections; those of a client that was taken as it is are not ours."""
        if self._own is not None:
            self._own.disconnect()

    def _piped(self, calls: Sequence[ScriptCall], command: str) -> list[Any]:
        with self.client.pipeline(transaction=False) as pipe:
            for call in calls:
                pipe.execute_command(*_words(call, command))
            replies: list[Any] = pipe.execute(raise_on_error=False)
        return replies


class AsyncioClient:
    """The same through a client of asyncio; each call as a whole is bounded."""

    def __init__(self, client: Any, timeout: float) -> None:
        self.client = client
        self._own: Any = None
        self._timeout = timeout
        pool: Any = getattr(client, "connection_pool", None)
        if type(pool) in {redis.asyncio.ConnectionPool, redis.asyncio.BlockingConnectionPool}:
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff

            self._own = redis.asyncio.BlockingConnectionPool(
                max_connections=CONNECTIONS_MAX,
                timeout=timeout,
                connection_class=pool.connection_class,
                **{**_settings(pool, timeout), "retry": Retry(NoBackoff(), 0)},
            )
            self.client = redis.asyncio.Redis(connection_pool=self._own)

    async def one(self, call: ScriptCall) -> Any:
        """The script's answer."""
        async with asyncio.timeout(self._timeout):
            try:
                return await self.client.execute_command(*_words(call, "EVALSHA"))
            except exceptions.NoScriptError:
                return await self.client.execute_command(*_words(call, "EVAL"))

    async def many(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """The answers to all, in one round trip."""
        async with asyncio.timeout(self._timeout):
            replies = await self._piped(calls, "EVALSHA")
            if lacking := _lacking(replies):
                again = await self._piped([calls[n] for n in lacking], "EVAL")
                _lacking(again)
                for n, reply in zip(lacking, again, strict=True):
                    replies[n] = reply
            return replies

    async def close(self) -> None:
        """Give back the connections; those of a client that was taken as it is are not ours."""
        if self._own is not None:
            await self._own.disconnect()

    async def _piped(self, calls: Sequence[ScriptCall], command: str) -> list[Any]:
        async with self.client.pipeline(transaction=False) as pipe:
            for call in calls:
                pipe.execute_command(*_words(call, command))
            replies: list[Any] = await pipe.execute(raise_on_error=False)
        return replies
