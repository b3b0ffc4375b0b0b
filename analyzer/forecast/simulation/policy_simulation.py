"""Simulation of one policy, beside the present one: from the stored buckets to locks by series.

The whole simulation reads one snapshot. Policies with equal sums, such as one with another limit, share both
passes. Callers have the plans, zones, anchors and overrides that they have at present.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.forecast.simulation.bucket_scan import (
    BucketScan,
    ScanStep,
    SeriesName,
    StoredWidth,
    allow_large_sums,
    stored_widths,
)
from analyzer.forecast.simulation.least_limits import least_threshold
from analyzer.forecast.simulation.policy_locks import PolicyLocks, SeriesLocks
from analyzer.forecast.simulation.series_simulation import SeriesSimulation, SimulatedLock, SimulatedPolicy
from analyzer.judging.caller_limits import Limits
from analyzer.judging.kinds import policy_kind
from analyzer.judging.locks import lock_history
from analyzer.judging.sql.directory import IN_FORCE, read_directory
from analyzer.judging.totals import is_judged, unjudged_keys
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import slow_reading, without_scans
from analyzer.kernel.tables.schema import overrides
from analyzer.plan import catalog
from analyzer.plan.derived_meters import is_derived
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meters import DAY_S, JOINS, QUARTER_S
from analyzer.plan.plan import Plan
from analyzer.plan.policies import Policy, base_name
from analyzer.plan.sums import NEVER, Sum
from analyzer.plan.windows import Calendar, Rolling, Windows, window_at

PASSES = 3  # over each step
STRETCH_S = 10 * DAY_S  # added up at once: longer ones take less time, and progress is shown after each
NOTHING_COUNTED = "nothing was counted yet"
Progress = Callable[[int, int], None]  # steps that are done, and all


class NotSimulated(Exception):
    """A policy cannot be simulated; the message says why, and what can be done."""


class SimulatedTime(NamedTuple):
    """The time that was simulated, and the widest buckets in it."""

    from_s: int
    until_s: int
    width_s: int
    is_cut: bool = False  # it begins later than asked for, because older buckets are too wide


class Simulation(NamedTuple):
    """The locks of some policies with equal sums, by all that was counted."""

    span: SimulatedTime
    keys: int  # callers, or other keys, that were counted
    requests: int
    of: Mapping[Policy, PolicyLocks]


class _Reading(NamedTuple):
    """The buckets that are read, and the steps in which they are."""

    scan: BucketScan
    span: SimulatedTime
    steps: Sequence[ScanStep]
    chunk_s: int | None  # None: each step is a window


def simulate(
    engine: sa.Engine,
    policies: Sequence[Policy],
    from_s: int,
    progress: Progress = lambda _done, _all: None,
) -> Simulation:
    """Returns the locks that each of `policies` would have set since `from_s`.

    Their sums must be equal. Raises NotSimulated, StoreAway.
    """
    [sum_] = {policy_kind(policy).judged_sum(policy) for policy in policies}
    with slow_reading(engine) as db:
        without_scans(db)
        allow_large_sums(db)
        numbers = catalog.load(db)
        widest_s = _widest_bucket_s(policies[0], sum_, numbers)
        reading = _reading(db, numbers, sum_, widest_s, from_s)
        steps_done = 0

        def step_done() -> None:
            nonlocal steps_done
            steps_done += 1
            progress(steps_done, PASSES * len(reading.steps))

        bound = min(_least_threshold(db, policy) for policy in policies)
        first = _first_pass(db, reading, sum_, bound, step_done)
        names = {series for amounts in first.reached for series in amounts}
        directory = read_directory(db, {key for key, _ in names})
        # Equal policies are one: a bucket must be counted once for each.
        alone = [Plan(policies=(policy,)) for policy in dict.fromkeys(policies)]
        simulated = [SimulatedPolicy(plan, Limits(plan, directory)) for plan in alone]
        hot = _hot(simulated, sum_, reading, first.reached)
        players = _second_pass(db, reading, simulated, hot, first.rows, step_done)
    locks = {entry.policy: _locks(players[entry.policy].values(), reading.span) for entry in simulated}
    return Simulation(reading.span, first.keys, first.requests, locks)


def _widest_bucket_s(policy: Policy, sum_: Sum, numbers: catalog.Catalog) -> int:
    """Returns the width of the widest buckets that can be used. Raises NotSimulated."""
    kind = policy_kind(policy)
    if kind.whole_sum is not None:
        raise NotSimulated(
            "a share compares two sums, and both grow within a minute: stored counts do not say in which "
            "order, so they show neither when a series was above its mark nor whether that lasted for its "
            'hold; put it in force with action = "tag" to see whom it would lock'
        )
    if not sum_.joined.in_buckets:
        raise NotSimulated(f"{sum_.meter} counts distinct values, which are in no stored count")
    if sum_.grouping not in numbers.groupings:
        raise NotSimulated(f'nothing was counted by {sum_.grouping}: write groupings = ["{sum_.grouping}"]')
    if sum_.meter not in numbers.meters and is_derived(sum_.meter):
        raise NotSimulated(
            f"{sum_.meter}: they are counted from the moment when the policy is in force; put it in force "
            'with mode = "shadow", and simulate it later'
        )
    if sum_.meter not in numbers.meters:
        raise NotSimulated(f"the meter {sum_.meter} was never counted")
    widest_s = kind.widest_bucket_s(policy)
    if not widest_s and isinstance(sum_.window, Calendar):
        raise NotSimulated(
            "a lifetime or a contract is one window, which does not come again; `gatelock usage` shows what "
            "callers have used since it began"
        )
    if not widest_s:
        raise NotSimulated(
            f"its windows of {sum_.window.shortest_s} s are too short: stored counts are minutes, and a "
            "window must have five; `gatelock look FILE` reads the log itself"
        )
    return widest_s


def _reading(db: sa.Connection, numbers: catalog.Catalog, sum_: Sum, widest_s: int, from_s: int) -> _Reading:
    now_s = clock_ms(db) // 1000
    stored = [width for width in stored_widths(db, numbers, sum_.grouping) if width.from_s < now_s]
    span = _span(sum_.window, stored, widest_s, from_s, now_s)
    widths_s = [
        width.width_s for width in stored if width.width_s <= widest_s and width.until_s > span.from_s
    ]
    scan = BucketScan.of(numbers, sum_.grouping, sum_.meter, widths_s)
    oldest_s = max((width.until_s for width in stored if width.width_s > widest_s), default=0)
    if isinstance(sum_.window, Calendar) and not sum_.window.facts and sum_.window.per not in SHORT:
        return _Reading(scan, span, list(_windows(sum_.window, span)), None)
    chunk_s = _chunk_s(sum_.window)
    step_s = -(-DAY_S // chunk_s) * chunk_s
    lead_s = max(span.from_s - chunk_s, oldest_s)
    lead = [ScanStep(lead_s, span.from_s, is_asked=False)] if lead_s < span.from_s else []
    begins = range(span.from_s, span.until_s, step_s)
    steps = [ScanStep(begin_s, min(begin_s + step_s, span.until_s)) for begin_s in begins]
    return _Reading(scan, span, [*lead, *steps], chunk_s)


SHORT = ("minute", "hour")  # periods of which a day has many


def _span(
    windows: Windows, stored: Sequence[StoredWidth], widest_s: int, from_s: int, now_s: int
) -> SimulatedTime:
    """Returns the time of which there are buckets that are narrow enough. Raises NotSimulated."""
    fitting = [width for width in stored if width.width_s <= widest_s]
    too_wide_s = max((width.until_s for width in stored if width.width_s > widest_s), default=0)
    if not stored:
        raise NotSimulated(NOTHING_COUNTED)
    if not fitting:
        widths = f"{min(width.width_s for width in stored)} s wide"
        raise NotSimulated(f"it needs counts of {widest_s} s at most; those that are stored are {widths}")
    begin_s = max(from_s, min(width.from_s for width in fitting), too_wide_s)
    begin_s -= begin_s % QUARTER_S
    is_cut = too_wide_s > from_s
    if isinstance(windows, Calendar) and not windows.facts:
        window = window_at(windows, begin_s)
        begin_s = window.start_s if window.start_s >= too_wide_s or not is_cut else window.until_s
    if begin_s >= now_s:
        raise NotSimulated(f"counts that are narrow enough ({widest_s} s) begin only in its present window")
    reaching = [width.width_s for width in fitting if width.until_s > begin_s]
    if not reaching:
        raise NotSimulated("nothing was counted in this time")
    width_s = max(reaching)
    return SimulatedTime(begin_s, now_s, width_s, is_cut)


def _windows(calendar: Calendar, span: SimulatedTime) -> Iterator[ScanStep]:
    at_s = span.from_s
    while at_s < span.until_s:
        window = window_at(calendar, at_s)
        yield ScanStep(window.start_s, min(window.until_s, span.until_s))
        at_s = window.until_s


def _chunk_s(windows: Windows) -> int:
    """Returns a stretch of time of which no window meets more than two neighbouring ones."""
    if isinstance(windows, Rolling):
        longest_s = windows.period_s + max(windows.slot_s, windows.widest_bucket_s)
    else:
        longest_s = 3_600 if windows.per in SHORT else windows.longest_s
    return -(-longest_s // QUARTER_S) * QUARTER_S


def _least_threshold(db: sa.Connection, policy: Policy) -> int:
    """Returns the least value at which the policy must be judged for any caller."""
    own = sa.select(overrides.c.amount).where(
        overrides.c.kind == "limit",
        overrides.c.policy == base_name(policy.name),
        overrides.c.state == IN_FORCE,
    )
    return least_threshold(policy, db.execute(own).scalars())


def _part(reading: _Reading) -> int:
    """Returns of how many chunks one has to have its part of a limit."""
    return 1 if reading.chunk_s is None or not JOINS[reading.scan.meter.join].adds_up else 2


class _FirstPass(NamedTuple):
    """The number of keys and of requests; by step its rows, about, and the series that may have a lock."""

    keys: int
    requests: int
    rows: Sequence[int]
    reached: Sequence[Mapping[SeriesName, float]]


def _first_pass(
    db: sa.Connection, reading: _Reading, sum_: Sum, bound: int, step_done: Callable[[], None]
) -> _FirstPass:
    keys: set[str] = set()
    requests, rows, grouping = 0, [], parse_grouping(sum_.grouping)
    reached: list[Mapping[SeriesName, float]] = []
    least = bound / _part(reading)
    for steps in _stretches(reading.steps):
        stretch = ScanStep(steps[0].from_s, steps[-1].until_s, steps[0].is_asked)
        window_s = reading.chunk_s or max(step.until_s - step.from_s for step in steps)
        sums = reading.scan.stretch_sums(db, stretch, window_s, least)
        if stretch.is_asked:
            keys.update(sums.keys)
            requests += sums.requests
        rows += [sums.rows // len(steps)] * len(steps)
        for _ in steps:
            step_done()
        judged = {series: used for series, used in sums.reached.items() if is_judged(grouping, *series)}
        is_exact = len(steps) == 1 and reading.chunk_s is None
        of_keys = sorted({key for key, _ in judged})
        for step in steps:
            if of_keys and not is_exact:
                amounts = reading.scan.window_sums(db, step, reading.chunk_s, least, of_keys, rows[-1])
                reached.append({series: used for series, used in amounts.items() if series in judged})
            else:
                reached.append(judged)
            step_done()
    return _FirstPass(len(keys.difference(unjudged_keys(grouping))), requests, rows, reached)


def _stretches(steps: Sequence[ScanStep]) -> Iterator[list[ScanStep]]:
    """Yields steps that follow each other and are added up at once."""
    together: list[ScanStep] = []
    for step in steps:
        if together and (
            step.is_asked != together[0].is_asked or step.until_s - together[0].from_s > STRETCH_S
        ):
            yield together
            together = []
        together.append(step)
    if together:
        yield together


def _hot(
    simulated: Sequence[SimulatedPolicy],
    sum_: Sum,
    reading: _Reading,
    reached: Sequence[Mapping[SeriesName, float]],
) -> list[set[SeriesName]]:
    """Returns by step the series whose buckets are needed, by the limits that these series have."""
    hot = [
        {
            series
            for series, used in amounts.items()
            if used * _part(reading) >= min(_first_threshold(entry, sum_, series[0]) for entry in simulated)
        }
        for amounts in reached
    ]
    if reading.chunk_s is None:
        return hot
    return [set().union(*hot)] * len(hot)


def _first_threshold(entry: SimulatedPolicy, sum_: Sum, key: str) -> float:
    return next(iter(entry.limits.series_thresholds(sum_, key)), NEVER)


def _second_pass(
    db: sa.Connection,
    reading: _Reading,
    simulated: Sequence[SimulatedPolicy],
    hot: Sequence[set[SeriesName]],
    rows: Sequence[int],
    step_done: Callable[[], None],
) -> dict[Policy, dict[SeriesName, SeriesSimulation]]:
    players: dict[Policy, dict[SeriesName, SeriesSimulation]] = {entry.policy: {} for entry in simulated}
    for step, series, of_step in zip(reading.steps, hot, rows, strict=True):
        for name, bucket in reading.scan.series_buckets(db, step, series, of_step) if series else ():
            for entry in simulated:
                of_policy = players[entry.policy]
                player = of_policy.get(name)
                if player is None:
                    player = of_policy[name] = SeriesSimulation(entry, *name, reading.span.from_s)
                player.add(bucket)
        step_done()
    return players


def _locks(series: Iterable[SeriesSimulation], span: SimulatedTime) -> PolicyLocks:
    notices: Counter[int] = Counter()
    by_series = {}
    for player in series:
        player.pass_to(span.until_s)
        notices.update(player.notices)
        locks = [lock for lock in player.locks if lock.until_s > span.from_s]
        if locks:
            by_series[player.key, player.resource] = SeriesLocks(player.key, player.resource, locks)
    return PolicyLocks(by_series, notices)


class KnownLocks(NamedTuple):
    """The locks that a policy has set, as far as they are known; what came meanwhile is not."""

    since_s: int
    locks: PolicyLocks
    in_shadow: PolicyLocks  # that no gate got


def known_locks(engine: sa.Engine, policy: Policy, from_s: int) -> KnownLocks:
    """Returns the locks that a policy had since `from_s`, or since they are known. Raises StoreAway."""
    with slow_reading(engine) as db:
        without_scans(db)
        known_ms = lock_history.known_since_ms(db)
        since_s = max(from_s, clock_ms(db) if known_ms is None else known_ms // 1000)
        spans = lock_history.policy_spans(db, policy.name, since_s * 1000)
        in_shadow = lock_history.policy_spans(db, policy.name, since_s * 1000, in_shadow=True)
    return KnownLocks(since_s, _of_spans(policy, spans), _of_spans(policy, in_shadow))


def _of_spans(policy: Policy, spans: Iterable[lock_history.Span]) -> PolicyLocks:
    locks_by_series: dict[SeriesName, list[SimulatedLock]] = {}
    for key, began_ms, ended_ms in spans:
        locks = locks_by_series.setdefault((key.key, key.resource), [])
        if locks and began_ms <= locks[-1].until_s * 1000 and not policy_kind(policy).locks_last:
            locks[-1].until_s = ended_ms // 1000  # it was extended
        else:
            locks.append(SimulatedLock(began_ms // 1000, ended_ms // 1000))
    by_series = {name: SeriesLocks(*name, locks) for name, locks in locks_by_series.items()}
    return PolicyLocks(by_series, Counter())
