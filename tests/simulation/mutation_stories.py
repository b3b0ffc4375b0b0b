"""Stories that show a mutation which few seeds show, or which is to be found by one check alone."""

from __future__ import annotations

from collections.abc import Mapping

from analyzer.plan.meters import DAY_S
from tests.simulation.acts import (
    Act,
    Backlog,
    ClockLeap,
    Dump,
    Kill,
    Rebalance,
    Requests,
    Restore,
    Size,
    Sleep,
    Stop,
)
from tests.simulation.operator_acts import ClearLocks, Override, Release, Suspend
from tests.simulation.policies.plans import CALLERS, RESOURCES, WITH_CAPACITY, WITH_IDS, WITH_USUAL
from tests.simulation.stories import Story

NOON_S = 1_795_176_000  # 2026-11-20T12:00:00Z


def story(
    plans: tuple[int, ...],
    *acts: tuple[float, Act],
    seed: int = 0,
    has_small_steps: bool = False,
    partitions: int = 1,
) -> Story:
    """Returns a story with an analyzer for each of these plans."""
    return Story(
        seed,
        NOON_S,
        Size(len(plans), partitions),
        plans,
        acts,
        is_calm=False,
        has_small_steps=has_small_steps,
    )


def requests(
    caller: str,
    count: int,
    *,
    clock_s: float = 0.0,
    partition: int = 0,
    size: int = 100,
    ids: str = "",
) -> Requests:
    """Returns requests whose records arrive at once."""
    return Requests(0, caller, RESOURCES[0], count, 0.0, partition, size, clock_s=clock_s, ids=ids)


