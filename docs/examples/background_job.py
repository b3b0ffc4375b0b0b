"""A background job and user requests share the rate limit of a service; users have priority."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial

from gatekeeper.limits import PriorityScheduler

USER, BACKGROUND = 0, 1

# Ten calls per second, evenly. After a minute a waiter moves up by one priority, so the job
# finishes even under a constant flow of user requests.
throttle = PriorityScheduler(limit=10, period=1, priorities=2, age_after=60)


def answer_user(call: Callable[[str], str], question: str) -> str:
    """Waits for its turn in the request's thread, behind other users only."""
    if not throttle.acquire(USER, timeout=2):
        raise TimeoutError("too many users at the same time: try again later")
    return call(question)


def reindex(call: Callable[[str], str], documents: Iterable[str]) -> list[Future[str]]:
    """Submits the whole job at once; each call runs when no user waits for the turn."""
    return [throttle.submit(partial(call, document), BACKGROUND) for document in documents]
