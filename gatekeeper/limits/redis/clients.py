"""The two kinds of Redis client, and how each runs scripts within a bounded time."""

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
    raise ImportError("gatekeeper.limits.redis needs redis: pip install 'gatelock[redis]'") from missing

# Of one store in one process. A caller that finds none free waits, at most for the time-out.
CONNECTIONS_MAX: Final = 100

# The server, the network or its memory is not available. Any other error is a bug, and is raised.
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
FAILURE_PREFIXES: Final = ("OOM", "READONLY", "MISCONF", "NOREPLICAS", "BUSY", "LOADING", "MASTERDOWN")


def is_failure(error: BaseException) -> bool:
    """Whether `error` means that the store cannot answer, rather than that the call is wrong."""
    if isinstance(error, FAILURES):
        return True
    return isinstance(error, exceptions.ResponseError) and str(error).startswith(FAILURE_PREFIXES)


def is_asyncio_client(client: object) -> bool:
    """Whether `client` is an asyncio one. Raises TypeError when it is not a client of redis."""
    if isinstance(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster)):
        return True
    if isinstance(client, (redis.Redis, redis.RedisCluster)):
        return False
    raise TypeError(f"client: expected redis.Redis or redis.asyncio.Redis, got {type(client).__name__}")


def _connection_options(pool: Any, timeout: float) -> dict[str, Any]:
    """Returns the connection options of `pool` with our time-outs and without retries.

    A script that may have run must not run a second time. Options that a pool keeps for itself are left out.
    """
    internal = {"himport_registry", "maint_notifications_pool_handler", "retry_on_error", "retry_on_timeout"}
    kept = {
        name: value
        for name, value in pool.connection_kwargs.items()
        if name not in internal and not name.startswith("orig_")
    }
    replaced = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "decode_responses": False}
    if kept.get("path"):
        del replaced["socket_connect_timeout"]  # a Unix socket has none
    return {**kept, **replaced}


def _command(call: ScriptCall, name: str) -> tuple[Any, ...]:
    script = call.script.sha if name == "EVALSHA" else call.script.text
    return (name, script, len(call.keys), *call.keys, *call.arguments)


def _unknown_scripts(replies: Sequence[Any]) -> list[int]:
    """Returns the indexes of calls whose script the server does not know. Raises the first other error."""
    for reply in replies:
        if isinstance(reply, Exception) and not isinstance(reply, exceptions.NoScriptError):
            raise reply
    return [n for n, reply in enumerate(replies) if isinstance(reply, exceptions.NoScriptError)]


class BlockingClient:
    """Runs scripts through a client that blocks.

    Of a plain client it takes the settings, not the connections: that client's time-outs and retries would
    let a request wait for many seconds. A cluster's client, or one with a pool of another kind (Sentinel's),
    is used as it is, with its time-outs.
    """

    def __init__(self, client: Any, timeout: float) -> None:
        self.client = client
        self._pool: Any = None
        pool: Any = getattr(client, "connection_pool", None)
        if type(pool) in {redis.ConnectionPool, redis.BlockingConnectionPool}:
            from redis.backoff import NoBackoff
            from redis.retry import Retry

            self._pool = redis.BlockingConnectionPool(  # type: ignore[no-untyped-call]  # redis has no types for it
                max_connections=CONNECTIONS_MAX,
                timeout=timeout,
                connection_class=pool.connection_class,
                **{**_connection_options(pool, timeout), "retry": Retry(NoBackoff(), 0)},
            )
            self.client = redis.Redis(connection_pool=self._pool)

    def call(self, call: ScriptCall) -> Any:
        """Returns the script's result."""
        try:
            return self.client.execute_command(*_command(call, "EVALSHA"))
        except exceptions.NoScriptError:  # the first call since this server started
            return self.client.execute_command(*_command(call, "EVAL"))

    def call_many(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Returns the results of all calls, in one round trip."""
        replies = self._pipeline(calls, "EVALSHA")
        if unknown := _unknown_scripts(replies):
            repeated = self._pipeline([calls[n] for n in unknown], "EVAL")
            _unknown_scripts(repeated)
            for n, reply in zip(unknown, repeated, strict=True):
                replies[n] = reply
        return replies

    def close(self) -> None:
        """Closes the connections; those of a client that is used as it is stay open."""
        if self._pool is not None:
            self._pool.disconnect()

    def _pipeline(self, calls: Sequence[ScriptCall], name: str) -> list[Any]:
        with self.client.pipeline(transaction=False) as pipeline:
            for call in calls:
                pipeline.execute_command(*_command(call, name))
            replies: list[Any] = pipeline.execute(raise_on_error=False)
        return replies


class AsyncioClient:
    """Runs scripts through an asyncio client; each call as a whole has a time-out.

    Takes settings and pools as `BlockingClient` does.
    """

    def __init__(self, client: Any, timeout: float) -> None:
        self.client = client
        self._pool: Any = None
        self._timeout = timeout
        pool: Any = getattr(client, "connection_pool", None)
        if type(pool) in {redis.asyncio.ConnectionPool, redis.asyncio.BlockingConnectionPool}:
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff

            self._pool = redis.asyncio.BlockingConnectionPool(
                max_connections=CONNECTIONS_MAX,
                timeout=timeout,
                connection_class=pool.connection_class,
                **{**_connection_options(pool, timeout), "retry": Retry(NoBackoff(), 0)},
            )
            self.client = redis.asyncio.Redis(connection_pool=self._pool)

    async def call(self, call: ScriptCall) -> Any:
        """Returns the script's result."""
        async with asyncio.timeout(self._timeout):
            try:
                return await self.client.execute_command(*_command(call, "EVALSHA"))
            except exceptions.NoScriptError:
                return await self.client.execute_command(*_command(call, "EVAL"))

    async def call_many(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Returns the results of all calls, in one round trip."""
        async with asyncio.timeout(self._timeout):
            replies = await self._pipeline(calls, "EVALSHA")
            if unknown := _unknown_scripts(replies):
                repeated = await self._pipeline([calls[n] for n in unknown], "EVAL")
                _unknown_scripts(repeated)
                for n, reply in zip(unknown, repeated, strict=True):
                    replies[n] = reply
            return replies

    async def close(self) -> None:
        """Closes the connections; those of a client that is used as it is stay open."""
        if self._pool is not None:
            await self._pool.disconnect()

    async def _pipeline(self, calls: Sequence[ScriptCall], name: str) -> list[Any]:
        async with self.client.pipeline(transaction=False) as pipeline:
            for call in calls:
                pipeline.execute_command(*_command(call, name))
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies
