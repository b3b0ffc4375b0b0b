"""Steps after an activation: totals are filled from the buckets, locks are made to agree with the plan.

A new plan is in force at once, but a new policy has no totals, and a changed one has locks that it would not
raise today. On a large history either takes longer than flushes may wait, so the rest of the work is stored
with the plan and done step by step, each in a transaction of bounded length that keeps flushes out:

    fill    adds a stretch of buckets to the totals of a new sum; those of rolling windows and of
            distinct values begin empty. The stored position says up to where; a flush adds to these
            totals only what it counts before that position, the rest will be found in the buckets. No policy
            judges a sum that is not filled.
    judge   raises the locks that totals have earned, for policies that are new or changed
    clear   removes the locks that changed policies would not raise, and all of policies that are gone; of
            policies whose locks last for their time and of which some series have another limit, those of
            series that are exempt
            (and writes an earned one again that still has the settings of the old plan, because the total
            reached its limit between the steps)
    refuse  raises the locks of known callers and tenants that may have nothing, and need no total for it

Pure: `analyzer.judging.sql.activation` does the steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeGuard

import msgspec

from analyzer.judging.kinds import policy_kind
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.totals import BucketPosition
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meters import DAY_S, MINUTE_S, QUARTER_S
from analyzer.plan.plan import Plan
from analyzer.plan.policies import base_name, limits_by_plan
from analyzer.plan.sums import Sum
from analyzer.plan.windows import Calendar, window_at
from gatekeeper.model import LockKey

# Of periods for which minutes are not kept long enough.
BUCKETS_OF_LONG: Mapping[str, Sequence[int]] = {
    "year": (QUARTER_S, MINUTE_S),
    "contract": (DAY_S, QUARTER_S, MINUTE_S),
    "lifetime": (DAY_S, QUARTER_S, MINUTE_S),
}


class FillStep(msgspec.Struct, tag="fill", frozen=True):
    """Totals of a sum that hold every bucket before a position."""

    sum: int  # its number in the catalog
    filled_to: BucketPosition
    # Of long windows the widest buckets come first, and last, from the beginning again, the minutes. Flushes
    # add to minutes alone, so the position that they look at is that of the minutes.
    width_s: int = MINUTE_S


class JudgeStep(msgspec.Struct, tag="judge", frozen=True):
    """Totals of a sum, behind a position, by which policies must be judged."""

    sum: int
    policies: tuple[str, ...]
    behind: tuple[str, str] | None = None  # key and resource
    behind_s: int = 0  # start of the window, of a sum by the windows of callers


class ClearStep(msgspec.Struct, tag="clear", frozen=True):
    """Locks of policies, behind a position, that may not be earned any more."""

    policies: tuple[str, ...]
    behind: tuple[str, str, str, str] | None = None
    exempt: bool = False  # only those of series that are exempt: the other locks last for their time

    def continued(self, last: LockKey) -> ClearStep:
        """Returns the step that is left after the lock at `last`."""
        return msgspec.structs.replace(self, behind=(last.scope, last.key, last.resource, last.policy))


class RefuseStep(msgspec.Struct, tag="refuse", frozen=True):
    """Callers and tenants behind a name, by its order, to which policies may allow nothing."""

    policies: tuple[str, ...]
    behind: str = ""


Step = FillStep | JudgeStep | ClearStep | RefuseStep
_decoder = msgspec.json.Decoder(tuple[Step, ...])


def decode_steps(text: str) -> tuple[Step, ...]:
    """Returns the steps that are stored with a plan."""
    return _decoder.decode(text) if text else ()


def steps_with(unfinished: Sequence[Step], added: Sequence[Step]) -> list[Step]:
    """Returns the steps that are left, and those of `added` that none of these does, because it has begun.

    So the list stays short, however fast limits change.
    """
    return [*unfinished, *(step for step in added if not any(_does(earlier, step) for earlier in unfinished))]


def _does(step: Step, added: Step) -> bool:
    """Whether a step has not begun, and does all that another one would."""
    if isinstance(step, FillStep) or isinstance(added, FillStep):
        return step == added
    wider = msgspec.structs.replace(added, policies=step.policies)
    return step == wider and {*added.policies} <= {*step.policies}


def stored_text(steps: Sequence[Step]) -> str:
    return msgspec.json.encode(steps).decode() if steps else ""


def filled_to(steps: Sequence[Step], numbers: Mapping[Sum, int]) -> dict[Sum, BucketPosition]:
    """Returns the sums that are being filled, and up to where; `numbers` has the sums of the plan."""
    positions = {step.sum: step.filled_to for step in steps if isinstance(step, FillStep)}
    return {sum_: positions[number] for sum_, number in numbers.items() if number in positions}


def steps_after(
    earlier: Plan,
    unfinished: Sequence[Step],
    plan: Plan,
    numbers: Mapping[Sum, int],
    kept: Collection[Sum],
    now_s: int,
) -> list[Step]:
    """Returns what must be done when `plan` replaces `earlier`, whose `unfinished` steps are not done.

    `numbers` has the sums of `plan`; `kept` are those whose totals continue. The others are new, or their
    meter has another meaning than before, and are filled from what is counted of it. What needs no filling
    comes first: a limit that was raised must not wait for a history to be read.
    """
    changed = {policy.name for policy in plan.policies if policy != earlier.policy(policy.name)}
    changed |= {policy.name for policy in earlier.policies if plan.policy(policy.name) is None}
    changed |= {name for step in unfinished if _is_of_changed(step) for name in step.policies}
    with_other_limits = _with_other_overrides(earlier, plan) | {
        name for step in unfinished if isinstance(step, ClearStep) and step.exempt for name in step.policies
    }
    lasting = {name for name in with_other_limits - changed if _has_lasting_locks(plan, name)}
    changed |= with_other_limits
    fills: dict[int, list[Step]] = {}
    for step in unfinished:
        if isinstance(step, FillStep):
            fills.setdefault(step.sum, []).append(step)
    new = plan_sums(plan).policies_by_sum.keys() - kept
    changed |= {policy.name for sum_ in new for policy in plan_sums(plan).policies_by_sum[sum_]}
    # Neither slots nor distinct values are in the buckets, and what is read from these needs no total.
    filled = {
        sum_: number
        for sum_, number in numbers.items()
        if (sum_ in new and isinstance(sum_.window, Calendar) and sum_.joined.in_buckets) or number in fills
    }
    steps: list[Step] = []
    for sums in ({sum_: number for sum_, number in numbers.items() if sum_ not in filled}, filled):
        if sums is filled:
            for sum_, number in sums.items():
                steps += fills.get(number) or _fill_steps(sum_, number, now_s)
        names_by_sum = {
            sum_: [p.name for p in plan_sums(plan).policies_by_sum[sum_] if p.name in changed]
            for sum_ in sums
        }
        # What is compared with a whole is judged by the warden.
        compared = plan_sums(plan).wholes_by_sum
        judged = (
            (sum_, tuple(names)) for sum_, names in names_by_sum.items() if names and sum_ not in compared
        )
        steps += [JudgeStep(sums[sum_], names) for sum_, names in judged]
        names = {name for names in names_by_sum.values() for name in names}
        steps += refuse_steps(plan, names)
        if sums is not filled:
            names |= {name for name in changed if plan.policy(name) is None}
        existed = sorted(name for name in names if earlier.policy(name) or unfinished)
        for exempt in (False, True):
            cleared = tuple(name for name in existed if (name in lasting) is exempt)
            steps += [ClearStep(cleared, exempt=exempt)] if cleared else []
    return steps


def refuse_steps(plan: Plan, names: Collection[str], *, may_refuse_all: bool = False) -> list[Step]:
    """Returns the step that locks those to whom any of these policies allows nothing; none if none does.

    With `may_refuse_all` overrides that the plan does not state may do so.
    """
    overridden = {
        override.policy for override in plan.overrides if override.kind == "limit" and not override.amount
    }
    refusing = sorted(
        policy.name
        for policy in plan.policies
        if policy.name in names
        and parse_grouping(policy.per).is_of_subjects
        and policy_kind(policy).whole_sum is None
        and (
            may_refuse_all
            or base_name(policy.name) in overridden
            or 0 in (policy.limit, *limits_by_plan(policy).values())
        )
    )
    return [RefuseStep(tuple(refusing))] if refusing else []


def _fill_steps(sum_: Sum, number: int, now_s: int) -> list[Step]:
    """Returns the steps that fill a sum from the buckets of its open window."""
    begin = first_start_s(sum_, now_s), "", ""
    return [FillStep(number, begin, width_s) for width_s in widths_s(sum_)]


def widths_s(sum_: Sum) -> Sequence[int]:
    """Returns the widths of the buckets that hold what was counted in an open window, the widest first.

    Minutes and quarters of an hour are kept for longer than other windows last.
    """
    period = sum_.window.per if isinstance(sum_.window, Calendar) else ""
    return BUCKETS_OF_LONG.get(period, (MINUTE_S,))


def _is_of_changed(step: Step) -> TypeGuard[JudgeStep | ClearStep | RefuseStep]:
    """Whether the step is about policies that have changed, rather than limits of some series."""
    return isinstance(step, (JudgeStep, RefuseStep)) or (isinstance(step, ClearStep) and not step.exempt)


def _has_lasting_locks(plan: Plan, name: str) -> bool:
    policy = plan.policy(name)
    return policy is not None and policy_kind(policy).locks_last


def first_start_s(sum_: Sum, now_s: int) -> int:
    """Returns the start of the open window; of callers' windows a time before each of them."""
    windows = sum_.window
    if isinstance(windows, Calendar) and windows.facts:
        return max(0, now_s - windows.longest_s)
    if isinstance(windows, Calendar) and windows.contract is not None:
        # Nothing is limited before it.
        return max(windows.contract.start_s, window_at(windows, now_s).start_s)
    return window_at(windows, now_s).start_s


