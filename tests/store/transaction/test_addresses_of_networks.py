"""The addresses of networks, added up by the database and one by one, in slots of any generation."""

from __future__ import annotations

from random import Random

import pytest
import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.rolling import addresses_at, sums_at, window_ends
from analyzer.judging.sql import slots
from analyzer.judging.totals import Standing, TotalKey
from analyzer.kernel.model import CountRow
from analyzer.plan import catalog
from analyzer.plan.groupings import BY_ADDRESS
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import Surge
from analyzer.plan.windows import ALWAYS, Rolling
from tests.support.stored_counts import tables_of

FLOOD = Surge("flood", 30, Rolling(600), per="address/24")
NETWORKS = ["192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"]
BORDER_S = 250_000 * slots.GENERATION_S

Cell = tuple[int, str, str, int]  # start of the slot, network, address, requests


def some_cells(seed: int, now_s: int, ahead_s: int) -> list[Cell]:
    random, slot_s = Random(seed), FLOOD.window.slot_s
    times = [now_s + random.randint(-900, ahead_s) for _ in range(60)]
    return [
        (at_s // slot_s * slot_s, network, f"{network[:-4]}{random.randint(1, 5)}", random.randint(1, 9))
        for at_s in times
        for network in [random.choice(NETWORKS)]
    ]


def store_slots(db: sa.Connection, cells: list[Cell], now_s: int) -> catalog.Catalog:
    plan, numbers = make_plan([], [], [FLOOD]), catalog.load(db)
    rows = [
        CountRow(grouping, network, resource, "requests", FLOOD.window.slot_s, slot_s, value, 0)
        for slot_s, network, address, value in cells
        for grouping, resource in (("address/24", ""), ("address/24" + BY_ADDRESS, address))
    ]
    slots.add_slots(db, plan_sums(plan).all_sums, tables_of(rows), numbers, now_s)
    return numbers


@pytest.mark.parametrize("now_s", [BORDER_S + 200, BORDER_S + 4_000, BORDER_S - 20], ids=str)
@pytest.mark.parametrize("ahead_s", [0, 250], ids=["no clock ahead", "clocks ahead"])
def test_a_network_that_has_reached_its_limit_has_what_its_addresses_have_in_each_such_window(
    store: SqlStore, engine: sa.Engine, now_s: int, ahead_s: int
) -> None:
    plan, rolling = make_plan([], [], [FLOOD]), FLOOD.window
    store.activate(plan)
    (sum_,) = plan_sums(plan).policies_by_sum
    full = 0
    for seed in range(4):
        with engine.begin() as db:
            for table in slots.slots:
                db.execute(sa.delete(table))
            cells = some_cells(seed, now_s, ahead_s)
            numbers = store_slots(db, cells, now_s)
            totals = [Standing(TotalKey(sum_, network, "", ALWAYS), 0) for network in NETWORKS]
            standings = slots.with_slots(db, totals, numbers, now_s)
            read = slots.with_addresses(db, plan, standings, numbers, now_s)
        for standing in read:
            ends_s = window_ends(standing.slots, now_s)
            sums = zip(ends_s, sums_at(standing.slots, rolling, ends_s), strict=True)
            full_s = [end_s for end_s, value in sums if value >= FLOOD.limit]
            of_network = sorted((one[0], *one[2:]) for one in cells if one[1] == standing.total.key)
            expected = addresses_at(of_network, rolling, full_s) if full_s else None
            assert standing.addresses == expected
            full += len(full_s)
    assert full, "no window has reached the limit"
