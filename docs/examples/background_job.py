"""A background job and the requests of users share what a service allows, and users go first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial

from gatekeeper.limits import PriorityScheduler

USER, BACKGROUND = 0, 1

# Ten calls a second, evenly. Whoever has waited for a minute moves up, so the job ends one day
# even when there are always users.
throttle = PriorityScheduler(limit=10, period=1, priorities=2, age_after=60)


def answer_user(call: Callable[[str], str], question: str) -> str:
    """Waits for its turn in the thread of the request, behind other users only."""
    if not throttle.acquire(USER, timeout=2):
        raise TimeoutError("too many users ask at the same time")
    return call(question)


def reindex(call: Callable[[str], str], documents: Iterable[str]) -> list[Future[str]]:
    """Hands in the whole job at once; each call runs when nobody else wants its turn."""
    return [throttle.submit(partial(call, document), BACKGROUND) for document in documents]
