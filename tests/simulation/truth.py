"""The truth about counts, ledger, totals, locks and feed, from the log and what was committed.

Looks at the database after each commit. Counting and judging are written again here, record by record. From
the product it takes the plan in force and its format, the steps of an activation that are left, the windows
of the calendar, the sums and limits of policies, the catalog's names of sums, and the key of folded rows.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from kafka import TopicPartition

from analyzer.counting.counter.caller_budget import FOLDED
from analyzer.judging.activation_steps import ClearStep, decode_steps, filled_to, unready_policies
from analyzer.judging.earned_notices import NoticeKey
from analyzer.judging.kinds import policy_kind
from analyzer.judging.locks.lock_feed import MANUAL
from analyzer.judging.plan_sums import plan_sums
from analyzer.kernel.tables.table_columns import COLUMNS_PER_PAGE
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meters import DAY_S, REQUESTS, UNRECORDED
from analyzer.plan.plan import Plan, plan_from
from analyzer.plan.policies import SHADOW, Brake, Policy, Quota, base_name
from analyzer.plan.sums import Sum, sum_text
from analyzer.plan.windows import Rolling, Window, window_at
from gatekeeper.model import SUSPENSION, Cursor, LockKey
from tests.simulation.analyzers import RETENTION
from tests.simulation.database import SimulatedDatabase
from tests.simulation.kafka_log import TOPIC, Expected, Logged, Topic
from tests.simulation.ledgers import KnownIds, Ledger
from tests.simulation.policies.brake_truth import BrakeTruth, BrakeTruthState
from tests.simulation.policies.by_hand import HandState, HandTruth
from tests.simulation.policies.commits import (
    FLUSH_S_MAX,
    WAITING,
    Commit,
    LockTime,
    NoticeRow,
    StoredLock,
    Wrong,
    read_commit,
)
from tests.simulation.policies.load_marks import usual_per_hour
from tests.simulation.policies.rolling_truth import (
    Entry,
    RollingState,
    RollingTruth,
    rolling_policies,
)
from tests.simulation.policies.series import (
    Counts,
    Series,
    amount_of,
    has_all_parts,
    joined,
    series_of,
    without_keys,
)

UNREPORTED_S = 0.3  # until a heartbeat says that an analyzer is behind
LEASE_S = 6.0  # the warden's lease ends later than this only by a clock that was ahead
DELAY_MS = 120_000  # around the time of a lock, in which its verdicts are believed
LOCK_TIMES = (
    "select scope, key, resource, policy, until_ms, began_ms from locks where action in ('deny', 'slow')"
)
OFFSET_ROW = 'select partition, "next", seen, counted, duplicate, dead, late from offsets'
LOCK_ROW = "select scope, key, resource, policy, until_ms, action, began_ms from locks"

NOTICE_ROW = 'select policy, sum, "key", resource, window_s, threshold, used, "limit", at_ms from notices'
CALENDAR_NOTICE_ROW = f"{NOTICE_ROW} where sum not like '% rolling %'"


@dataclass
class Stored:
    """Everything that the database must hold; goes back with it when a dump is restored."""

    ledgers: dict[int, Ledger] = field(default_factory=dict)
    # Per grouping, key, resource, meter and day, because old buckets are joined; and per minute.
    days: Counts = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    minutes: Counts = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    totals: dict[Sum, dict[tuple[int, str, str], int]] = field(default_factory=dict)
    filled_from_s: dict[Sum, int] = field(default_factory=dict)  # the first window that is complete
    grown_s: dict[tuple[Sum, int, str, str], float] = field(default_factory=dict)  # when it last grew
    judged_s: dict[str, float] = field(default_factory=dict)  # when a policy came in force
    # With their Kafka times, by partition and offset.
    rejects: dict[tuple[int, int], tuple[int, Logged]] = field(default_factory=dict)
    # When locks were cleared, or infinity.
    lock_times: dict[LockTime, float] = field(default_factory=dict)
    notices: dict[NoticeKey, NoticeRow] = field(default_factory=dict)
    # Of calendar windows, the distinct values by the place of their total.
    values: dict[tuple[Sum, int, str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    rolling: RollingState = field(default_factory=RollingState)
    by_hand: HandState = field(default_factory=HandState)
    brakes: BrakeTruthState = field(default_factory=BrakeTruthState)
    ids: KnownIds = field(default_factory=KnownIds)
    version: Cursor = field(default_factory=lambda: Cursor(0, ""))
    plan: Plan | None = None
    plan_row: tuple[int, int] = (0, 0)


class Truth:
    """Compares the database with what must be true after each commit."""

    def __init__(self, database: SimulatedDatabase, topic: Topic) -> None:
        self.stored = Stored()
        self.order: list[Cursor] = []  # every version of the feed, in the order of the commits
        self.locks_at: dict[Cursor, frozenset[StoredLock]] = {}
        self.is_skipping = False  # an operator moves a partition over a gap
        self.is_retrying = False  # an operator retries rejected records
        self.crossed = 0  # locks that were set or changed
        self.raised: Counter[str] = Counter()  # series that were locked, by policy
        self.ended: Counter[str] = Counter()
        self.rolling = RollingTruth()
        self.by_hand = HandTruth(database)
        self.brakes = BrakeTruth(database)
        self.slept_at_s = -inf  # when all machines were suspended, by the scheduler
        self._rolling_names: set[str] = set()  # of policies, in this story so far
        self._database = database
        self._topic = topic
        self._marks: set[str] = set()
        self.stored.version = self._read_version()
        self._note_version(self.stored.version)

    # -- dumps -----------------------------------------------------------------------------------

    def old_records_came(self, now_s: float) -> None:
        """Notes that a backlog can be read: no analyzer can have said so in the next moment."""
        self.slept_at_s = max(self.slept_at_s, now_s - FLUSH_S_MAX + UNREPORTED_S)

    def copy(self) -> Stored:
        self.stored.rolling, self.stored.by_hand = self.rolling.state, self.by_hand.state
        self.stored.brakes = self.brakes.state
        return copy.deepcopy(self.stored)

    def restore(self, stored: Stored) -> None:
        self.stored = copy.deepcopy(stored)
        self.rolling.state, self.by_hand.state = self.stored.rolling, self.stored.by_hand
        self.brakes.state = self.stored.brakes
        if self.stored.version not in self.locks_at:
            raise Wrong("the dump has an unknown version")
        self.order.append(self.stored.version)

    # -- after each commit -----------------------------------------------------------------------

    def check(self) -> None:
        """Compares everything; counts if they may have changed. Raises Wrong."""
        plan, filling, unready = self._read_plan()
        if not self.is_clock_believed():
            unready = unready | {policy.name for policy in plan.policies}
        has_retried = self._read_retried(plan)
        before = {number: ledger.next for number, ledger in self.stored.ledgers.items()}
        has_moved = self._read_offsets(plan)
        if has_moved or has_retried or self._database.has_written_buckets:
            self._database.has_written_buckets = False
            self._check_counts(plan)
        self._check_rejects()
        self._check_totals(plan, filling)
        version = self._read_version()
        if version != self.stored.version:
            self._check_version(version)
            self._read_lock_times()  # behind the counts: a flush believes by the locks before it
        is_clock_believed = self.is_clock_believed()
        self.by_hand.check(is_clock_believed=is_clock_believed)
        self.brakes.check(plan, self._reached(plan), is_clock_believed=is_clock_believed)
        self._check_locks(plan, unready)
        self._check_notices(plan, unready)
        if self.stored.rolling.entries or self.stored.rolling.locks or any(rolling_policies(plan)):
            self.rolling.check(self._commit(plan, unready, before), self._history(plan))

    def unfinished(self) -> str:
        """Returns a lock of a rolling window that must come or go though nothing happens; "" if none."""
        plan, _, unready = self._read_plan()
        before = {number: ledger.next for number, ledger in self.stored.ledgers.items()}
        found = self.rolling.unfinished(self._commit(plan, unready, before), self._history(plan))
        return found or self.brakes.unfinished()

    def _commit(self, plan: Plan, unready: set[str], before: Mapping[int, int]) -> Commit:
        next_ = {number: ledger.next for number, ledger in self.stored.ledgers.items()}
        self._rolling_names |= {policy.name for policy in rolling_policies(plan)}
        slept_s = self._database.scheduler.now_s - self.slept_at_s
        found = read_commit(
            self._database, self._topic, plan, frozenset(unready), self._rolling_names, before, next_, slept_s
        )
        return found._replace(
            held_off=self.by_hand.held_off(found.now_ms), usual=self._usual(plan, found.now_s)
        )

    def _usual(self, plan: Plan, now_s: int) -> dict[tuple[Sum, Series], int | None]:
        """Returns the usual loads of the series of policies that compare with them."""
        found: dict[tuple[Sum, Series], int | None] = {}
        for sum_ in plan_sums(plan).with_usual:
            minutes: dict[Series, list[tuple[int, int]]] = defaultdict(list)
            for (grouping, key, resource, meter, minute_s), (amount, _) in self.stored.minutes.items():
                if (grouping, meter) == (sum_.grouping, sum_.meter):
                    minutes[key, resource].append((minute_s, amount))
            found |= {(sum_, series): usual_per_hour(of, now_s) for series, of in minutes.items()}
        return found

    def _history(self, plan: Plan) -> dict[Sum, dict[Series, list[Entry]]]:
        """Returns the records of windows of more than an hour, minute by minute."""
        found: dict[Sum, dict[Series, list[Entry]]] = {}
        for sum_ in plan_sums(plan).policies_by_sum:
            if isinstance(sum_.window, Rolling) and not sum_.window.has_slots:
                found[sum_] = by_series = defaultdict(list)
                for (grouping, key, resource, meter, minute_s), (value, _) in self.stored.minutes.items():
                    is_of_sum = (grouping, meter) == (sum_.grouping, sum_.meter)
                    if is_of_sum and value and has_all_parts(grouping, (key, resource)):
                        by_series[key, resource].append(Entry(minute_s, value, ""))
        return found

    def check_rest(self) -> None:
        """Compares all counts and rejected records when nothing happens any more. Raises Wrong."""
        self._check_counts(self.stored.plan or Plan())
        self._check_rejects()

    def _read_plan(self) -> tuple[Plan, set[Sum], set[str]]:
        """Returns the plan in force, the sums that are being filled, and the unready policies.

        Locks of unready policies need not agree with the plan yet.
        """
        rows = self._database.read("select version, at_ms, body, pending from plans where active = 1")
        if not rows:
            return Plan(), set(), set()
        [(number, at_ms, body, pending)] = rows
        stored = self.stored
        if (number, at_ms) != stored.plan_row:
            stored.plan_row = number, at_ms
            self._change_plan(plan_from(body), min(at_ms / 1000, self._true_s))
        plan = stored.plan
        assert plan is not None
        steps, names = decode_steps(pending), self._sum_numbers()
        numbers = {sum_: names[sum_text(sum_)] for sum_ in plan_sums(plan).policies_by_sum}
        cleared = {name for step in steps if isinstance(step, ClearStep) for name in step.policies}
        return plan, set(filled_to(steps, numbers)), cleared | set(unready_policies(steps, plan, numbers))

    def _change_plan(self, plan: Plan, at_s: float) -> None:
        stored, before = self.stored, self.stored.plan or Plan()
        self.rolling.change_plan(plan)
        for sum_ in plan_sums(before).policies_by_sum.keys() - plan_sums(plan).policies_by_sum.keys():
            del stored.totals[sum_], stored.filled_from_s[sum_]
            stored.values = defaultdict(set, {at: v for at, v in stored.values.items() if at[0] != sum_})
        for sum_ in plan_sums(plan).policies_by_sum.keys() - plan_sums(before).policies_by_sum.keys():
            newest_s = max((at[4] for at in stored.minutes), default=int(at_s))
            start_s = window_at(sum_.window, min(int(at_s), newest_s)).start_s
            stored.filled_from_s[sum_] = start_s
            stored.totals[sum_] = found = {}
            if isinstance(sum_.window, Rolling) or sum_.join == "distinct":
                continue  # they begin empty
            for (grouping, key, resource, meter, minute_s), (value, _) in stored.minutes.items():
                is_of_sum = (grouping, meter) == (sum_.grouping, sum_.meter)
                if is_of_sum and minute_s >= start_s and value and has_all_parts(grouping, (key, resource)):
                    at = window_at(sum_.window, minute_s).start_s, key, resource
                    found[at] = joined(sum_, found.get(at, 0), value)
        for policy in plan.policies:
            if before.policy(policy.name) != policy:
                stored.judged_s[policy.name] = at_s
        stored.plan = plan

    def _sum_numbers(self) -> dict[str, int]:
        return dict(self._database.read("select name, number from catalog where kind = 'sum'"))

    @property
    def _now_s(self) -> float:
        return round(self._database.clock_s() * 1000) / 1000

    @property
    def _true_s(self) -> float:
        """The time, also while the database's clock is ahead."""
        return round(self._database.wall_s() * 1000) / 1000

    def is_clock_believed(self) -> bool:
        """Whether no warden has worked by a clock that was ahead, without knowing it by now."""
        warden = "select coalesce(max(until_ms), 0) from leases where name = 'warden'"
        [[until_ms]] = self._database.read(warden)
        return bool(until_ms <= (self._true_s + LEASE_S) * 1000)

    # -- counting --------------------------------------------------------------------------------

    def _read_offsets(self, plan: Plan) -> bool:
        """Counts the records between the offsets before and now; returns whether there were any."""
        has_moved = False
        rows = self._database.read(OFFSET_ROW)
        for number, next_, seen, counted, duplicate, dead, late in rows:
            log = self._topic.logs[TopicPartition(TOPIC, number)]
            ledger = self.stored.ledgers.setdefault(number, Ledger(next=next_))
            if next_ < ledger.next:
                raise Wrong(f"partition {number} went back from {ledger.next} to {next_}")
            if next_ > ledger.next and not self.is_skipping:
                has_moved = True
                for at, kafka_ms, record in log.records(ledger.next, next_):
                    ledger.seen += 1
                    if record.expected is None:
                        ledger.dead += 1
                        self.stored.rejects[number, at] = kafka_ms, record
                    elif self.stored.ids.is_repeated(plan, number, record.expected, kafka_ms):
                        ledger.duplicate += 1
                    else:
                        ledger.counted += 1
                        self._count(plan, record.expected, kafka_ms)
            ledger.next = next_
            found = Ledger(next_, seen, counted, dead, duplicate)
            if found != ledger or seen != counted + duplicate + dead + late:
                raise Wrong(f"partition {number}: the ledger is {found}, and must be {ledger}")
        return has_moved

    def _read_retried(self, plan: Plan) -> bool:
        """Counts rejected records that were retried; returns whether there were any."""
        if not self.is_retrying:
            return False
        gone = self.stored.rejects.keys() - self._read_rejects()
        for number, at in gone:
            kafka_ms, record = self.stored.rejects.pop((number, at))
            if record.corrected is None:
                raise Wrong(f"the record at {at} of partition {number} cannot be read, and is not rejected")
            self.stored.ledgers[number].dead -= 1
            self.stored.ledgers[number].counted += 1
            self._count(plan, record.corrected, kafka_ms)
        return bool(gone)

    def _read_rejects(self) -> set[tuple[int, int]]:
        return {(row[0], row[1]) for row in self._database.read('select partition, "offset" from rejects')}

    def _check_rejects(self) -> None:
        if (found := self._read_rejects()) != self.stored.rejects.keys():
            raise Wrong(f"rejected records, found: {found}, expected: {set(self.stored.rejects)}")

    def _is_believed(self, plan: Plan, request: Expected, kafka_ms: int) -> bool:
        """Whether a lock supports what the record says: that a gate denied the request."""
        places = {
            (parse_grouping(grouping).scope, *series_of(grouping, request)) for grouping in plan.groupings
        }
        minutes_ms = [ms // 60_000 * 60_000 for ms in (request.at_s * 1000, kafka_ms)]
        return any(
            lock.at[:3] in places
            and request.policy in ("", lock.at.policy)
            and lock.began_ms < minute_ms + 60_000 + DELAY_MS
            and minute_ms <= min(lock.until_ms, cleared_ms) + DELAY_MS
            for lock, cleared_ms in self.stored.lock_times.items()
            for minute_ms in minutes_ms
        )

    def _read_lock_times(self) -> None:
        times = self.stored.lock_times
        present = {LockTime(LockKey(*row[:4]), *row[4:]) for row in self._database.read(LOCK_TIMES)}
        for lock, cleared_ms in times.items():
            if lock not in present and cleared_ms == inf:
                times[lock] = self._now_s * 1000
        times.update(dict.fromkeys(present, inf))

    def _count(self, plan: Plan, request: Expected, kafka_ms: int) -> None:
        is_denied = request.is_denied and self._is_believed(plan, request, kafka_ms)
        self._count_in_buckets(plan, request, is_denied=is_denied)
        if is_denied:
            return
        for sum_ in {*self.stored.totals, *plan_sums(plan).wholes_by_sum.values()}:
            series = series_of(sum_.grouping, request)
            # Values of requests that a record calls denied are not looked at, believed or not.
            is_left_out = sum_.join == "distinct" and request.is_denied
            if is_left_out or not has_all_parts(sum_.grouping, series):
                continue
            if isinstance(sum_.window, Rolling):
                entry = Entry(request.at_s, amount_of(sum_.meter, request), request.address)
                self.rolling.count(sum_, series, entry, int(self._now_s))
            else:
                self._add_to_total(plan, sum_, series, request)

    def _count_in_buckets(self, plan: Plan, request: Expected, *, is_denied: bool) -> None:
        stored, place = self.stored, int(is_denied)
        meters = [meter for meter in (*plan.meters, UNRECORDED) if meter.join != "distinct"]
        for grouping in plan.groupings:
            key, resource = series_of(grouping, request)
            for meter in meters:
                amount = amount_of(meter.name, request)
                for counts, width_s in ((stored.days, DAY_S), (stored.minutes, 60)):
                    at = grouping, key, resource, meter.name, request.at_s // width_s * width_s
                    before = counts[at][place]
                    counts[at][place] = max(before, amount) if meter.join == "max" else before + amount

    def _add_to_total(self, plan: Plan, sum_: Sum, series: Series, request: Expected) -> None:
        stored = self.stored
        totals, at = stored.totals[sum_], (window_at(sum_.window, request.at_s).start_s, *series)
        if sum_.join == "distinct":
            values = stored.values[sum_, *at]
            most = 1 + max(policy.limit for policy in plan_sums(plan).policies_by_sum[sum_])  # are kept
            if len(values) < most:
                values.add(request.address)
            totals[at] = len(values)
        else:
            totals[at] = joined(sum_, totals.get(at, 0), amount_of(sum_.meter, request))
        stored.grown_s[sum_, *at] = self._true_s

    def _check_counts(self, plan: Plan) -> None:
        names = {number: name for name, number in self._database.read(
            "select name, number from catalog where kind = 'grouping'")}  # fmt: skip
        meters = {number: (name, join) for name, number, join in self._database.read(
            'select name, number, "join" from catalog where kind = \'meter\'')}  # fmt: skip
        [requests] = [number for number, (name, _) in meters.items() if name == REQUESTS.name]
        shown = {meter.name for meter in (*plan.meters, UNRECORDED) if meter.join != "distinct"}
        found: Counts = defaultdict(lambda: [0, 0])
        folded_days: set[tuple[str, int]] = set()
        for grouping, page, width_s, bucket_s, *values, key, resource in self._database.read(
            "select * from buckets"
        ):
            if key == FOLDED:
                folded_days.add((names[grouping], bucket_s // DAY_S * DAY_S))
            for place in range(COLUMNS_PER_PAGE):
                amounts = values[place] or 0, values[COLUMNS_PER_PAGE + place] or 0
                if any(amounts):
                    name, join = meters[page * COLUMNS_PER_PAGE + place]
                    at = names[grouping], key, resource, name, bucket_s // DAY_S * DAY_S
                    found[at] = [
                        max(pair) if join == "max" else sum(pair)
                        for pair in zip(found[at], amounts, strict=True)
                    ]
            is_whole = bucket_s >= self._now_s - RETENTION.minutes_s  # older minutes may be joined in part
            if width_s == 60 and is_whole and page == requests // COLUMNS_PER_PAGE:
                place = requests % COLUMNS_PER_PAGE
                self._check_minute(
                    names[grouping], key, resource, bucket_s, values[place], values[COLUMNS_PER_PAGE + place]
                )
        expected = self.stored.days
        if folded_days:
            found, expected = without_keys(found, folded_days), without_keys(expected, folded_days)
        wrong = {
            at: (found.get(at), expected.get(at))
            for at in found.keys() | expected.keys()
            if at[3] in shown and (found.get(at) or [0, 0]) != (expected.get(at) or [0, 0])
        }
        if wrong:
            raise Wrong(f"counts, found and expected: {dict(sorted(wrong.items())[:4])}")

    def _check_minute(
        self, grouping: str, key: str, resource: str, minute_s: int, value: int | None, denied: int | None
    ) -> None:
        expected = self.stored.minutes.get((grouping, key, resource, REQUESTS.name, minute_s), [0, 0])
        if [value or 0, denied or 0] != expected:
            raise Wrong(f"{grouping} {key} at {minute_s}: {value}, {denied}, and must be {expected}")

    # -- totals and locks ------------------------------------------------------------------------

    def _check_totals(self, plan: Plan, filling: set[Sum]) -> None:
        found: dict[int, dict[tuple[int, str, str], int]] = {}
        for number, window_s, key, resource, used in self._database.read(
            "select sum, window_s, key, resource, used from totals"
        ):
            found.setdefault(number, {})[window_s, key, resource] = used
        numbers = self._sum_numbers()
        for sum_ in plan_sums(plan).policies_by_sum.keys() - filling:
            expected = self.stored.totals[sum_]
            oldest_s = max(self.stored.filled_from_s[sum_], self._now_s - DAY_S)
            stored = found.get(numbers[sum_text(sum_)], {})
            for at in stored.keys() | expected.keys():
                if at[0] >= oldest_s and stored.get(at, 0) != expected.get(at, 0):
                    raise Wrong(f"total {sum_} {at}: {stored.get(at)}, and must be {expected.get(at)}")

    def _check_locks(self, plan: Plan, unready: set[str]) -> None:
        now_s = self._now_s
        present = {lock.at: lock for lock in self._read_locks()}
        own = self._own_limits()
        held_off = self.by_hand.held_off(round(now_s * 1000))
        # A lock whose hold-off or brake has ended is set by the warden's next look at what waits.
        has_brakes = any(isinstance(one.brake, Brake) for one in plan.policies)
        is_needed = has_brakes or self.by_hand.state.has_cleared
        waiting = set(self._database.read(WAITING)) if is_needed else set()
        for policy in calendar_policies(plan):
            if policy.name in unready:
                continue
            sum_ = sum_of(policy)
            window = window_at(policy.window, int(now_s))
            for (window_s, key, resource), used in self.stored.totals[sum_].items():
                limit = own.get((base_name(policy.name), key), policy.limit)
                if window_s != window.start_s or used < limit:
                    continue
                at = LockKey(parse_grouping(sum_.grouping).scope, key, resource, policy.name)
                # A window that began after its total last grew has not been judged since.
                judged_s = max(
                    self.stored.grown_s.get((sum_, window_s, key, resource), 0.0),
                    self.stored.judged_s[policy.name],
                )
                lock = present.get(at)
                is_set = lock is not None and lock.until_ms >= window.until_s * 1000
                waits = at in held_off or (sum_text(sum_), key, resource) in waiting
                if not is_set and not waits and judged_s >= window.start_s:
                    raise Wrong(f"{at}: {used} of {limit} used, and the lock is {lock}")
        self._check_no_other(plan, unready, present.values(), now_s)

    def _reached(self, plan: Plan) -> dict[str, int]:
        """Returns how many series are at their limit in the present window, by policy."""
        own, now_s = self._own_limits(), int(self._now_s)
        return {
            policy.name: sum(
                window_s == window_at(policy.window, now_s).start_s
                and used >= own.get((base_name(policy.name), key), policy.limit)
                for (window_s, key, _), used in self.stored.totals[sum_of(policy)].items()
            )
            for policy in calendar_policies(plan)
        }

    def _own_limits(self) -> dict[tuple[str, str], int]:
        """Returns the limits of callers with overrides, by policy and caller: the latest holds."""
        rows = self._database.read(
            "select policy, subject, amount from overrides where state = 'in force' order by from_ms, id"
        )
        return {(policy, subject): amount for policy, subject, amount in rows}

    def _check_no_other(
        self, plan: Plan, unready: set[str], present: Iterable[StoredLock], now_s: float
    ) -> None:
        own = self._own_limits()
        for lock in present:
            if (
                lock.at == SUSPENSION
                or lock.at.policy == MANUAL
                or lock.until_ms <= now_s * 1000
                or lock.at.policy in unready
            ):
                continue
            policy = plan.policy(lock.at.policy)
            if policy is None:
                raise Wrong(f"a lock of a policy that is not in force: {lock}")
            action = SHADOW if policy.is_shadow else policy.action
            if lock.action not in self.brakes.actions(policy.name, action):
                raise Wrong(f"{lock}: the action must be {action}")
            if not isinstance(policy, Quota):
                continue
            sum_ = sum_of(policy)
            window: Window = window_at(policy.window, int(now_s))
            used = self.stored.totals[sum_].get((window.start_s, lock.at.key, lock.at.resource), 0)
            limit = own.get((base_name(lock.at.policy), lock.at.key), policy.limit)
            is_earned = used >= limit and lock.until_ms == window.until_s * 1000
            if not is_earned:
                raise Wrong(f"{lock}: not earned by {used} of {limit}, window {window}")

    # -- notices ---------------------------------------------------------------------------------

    def _check_notices(self, plan: Plan, unready: set[str]) -> None:
        """Each threshold was raised once, in the transaction in which its total reached it."""
        before = self.stored.notices
        found = {NoticeKey(*row[:6]): NoticeRow(*row[6:]) for row in self._database.read(CALENDAR_NOTICE_ROW)}
        if wrong := [at for at, row in before.items() if found.get(at) != row]:
            raise Wrong(f"a notice is gone, or was raised again: {wrong}")
        own = self._own_limits()
        sums = {sum_text(sum_): sum_ for sum_ in plan_sums(plan).policies_by_sum}
        for at in found.keys() - before.keys():
            policy, row = plan.policy(at.policy), found[at]
            used = self.stored.totals.get(sums[at.sum], {}).get((at.window_s, at.key, at.resource), 0)
            assert isinstance(policy, Quota)
            limit = own.get((base_name(at.policy), at.key), policy.limit)
            is_reached = row.used == used and used * 1_000 >= limit * at.threshold
            if not is_reached or at.threshold not in policy.thresholds or row.limit != limit:
                raise Wrong(f"a notice that is not earned: {at}, {row}; {used} of {limit} used")
        self.stored.notices = found
        now_s = self._now_s
        for policy in calendar_policies(plan):
            sum_, window = sum_of(policy), window_at(policy.window, int(now_s))
            if policy.name in unready or not policy.thresholds:
                continue
            for (window_s, key, resource), used in self.stored.totals[sum_].items():
                judged_s = max(
                    self.stored.grown_s.get((sum_, window_s, key, resource), 0.0),
                    self.stored.judged_s[policy.name],
                )
                if window_s != window.start_s or judged_s < window_s:
                    continue
                limit = own.get((base_name(policy.name), key), policy.limit)
                for threshold in policy.thresholds:
                    at = NoticeKey(policy.name, sum_text(sum_), key, resource, window_s, threshold)
                    if used * 1_000 >= limit * threshold and at not in found:
                        raise Wrong(f"no notice of {at}: {used} of {limit} used")

    # -- the feed --------------------------------------------------------------------------------

    def _read_version(self) -> Cursor:
        [row] = self._database.read("select version, mark from feed")
        return Cursor(*row)

    def _read_locks(self) -> list[StoredLock]:
        return [StoredLock(LockKey(*row[:4]), *row[4:]) for row in self._database.read(LOCK_ROW)]

    def _check_version(self, version: Cursor) -> None:
        before = self.stored.version
        if version.version != before.version + 1:
            raise Wrong(f"the feed went from {before} to {version} in one transaction")
        if version.mark in self._marks:
            raise Wrong(f"the mark of {version} was used before")
        self.stored.version = version
        self._note_version(version)

    def _note_version(self, version: Cursor) -> None:
        before = self.locks_at.get(self.order[-1], frozenset()) if self.order else frozenset()
        now = frozenset(self._read_locks())
        self.crossed += len(now - before)
        old, new = {lock.at for lock in before}, {lock.at for lock in now}
        self.raised.update(at.policy for at in new - old)
        self.ended.update(at.policy for at in old - new)
        self._marks.add(version.mark)
        self.order.append(version)
        self.locks_at[version] = now


def calendar_policies(plan: Plan) -> Iterator[Quota]:
    return (policy for policy in plan.policies if isinstance(policy, Quota))


def sum_of(policy: Policy) -> Sum:
    return policy_kind(policy).judged_sum(policy)
