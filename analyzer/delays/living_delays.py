"""The delay of locks as the living installation knows it: its analyzers, its gates, and the rates seen."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.counting.counter.caller_budget import OVERFLOW
from analyzer.counting.measured_delays import MeasuredDelays
from analyzer.delays.partition_delays import measured_by_owner
from analyzer.gates.gate_health import living_gates
from analyzer.gates.gate_reports import reporting_gates
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import reading
from analyzer.kernel.tables.schema import buckets
from analyzer.plan import catalog
from analyzer.plan.meters import BUCKET_S

RATES_OF_S = 600  # the highest rate is that of the minutes of this time, which bounds the query


class LivingDelays(NamedTuple):
    """The measured parts.

    Attributes:
        measured: Of each living analyzer.
        view_ages_s: The age of each living gate's view when it reported, unless that was stale.
        rates: The highest amount per second of one series in any minute of the last ten, by grouping and
            meter; none where nothing was counted, and of distinct values.
    """

    measured: Sequence[MeasuredDelays]
    view_ages_s: Sequence[float]
    rates: Mapping[tuple[str, str], float]


def living_delays(engine: sa.Engine, pairs: Collection[tuple[str, str]]) -> LivingDelays:
    """Returns what is known; `pairs` has the groupings and meters of policies. Raises StoreAway."""
    ages_s = [
        gate.status.age
        for gate in living_gates(reporting_gates(engine))
        if gate.is_alive and gate.status.age is not None and gate.status.age <= gate.status.stale_after
    ]
    return LivingDelays(list(measured_by_owner(engine).values()), ages_s, highest_rates(engine, pairs))


def highest_rates(engine: sa.Engine, pairs: Collection[tuple[str, str]]) -> dict[tuple[str, str], float]:
    """Returns the highest amount per second of one series, by grouping and meter. Raises StoreAway."""
    rates: dict[tuple[str, str], float] = {}
    columns = buckets.c
    with reading(engine) as db:
        numbers, now_s = catalog.load(db), clock_ms(db) // 1000
        last_s = now_s // BUCKET_S * BUCKET_S
        for grouping, name in sorted(set(pairs)):
            meter, number = numbers.meters.get(name), numbers.groupings.get(grouping)
            if meter is None or number is None:
                continue
            value = columns[f"value_{meter.place}"]
            statement = sa.select(sa.func.max(value)).where(
                columns.grouping == number,
                columns.page == meter.page,
                columns.width_s == BUCKET_S,
                columns.bucket_s.in_(range(last_s - RATES_OF_S, last_s + 1, BUCKET_S)),
                columns.key.not_in(["", OVERFLOW]),
            )
            highest = db.execute(statement).scalar()
            if highest:
                rates[grouping, name] = highest / BUCKET_S
    return rates
