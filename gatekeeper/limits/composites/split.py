"""split: what each of several nodes may let through by itself, so that together they keep a limit."""

from __future__ import annotations

from typing import NamedTuple

from gatekeeper.limits.engine.units import whole_number


class Share(NamedTuple):
    """A node's part of a limit: `limit` permits in `periods` periods of that limit.

    `SlidingLog(share.limit, share.periods * period)`.
    """

    limit: int
    periods: int


def split(limit: int, nodes: int) -> tuple[Share, ...]:
    """The share of each node: `split(100, nodes=8)[node]`, with nodes numbered from 0.

    The shares of all nodes are the limit exactly, as equal as whole permits can be, the larger ones
    first; equal arguments give equal shares, so each node finds its own without asking anybody.
    With more nodes than permits no node is left with none: shares are then of several periods, as
    few as give each node one, and it is in so many periods that the fleet keeps the limit.
    Raises ValueError for a limit or a number of nodes below 1.

    >>> split(5, nodes=3)
    (Share(limit=2, periods=1), Share(limit=2, periods=1), Share(limit=1, periods=1))
    >>> split(2, nodes=3)  # 4 permits in 2 periods
    (Share(limit=2, periods=2), Share(limit=1, periods=2), Share(limit=1, periods=2))
    """
    whole_number(limit, "limit")
    whole_number(nodes, "nodes")
    periods = -(-nodes // limit)
    each, over = divmod(limit * periods, nodes)
    return tuple(Share(each + (node < over), periods) for node in range(nodes))
