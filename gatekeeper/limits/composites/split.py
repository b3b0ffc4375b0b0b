"""Shares of a limit: what each of several nodes admits by itself, so that together they keep the limit."""

from __future__ import annotations

from typing import NamedTuple

from gatekeeper.limits.engine.units import whole_number


class Share(NamedTuple):
    """A node's part of a limit: `limit` permits in `periods` periods of that limit.

    Returned by `split`; a node creates its limiter from it.

    Attributes:
        limit: Permits of this node; 1 or more.
        periods: Periods of the whole limit in which they may be used; 1 unless there are more nodes than
            permits.

    Example:
        >>> from gatekeeper.limits import SlidingLog
        >>> share = split(100, nodes=8)[3]
        >>> SlidingLog(share.limit, share.periods * 10)  # this node's share of 100 in 10 s
        <SlidingLog '': 13 in any 10 s>
    """

    limit: int
    periods: int


def split(limit: int, nodes: int) -> tuple[Share, ...]:
    """Returns the share of each node: `split(100, nodes=8)[node]`, with nodes numbered from 0.

    The shares of all nodes are the limit exactly, as equal as whole permits can be, the larger ones first.
    Equal arguments give equal shares, so each node computes its own without a message. With more nodes
    than permits, no share is empty: shares are then of several periods, as few as give each node one
    permit; over that number of periods the nodes together keep the limit.

    Args:
        limit: Permits of all nodes together; 1 or more.
        nodes: Number of nodes; 1 or more.

    Raises:
        ValueError: `limit` or `nodes` is below 1, or not a whole number.

    >>> split(5, nodes=3)
    (Share(limit=2, periods=1), Share(limit=2, periods=1), Share(limit=1, periods=1))
    >>> split(2, nodes=3)  # 4 permits in 2 periods
    (Share(limit=2, periods=2), Share(limit=1, periods=2), Share(limit=1, periods=2))
    """
    whole_number(limit, "limit")
    whole_number(nodes, "nodes")
    periods = -(-nodes // limit)
    base, larger = divmod(limit * periods, nodes)
    return tuple(Share(base + (node < larger), periods) for node in range(nodes))
