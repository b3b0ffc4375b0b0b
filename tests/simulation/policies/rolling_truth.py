"""The truth about locks of rolling windows: rolling quotas, surges and shares, recounted record by record.

What the product must do is known up to the accuracy that it promises, one slot. So each rule has two counts:
`exact`, of the window that ends now, and `at_most`, with a slot more on either side.

- A rolling quota locks a series in the transaction in which `exact` reaches the limit. Its lock was earned by
  `at_most` when it was set or extended, does not end later than a slot after that, and is not gone while
  `exact` is at the limit.
- A surge does so too, except that it may wait while the analyzer is behind, and a network for its next look.
  Its lock lasts as long as its number among those that ran to their end says, is never gone before, and is
  not set while the same flush leaves records that are older than the window. Of a network, all addresses but
  the largest have half the limit.
- A share locks a series that has been above its limit in each look since `hold_s` ago; looks are seen by the
  rows of holds, each of which must be right. Its lock is at most a minute ahead of the last look, is not
  cleared unless the share may be below the release, and is not set while old records are missing.
- Capacities and usual shares lock series in the same way; see `load_marks` and `capacity_truth`.
- Notices and graces of rolling quotas: see `rolling_notices`.
- In the end, when nothing happens any more, nothing is missing and nothing stays: see `unfinished`.

A record belongs to rolling windows if one that ends now or later holds it, by the database's clock when it
is counted. Windows of more than an hour are recounted from all records.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from analyzer.judging.earned_notices import LASTS_S, NoticeKey
from analyzer.judging.kinds import policy_kind
from analyzer.judging.plan_sums import plan_sums
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.plan import Plan
from analyzer.plan.policies import CapacityShare, LoadShare, Policy, RollingQuota, Surge, UsualShare
from analyzer.plan.sums import Sum, sum_text
from analyzer.plan.windows import Rolling
from gatekeeper.model import LockKey
from tests.simulation.policies import capacity_truth
from tests.simulation.policies.commits import FLUSH_S_MAX, Commit, Over, SeenLock, SeenNotice, Wrong
from tests.simulation.policies.load_marks import Compared, Marks, marks_of
from tests.simulation.policies.rolling_notices import (
    has_grace,
    is_over,
    lasting_notice,
    missing_notice,
    wrong_notices,
)
from tests.simulation.policies.series import Series
from tests.simulation.policies.sliding_sums import (
    Entry,
    at_most,
    by_address,
    exact,
    inside,
    value,
    widest,
)

AHEAD_S = 900  # records of clocks that are further ahead are in no window
SHARE_LOCK_S = 60
LOOK_GAP_S = 30.0  # between two looks, beyond which a hold begins again


@dataclass
class RollingState:
    """Records and locks seen so far; goes back with the database when a dump is restored."""

    entries: dict[Sum, dict[Series, list[Entry]]] = field(default_factory=dict)
    values: dict[tuple[Sum, Series], set[tuple[int, str]]] = field(default_factory=dict)
    locks: dict[LockKey, SeenLock] = field(default_factory=dict)
    ended: dict[LockKey, list[int]] = field(default_factory=lambda: defaultdict(list))  # that ran to the end
    over: dict[LockKey, Over] = field(default_factory=dict)
    notices: dict[NoticeKey, SeenNotice] = field(default_factory=dict)
    unready: frozenset[str] = frozenset()  # policies, after the last commit
    policies: tuple[Policy, ...] = ()


class RollingTruth:
    """Compares the locks of rolling windows after each commit. Raises Wrong."""

    def __init__(self) -> None:
        self.state = RollingState()
        self.seen: Counter[str] = Counter()  # what happened that single rules are about
        self._grown: set[tuple[Sum, Series]] = set()
        self._locked_before: set[LockKey] = set()  # in force before the commit that is checked

    # -- counting --------------------------------------------------------------------------------

    def change_plan(self, plan: Plan) -> None:
        """Sums that come begin empty; those that go are forgotten."""
        wanted = {*plan_sums(plan).policies_by_sum, *plan_sums(plan).wholes_by_sum.values()}
        entries = self.state.entries
        for sum_ in entries.keys() - wanted:
            del entries[sum_]
        for sum_ in wanted - entries.keys():
            if isinstance(sum_.window, Rolling) and sum_.window.has_slots:
                entries[sum_] = defaultdict(list)

    def count(self, sum_: Sum, series: Series, entry: Entry, now_s: int) -> None:
        rolling = sum_.window
        assert isinstance(rolling, Rolling)
        self._grown.add((sum_, series))
        if not rolling.has_slots:
            return
        slot_s = entry.at_s - entry.at_s % rolling.slot_s
        if now_s - rolling.period_s - rolling.slot_s < slot_s < now_s + AHEAD_S:
            self.state.entries[sum_][series].append(entry)

    # -- after each commit -----------------------------------------------------------------------

    def check(self, commit: Commit, history: Mapping[Sum, Mapping[Series, Sequence[Entry]]]) -> None:
        """Compares locks and holds; `history` has the records of windows of more than an hour."""
        state = self.state
        before, state.locks = state.locks, dict(commit.locks)
        self._locked_before = {at for at, lock in before.items() if lock.until_ms > commit.now_ms}
        skipped = commit.unready | state.unready
        was = {policy.name: policy for policy in state.policies}
        state.unready, state.policies = commit.unready, commit.plan.policies
        grown, self._grown = self._grown, set()
        names = {policy.name: policy for policy in rolling_policies(commit.plan)}
        for at in before.keys() | commit.locks.keys():
            old, new = before.get(at), commit.locks.get(at)
            if old != new:
                policy = names.get(at.policy)
                is_checked = at.policy not in skipped and was.get(at.policy) == policy
                self._changed(commit, history, at, policy if is_checked else None, old, new)
        self._check_holds(commit, names, skipped)
        changed = {name for name, policy in names.items() if was.get(name) != policy}
        self._check_notices(commit, history, names, {*skipped, *changed})
        for policy in names.values():
            if policy.name in commit.unready or isinstance(policy, Compared):
                continue
            sum_ = policy_kind(policy).judged_sum(policy)
            became_ready = policy.name in skipped or was.get(policy.name) != policy
            entries = entries_of(state, history, sum_)
            # Records from before a sum of many hours are judged when it grows.
            is_all = became_ready and sum_ not in history
            series = entries if is_all else [one for of, one in grown if of == sum_]
            if isinstance(policy, RollingQuota):
                sums = [(one, exact(policy, entries.get(one, ()), commit.now_s)) for one in series]
                if wrong := missing_notice(commit, policy, sums, sum_text(sum_)):
                    raise Wrong(wrong)
            for one in series:
                self._check_locked(commit, policy, one, entries.get(one, ()))

    def _changed(
        self,
        commit: Commit,
        history: Mapping[Sum, Mapping[Series, Sequence[Entry]]],
        at: LockKey,
        policy: Policy | None,
        old: SeenLock | None,
        new: SeenLock | None,
    ) -> None:
        """Checks a lock that was set, replaced, extended, or is gone; notes it."""
        has_lapsed = old is not None and old.until_ms <= commit.now_ms
        if old is not None and has_lapsed and (new is None or new.began_ms != old.began_ms):
            self.state.ended[at].append(old.until_ms)
        if policy is None:
            return
        entries = entries_of(self.state, history, policy_kind(policy).judged_sum(policy)).get(
            (at.key, at.resource), ()
        )
        if new is None:
            if not has_lapsed or isinstance(policy, RollingQuota):
                self._check_gone(commit, policy, at, entries)
        elif isinstance(policy, RollingQuota):
            check_quota(commit, policy, at, new, entries)
        elif isinstance(policy, Surge):
            self._check_surge(commit, policy, at, new, entries)
        elif isinstance(policy, Compared):
            is_new = old is None or has_lapsed
            self._check_share(commit, policy, at, new, is_new=is_new, entries=entries)

    def _check_gone(self, commit: Commit, policy: Policy, at: LockKey, entries: Sequence[Entry]) -> None:
        if at in commit.held_off:
            return
        if isinstance(policy, Surge):
            raise Wrong(f"{at}: gone before its time")
        if isinstance(policy, RollingQuota):
            if (used := exact(policy, entries, commit.now_s)) >= policy.locks_at:
                raise Wrong(f"{at}: gone, and {used} of {policy.limit} used")
        elif isinstance(policy, Compared):
            self.seen["releases"] += 1
            marks = self._marks(commit, policy, at, entries)
            if exact(policy, entries, commit.now_s) and marks.must_stay:
                raise Wrong(f"{at}: cleared above its release, {marks}")

    def _check_surge(
        self, commit: Commit, policy: Surge, at: LockKey, lock: SeenLock, entries: Sequence[Entry]
    ) -> None:
        now_s, rolling = lock.began_ms // 1000, policy.window
        used = at_most(policy, entries, now_s)
        if used < policy.limit:
            raise Wrong(f"{at}: not earned by {used} of {policy.limit} in a window")
        if parse_grouping(policy.per).scope == "range":
            others = used - max(
                by_address(inside(entries, now_s - rolling.period_s, now_s)).values(), default=0
            )
            if 2 * others < policy.limit:
                raise Wrong(f"{at}: not earned by {others} of {policy.limit} of the other addresses")
        if not commit.has_slept and max(commit.missing_s, default=0.0) > rolling.period_s + FLUSH_S_MAX:
            raise Wrong(f"{at}: set by a flush that is {max(commit.missing_s)} s behind")
        began_ms, until_ms = lock.began_ms, lock.until_ms
        since_ms = began_ms - policy.forget_after_s * 1000
        offence = 1 + sum(since_ms < ended_ms <= began_ms for ended_ms in self.state.ended[at])
        self.seen["further offences"] += offence > 1
        lasts_ms = policy.lock_for_s[min(offence, len(policy.lock_for_s)) - 1] * 1000
        latest_s = max(one.at_s for one in entries) + rolling.period_s + 2 * rolling.slot_s
        if not began_ms + lasts_ms <= until_ms <= max(began_ms + lasts_ms, latest_s * 1000):
            raise Wrong(f"{at}: offence {offence} lasts {until_ms - began_ms} ms, and not {lasts_ms}")

    def _check_share(
        self,
        commit: Commit,
        policy: Compared,
        at: LockKey,
        lock: SeenLock,
        *,
        is_new: bool,
        entries: Sequence[Entry],
    ) -> None:
        if lock.until_ms > commit.now_ms + SHARE_LOCK_S * 1000:
            raise Wrong(f"{at}: {lock} lasts for more than {SHARE_LOCK_S} s after its look")
        marks = self._marks(commit, policy, at, entries)
        load = widest(policy, entries, commit.now_s)
        if not is_new:
            if not load or marks.must_end:
                raise Wrong(f"{at}: extended below its release, with {load}, {marks}")
            return
        if load < policy.floor or not marks.may_be_over:
            raise Wrong(f"{at}: not earned by {load}, {marks}, floor {policy.floor}")
        over = self.state.over.get(at)
        held_ms = commit.now_ms - over.since_ms if over is not None else 0
        if policy.hold_s and (over is None or held_ms < policy.hold_s * 1000):
            raise Wrong(f"{at}: set after {held_ms} ms above its limit, not {policy.hold_s} s")
        if isinstance(policy, CapacityShare) and (wrong := self._wrong_choice(commit, policy, at)):
            raise Wrong(f"{at}: {wrong}")
        behind_s = max(commit.missing_anywhere_s, default=0.0)
        if not commit.has_slept and behind_s > max(policy.window.slot_s, 5) + FLUSH_S_MAX:
            raise Wrong(f"{at}: set by a warden that is {behind_s} s behind")

    def _check_holds(self, commit: Commit, names: Mapping[str, Policy], skipped: Collection[str]) -> None:
        """Each row says since when every look has found the series above its limit."""
        state = self.state
        before, state.over = state.over, {}
        for at, found in commit.holds.items():
            policy, known = names.get(at.policy), before.get(at)
            state.over[at] = found
            if policy is None or found == known:
                continue
            self.seen["holds"] += known is None
            is_look = found.seen_ms == commit.now_ms
            has_gap = known is None or found.seen_ms - known.seen_ms > LOOK_GAP_S * 1000
            since_ms = found.seen_ms if known is None or has_gap else known.since_ms
            if not is_look or found.since_ms != since_ms:
                raise Wrong(f"{at}: held as {found}, and before as {known}")
            assert isinstance(policy, Compared)
            if at.policy not in skipped and not self._may_be_over(commit, policy, at):
                raise Wrong(f"{at}: held, and not above its share")

    def _check_notices(
        self,
        commit: Commit,
        history: Mapping[Sum, Mapping[Series, Sequence[Entry]]],
        names: Mapping[str, Policy],
        skipped: Collection[str],
    ) -> None:
        """Checks the notices that were raised, and those that have ended."""
        policies = {
            name: policy
            for name, policy in names.items()
            if isinstance(policy, RollingQuota) and name not in skipped
        }

        def sums(policy: RollingQuota, series: Series, at_s: int) -> tuple[int, int]:
            entries = entries_of(self.state, history, policy_kind(policy).judged_sum(policy)).get(series, ())
            return exact(policy, entries, at_s), at_most(policy, entries, at_s)

        if wrong := wrong_notices(self.state.notices, commit, policies, sums):
            raise Wrong(wrong)
        self.seen["notices that end"] += sum(
            one.until_s != LASTS_S == self.state.notices.get(at, one).until_s
            for at, one in commit.notices.items()
        )
        self.state.notices = dict(commit.notices)

    def _wrong_choice(self, commit: Commit, policy: CapacityShare, at: LockKey) -> str:
        """Returns why a capacity should not have locked this series in this commit; "" if it should."""
        loads = self._loads(policy, at.resource)
        held = {
            one
            for one, over in self.state.over.items()
            if commit.now_ms - over.since_ms >= policy.hold_s * 1000
        }
        locks = capacity_truth.Locks(self._locked_before, commit.locks.keys(), held - {*commit.held_off})
        whole = self._whole(commit.plan, policy, at)
        return capacity_truth.wrong_choice(policy, at, whole, loads, locks, commit.now_s)

    def _loads(self, policy: CapacityShare, resource: str) -> dict[LockKey, Sequence[Entry]]:
        """Returns the records of each series of a resource."""
        entries = self.state.entries[policy_kind(policy).judged_sum(policy)]
        return {key_of(policy, series): of for series, of in entries.items() if series[1] == resource}

    def _may_be_over(self, commit: Commit, policy: Compared, at: LockKey) -> bool:
        entries = self.state.entries[policy_kind(policy).judged_sum(policy)].get((at.key, at.resource), ())
        is_heavy = widest(policy, entries, commit.now_s) >= policy.floor
        return is_heavy and self._marks(commit, policy, at, entries).may_be_over

    def _marks(self, commit: Commit, policy: Compared, at: LockKey, entries: Sequence[Entry]) -> Marks:
        per_hour = commit.usual.get((policy_kind(policy).judged_sum(policy), (at.key, at.resource)))
        whole = () if isinstance(policy, UsualShare) else self._whole(commit.plan, policy, at)
        return marks_of(policy, entries, whole, per_hour, commit.now_s)

    def _whole(self, plan: Plan, policy: LoadShare | CapacityShare, at: LockKey) -> Sequence[Entry]:
        sum_ = plan_sums(plan).wholes_by_sum[policy_kind(policy).judged_sum(policy)]
        key = at.resource if sum_.grouping == "resource" else ""
        return self.state.entries[sum_].get((key, ""), ())

    def _check_locked(self, commit: Commit, policy: Policy, series: Series, entries: Sequence[Entry]) -> None:
        """Checks that a series that has grown has the lock that it has earned, or waits for it."""
        if reason := must_be_locked(policy, entries, commit.now_s):
            at = key_of(policy, series)
            name = sum_name(policy_kind(policy).judged_sum(policy))
            is_waiting = isinstance(policy, Surge) and (name, *series) in commit.waiting
            self.seen["judgements that wait"] += is_waiting
            if isinstance(policy, RollingQuota) and has_grace(policy):
                is_waiting = (name, *series) in commit.waiting
            if at not in commit.locks and not is_waiting and at not in commit.held_off:
                raise Wrong(f"{at}: {reason}, and no lock")

    # -- at rest ---------------------------------------------------------------------------------

    def unfinished(self, commit: Commit, history: Mapping[Sum, Mapping[Series, Sequence[Entry]]]) -> str:
        """Returns a lock that is missing or stays too long, though nothing happens any more; "" if none."""
        for policy in rolling_policies(commit.plan):
            if policy.name in commit.unready:
                continue
            sum_ = policy_kind(policy).judged_sum(policy)
            if isinstance(policy, RollingQuota) and sum_ not in history:
                most = {
                    series: at_most(policy, entries, commit.now_s)
                    for series, entries in self.state.entries[sum_].items()
                }
                if lasting := lasting_notice(commit, policy, sum_text(sum_), most):
                    return lasting
            for series, entries in entries_of(self.state, history, sum_).items():
                at = key_of(policy, series)
                if at in commit.held_off:
                    wrong = ""
                elif isinstance(policy, Compared):
                    wrong = self._unfinished_share(commit, policy, at, entries)
                elif at in commit.locks or sum_ in history:
                    wrong = ""  # ends by its time; or has records from before the sum
                else:
                    wrong = must_be_locked(policy, entries, commit.now_s)
                if wrong:
                    return f"{at}: {wrong}"
        return ""

    def _unfinished_share(
        self, commit: Commit, policy: Compared, at: LockKey, entries: Sequence[Entry]
    ) -> str:
        marks, now_s = self._marks(commit, policy, at, entries), commit.now_s
        if at in commit.locks:
            return f"{marks}, and still a lock" if marks.must_end else ""
        if isinstance(policy, CapacityShare):
            whole, loads = self._whole(commit.plan, policy, at), self._loads(policy, at.resource)
            locked = commit.locks.keys()
            is_over = capacity_truth.is_missing(policy, at, whole, loads, locked, now_s)
        else:
            is_over = exact(policy, entries, now_s) >= policy.floor and marks.is_over
        return f"{marks}, and no lock" if is_over else ""


def rolling_policies(plan: Plan) -> Iterator[Policy]:
    return (policy for policy in plan.policies if isinstance(policy, RollingQuota | Surge | Compared))


def entries_of(
    state: RollingState, history: Mapping[Sum, Mapping[Series, Sequence[Entry]]], sum_: Sum
) -> Mapping[Series, Sequence[Entry]]:
    return history[sum_] if sum_ in history else state.entries[sum_]


def check_quota(
    commit: Commit, policy: RollingQuota, at: LockKey, lock: SeenLock, entries: Sequence[Entry]
) -> None:
    rolling = policy.window
    if (used := at_most(policy, entries, commit.now_s)) < policy.locks_at:
        raise Wrong(f"{at}: not earned by {used} of {policy.locks_at} in a window")
    if has_grace(policy) and not is_over(commit, policy, (at.key, at.resource)):
        raise Wrong(f"{at}: set before its grace is over")
    last_s = lock.until_ms // 1000 - 1
    margin_s = rolling.slot_s + (0 if rolling.has_slots else 60)
    left = inside(entries, last_s - rolling.period_s - margin_s, last_s + margin_s)
    if value(policy, left) < policy.locks_at:
        raise Wrong(f"{at}: lasts until {lock.until_ms}, when {value(policy, left)} are left")


def must_be_locked(policy: Policy, entries: Sequence[Entry], now_s: int) -> str:
    """Returns why a series must have a lock, however its slots lie; "" if it need not."""
    used = exact(policy, entries, now_s)
    if used < (policy.locks_at if isinstance(policy, RollingQuota) else policy.limit):
        return ""
    if isinstance(policy, Surge) and parse_grouping(policy.per).scope == "range":
        by = by_address(inside(entries, now_s - policy.window.period_s, now_s))
        if 2 * (used - max(by.values())) < policy.limit:
            return ""
    return f"{used} of {policy.limit} used"


def key_of(policy: Policy, series: Series) -> LockKey:
    return LockKey(parse_grouping(policy.per).scope, *series, policy.name)


def sum_name(sum_: Sum) -> str:
    """The name of a sum in the catalog."""
    role = f" {sum_.role}" if sum_.role else ""
    return f"{sum_.grouping} {sum_.meter} {sum_.window}{role}"
