"""Exact limiters for short periods, in this process: they ask nobody."""

from gatekeeper.limits.all_of import AllOf
from gatekeeper.limits.booking import Reservation
from gatekeeper.limits.by_plan import ByPlan
from gatekeeper.limits.concurrency import Concurrency
from gatekeeper.limits.fixed_window import FixedWindow
from gatekeeper.limits.keyed_scheduler import AsyncKeyedScheduler, KeyedScheduler
from gatekeeper.limits.leaky_bucket import LeakyBucket
from gatekeeper.limits.leaky_queue import LeakyQueue
from gatekeeper.limits.paced import Paced
from gatekeeper.limits.parsing import parse
from gatekeeper.limits.priority_scheduler import PriorityScheduler
from gatekeeper.limits.protocol import Key, Limiter
from gatekeeper.limits.sharded import Sharded
from gatekeeper.limits.shares import Share, split
from gatekeeper.limits.sliding_counter import SlidingCounter
from gatekeeper.limits.sliding_log import SlidingLog
from gatekeeper.limits.token_bucket import TokenBucket

__all__ = [
    "AllOf",
    "AsyncKeyedScheduler",
    "ByPlan",
    "Concurrency",
    "FixedWindow",
    "Key",
    "KeyedScheduler",
    "LeakyBucket",
    "LeakyQueue",
    "Limiter",
    "Paced",
    "PriorityScheduler",
    "Reservation",
    "Sharded",
    "Share",
    "SlidingCounter",
    "SlidingLog",
    "TokenBucket",
    "parse",
    "split",
]
