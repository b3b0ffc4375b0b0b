"""Simulations of policies as sentences, a table of callers, or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from analyzer.acting.parameters import Fault
from analyzer.config.amounts import parsed_amount
from analyzer.config.values import suggestion
from analyzer.faces.table_rows import TableRows
from analyzer.forecast.simulation.policy_locks import SeriesChange, changes
from analyzer.forecast.simulation.policy_simulation import NOTHING_COUNTED
from analyzer.judging.brakes import exceeded_sentence, first_exceeded_s, policy_brake
from analyzer.judging.earned_notices import percent as threshold_text
from analyzer.judging.kinds.compared import series_noun, series_plural
from analyzer.judging.kinds.quota import as_phrase
from analyzer.kernel.logs import printable
from analyzer.kernel.number_texts import length_text, share_text
from analyzer.kernel.sentences import plural
from analyzer.kernel.time_texts import format_second
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meter_units import amount_text, with_noun
from analyzer.plan.plan import Plan
from analyzer.plan.policies import Policy, with_limit

if TYPE_CHECKING:
    from analyzer.forecast.simulation.comparison import PolicyComparison
    from analyzer.forecast.simulation.policy_locks import PolicyLocks, SeriesLocks
    from analyzer.forecast.simulation.policy_simulation import Simulation

ROWS_SHOWN = 15  # of the table without --all: one screen
ASSUMPTIONS = (
    "Callers have the limits, plans and zones that they have today. What a simulated lock would have refused "
    "counts as it came."
)


def chosen_policies(among: Plan, name: str | None, limit: str | None) -> Sequence[Policy]:
    """Returns the policies of a plan to simulate, with another limit if one is stated. Raises Fault."""
    if not among.policies:
        raise Fault("", "there are no policies: name a file with [[policies]]")
    if limit is not None and name is None:
        raise Fault("limit", "needs <policy>, the name of the policy that shall have this limit")
    names = sorted(policy.name for policy in among.policies)
    if name is not None and name not in names:
        cure = suggestion(name, names, f"use one of {', '.join(names)}")
        raise Fault("policy", printable(f"{name}: no such name; {cure}"))
    policies = [policy for policy in among.policies if name in (None, policy.name)]
    if limit is None:
        return policies
    try:
        return [with_limit(policy, parsed_amount(policy, limit)) for policy in policies]
    except ValueError as error:
        raise Fault("limit", str(error)) from error


def is_refused(reports: Iterable[SimulationReport]) -> bool:
    """Whether one of the policies cannot be simulated for another reason than that nothing was counted."""
    return bool({report.comparison.refusal for report in reports} - {"", NOTHING_COUNTED})


class SimulationReport(NamedTuple):
    """The output about one policy."""

    comparison: PolicyComparison

    def parts(self, *, show_all: bool) -> Iterator[str | TableRows]:
        """Yields sentences, and a table: with `show_all` of all callers, else of those that differ most."""
        policy, simulation, proposed = self.comparison[0], self.comparison[3], self.comparison[4]
        if simulation is None or proposed is None:
            yield f"{policy.name} cannot be simulated: {self.comparison.refusal}"
            return
        yield self._sentence(simulation, proposed)
        for line in self._details(simulation, proposed):
            yield f"  {line}"
        listed = self._listed()
        shown = (
            listed if show_all else [change for change in listed if change.change != "as before"][:ROWS_SHOWN]
        )
        if shown:
            yield TableRows(self._columns(), [self._cells(change) for change in shown], "")
        if len(shown) < len(listed):
            yield f"  {len(listed) - len(shown):,} more with --all"

    def as_object(self) -> dict[str, Any]:
        """Returns everything as an object."""
        policy, present, refusal, simulation, proposed, previous, in_force = self.comparison
        fields: dict[str, Any] = {"policy": policy.name, "limit": policy.limit}
        if simulation is None or proposed is None:
            return fields | {"refused": refusal}
        keys = f"{series_plural(policy).replace(' ', '_')}"
        braked_s = self._braked_s(simulation, proposed)
        return fields | {
            "from": format_second(simulation.span.from_s),
            "to": format_second(simulation.span.until_s),
            "resolution_s": simulation.span.width_s,
            keys: simulation.keys,
            "requests": simulation.requests,
            "simulated": _sums(proposed, keys),
            "braked": None if braked_s is None else format_second(braked_s),
            "present": None
            if present is None or previous is None
            else {"limit": present.limit} | _sums(previous, keys),
            "in_force": None
            if in_force is None
            else {"since": format_second(in_force.since_s)} | _counts(in_force.locks, keys),
            "in_shadow": None
            if in_force is None
            else {"since": format_second(in_force.since_s)} | _counts(in_force.in_shadow, keys),
            "series": [_change(change) for change in self._listed()],
        }

    def _sentence(self, simulation: Simulation, proposed: PolicyLocks) -> str:
        policy, present, previous = self.comparison[0], self.comparison.present, self.comparison.before
        limit = f"{with_noun(policy.limit, policy.meter_unit, policy.meter)} {as_phrase(window_of(policy))}"
        text = f"{policy.name} at {limit} would have locked {self._locked(simulation, proposed)}"
        if present is None:
            return f"{text}; no policy of this name is in force"
        if present == policy:
            return f"{text}; it is in force as it is"
        if previous is None:
            return f"{text}; the present policy cannot be simulated"
        limit_text = amount_text(present.limit, present.meter_unit)
        if window_of(present) != window_of(policy) or present.meter != policy.meter:
            limit_text = f"{with_noun(present.limit, present.meter_unit, present.meter)} "
            limit_text += as_phrase(window_of(present))
        share = share_text(previous.requests, simulation.requests)
        keys, times = self._keys(previous.keys), _times(previous.locks)
        return f"{text}; at the present {limit_text}: {keys}, {times}, {share}"

    def _locked(self, simulation: Simulation, proposed: PolicyLocks) -> str:
        if simulation.keys and parse_grouping(self.comparison.policy.per).scope == "everyone":
            traffic = share_text(proposed.requests, simulation.requests)
            return f"everyone {_times(proposed.locks)}, {traffic} of the traffic"
        if not proposed.series:
            return f"none of {self._keys(simulation.keys)}"
        part = f"{proposed.keys:,} of {self._keys(simulation.keys)}"
        traffic = share_text(proposed.requests, simulation.requests)
        return f"{part}, {_times(proposed.locks)}, {traffic} of the traffic"

    def _keys(self, count: int) -> str:
        policy = self.comparison.policy
        return f"{count:,} {series_noun(policy) if count == 1 else series_plural(policy)}"

    def _details(self, simulation: Simulation, proposed: PolicyLocks) -> Iterator[str]:
        span = simulation.span
        resolution = length_text(span.width_s)
        yield (
            f"{format_second(span.from_s)} to {format_second(span.until_s)}, by stored counts of "
            f"{resolution}: a lock began up to {resolution} later than shown"
        )
        if span.is_cut:
            yield "older counts are too wide for its windows"
        if proposed.notices:
            reached = (
                f"{threshold_text(threshold)} {_times(count)}"
                for threshold, count in sorted(proposed.notices.items())
            )
            yield f"thresholds reached: {', '.join(reached)}"
        braked_s = self._braked_s(simulation, proposed)
        if braked_s is not None:
            yield exceeded_sentence(self.comparison.policy, braked_s)
        in_force = self.comparison.in_force
        if in_force is not None:
            since = f"since {format_second(in_force.since_s)}"
            done = {"it has locked": in_force.locks, "in shadow it has locked": in_force.in_shadow}
            shown = {does: locks for does, locks in done.items() if locks.locks}
            for does, locks in (shown or {"it has locked": in_force.locks}).items():
                yield f"{does} {self._keys(locks.keys)}, {_times(locks.locks)}, {since}"

    def _braked_s(self, simulation: Simulation, proposed: PolicyLocks) -> int | None:
        """Returns the time of `first_exceeded_s`; None also if a bucket is wider than its interval."""
        policy = self.comparison.policy
        if simulation.span.width_s > policy_brake(policy).per_s:
            return None
        begins_s = sorted(lock.began_s for series in proposed.series.values() for lock in series.locks)
        return first_exceeded_s(policy, begins_s)

    def _listed(self) -> Sequence[SeriesChange]:
        proposed, previous = self.comparison.proposed, self.comparison.before
        if proposed is None:
            return []
        if previous is None:
            return [SeriesChange("newly locked", series, None) for series in by_requests(proposed)]
        return changes(proposed, previous)

    def _columns(self) -> list[str]:
        policy = self.comparison.policy
        has_resource = parse_grouping(policy.per).resource is not None
        columns = ["change", series_noun(policy), *(["resource"] if has_resource else [])]
        return [*columns, "first locked", "locked for", "present", "locks", "requests"]

    def _cells(self, change: SeriesChange) -> list[object]:
        series, has_resource = change.of, parse_grouping(self.comparison.policy.per).resource is not None
        now, then = change.now, change.then
        return [
            change.change,
            series.key or "everyone",
            *([series.resource] if has_resource else []),
            format_second(series.locks[0].began_s),
            "" if now is None else length_text(now.locked_s),
            "" if then is None else length_text(then.locked_s),
            0 if now is None else len(now.locks),
            0 if now is None else now.requests,
        ]


def by_requests(locks: PolicyLocks) -> list[SeriesLocks]:
    """Returns the series, those with most requests during their locks first."""
    return sorted(locks.series.values(), key=lambda series: (-series.requests, series.key, series.resource))


def window_of(policy: Any) -> Any:
    """Returns the window of a policy that can be simulated."""
    return policy.window


def _times(count: int) -> str:
    return "once" if count == 1 else plural(count, "time")


def _counts(locks: PolicyLocks, keys: str) -> dict[str, int]:
    return {keys: locks.keys, "locks": locks.locks, "locked_s": locks.locked_s}


def _sums(locks: PolicyLocks, keys: str) -> dict[str, object]:
    notices = {threshold_text(threshold): count for threshold, count in sorted(locks.notices.items())}
    return _counts(locks, keys) | {"requests": locks.requests, "thresholds": notices}


def _change(change: SeriesChange) -> dict[str, object]:
    return {
        "key": change.of.key,
        "resource": change.of.resource,
        "change": change.change,
        "simulated": _locks(change.now),
        "present": _locks(change.then),
    }


def _locks(series: SeriesLocks | None) -> list[dict[str, object]]:
    return [
        {
            "began": format_second(lock.began_s),
            "until": format_second(lock.until_s),
            "requests": lock.requests,
        }
        for lock in (() if series is None else series.locks)
    ]
