"""Exact limiters for short periods, in this process: they ask nobody."""

from gatekeeper.limits.sliding_log import SlidingLog
from gatekeeper.limits.token_bucket import TokenBucket

__all__ = ["SlidingLog", "TokenBucket"]
