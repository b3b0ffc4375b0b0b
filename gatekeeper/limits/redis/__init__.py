"""Limiters that many processes share through Redis: `TokenBucket(100, 60, store=RedisStore(client))`.

Needs the extra `redis`; nothing else of `gatekeeper` imports it.
"""

from gatekeeper.limits.redis.store import RedisStore

__all__ = ["RedisStore"]
