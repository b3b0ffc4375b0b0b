"""The configuration files of stories, and the clients that send requests."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from analyzer.plan.mapping import EventIdRule, SourceMapping
from analyzer.plan.meters import Meter
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import (
    CANDIDATE,
    Brake,
    CapacityShare,
    Grace,
    LoadShare,
    Quota,
    RollingQuota,
    Surge,
    UsualShare,
)
from analyzer.plan.windows import Calendar, Rolling

CALLERS = ("acme", "ann", "bob", "eve")
RESOURCES = ("/v1/items", "/v1/search")
NETWORKS = {"acme": "198.51.100", "ann": "198.51.100", "bob": "203.0.113", "eve": "203.0.113"}
ADDRESSES = 5  # of each caller

BERLIN = "Europe/Berlin"
BYTES, LARGEST = Meter("bytes", "bytes"), Meter("largest", "bytes", "max")
ORIGINS = Meter("origins", "address", "distinct")
DAILY, MINUTELY = (
    Quota("daily", 25, Calendar("day", BERLIN), notify=(400, 1_000)),
    Quota("minutely", 9, Calendar("minute")),
)
EVERYONE = Quota("everyone", 45, Calendar("hour"), per="everyone")
SIZE = Quota("size", 950, Calendar("hour"), meter="largest")
SLIDING = RollingQuota("sliding", 14, Rolling(24), notify=(500, 1_000))
# Read from the buckets.
HOURS = RollingQuota("hours", 36, Rolling(7_200), grace=Grace(amount=4), notify=(750,))
PATIENT = RollingQuota("sliding", 9, SLIDING.window, action="tag", grace=Grace(time_s=2))
FLOOD = Surge("flood", 8, Rolling(5), lock_for_s=(1, 8, 20))
NETWORK = Surge("network", 12, Rolling(24), per="address/24", lock_for_s=(2, 600))
SCAN = Surge("scan", 2, Rolling(12), meter="origins", lock_for_s=(3,))
NEIGHBOUR = LoadShare("neighbour", 400_000, 9, Rolling(24), per="caller+resource", hold_s=1, release=380_000)
GREEDY = LoadShare("greedy", 400_000, 800, Rolling(6), meter="bytes", hold_s=1, release=300_000)
CANDIDATE_OF_DAILY = {"name": f"daily{CANDIDATE}", "limit": 6, "mode": "shadow", "notify": UNSET}
BRAKED = Quota("braked", 6, Calendar("minute"), brake=Brake(callers=2, per_s=4))
OVERLOAD = CapacityShare("overload", 20, 4, Rolling(24), per="caller+resource", hold_s=1, release=600_000)
# A hundred times the usual load: 16 requests in this hour of other weeks allow ten in the window.
UNUSUAL = UsualShare("unusual", 100_000, 4, Rolling(24), hold_s=1, release=600_000)
# Limits, meters, groupings, kinds of policy and policies come and go between them.
PLANS = (
    make_plan([], [], [DAILY, MINUTELY]),
    make_plan([], [], [DAILY, Quota("minutely", 5, Calendar("minute")), Quota("strict", 12, DAILY.window)]),
    make_plan([], [BYTES], [DAILY, Quota("bytes", 4_000, Calendar("hour", BERLIN), meter="bytes"), EVERYONE]),
    make_plan([], [LARGEST], [Quota("routes", 8, Calendar("day"), per="caller+resource"), MINUTELY, SIZE]),
    make_plan([], [BYTES], [Quota("daily", 14, DAILY.window, action="tag", notify=(400,)), MINUTELY]),
    make_plan([], [], [SLIDING, FLOOD, HOURS]),
    make_plan(
        [], [ORIGINS], [NETWORK, SCAN, Quota("origins", 3, Calendar("hour"), meter="origins"), NEIGHBOUR]
    ),
    make_plan(
        [],
        [BYTES],
        [GREEDY, PATIENT, FLOOD],
    ),
    make_plan([], [], [NEIGHBOUR, Surge("flood", 12, FLOOD.window, lock_for_s=(2,)), EVERYONE]),
    # In shadow, and candidates; other plans enforce policies of these names.
    make_plan([], [], [replace(DAILY, mode="shadow"), replace(DAILY, **CANDIDATE_OF_DAILY), BRAKED]),
    make_plan([], [], [replace(FLOOD, mode="shadow"), replace(SLIDING, mode="shadow"), DAILY]),
)
# Of written stories alone: another plan would shift all that are drawn. The source of one has ids.
IDS = EventIdRule("id", horizon_ms=4_000, ids_max=1_000)
WITH_IDS, WITH_CAPACITY, WITH_USUAL = range(len(PLANS), len(PLANS) + 3)
WRITTEN_PLANS = (
    *PLANS,
    PLANS[0].with_sources({"log": SourceMapping(id=IDS)}),
    make_plan([], [], [OVERLOAD]),
    make_plan([], [], [UNUSUAL]),
)


def address_of(caller: str, size: int) -> str:
    """Returns the address from which a caller sends a request; one of several of its network."""
    return f"{NETWORKS[caller]}.{CALLERS.index(caller) * 50 + size % ADDRESSES}"
