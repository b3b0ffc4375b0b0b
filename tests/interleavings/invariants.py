"""The conditions that hold after every order, read from the tables and compared with the slow judgement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from msgspec import UnsetType

from analyzer.callers.forgetting.forget_caller import ForgottenCaller
from analyzer.counting.counter.caller_budget import FOLDED, NOT_CALLERS
from analyzer.counting.records.forgotten_callers import reference_in
from analyzer.judging.activation_steps import decode_steps, filled_to
from analyzer.judging.kinds.compared import LOCK_S, MILLION
from analyzer.judging.locks.lock_feed import MANUAL, NOT_ENFORCED
from analyzer.judging.plan_sums import plan_sums
from analyzer.maintenance.job_runner import RunEnd
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meters import DAY_S
from analyzer.plan.plan import Plan, plan_from
from analyzer.plan.policies import LoadShare, Quota, Surge
from analyzer.plan.sums import sum_text
from analyzer.plan.windows import Rolling, window_at
from gatekeeper.model import SUSPENSION, WITHOUT_END, Set, Update
from tests.interleavings.worlds import (
    BOB,
    JOB,
    JOB_ROWS,
    NOW_S,
    RARE,
    RUN_OWNER,
    Counted,
    Row,
    State,
    World,
    of_callers,
)
from tests.oracle.slow_judging import Flush, crossings

LOCK = ("scope", "key", "resource", "policy")
WITH_GAP = 2  # the partition whose offset an operator moves
ExpectedLock = tuple[str, str, str, datetime, str, str]  # policy, key, resource, end, scope, action
RAREST = (*RARE, FOLDED)


def plan_in_force(state: State) -> Plan:
    (row,) = [row for row in state["plans"] if row["active"]]
    return plan_from(row["body"])


def named_again(state: State, outcomes: Mapping[str, object]) -> State:
    """Returns the rows with the names of callers that were forgotten in place of their pseudonyms.

    Checks that no row has such a name any more.
    """
    pseudonyms = {one.pseudonym for one in outcomes.values() if isinstance(one, ForgottenCaller)}
    if not pseudonyms:
        return state
    left = {table for table, rows in state.items() for row in rows if BOB in map(str, row.values())}
    assert not left, f"the name of a forgotten caller is still in {left}"

    def named(row: Row) -> Row:
        return {name: BOB if value in pseudonyms else value for name, value in row.items()}

    found = {table: [*map(named, rows)] for table, rows in state.items()}
    found["referenced_names"] += [{"reference": reference_in(one), "name": BOB} for one in pseudonyms]
    return found


def has_pending_steps(state: State) -> bool:
    return any(row["active"] and row["pending"] for row in state["plans"])


def has_waiting(state: State, now_ms: int) -> bool:
    """Whether the time of a total that waits for the warden has come, by a plan with rolling windows.

    What waits for a calendar window to begin is judged by flushes alone in the slow judgement.
    """
    has_rolling = any(
        isinstance(sum_.window, Rolling) for sum_ in plan_sums(plan_in_force(state)).policies_by_sum
    )
    return has_rolling and any(row["due_ms"] <= now_ms for row in state["postponed"])


def has_braked(state: State) -> bool:
    """Whether the warden has to turn locks of a policy to shadow."""
    return any(row["is_clearing"] for row in state["brakes"])


def check_brakes(state: State) -> None:
    """Checks that no more locks began in the interval of a brake than it allows, and that it counts these."""
    plan = plan_in_force(state)
    assert {row["policy"] for row in state["brakes"]} == {policy.name for policy in plan.policies}
    for row in state["brakes"]:
        policy = plan.policy(row["policy"])
        if policy is None or isinstance(policy.brake, UnsetType):
            continue
        began = [
            lock
            for lock in state["locks"]
            if (lock["policy"], lock["action"]) == (policy.name, "deny")
            and lock["began_ms"] >= row["interval_ms"] > 0
        ]
        assert row["locks"] <= policy.brake.callers, "beyond the bound"
        if row["released_ms"] is None:
            assert len(began) <= row["locks"], f"{len(began)} locks began, {row['locks']} are counted"
        shown = {lock["action"] for lock in state["locks"] if lock["policy"] == policy.name}
        assert row["braked_ms"] is None or "deny" not in shown, "a braked policy locks"


def with_brakes(state: State, locks: set[ExpectedLock], found: set[ExpectedLock]) -> set[ExpectedLock]:
    """Returns the locks as brakes have them: those of a braked policy in shadow, and none that wait."""
    in_shadow = {row["policy"] for row in state["brakes"] if row["braked_ms"] is not None}
    expected = {(*lock[:5], "shadow") if lock[0] in in_shadow else lock for lock in locks}
    stated = {p.name for p in plan_in_force(state).policies if not isinstance(p.brake, UnsetType)}
    waiting = {(row["key"], row["resource"]) for row in state["postponed"]}
    missing = {lock for lock in expected - found if lock[0] in stated and lock[1:3] in waiting}
    return expected - missing


def check_counts(world: World, state: State, counted: Sequence[Counted]) -> None:
    """Checks that offsets, ledgers, days and buckets hold the history and `counted`, each once."""
    before = {row["partition"]: row for row in world.state["offsets"]}
    dead = Counter(row["partition"] for row in state["rejects"])
    for row in state["offsets"]:
        at = row["partition"]
        assert row["seen"] == row["counted"] + row["duplicate"] + row["dead"] + row["late"], row
        added = sum(r.value for c in counted if c.part.number == at for r in of_callers(c.rows))
        if at in before:
            moved = row["next"] - before[at]["next"]
            is_whole = moved == row["seen"] - before[at]["seen"] or at == WITH_GAP
            assert is_whole, f"partition {at}: more records were seen than its offset has moved"
            assert row["counted"] == before[at]["counted"] + added, f"partition {at}: counted"
        assert row["dead"] + row["late"] == dead[at], f"partition {at}: rejected"
    days, in_buckets = Counter[int](), Counter[int]()
    for row in state["day_counts"]:
        days[row["day_s"]] += row["requests"]
    callers = number_of(state, "grouping", "caller")
    by_callers = [row for row in state["buckets"] if row["grouping"] == callers]
    for row in by_callers:
        in_buckets[row["bucket_s"] // DAY_S * DAY_S] += row["value_0"]
    deleted = {row["day_s"] for row in state["proofs"] if row["deleted"]}
    assert sum(days.values()) == sum(row["counted"] for row in state["offsets"]), "requests of all days"
    differing = {day for day in days if days[day] != in_buckets[day]} - deleted
    assert not differing, f"days whose buckets differ from what was counted: {differing}"
    found, expected = by_caller(by_callers, deleted), expected_by_caller(world, counted, deleted)
    assert found == expected, f"counted too much: {found - expected}, too little: {expected - found}"


def check_days(state: State) -> None:
    """Checks that frozen rows and adjustments of each closed day hold what its buckets do, and in each zone
    one day is open, the last."""
    names = {row["reference"]: row["name"] for row in state["referenced_names"]}
    by_zone: dict[str, list[Row]] = {}
    for day in sorted(state["days"], key=lambda day: int(day["begin_s"])):
        by_zone.setdefault(day["zone"], []).append(day)
    for zone, found in by_zone.items():
        states = [day["state"] for day in found]
        assert states.index("open") == len(states) - 1, f"days of {zone}: {states}"
    callers = number_of(state, "grouping", "caller")
    for day in (day for day in state["days"] if day["state"] == "closed"):
        expected, booked = Counter[str](), Counter[str]()
        for row in state["buckets"]:
            if row["grouping"] == callers and day["begin_s"] <= row["bucket_s"] < day["end_s"]:
                expected[row["key"]] += row["value_0"]
        for row in (*state["frozen_counts"], *state["adjustments"]):
            if row["grouping"] == callers and row["day"] == day["id"]:
                booked[names[row["reference"]]] += row["value_0"]
        assert booked == expected, f"{day['date']}: frozen and adjusted {booked}, in buckets {expected}"
        late = {row["booked"] for row in state["adjustments"] if row["day"] == day["id"]}
        assert all(one > day["id"] for one in late), "booked on another day"


def check_jobs(state: State, outcomes: Mapping[str, object]) -> None:
    """Checks that a job is done once, and that a run whose process was killed or too slow is lost."""
    if "end-run" in outcomes:
        assert outcomes["end-run"] is True
        ended = [(row["outcome"], row["rows"]) for row in state["job_runs"] if row["owner"] == RUN_OWNER]
        assert ended == [("done", JOB_ROWS)]
        assert not [row for row in state["leases"] if row["holder"] == RUN_OWNER], "the lease is released"
    if not any(isinstance(outcome, RunEnd) for outcome in outcomes.values()):
        return
    runs = sorted((row["outcome"], row["rows"], row["owner"]) for row in state["job_runs"])
    assert runs[0][:2] == ("done", JOB_ROWS), runs
    assert all(outcome == "lost" for outcome, *_ in runs[1:]), runs
    # Only a lease that has ended is taken over.
    assert "hours" in outcomes or all(owner == "killed" for *_, owner in runs[1:]), runs
    assert not [row for row in state["leases"] if row["name"] == f"job {JOB}"], "the lease is released"


def number_of(state: State, kind: str, name: str) -> int | None:
    """Returns the number of an entry of the catalog; None: nothing of it was counted."""
    found = [row["number"] for row in state["catalog"] if (row["kind"], row["name"]) == (kind, name)]
    return found[0] if found else None


def by_caller(buckets: Iterable[Row], without_days: set[int]) -> Counter[str]:
    found = Counter[str]()
    for row in buckets:
        if row["bucket_s"] // DAY_S * DAY_S not in without_days:
            found["rare" if row["key"] in RAREST else row["key"]] += row["value_0"]
    return found


def expected_by_caller(world: World, counted: Sequence[Counted], without_days: set[int]) -> Counter[str]:
    found = Counter[str]()
    for row in (row for one in (*world.counted, *counted) for row in of_callers(one.rows)):
        if row.bucket_s // DAY_S * DAY_S not in without_days:
            found["rare" if row.key in RAREST else row.key] += row.value
    return found


def check_totals(state: State, now_ms: int) -> None:
    """Checks that each total of a present window is the sum of its buckets, up to where it is filled."""
    plan = plan_in_force(state)
    numbers = {row["name"]: row["number"] for row in state["catalog"] if row["kind"] == "sum"}
    by_sum = {sum_: numbers[sum_text(sum_)] for sum_ in plan_sums(plan).policies_by_sum}
    (active,) = [row for row in state["plans"] if row["active"]]
    filling = filled_to(decode_steps(active["pending"]), by_sum)
    for sum_, number in by_sum.items():
        if isinstance(sum_.window, Rolling):  # its total is the growth since the plan is in force
            continue
        for at_s in {NOW_S, now_ms // 1000}:
            window = window_at(sum_.window, at_s)
            expected = Counter[str]()
            grouping = number_of(state, "grouping", sum_.grouping)
            for row in (row for row in state["buckets"] if row["grouping"] == grouping):
                at = row["bucket_s"], row["key"], row["resource"]
                is_inside = window.start_s <= row["bucket_s"] < window.until_s
                is_filled = sum_ not in filling or at < tuple(filling[sum_])
                if is_inside and is_filled and row["key"] not in NOT_CALLERS:
                    expected[row["key"]] += row["value_0"]
            found = {
                row["key"]: row["used"]
                for row in state["totals"]
                if row["sum"] == number and row["window_s"] == window.start_s
            }
            assert found == +expected, f"totals of {sum_text(sum_)}"


def check_locks(world: World, state: State, counted: Sequence[Counted], now_ms: int) -> None:
    """Checks that exactly those are locked whom the slow judgement of all flushes locks."""
    flushes = [Flush(one.now_ms // 1000, one.rows) for one in (*world.counted, *counted)]
    plan = plan_in_force(state)
    rolling = [policy for policy in plan.policies if isinstance(policy, Surge | LoadShare)]
    calendars = replace(plan, policies=tuple(p for p in plan.policies if p not in rolling))
    actions = {policy.name: policy.action for policy in plan.policies}
    scopes = {policy.name: parse_grouping(policy.per).scope for policy in plan.policies}
    limits = limits_of_plans(state) | own_limits(state)
    refused = {series for series, limit in limits.items() if not limit}
    expected = {
        (found.policy, found.key, found.resource, found.until, scopes[found.policy], actions[found.policy])
        for found in crossings(calendars, flushes, limits)
        if found.until.timestamp() * 1000 > now_ms and (found.policy, found.key) not in refused
    }
    # Who may have nothing is locked without a count, and without an end.
    expected |= {(name, key, "", WITHOUT_END, scopes[name], actions[name]) for name, key in refused}
    exempt = exempt_callers(state)
    expected |= {
        (policy.name, key, resource, until, scopes[policy.name], policy.action)
        for policy in rolling
        for key, resource, until in rolling_locks(policy, [*world.counted, *counted])
        if (policy.name, key) not in exempt
    }
    held_off = {
        (row["policy"], row["key"], row["resource"], row["scope"])
        for row in state["hold_offs"]
        if row["until_ms"] > now_ms
    }
    expected = {lock for lock in expected if (*lock[:3], lock[4]) not in held_off}
    names = {policy.name for policy in rolling}
    found: set[ExpectedLock] = {
        (
            row["policy"],
            row["key"],
            row["resource"],
            # The warden judges a few steps of the clock later.
            until_of(row).replace(microsecond=0) if row["policy"] in names else until_of(row),
            row["scope"],
            row["action"],
        )
        for row in state["locks"]
        if row["policy"] not in (SUSPENSION.policy, MANUAL) and row["until_ms"] > now_ms
    }
    expected = with_brakes(state, expected, found)
    assert found == expected, f"missing locks: {expected - found}; unearned locks: {found - expected}"


def rolling_locks(
    policy: Surge | LoadShare, counted: Sequence[Counted]
) -> Iterator[tuple[str, str, datetime]]:
    """Yields key and resource of the series that a policy locks, and until when.

    All slots of the last minute are in one window, and all is judged at one time.
    """
    lasts_s = policy.lock_for_s[0] if isinstance(policy, Surge) else LOCK_S
    until = datetime.fromtimestamp(NOW_S + lasts_s, UTC)
    series, wholes = Counter[tuple[str, str]](), Counter[str]()
    for row in (row for one in counted for row in one.slots if row.bucket_s >= NOW_S - 60):
        if row.grouping == policy.per:
            series[row.key, row.resource] += row.value
        if row.grouping == "resource":
            wholes[row.key] += row.value
    for (key, resource), used in series.items():
        if isinstance(policy, Surge):
            is_locked = used >= policy.limit
        else:
            is_locked = used >= policy.floor and used * MILLION > policy.limit * wholes[resource]
        if is_locked:
            yield key, resource, until


def exempt_callers(state: State) -> set[tuple[str, str]]:
    """Returns policies and the callers that are exempt from them."""
    return {
        (row["policy"], row["subject"])
        for row in state["overrides"]
        if row["kind"] == "exempt" and row["state"] == "in force"
    }


def own_limits(state: State) -> dict[tuple[str, str], int]:
    """Returns the limits of callers with an override, by policy and caller."""
    return {
        (row["policy"], row["subject"]): row["amount"]
        for row in state["overrides"]
        if row["kind"] == "limit" and row["state"] == "in force"
    }


def limits_of_plans(state: State) -> dict[tuple[str, str], int]:
    """Returns the limits of callers whose plan has another one than the policy, by policy and caller."""
    plans_of = {row["caller"]: row["plan"] or row["record_plan"] for row in state["callers"]}
    return {
        (policy.name, caller): dict(policy.plan_limits)[name]
        for policy in plan_in_force(state).policies
        if isinstance(policy, Quota) and not isinstance(policy.plan_limits, UnsetType)
        for caller, name in plans_of.items()
        if name in dict(policy.plan_limits)
    }


def check_facts(state: State) -> None:
    """Checks that what records state is applied, of callers that do not wait for it."""
    waiting = {row["caller"] for row in state["waiting_facts"]}
    applied = {row["caller"]: row["record_plan"] for row in state["callers"] if row["record_plan"]}
    last: dict[str, tuple[int, str]] = {}
    for row in state["record_facts"]:
        stated = row["since_ms"], row["value"]
        last[row["caller"]] = max(stated, last.get(row["caller"], stated))
    found = {caller: name for caller, name in applied.items() if caller not in waiting}
    assert found == {caller: name for caller, (_, name) in last.items() if caller not in waiting}


def until_of(lock: Row) -> datetime:
    return datetime.fromtimestamp(lock["until_ms"] / 1000, UTC)


def check_feed(world: World, state: State, committed: Sequence[str]) -> None:
    """Checks that versions rise by one in the order of commits, and that their changes make the locks."""
    (before,), (feed,) = world.state["feed"], state["feed"]
    versions = sorted((row["version"], row["mark"]) for row in state["feed_versions"])
    numbers = [number for number, _ in versions]
    assert numbers == list(range(feed["version"] + 1 - len(numbers), feed["version"] + 1)), (
        "a gap in versions"
    )
    assert feed["pruned_to"] >= numbers[0] - 1 if numbers else True, "changes are missing, and not said to be"
    new = [mark for number, mark in versions if number > before["version"]]
    rest = iter(committed)
    assert all(mark in rest for mark in new), f"versions by {new}, commits by {committed}"
    if feed["pruned_to"] > before["version"]:
        return  # gates take a snapshot
    changed = sorted(state["lock_changes"], key=lambda row: (row["version"], row["number"]))
    changed = [row for row in changed if row["version"] > before["version"]]
    assert {row["version"] for row in changed} == {n for n, _ in versions if n > before["version"]}
    assert after(world.state["locks"], changed) == after(state["locks"], []), "locks differ from the feed"


def after(locks: Iterable[Row], changes: Iterable[Row]) -> dict[tuple[str, ...], Row]:
    """Returns the locks by key after changes of the feed, which has none that gates do not get."""
    found = {tuple(row[name] for name in LOCK): row for row in locks if row["action"] not in NOT_ENFORCED}
    for change in changes:
        at = tuple(change[name] for name in LOCK)
        if change["op"] == "clear":
            found.pop(at, None)
        else:
            found[at] = {
                name: value for name, value in change.items() if name not in ("version", "number", "op")
            }
    return found


def check_set_once(world: World, state: State) -> None:
    """Checks that of several flushes that cross a limit together exactly one publishes the lock."""
    (before,) = world.state["feed"]
    new = [row for row in state["lock_changes"] if row["version"] > before["version"] and row["op"] == "set"]
    times = Counter((*(row[name] for name in LOCK), row["until_ms"]) for row in new)
    assert not [at for at, number in times.items() if number > 1 and at[3] != SUSPENSION.policy], times


def check_polls(world: World, state: State, outcomes: Mapping[str, object]) -> None:
    """Checks that a gate that polled, and asks again for what is newer, has the locks of the database."""
    for polled in outcomes.values():
        if isinstance(polled, Update):
            keys = (
                {at for at, row in after(world.state["locks"], []).items()} if not polled.snapshot else set()
            )
            for change in polled.changes:
                at = (change.at.scope, change.at.key, change.at.resource, change.at.policy)
                keys = keys | {at} if isinstance(change, Set) else keys - {at}
            for row in sorted(state["lock_changes"], key=lambda row: (row["version"], row["number"])):
                if row["version"] > polled.at.version:
                    at = tuple(row[name] for name in LOCK)
                    keys = keys | {at} if row["op"] == "set" else keys - {at}
            assert keys == after(state["locks"], []).keys(), "a gate missed a change"
