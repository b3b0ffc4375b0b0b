"""The sums that the policies of a plan need, and what is asked of their kinds about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from analyzer.counting.records.formats import with_default_fields
from analyzer.judging.kinds import policy_kind
from analyzer.judging.rolling import growth_to, largest_sum
from analyzer.judging.totals import Standing
from analyzer.kernel.model import DistinctLayout, SlotLayout
from analyzer.plan.groupings import BY_ADDRESS, BY_OUTCOME
from analyzer.plan.mapping import DURATION, NumberField, SourceMapping
from analyzer.plan.meters import MINUTE_S, OUTCOMES
from analyzer.plan.plan import Plan
from analyzer.plan.policies import Policy, for_resource, route_variants
from analyzer.plan.sums import NEVER, Sum, total_key
from analyzer.plan.windows import Calendar, Rolling


def plan_sums(plan: Plan) -> PlanSums:
    """Returns the sums of a plan; the same object for the same plan."""
    sums = plan.derived.get(PlanSums)
    if sums is None:
        sums = plan.derived[PlanSums] = PlanSums(plan)
    return sums


class PlanSums:
    """The sums of one plan. All values are computed when they are asked for, once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @cached_property
    def policies_by_sum(self) -> Mapping[Sum, Sequence[Policy]]:
        """The policies that are judged by each sum."""
        policies: dict[Sum, list[Policy]] = {}
        for policy in self.plan.policies:
            policies.setdefault(policy_kind(policy).judged_sum(policy), []).append(policy)
        return policies

    def numbers(self, sum_number: Callable[[Sum], int]) -> dict[Sum, int]:
        """Returns the number of each sum that is judged, in a database where the plan was in force."""
        return {sum_: sum_number(sum_) for sum_ in self.policies_by_sum}

    @cached_property
    def thresholds_by_sum(self) -> Mapping[Sum, Sequence[int]]:
        """Values of each sum at which one of its policies must be judged, ascending."""
        return {
            sum_: sorted(
                {
                    value
                    for policy in policies
                    for variant in route_variants(policy)
                    for value in policy_kind(policy).thresholds(variant)
                }
            )
            for sum_, policies in self.policies_by_sum.items()
        }

    @cached_property
    def wholes_by_sum(self) -> Mapping[Sum, Sum]:
        """The sum of the whole that the series of a sum are compared with, where they are."""
        wholes = {}
        for sum_, policies in self.policies_by_sum.items():
            for policy in policies:
                if (whole := policy_kind(policy).whole_sum) is not None:
                    wholes[sum_] = whole(policy)
        return wholes

    @cached_property
    def together(self) -> frozenset[Sum]:
        """The sums of which the warden judges all series above their floor together."""
        return frozenset(
            sum_
            for sum_, policies in self.policies_by_sum.items()
            if any(policy_kind(policy).overloads is not None for policy in policies)
        )

    @cached_property
    def with_usual(self) -> frozenset[Sum]:
        """The sums whose series are compared with their usual load."""
        return frozenset(
            sum_
            for sum_, policies in self.policies_by_sum.items()
            if any(policy_kind(policy).needs(policy).usual for policy in policies)
        )

    @cached_property
    def addresses_by_sum(self) -> Mapping[Sum, Sum]:
        """The sum of the addresses of each network, of which only slots are kept, where a policy needs it."""
        return {
            sum_: Sum(sum_.grouping + BY_ADDRESS, sum_.meter, sum_.window, role="address")
            for sum_, policies in self.policies_by_sum.items()
            if any(policy_kind(policy).needs(policy).addresses for policy in policies)
        }

    @cached_property
    def bases_by_sum(self) -> Mapping[Sum, Sum]:
        """The sum of the base that each series of a sum is compared with, of which only slots are kept."""
        bases = {}
        for sum_, policies in self.policies_by_sum.items():
            for policy in policies:
                if (base := policy_kind(policy).base_sum(policy)) is not None:
                    bases[sum_] = base
        return bases

    @cached_property
    def outcomes_by_sum(self) -> Mapping[Sum, Sum]:
        """The sum of the outcomes of all requests, by that of the series that are compared.

        Empty where no source has errors or durations.
        """
        if not (self.has_errors or self.has_durations):
            return {}
        return {
            sum_: Sum(sum_.grouping + BY_OUTCOME, OUTCOMES, sum_.window, role="outcome")
            for sum_ in self.wholes_by_sum
        }

    @property
    def has_errors(self) -> bool:
        """Whether a source says which requests failed."""
        return any("status" in mapping.fields for mapping in self._mappings)

    @property
    def has_durations(self) -> bool:
        """Whether a source says how long requests took."""
        fields = (mapping.fields.get(DURATION) for mapping in self._mappings)
        return any(isinstance(field, NumberField) and field.kind == "duration" for field in fields)

    @property
    def _mappings(self) -> Sequence[SourceMapping]:
        return [with_default_fields(mapping) for mapping in self.plan.sources.values()]

    @cached_property
    def slot_sums(self) -> Sequence[Sum]:
        """All sums of which only slots are kept."""
        addresses, bases, outcomes = self.addresses_by_sum, self.bases_by_sum, self.outcomes_by_sum
        return sorted({*self.wholes, *addresses.values(), *bases.values(), *outcomes.values()}, key=total_key)

    @property
    def all_sums(self) -> Sequence[Sum]:
        """The sums that policies judge, and the ones of which only slots are kept."""
        return [*self.policies_by_sum, *self.slot_sums]

    @cached_property
    def wholes(self) -> Sequence[Sum]:
        """The sums of which only slots are kept, because no policy judges them by themselves."""
        return sorted(set(self.wholes_by_sum.values()), key=total_key)

    def first_judgement(self, sum_: Sum) -> int:
        """Returns the least value at which a new total must be judged.

        A sum of which only the buckets know what came before is judged as soon as it grows.
        """
        windows = sum_.window
        is_known = isinstance(windows, Calendar) or windows.has_slots
        return self.thresholds_by_sum[sum_][0] if is_known else 0

    @cached_property
    def slot_layouts(self) -> Sequence[SlotLayout]:
        """The slots that the counter must count, besides the buckets."""
        meters: dict[tuple[str, int], set[str]] = {}
        for sum_ in self.all_sums:
            if sum_.joined.in_buckets and isinstance(sum_.window, Rolling) and sum_.window.has_slots:
                meters.setdefault((sum_.grouping, sum_.window.slot_s), set()).add(sum_.meter)
        return [SlotLayout(*key, tuple(sorted(names))) for key, names in sorted(meters.items())]

    @cached_property
    def distinct_layouts(self) -> Sequence[DistinctLayout]:
        """The distinct values that the counter must return: by the minute for calendar windows."""
        return sorted(
            {
                DistinctLayout(
                    sum_.grouping,
                    sum_.window.slot_s if isinstance(sum_.window, Rolling) else MINUTE_S,
                    sum_.meter,
                )
                for sum_ in self.policies_by_sum
                if not sum_.joined.in_buckets
            }
        )

    def next_judgement(
        self,
        standing: Standing,
        now_s: float,
        thresholds: Sequence[int] | None = None,
        policies: Iterable[Policy] | None = None,
    ) -> int:
        """Returns the least value at which the total must be judged again; NEVER if its window has none.

        For a calendar window that has not begun this is the least threshold, reached or not, so that the
        first record after its beginning causes a judgement. A rolling sum can reach a threshold only after it
        has grown by the distance from the largest window that has not reached it. What the present window has
        reached is judged when the lock ends, and after the growth that the policy's kind says. A lock by a
        limit of 0 has no end.
        `thresholds` and `policies` are those of the series, if it has separate limits.
        """
        total = standing.total
        if thresholds is None:
            thresholds = self.thresholds_by_sum[total.sum]
        windows, used = total.sum.window, standing.used
        if isinstance(windows, Rolling):
            growths = [growth_to(standing.slots, windows, value, int(now_s)) for value in thresholds if value]
            # Of a window that a clock ahead has filled, more than the limit may be needed, too.
            least = min(thresholds, default=NEVER)
            if None in growths or largest_sum(standing.slots, windows, int(now_s)) >= least:
                if policies is None:
                    policies = (for_resource(own, total.resource) for own in self.policies_by_sum[total.sum])
                growths += [policy_kind(policy).growth(policy, standing, int(now_s)) for policy in policies]
            return min((used + growth for growth in growths if growth is not None), default=NEVER)
        if now_s < total.window.start_s:
            return next(iter(thresholds), NEVER)
        return next((value for value in thresholds if value > used), NEVER)
