"""The state of one caller: what each policy allows it, what it has used, and its locks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.judging.caller_limits import ADDRESS, Limits, subject_named
from analyzer.judging.circumstances import Circumstances
from analyzer.judging.kinds import policy_kind
from analyzer.judging.locks.lock_feed import NOT_ENFORCED, lock_from_row
from analyzer.judging.locks.lock_outcomes import LockedName
from analyzer.judging.sql import brake_rows, hold_offs, plans
from analyzer.judging.sql.directory import newest, read_directory, read_limits
from analyzer.judging.sql.hold_offs import HoldOff
from analyzer.judging.sql.slots import with_slots, with_wholes
from analyzer.judging.totals import Standing, TotalKey
from analyzer.kernel.database.clock import clock_ms, instant
from analyzer.kernel.database.engine import reading
from analyzer.kernel.database.row_parameters import is_among
from analyzer.kernel.tables.schema import locks, totals
from analyzer.plan import catalog
from analyzer.plan.catalog import Catalog
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meter_units import UNLIMITED, Unit
from analyzer.plan.plan import Plan
from analyzer.plan.policies import SHADOW, Policy, for_resource, with_limit
from analyzer.plan.sums import Sum, sum_text
from analyzer.plan.windows import Calendar, Rolling, Window
from gatekeeper.model import Lock

RESOURCES_MAX = 5  # of one policy that judges by resource: those with the most
PACE_MIN_S = 60  # from the begin of a window on, before a pace is known


class PolicyUse(NamedTuple):
    """One policy, and what a caller has used of it.

    Attributes:
        policy: The policy, with the limit and the windows of this caller.
        key: Key of the series: the caller, its tenant, or its address.
        resource: Of a policy that judges by resource.
        is_exempt: Whether the policy does not hold for the series.
        used: In the present window, in the unit of the meter.
        limit: The amount that earns a lock; UNLIMITED for none.
        until_s: When the window ends; None for a rolling one.
        reached_s: When the limit is reached at the pace of the window so far; None if not in this window.
        window_s: The length of the window.
    """

    policy: Policy
    key: str
    resource: str
    is_exempt: bool
    used: int
    limit: int
    until_s: int | None
    reached_s: int | None
    window_s: int

    @property
    def is_unlimited(self) -> bool:
        """Whether the policy has no limit for the series, by its plan or an override."""
        return self.limit >= UNLIMITED

    @property
    def part(self) -> float:
        """The part of the limit that is used; 0 without a limit."""
        return 0.0 if self.is_exempt or self.is_unlimited else self.used / max(1, self.limit)

    @property
    def unit(self) -> Unit | None:
        return self.policy.meter_unit


class CallerStanding(NamedTuple):
    """The state of one caller.

    Attributes:
        now_ms: The time of the database.
        tenant: Its tenant; "" for none.
        plan: Its plan; "" for none.
        names: Scopes and keys under which requests of the caller may be locked.
        locks: The locks in force on any of them, those in shadow among them, the last end first.
        held_off: Locks that are not set before a time.
        uses: What it has used of each policy.
        braked: What the brakes of policies do at this time, by policy.
        in_shadow: The policies whose locks are in shadow by their brakes.
    """

    now_ms: int
    tenant: str
    plan: str
    names: Sequence[LockedName]
    locks: Sequence[Lock]
    held_off: Sequence[HoldOff]
    uses: Sequence[PolicyUse]
    braked: Mapping[str, str] = {}
    in_shadow: Collection[str] = frozenset()


def held_by_brakes(standing: CallerStanding) -> list[str]:
    """Returns the policies that would lock the caller, and whose brake holds the lock."""
    enforced = {lock.policy for lock in standing.locks if lock.action not in NOT_ENFORCED}
    in_shadow = {lock.policy for lock in standing.locks if lock.action == SHADOW}
    beyond = {use.policy.name for use in standing.uses if use.used >= use.limit and not use.is_exempt}
    return sorted(standing.braked.keys() & (in_shadow | beyond) - enforced)


def caller_standing(engine: sa.Engine, caller: str) -> CallerStanding:
    """Returns the state of a caller at this time. Raises StoreAway, SchemaBehind."""
    with reading(engine) as db:
        now_ms = clock_ms(db)
        group = read_directory(db, [caller]).caller_group(caller)
        names = list(_names(caller, group.tenant, catalog.load(db)))
        plan = plans.active(db)[1] if plans.exists(db) else Plan()
        held_off = [hold_off for scope, key in names for hold_off in hold_offs.of_series(db, scope, key)]
        keys = {policy.name: _policy_key(policy, caller, group.tenant) for policy in plan.policies}
        limits = read_limits(db, plan, newest(db), {*keys.values()} - {""})
        read = _UseReader(db, plan, limits, now_ms // 1000)
        uses = [
            use for policy in plan.policies if (key := keys[policy.name]) for use in read.uses(policy, [key])
        ]
        active_locks = _locks_on(db, names, now_ms)
        braked, in_shadow = brake_rows.texts(db), brake_rows.in_shadow(db)
    return CallerStanding(
        now_ms, group.tenant, group.plan, names, active_locks, held_off, uses, braked, in_shadow
    )


class BriefStanding(NamedTuple):
    """The state of one caller of many.

    Attributes:
        nearest: Its use of the policy whose limit it is nearest to, of those that are enforced if one is;
            None if no limit holds for it.
        locks: The locks that are enforced against it, the last end first.
    """

    nearest: PolicyUse | None
    locks: Sequence[Lock]


def brief_standings(engine: sa.Engine, callers: Collection[str]) -> dict[str, BriefStanding]:
    """Returns the state of each of these callers, by as many statements as for one. Raises StoreAway."""
    with reading(engine) as db:
        now_ms = clock_ms(db)
        directory, numbers = read_directory(db, callers), catalog.load(db)
        tenants = {caller: directory.caller_group(caller).tenant for caller in callers}
        names = {caller: [*_names(caller, tenants[caller], numbers)] for caller in callers}
        plan = plans.active(db)[1] if plans.exists(db) else Plan()
        keys_by_policy = {
            policy.name: {caller: _policy_key(policy, caller, tenants[caller]) for caller in callers}
            for policy in plan.policies
        }
        keys = {key for keys in keys_by_policy.values() for key in keys.values()} - {""}
        read = _UseReader(db, plan, read_limits(db, plan, newest(db), keys), now_ms // 1000)
        nearest: dict[str, PolicyUse] = {}
        for policy in plan.policies:
            keys_of_callers = keys_by_policy[policy.name]
            most = read.most_used(policy, {*keys_of_callers.values()} - {""})
            for caller, key in keys_of_callers.items():
                if key in most:
                    nearest[caller] = max(most[key], nearest.get(caller, most[key]), key=_nearness)
        in_force = _locks_on(db, dict.fromkeys(name for own in names.values() for name in own), now_ms)
    by_name: dict[LockedName, list[Lock]] = {}
    for lock in in_force:
        if lock.action not in NOT_ENFORCED:
            by_name.setdefault((lock.scope, lock.key), []).append(lock)
    return {
        caller: BriefStanding(
            nearest.get(caller), [lock for name in names[caller] for lock in by_name.get(name, ())]
        )
        for caller in callers
    }


def _nearness(use: PolicyUse) -> tuple[bool, float]:
    return not use.policy.is_shadow, use.part


def _names(caller: str, tenant: str, numbers: Catalog) -> Iterator[LockedName]:
    yield from ((scope, caller) for scope in numbers.lock_scopes("caller"))
    yield "everyone", ""
    kind, name = subject_named(caller)
    if kind == "tenant":
        yield from ((scope, name) for scope in numbers.lock_scopes("tenant"))
    if tenant:
        yield from ((scope, tenant) for scope in numbers.lock_scopes("tenant"))
    if (address := _parse_address(caller)) is not None:
        yield "address", address
        length = ip_address(address).max_prefixlen
        yield from (("range", str(ip_network((address, bits), strict=False))) for bits in range(length + 1))


def _parse_address(caller: str) -> str | None:
    """Returns the address of a caller that is known by it."""
    text = caller.removeprefix(ADDRESS).partition("/")[0]
    try:
        return str(ip_address(text)) if caller.startswith(ADDRESS) else None
    except ValueError:
        return None


def _policy_key(policy: Policy, caller: str, tenant: str) -> str:
    """Returns the key of the policy's series that holds the caller's requests; "" if that is not known."""
    grouping = parse_grouping(policy.per)
    kind, name = subject_named(caller)
    if grouping.is_of_callers:
        return caller if kind == "caller" else ""
    if grouping.scope == "tenant":
        return name if kind == "tenant" else tenant
    address = _parse_address(caller)
    return address if grouping.scope == "address" and address is not None else ""


class _UseReader:
    """Reads what series have used of policies, in one transaction."""

    def __init__(self, db: sa.Connection, plan: Plan, limits: Limits, now_s: int) -> None:
        self._db, self._plan, self._limits, self._now_s = db, plan, limits, now_s
        self._catalog = catalog.load(db)

    def uses(self, policy: Policy, keys: Sequence[str]) -> Iterator[PolicyUse]:
        """Yields what series have used of a policy; by resource, those with the most of each key."""
        kind, now_s = policy_kind(policy), self._now_s
        sum_ = kind.judged_sum(policy)
        windows = {key: self._limits.series_window(sum_, key, now_s) for key in keys}
        rolling_s = sum_.window.period_s if isinstance(sum_.window, Rolling) else None
        context = Circumstances(instant(now_s * 1000), limits=self._limits, is_warden=True)
        for standing in self._standings(sum_, windows):
            key, window = standing.total.key, windows[standing.total.key]
            own = self._limits.of_key(policy, key)
            judged: Policy = own or policy
            if isinstance(sum_.window, Calendar) and not sum_.window.limits(window):
                judged = with_limit(judged, UNLIMITED)
            on_route = for_resource(judged, standing.total.resource)
            used, limit = kind.amounts(on_route, standing, context)
            yield PolicyUse(
                on_route,
                key,
                standing.total.resource,
                own is None,
                used,
                limit,
                window.until_s if rolling_s is None else None,
                _reached_s(used, limit, window, now_s) if rolling_s is None else None,
                window.until_s - window.start_s if rolling_s is None else rolling_s,
            )

    def most_used(self, policy: Policy, keys: Collection[str]) -> dict[str, PolicyUse]:
        """Returns for each key the use that is nearest to its limit, where there is one."""
        uses: dict[str, PolicyUse] = {}
        for use in self.uses(policy, sorted(keys)) if keys else ():
            if not (use.is_exempt or use.is_unlimited):
                uses[use.key] = max(use, uses.get(use.key, use), key=_nearness)
        return uses

    def _standings(self, sum_: Sum, windows: Mapping[str, Window]) -> list[Standing]:
        """Returns how the series stand, by their windows; one that was never counted has used nothing.

        The statements are those of a series that was: how long they take does not tell one from the other.
        """
        number = self._catalog.sums.get(sum_text(sum_))
        if number is None:
            return [Standing(TotalKey(sum_, key, "", window), 0) for key, window in windows.items()]
        by_window: dict[Window, list[str]] = {}
        for key, window in windows.items():
            by_window.setdefault(window, []).append(key)
        standings = []
        for window, keys in by_window.items():
            rows: dict[str, list[Standing]] = {key: [] for key in keys}
            for key, resource, used in self._db.execute(self._largest(number, window, keys)):
                rows[key].append(Standing(TotalKey(sum_, key, resource, window), used))
            for key, present in rows.items():
                standings += present or [Standing(TotalKey(sum_, key, "", window), 0)]
        with_own = with_slots(self._db, standings, self._catalog, self._now_s)
        return with_wholes(self._db, self._plan, with_own, self._catalog, self._now_s)

    def _largest(self, number: int, window: Window, keys: Sequence[str]) -> sa.Select[Any]:
        """Returns the statement for the totals of each key that are the largest."""
        rank = sa.func.row_number().over(partition_by=totals.c.key, order_by=totals.c.used.desc())
        ranked = (
            sa.select(totals.c.key, totals.c.resource, totals.c.used, rank.label("place"))
            .where(
                totals.c.sum == number,
                totals.c.window_s == window.start_s,
                is_among(self._db.dialect.name, totals.c.key, keys),
            )
            .subquery()
        )
        columns = ranked.c.key, ranked.c.resource, ranked.c.used
        largest = sa.select(*columns).where(ranked.c.place <= RESOURCES_MAX)
        return largest.order_by(ranked.c.key, ranked.c.used.desc())


def _reached_s(used: int, limit: int, window: Window, now_s: int) -> int | None:
    """Returns when the limit is reached at the pace of the window so far; None if not in the window."""
    passed_s = now_s - window.start_s
    if passed_s < PACE_MIN_S or not 0 < used < limit:
        return None
    reached_s = now_s + (limit - used) * passed_s // used
    return reached_s if reached_s < window.until_s else None


def _locks_on(db: sa.Connection, names: Collection[LockedName], now_ms: int) -> list[Lock]:
    by_scope: dict[str, list[str]] = {}
    for scope, key in names:
        by_scope.setdefault(scope, []).append(key)
    active_locks: list[Lock] = []
    for scope, keys in by_scope.items():
        is_named = is_among(db.dialect.name, locks.c.key, keys)
        statement = sa.select(locks).where(locks.c.scope == scope, is_named, locks.c.until_ms > now_ms)
        active_locks += map(lock_from_row, db.execute(statement))
    return sorted(active_locks, key=lambda lock: (lock.until, lock.at), reverse=True)
