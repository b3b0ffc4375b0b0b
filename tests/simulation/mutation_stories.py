"""Stories that show a mutation which few seeds show, or which is to be found by one check alone."""

from __future__ import annotations

from collections.abc import Mapping

from analyzer.core.counting.meters import DAY_S
from tests.simulation.acts import Act, ClockLeap, Dump, Kill, Rebalance, Requests, Restore, Size, Sleep, Stop
from tests.simulation.analyzers import RESOURCES
from tests.simulation.stories import Story

NOON_S = 1_795_176_000  # 2026-11-20T12:00:00Z


def story(
    plans: tuple[int, ...], *acts: tuple[float, Act], seed: int = 0, has_small_steps: bool = False
) -> Story:
    """Returns a story with one partition, and an analyzer for each of these plans."""
    return Story(
        seed, NOON_S, Size(len(plans), 1), plans, acts, is_calm=False, has_small_steps=has_small_steps
    )


def requests(caller: str, count: int, *, clock_s: float = 0.0) -> Requests:
    """Returns requests whose records arrive at once, in partition 0."""
    return Requests(0, caller, RESOURCES[0], count, 0.0, 0, 100, clock_s=clock_s)


STORIES: Mapping[str, Story] = {
    # Minutes are rolled up after six days, by a new process at once. Nothing is counted after that, and the
    # requests stay as many: neither a flush nor the audit shows who lost them. The dump gives the job time.
    "rolled_up_to_another_caller": story(
        (0,),
        (1.0, requests("eve", 8)),
        (3.0, Sleep(7.0 * DAY_S)),
        (4.0, Kill(0, 0.2)),
        (9.0, Dump()),
    ),
    # The dump is of version 1. The second analyzer brings the second plan as version 2, and after the restore
    # another one with the same number, while the first analyzer remembers the second.
    "plan_compared_by_number": story(
        (0, 0),
        (1.0, requests("eve", 1)),
        (2.0, Dump()),
        (2.5, Stop(1, 1)),
        (5.5, Restore(1, 4)),
        (7.5, requests("eve", 8)),
    ),
    # The partition is assigned a second time at an offset that the restored database has not reached.
    "positions_of_the_group": story(
        (0,),
        (1.0, requests("eve", 1)),
        (2.0, Dump()),
        (2.5, requests("eve", 1)),
        (3.5, Rebalance(by_force=True)),
        (5.0, Restore(None, 0)),
    ),
    # The second analyzer drops a sum and brings it back, under another number; the first one counts on.
    "catalog_read_once": story(
        (0, 0),
        (1.0, requests("eve", 2)),
        (2.0, Stop(1, 3)),
        (5.0, requests("eve", 1)),
        (6.0, Stop(1, 0)),
        (9.0, requests("eve", 3)),
    ),
    # A limit of 25 is reached; the process that starts while the clock is ahead prunes at once.
    "totals_pruned_by_the_clock": story(
        (0,),
        *((1.0 + at, requests("eve", 8)) for at in range(4)),
        (6.0, ClockLeap(8.0)),
        (7.0, Kill(0, 0.2)),
    ),
    "leaps_not_noticed": story(
        (0,),
        *((1.0 + at, requests("eve", 8)) for at in range(4)),
        (6.0, ClockLeap(3.0)),
        (12.0, requests("ann", 1)),
    ),
    # The total is above the old limit of 14, whose lock only tags, and reaches the new one of 25 after the
    # activation has judged it and before it clears locks.
    "clearing_without_writing": story(
        (4, 4, 4),
        (0.6, requests("acme", 8)),
        (0.63, requests("acme", 8, clock_s=-7_200.0)),
        (3.8, Kill(2, 8.0)),
        (3.84, requests("acme", 7, clock_s=-7_200.0)),
        (8.5, Sleep(3_600.0)),
        (8.6, Stop(2, 2)),
        (11.8, requests("acme", 7)),
        (12.0, Stop(1, 1)),
        seed=2,
        has_small_steps=True,
    ),
}
