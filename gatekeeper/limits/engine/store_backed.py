"""Limiters whose keys a store holds, for many processes: what their classes know of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

L = TypeVar("L")


class LimiterStore(Protocol):
    """Keeps the keys of limiters outside of this process: gatekeeper.limits.redis.RedisStore."""

    def shared(self, kind: type[L]) -> type[L]:
        """`kind`, with methods that ask this store. Calling twice gives the same class."""

    def attach(self, limiter: Any) -> None:
        """Let `limiter`, of a class that `shared` gave, keep its keys here. Raises ValueError."""

    def attach_all(self, limiter: Any) -> None:
        """The same for one of several limits, all of which are attached. Raises ValueError."""


def new(cls: type[L], *_: object, store: LimiterStore | None = None, **__: object) -> L:
    """An empty limiter, of the class that asks `store` if there is one: the path in memory stays as it is."""
    return object.__new__(cls if store is None else store.shared(cls))


def new_of(cls: type[L], *parts: object, **_: object) -> L:
    """An empty limiter of the class that asks the store in which `parts` are, if they are in one."""
    return new(cls, store=store_of(parts))


def store_of(parts: Iterable[object]) -> LimiterStore | None:
    """The store that holds all of `parts`; None when no store holds any. Raises ValueError for a mixture."""
    stores = {getattr(getattr(part, "_sharing", None), "store", None) for part in parts}
    if len(stores) > 1:
        raise ValueError("AllOf: expected all limiters in one store, or none in any")
    store: LimiterStore | None = stores.pop() if stores else None
    return store
