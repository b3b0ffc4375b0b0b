"""Every order of the statements of each two transactions, and of some three: nothing is lost, no two wait for
each other, every crossing is seen, and no lock is there that the slow judgement does not have.

A pair is a line in a table below. README.md says how to add one, and how to run one order again.
"""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest

from tests.interleavings.actors import Transactions
from tests.interleavings.orders import Orders
from tests.interleavings.worlds import World
from tests.support.depth import IS_DEEP

# Each of these with each, itself included.
WRITERS = (
    "flush",
    "activate",
    "end-locks",
    "retry",
    "prune",
    "roll-up",
    "fold",
    "delete-days",
    "prove-day",
    "suspend",
    "accept-gap",
)
# By world: transactions that meet no writer above, or only some of them, and threes.
FURTHER = {
    "usual": (
        "flush flush-other",
        "flush-proposing flush-other",
        "flush-proposing flush-proposing-other",
        "flush-proposing activate",
        "flush-proposing end-locks",
        "flush-proposing retry",
        "flush-proposing poll",
        "flush flush-zombie",
        "flush heartbeat",
        "flush finish",
        "flush retire",
        "flush-late roll-up",
        "flush-late fold",
        "flush-late prune",
        "flush-late prove-day",
        "flush-late delete-days",
        "suspend resume",
        "resume resume",
        "resume end-locks",
        "resume flush",
        "settle-gap accept-gap",
        "begin accept-gap",
        "begin begin",
        "retire accept-gap",
        "retire finish",
        "lease lease",
        "lease activate",
        "repair-totals flush",
        "repair-totals flush-late",
        "repair-totals activate",
        "repair-totals repair-totals",
        "audit flush",
        "audit roll-up",
        "audit fold",
        "audit retry",
        "audit delete-days",
        "poll flush",
        "poll activate",
        "poll end-locks",
        "poll prune",
        "poll suspend",
        "end-locks suspend poll",
        "flush prune-totals",
        "flush-late prune-totals",
        "flush prune-locks",
        "retry prune-rejected",
        "prune-rejected prune-rejected",
        "job job",
        "job prune",
    ),
    "half_done": ("job job",),
    "running": (
        "keep-run end-run",
        "keep-run fail-run",
        "keep-run keep-run",
        "keep-run begin-run",
        "end-run begin-run",
        "keep-run end-run hours",
    ),
    "judging": (
        "activation-step activation-step",
        "activation-step flush-new",
        "activation-step end-locks",
        "activation-step activate",
        "activation-step suspend",
        "activation-step flush-proposing-other",
        "activation-step poll",
    ),
    "filling": (
        "activation-step activation-step",
        "activation-step flush-new",
        "activation-step retry",
        "activation-step roll-up",
        "activation-step flush-new-other",
    ),
    "filling_begun": (
        "activation-step flush-new",
        "activation-step flush-new-other",
    ),
    "one_sum": (
        "flush-one flush-one-other end-locks",
        "flush-one activate-strict",
        "flush-once flush-once-other activate-strict",
        "override flush-one",
        "override flush-one flush-one-other",
        "override-first flush-first",
        "override-higher flush-zed",
        "override-none flush-first",
        "override activate-strict",
        "override end-locks",
        "override override-first",
        "override poll",
        "set-plan flush-one",
        "set-tenant flush-one",
        "set-tenant override",
        "set-plan override",
    ),
    "locked": (
        "clear-lock flush-one",
        "clear-lock activate-strict",
        "clear-lock override",
        "clear-lock end-locks",
        "clear-lock clear-lock",
        "clear-lock set-lock",
        "clear-lock poll",
        "set-lock end-locks",
        "set-lock suspend",
        "set-lock poll",
    ),
    "paced": (
        "flush-paced flush-paced-other",
        "flush-paced end-locks",
        "flush-paced activate-strict",
        "flush-paced apply-brakes",
    ),
    "young": (
        "flush-young flush-young-other",
        "flush-young activate-strict",
        "flush-young override",
    ),
    "braked": (
        "apply-brakes flush-young",
        "apply-brakes release",
        "apply-brakes apply-brakes",
        "apply-brakes activate-strict",
        "apply-brakes end-locks",
        "apply-brakes poll",
        "release flush-young",
        "release release",
        "release activate-strict",
    ),
    "shared": (
        "flush-shared flush-shared-other",
        "flush-shared end-locks",
        "flush-shared-other end-locks",
        "flush-shared activate",
        "flush-shared repair-totals",
        "flush-shared prune",
    ),
    "flooded": (
        "flush-burst flush-burst-other",
        "flush-burst flush-burst-other end-locks",
    ),
    "waiting": (
        "judge-waiting judge-waiting",
        "judge-waiting flush-noisy",
        "judge-waiting flush-noisy-other",
        "judge-waiting activate",
        "judge-waiting exempt",
        "judge-waiting end-locks",
        "judge-waiting empty-slots",
        "judge-waiting poll",
        "empty-slots empty-slots",
        "flush-noisy exempt",
        "flush-noisy empty-slots",
    ),
    "restored": (
        "flush-one flush-one-other",
        "flush-one end-locks",
    ),
    "zoned": ("set-zone flush-zoned", "set-zone refill", "set-zone set-zone", "set-zone end-locks"),
    "stated": (
        "apply-facts flush-stated",
        "apply-facts flush-stating",
        "apply-facts apply-facts",
        "apply-facts set-plan",
        "apply-facts end-locks",
        "flush-stating flush-stating-other",
        "flush-stating flush-stating-other apply-facts",
    ),
    "due": (
        "close-day flush-yesterday",
        "close-day flush-yesterday-other",
        "close-day close-day",
        "close-day retry",
        "close-day activate-strict",
        "close-day roll-up",
        "close-day begin",
        "close-day prune",
        "forget close-day",
    ),
    "abandoned": ("close-day flush-yesterday", "close-day close-day"),
    "closed": (
        "flush-yesterday flush-yesterday-other",
        "flush-yesterday close-day",
        "flush-yesterday correct",
        "flush-yesterday audit-day",
        "audit-day audit-day",
        "correct correct",
        "correct close-day",
        "flush-yesterday roll-up",
        "deliver deliver",
        "deliver correct",
        "forget flush-yesterday",
        "forget correct",
        "forget deliver",
    ),
    "moved": ("refill flush-zoned", "refill flush-zoned-other", "refill refill", "refill set-zone"),
}
# By job, the world in which it has most to do: `make deep` runs it there beside every other job and a flush.
JOBS = {
    "end-locks": "usual",
    "prune": "usual",
    "prune-totals": "usual",
    "prune-rejected": "usual",
    "prune-locks": "usual",
    "roll-up": "usual",
    "fold": "usual",
    "delete-days": "usual",
    "prove-day": "usual",
    "repair-totals": "usual",
    "empty-slots": "waiting",
    "judge-waiting": "waiting",
    "apply-brakes": "braked",
    "apply-facts": "stated",
    "activation-step": "judging",
    "refill": "moved",
    "close-day": "due",
}
# With hundreds of orders that may differ: `make test` draws so many of them, `make deep` runs all.
SAMPLED = {
    ("usual", "activate suspend"): 20,
    ("one_sum", "flush-one flush-one-other end-locks"): 40,
    ("one_sum", "override flush-one flush-one-other"): 30,
    ("due", "close-day close-day"): 15,
    ("due", "close-day flush-yesterday"): 15,
    ("due", "close-day flush-yesterday-other"): 15,
    ("due", "close-day activate-strict"): 15,
    ("abandoned", "close-day flush-yesterday"): 15,
    ("closed", "forget flush-yesterday"): 10,
    ("closed", "forget correct"): 10,
    ("closed", "forget deliver"): 10,
    ("due", "forget close-day"): 10,
}
PLAYS = [("usual", pair) for pair in combinations_with_replacement(WRITERS, 2)]
PLAYS += [(world, tuple(names.split())) for world, plays in FURTHER.items() for names in plays]
# A flush and an activation lock what others need: `make test` plays these beside each writer, and of each
# further world what has one of them, or its first play. `make deep` plays all.
CENTRAL = ("flush", "activate")
FIRST = 1