def _with_other_overrides(earlier: Plan, plan: Plan) -> set[str]:
    """Returns the policies whose limits differ for some callers, by the overrides of the two plans."""
    old, new = (
        {override.digest: override.policy for override in version.overrides} for version in (earlier, plan)
    )
    names = {(old | new)[digest] for digest in old.keys() ^ new.keys()}
    return {policy.name for policy in plan.policies if base_name(policy.name) in names or "" in names}


def steps_to_judge_again(
    unfinished: Sequence[Step], plan: Plan, numbers: Mapping[Sum, int], *, clock_was_ahead: bool
) -> list[Step]:
    """Returns the steps after which the locks of all policies agree with the totals of the open windows.

    Locks that last for their time stay, unless a clock has set them that was ahead: their time is wrong.

    A sum that is being filled is judged when it is filled, by the unfinished steps. What is compared with a
    whole is judged by the warden, for which such a step notes the series that it must look at.
    """
    filling = filled_to(unfinished, numbers)
    needed = plan_sums(plan)
    again: list[Step] = [
        JudgeStep(
            number, tuple(p.name for p in needed.policies_by_sum[sum_] if sum_ not in needed.wholes_by_sum)
        )
        for sum_, number in numbers.items()
        if sum_ not in filling
    ]
    names = sorted(
        p.name for sum_ in numbers if sum_ not in filling for p in plan_sums(plan).policies_by_sum[sum_]
    )
    again += refuse_steps(plan, names)
    for exempt in (False, True):
        lasting = set() if clock_was_ahead else {name for name in names if _has_lasting_locks(plan, name)}
        cleared = tuple(name for name in names if (name in lasting) is exempt)
        again += [ClearStep(cleared, exempt=exempt)] if cleared else []
    return steps_with(unfinished, again)


def unready_policies(steps: Sequence[Step], plan: Plan, numbers: Mapping[Sum, int]) -> list[str]:
    """Returns the policies whose totals or locks do not agree with the plan yet."""
    filling = filled_to(steps, numbers)
    names = {policy.name for sum_ in filling for policy in plan_sums(plan).policies_by_sum[sum_]}
    names |= {name for step in steps if not isinstance(step, FillStep) for name in step.policies}
    return sorted(name for name in names if plan.policy(name) is not None)
