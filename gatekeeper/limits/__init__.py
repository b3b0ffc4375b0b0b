"""Exact limiters for short periods, and schedulers, in this process or shared through Redis.

`algorithms` has one module per limiter, `composites` limiters made of limiters, `schedulers` what runs jobs
in order, `engine` the machinery of all of them, and `redis` the store for several processes. Quotas over
hours and days are not in here: those are judged by the analyzer and enforced by `gatekeeper.Gate`.
"""

from gatekeeper.limits.algorithms.concurrency import Concurrency
from gatekeeper.limits.algorithms.fixed_window import FixedWindow
from gatekeeper.limits.algorithms.leaky_bucket import LeakyBucket
from gatekeeper.limits.algorithms.leaky_queue import LeakyQueue
from gatekeeper.limits.algorithms.paced import Paced
from gatekeeper.limits.algorithms.sliding_counter import SlidingCounter
from gatekeeper.limits.algorithms.sliding_log import SlidingLog
from gatekeeper.limits.algorithms.token_bucket import TokenBucket
from gatekeeper.limits.composites.all_of import AllOf
from gatekeeper.limits.composites.by_plan import ByPlan
from gatekeeper.limits.composites.first_refusal import FirstRefusal
from gatekeeper.limits.composites.parsing import parse
from gatekeeper.limits.composites.sharded import Sharded
from gatekeeper.limits.composites.split import Share, split
from gatekeeper.limits.engine.protocol import Key, Limiter
from gatekeeper.limits.engine.reservations import Reservation
from gatekeeper.limits.schedulers.job_queues import QueueEvent, WaitingJob
from gatekeeper.limits.schedulers.keyed_scheduler import AsyncKeyedScheduler, KeyedScheduler
from gatekeeper.limits.schedulers.priority_scheduler import PriorityScheduler

__all__ = [
    "AllOf",
    "AsyncKeyedScheduler",
    "ByPlan",
    "Concurrency",
    "FirstRefusal",
    "FixedWindow",
    "Key",
    "KeyedScheduler",
    "LeakyBucket",
    "LeakyQueue",
    "Limiter",
    "Paced",
    "PriorityScheduler",
    "QueueEvent",
    "Reservation",
    "Sharded",
    "Share",
    "SlidingCounter",
    "SlidingLog",
    "TokenBucket",
    "WaitingJob",
    "parse",
    "split",
]