STORIES: Mapping[str, Story] = {
    # Each request is logged twice, and once more after the horizon: that is another request.
    "id_horizon_ignored": story(
        (WITH_IDS,),
        (1.0, requests("eve", 5, ids="a")),
        (2.0, requests("eve", 5, ids="a")),
        (3.0, requests("eve", 1, ids="b")),
        (12.0, requests("eve", 5, ids="a")),
    ),
    # What is logged again is counted by another process, and by another analyzer.
    "ids_not_stored": story(
        (WITH_IDS, WITH_IDS),
        (1.0, requests("eve", 5, ids="a")),
        (1.2, requests("ann", 5, ids="a")),
        (2.0, Kill(0, 0.2)),
        (2.1, Kill(1, 0.2)),
        (3.0, requests("eve", 5, ids="a")),
        (3.1, requests("ann", 5, ids="a")),
    ),
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
    # A suspension was the first version; after the restore the lock of a caller is.
    "marks_not_compared": story(
        (0,), (2.0, Dump()), (2.5, Suspend(30.0)), (3.94, Restore(None, 0)), (3.95, requests("eve", 8)),
        (3.95, requests("eve", 8)),
    ),
    "rows_joined_without_removing": story(
        (0,), (1.0, requests("eve", 8)), (3.0, Sleep(7.0 * DAY_S)), (4.0, Kill(0, 0.2)), (9.0, Dump())
    ),
    # The second change is judged by the command, and not known to the flush that follows.
    "directory_read_once": story(
        (0,), (1.0, requests("eve", 1)), (2.0, Override("eve", 60)), (3.0, requests("eve", 1)),
        (4.0, Override("eve", 3)), (5.0, requests("eve", 2)),
    ),
    # The other analyzer puts a lower limit in force with its first flush.
    "plan_not_checked": story(
        (0, 0), (2.0, Stop(1, 1)), (4.0, requests("ann", 1, partition=1)), (5.1, requests("eve", 6)),
        partitions=2,
    ),
    # A sum goes and comes back, under another number.
    "catalog_read_once": story(
        (2, 2), (1.0, requests("eve", 1)), (2.0, Stop(1, 0)), (4.0, requests("ann", 1, partition=1)),
        (5.0, Stop(1, 2)), (7.0, requests("ann", 1, partition=1)), (8.0, requests("eve", 1)), partitions=2,
    ),
    # A caller that is alone is above its share, and for a moment only.
    "hold_ignored": story(
        (8,), (1.0, requests("eve", 8)), (1.2, requests("eve", 3)), (1.6, requests("bob", 8)),
        (1.7, requests("ann", 8)), (1.8, requests("acme", 8)),
    ),
    # One caller explains all that is above the capacity.
    **dict.fromkeys(("lightest_first", "all_to_blame"), story(
        (WITH_CAPACITY,), (1.0, requests("eve", 8)), (1.1, requests("eve", 8)), (1.2, requests("bob", 7)),
        (1.3, requests("ann", 5)), (8.0, requests("acme", 1)),
    )),
    # The others leave the window before the one that is locked.
    "capacity_not_released": story(
        (WITH_CAPACITY,), (1.0, requests("bob", 8)), (1.0, requests("ann", 6)), (20.0, requests("eve", 8)),
        (20.2, requests("eve", 1)), (28.0, requests("acme", 1)),
    ),
    # The same hour of three weeks; in the second there is no usual load yet.
    **dict.fromkeys(("usual_by_one_week", "usual_by_days"), story(
        (WITH_USUAL,),
        *((at_s, requests("eve", 8)) for at_s in (1.0, 1.2)), (4.0, Sleep(7.0 * DAY_S)),
        *((at_s, requests("eve", 8)) for at_s in (8.0, 8.2)), (12.0, Sleep(7.0 * DAY_S)),
        *((at_s, requests("eve", 8)) for at_s in (16.0, 16.2)), (20.0, requests("ann", 5)),
    )),
    # Locked, and then one among many.
    "release_ignored": story(
        (8,), (1.0, requests("eve", 8)), (1.2, requests("eve", 3)),
        *((5.0 + at, requests(caller, 8)) for at in range(2) for caller in ("bob", "ann", "acme")),
    ),
    # Locked, and then between the two marks.
    "release_at_the_limit": story(
        (8,), (1.0, requests("eve", 8)), (1.2, requests("eve", 3)), (5.0, requests("bob", 8)),
        (5.0, requests("ann", 8)), (5.0, requests("acme", 1)), (9.0, Dump()),
    ),
    # One partition has a backlog, the other one what happens now.
    "surges_judged_behind": story(
        (5,), (1.0, Backlog(0, 400, 90.0)), *((1.05, requests("eve", 8, partition=1)) for _ in range(2)),
        partitions=2,
    ),
    "shares_judged_behind": story(
        (8,), (1.0, requests("eve", 8, partition=1)), (1.1, requests("eve", 8, partition=1)),
        (1.2, Backlog(0, 900, 90.0)), (8.0, requests("eve", 1)), partitions=2,
    ),
    "addresses_not_compared": story((6,), *((1.0 + at, requests("eve", 8)) for at in range(2))),
    "escalation_forgotten": story((5,), *((1.0 + 6 * at, requests("eve", 8)) for at in range(2))),
    # Above the threshold, and half a minute later below it.
    "notices_never_end": story((5,), (1.0, requests("eve", 8)), (40.0, Dump())),
    # While the clock is ahead a sum is judged by slots that are far away. After it, 15 of 14 are used.
    "growth_not_judged_after_leaps": story(
        (5,), (1.0, requests("eve", 5)), (7.0, requests("eve", 5)), (8.0, ClockLeap(3.0)),
        (9.0, requests("eve", 7)), (13.0, requests("eve", 5)),
    ),
    # Another plan judges all totals while the lock is held off.
    "hold_offs_ignored": story(
        (0,), *((1.0 + at, requests("eve", 8)) for at in range(2)), (4.0, ClearLocks("eve", 20.0)),
        (5.0, Stop(0, 1)), (7.0, requests("ann", 1)),
    ),
    "held_off_without_end": story(
        (0,), *((1.0 + at, requests("eve", 8)) for at in range(2)), (4.0, ClearLocks("eve", 2.0)),
        (9.0, requests("ann", 1)),
    ),
    # Four callers in the first day of a policy; two may be locked in an interval.
    **dict.fromkeys(("brakes_ignored", "braked_locks_stay"), story(
        (9,), *((1.0 + 0.5 * number, requests(caller, 7)) for number, caller in enumerate(CALLERS)),
        (8.0, requests("eve", 1)),
    )),
    # Braked, released, and over the bound again in the next minute.
    **dict.fromkeys(("released_locks_stay_in_shadow", "released_policies_stay_young"), story(
        (9,), *((1.0 + 0.5 * number, requests(caller, 7)) for number, caller in enumerate(CALLERS)),
        (5.0, Release("braked")), (8.0, requests("eve", 1)),
        *((62.0, requests(caller, 7)) for caller in CALLERS), (80.0, requests("eve", 1)),
    )),
    # After a day.
    "paced_locks_forgotten": story(
        (9,), (1.0, requests("eve", 1)), (2.0, Sleep(90_000.0)),
        *((3.0, requests(caller, 7)) for caller in CALLERS), (18.0, requests("eve", 1)),
    ),
    # The policy goes and comes back. Its sum has another number then.
    "notices_outlast_policies": story(
        (5,), (1.0, requests("eve", 8)), (3.0, Stop(0, 0)), (5.0, requests("ann", 1)), (6.0, Stop(0, 5)),
        (8.0, requests("ann", 1)), (40.0, Dump()),
    ),
}  # fmt: skip
