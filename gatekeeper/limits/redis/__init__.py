"""Limiters that several processes share through Redis: `TokenBucket(100, 60, store=RedisStore(client))`.

`store` is the public class and the place to start, `shared_limiters` and `leases` are the limiters that it
returns, `lua` has the scripts that decide inside Redis. Needs the extra `redis`; no other part of
`gatekeeper` imports it.
"""

from gatekeeper.limits.redis.store import RedisStore

__all__ = ["RedisStore"]
