"""Stories that show a mutation which few seeds show, or which is to be found by one check alone."""

from __future__ import annotations

from collections.abc import Mapping

from analyzer.core.counting.meters import DAY_S
from tests.simulation.acts import Act, ClockLeap, Dump, Kill, Rebalance, Requests, Restore, Size, Sleep
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
    # The partition is assigned a second time at an offset that the restored database has not reached.
    "positions_of_the_group": story(
        (0,),
        (1.0, requests("eve", 1)),
        (2.0, Dump()),
        (2.5, requests("eve", 1)),
        (3.5, Rebalance(by_force=True)),
        (5.0, Restore(None, 0)),
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
}