def _is_central(world: str, names: tuple[str, ...]) -> bool:
    if any(name.startswith(CENTRAL) for name in names):
        return len(names) == 2
    return world != "usual" and " ".join(names) in FURTHER[world][:FIRST]


if not IS_DEEP:
    PLAYS = [(world, names) for world, names in PLAYS if _is_central(world, names)]
if IS_DEEP:
    OF_JOBS = {(world, *sorted((job, other))) for job, world in JOBS.items() for other in (*JOBS, "flush")}
    OF_JOBS -= {(world, *sorted(names)) for world, names in PLAYS}
    PLAYS += [(world, tuple(names)) for world, *names in sorted(OF_JOBS)]


@pytest.mark.parametrize(
    ("world", "names"),
    PLAYS,
    indirect=["world"],
    ids=[f"{world}-{'+'.join(names)}" for world, names in PLAYS],
)
def test_every_order(transactions: Transactions, world: World, names: tuple[str, ...]) -> None:
    orders, drawn = Orders(transactions, world, names), SAMPLED.get((world.name, " ".join(names)))
    # Both check the invariants after each order.
    explored = orders.sample(drawn) if drawn and not IS_DEEP else orders.explore()
    assert 1 <= explored.run <= explored.possible
    print(f"{' + '.join(names)}: {explored}")
