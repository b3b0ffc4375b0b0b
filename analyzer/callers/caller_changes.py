"""Callers and their overrides: what commands and the warden change, and what commands list.

Each change is one transaction with its entry in the audit log, and its callers are judged in it. For a tenant
or a range, and for another zone or anchor, the rest is done in transactions of bounded length behind it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.callers.changed_limits import CALLERS_MAX, change, refill
from analyzer.callers.credit import credits_of, used_by_subject, used_of_each
from analyzer.judging.caller_limits import NO_PROFILE, Limits, Profile, Subject, subject_named
from analyzer.judging.judge import Judged, JudgedRows
from analyzer.judging.kinds import policy_kind
from analyzer.judging.sql import plans
from analyzer.judging.sql.directory import (
    ENDED,
    HELD,
    IN_FORCE,
    LASTING,
    OF_COMMAND,
    OF_PLAN,
    PLANNED,
    PROFILE,
    read_directory,
)
from analyzer.kernel.database.audit_log import record
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import ROWS_AT_ONCE, insert, reading, slow_reading, writing
from analyzer.kernel.database.row_parameters import is_among
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.tables.schema import callers, overrides
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meter_units import UNLIMITED, Unit, amount_text
from analyzer.plan.plan import Plan
from analyzer.plan.policies import OverrideKind, base_name, limits_by_route

OVERRIDES_MAX = 100_000  # that have not ended; each analyzer holds them in memory
RANGES_MAX = 1_000  # exempt addresses and ranges that have not ended; each address is compared with all
ACTS: Mapping[OverrideKind, str] = {
    "limit": "callers limit", "grant": "callers limit", "exempt": "callers allow",
}  # fmt: skip


class TooManyOverrides(AnalyzerError):
    """The maximum number of overrides has not ended yet."""


class UnknownPolicy(AnalyzerError):
    """No policy of the plan in force has this name."""


class StatedByPlan(AnalyzerError):
    """The override is a part of the plan in force."""


class StoredOverride(NamedTuple):
    """An override as it is stored; times in milliseconds since 1970 UTC."""

    id: str
    kind: OverrideKind
    subject: Subject
    policy: str
    amount: int
    from_ms: int
    until_ms: int | None
    state: str
    reason: str
    who: str
    at_ms: int
    granted: int | None = None  # to a limit whose window does not begin again
    used: int | None = None  # of that, once the grant has ended

    @property
    def expired(self) -> int | None:
        """The rest of a grant that has ended; None: it has not, or its window begins again."""
        return None if self.granted is None or self.used is None else self.granted - self.used


class KnownCaller(NamedTuple):
    """A caller with its facts."""

    caller: str
    profile: Profile


class OverrideRequest(NamedTuple):
    """An override that an operator asks for; times in milliseconds, None for now and for no end."""

    kind: OverrideKind
    subject: Subject
    policy: str = ""
    amount: int = 0
    from_ms: int | None = None
    until_ms: int | None = None


def set_callers(
    engine: sa.Engine,
    profiles: Mapping[str, Profile],
    who: str,
    reason: str,
    random_mark: Callable[[], str],
    fields: Collection[str] = Profile._fields,
) -> Judged:
    """Stores the facts about callers, at most CALLERS_MAX, and judges them.

    Of callers that are known already only `fields` change.

    Raises StoreAway, SchemaBehind.
    """
    if not 0 < len(profiles) <= CALLERS_MAX:
        raise ValueError(f"{len(profiles)} callers in one transaction")

    with writing(engine) as db:

        def write(version: int) -> None:
            rows = [
                {"caller": caller, **profiles[caller]._asdict(), "version": version}
                for caller in sorted(profiles)
            ]
            added = insert(db, callers)
            assigned = {name: added.excluded[name] for name in (*fields, "version")}
            db.execute(added.on_conflict_do_update(index_elements=callers.primary_key, set_=assigned), rows)
            record(db, who, "callers set", _about(profiles), reason)

        subjects = sorted(map(subject_named, profiles))
        judged = change(db, subjects, [""], write, random_mark, of_facts=True)
    if {"zone", "anchor"} & {*fields}:
        keys = {subject_named(name).name for name in profiles}
        while refilled := refill(engine, random_mark, keys):
            judged = judged.joined(refilled.judged)
    return judged


def _about(profiles: Mapping[str, Profile]) -> str:
    first = min(profiles)
    facts = ", ".join(f"{name} {value}" for name, value in profiles[first]._asdict().items() if value)
    return f"{first}: {facts or 'nothing'}" + (f"; {len(profiles)} callers" if len(profiles) > 1 else "")


def add_override(
    engine: sa.Engine, request: OverrideRequest, who: str, reason: str, random_mark: Callable[[], str]
) -> tuple[StoredOverride, Judged]:
    """Stores an override and judges whom it is for; returns it, and what was judged.

    Raises TooManyOverrides, UnknownPolicy, StoreAway, SchemaBehind.
    """
    with writing(engine) as db:
        plans.block_flushes(db)
        _require_policy(db, request.policy)
        _require_room(db, request.subject)
        now_ms = clock_ms(db)
        from_ms = now_ms if request.from_ms is None else request.from_ms
        state = IN_FORCE if from_ms <= now_ms else PLANNED
        stored = StoredOverride(
            secrets.token_hex(4), request.kind, request.subject, request.policy, request.amount,
            from_ms, request.until_ms, state, reason, who, now_ms,
        )  # fmt: skip

        def write(version: int) -> None:
            row = {name: value for name, value in stored._asdict().items() if name not in ("granted", "used")}
            row |= _credit_begun(db, stored) if state == IN_FORCE else {}
            row |= {
                "subject_kind": request.subject.kind,
                "subject": request.subject.name,
                "due_ms": from_ms if state == PLANNED else request.until_ms,
                "origin": OF_COMMAND,
                "version": version,
            }
            db.execute(sa.insert(overrides).values(row))
            record(db, who, ACTS[request.kind], f"{stored.id}: {in_words(stored)}", reason)

        return stored, change(db, [request.subject], [request.policy], write, random_mark)


def end_override(
    engine: sa.Engine,
    id_: str,
    kinds: Collection[OverrideKind],
    who: str,
    reason: str,
    random_mark: Callable[[], str],
) -> tuple[StoredOverride, Judged] | None:
    """Ends an override of one of these kinds, and judges whom it was for.

    Returns it and what was judged; None: there is none that has not ended. Raises StatedByPlan,
    StoreAway, SchemaBehind.
    """
    with writing(engine) as db:
        plans.block_flushes(db)
        row = db.execute(sa.select(overrides).where(overrides.c.id == id_)).first()
        if row is None or row.state == ENDED or row.kind not in kinds or row.used_until is not None:
            return None
        if row.origin == OF_PLAN:
            raise StatedByPlan(
                f"{id_} is stated in the configuration: remove it there, and run `gatelock policies apply`"
            )
        stored = _stored(row)

        def write(version: int) -> None:
            _end(db, [stored], version)
            record(db, who, "callers end", f"{id_}: {in_words(stored)}", reason)

        return stored, change(db, [stored.subject], [stored.policy], write, random_mark)


def change_due(engine: sa.Engine, random_mark: Callable[[], str]) -> JudgedRows:
    """Begins and ends overrides whose time has come, up to a bound; counts the overrides.

    Raises StoreAway, SchemaBehind.
    """
    with reading(engine) as db:
        if db.execute(_due(clock_ms(db)).limit(1)).first() is None:
            return JudgedRows(0)
    with writing(engine) as db:
        plans.block_flushes(db)
        now_ms = clock_ms(db)
        rows = db.execute(_due(now_ms).order_by(overrides.c.due_ms).limit(CALLERS_MAX)).all()
        due_overrides = [_stored(row) for row in rows]
        ending = [
            override.id
            for override in due_overrides
            if override.until_ms is not None and override.until_ms <= now_ms
        ]
        beginning = [override for override in due_overrides if override.id not in ending]

        def write(version: int) -> None:
            _end(db, [override for override in due_overrides if override.id in ending], version)
            for override in beginning:
                _move(db, [override.id], IN_FORCE, version, override.until_ms)
                if begun := _credit_begun(db, override):
                    db.execute(sa.update(overrides).where(overrides.c.id == override.id).values(begun))

        if not due_overrides:
            return JudgedRows(0)
        subjects, policies = (
            {override.subject for override in due_overrides},
            {override.policy for override in due_overrides},
        )
        judged = change(db, sorted(subjects), policies, write, random_mark)
        return JudgedRows(len(due_overrides), judged, "overrides that began or ended")


def _due(now_ms: int) -> sa.Select[Any]:
    return sa.select(overrides).where(overrides.c.due_ms <= now_ms)


def _move(
    db: sa.Connection, ids: Collection[str], state: str, version: int, due_ms: int | None = None
) -> None:
    if ids:
        is_one = is_among(db.dialect.name, overrides.c.id, sorted(ids))
        changed = {"state": state, "due_ms": due_ms, "version": version}
        db.execute(sa.update(overrides).where(is_one).values(changed))


def _credit_begun(db: sa.Connection, override: StoredOverride) -> dict[str, int]:
    """Returns what a grant must know from its begin on; nothing of others than those of credit."""
    if override.kind != "grant":
        return {}
    used = used_by_subject(db, override.policy, override.subject, clock_ms(db) // 1000)
    return {} if used is None else {"granted": override.amount, "used_from": used}


def _end(db: sa.Connection, ending: Collection[StoredOverride], version: int) -> None:
    """Ends overrides. Of a grant of credit the rest expires: its used part stays a part of the limit."""
    _move(db, [override.id for override in ending], ENDED, version)
    now_ms = clock_ms(db)
    for override in ending:
        used = None
        if override.granted is not None:
            used = used_by_subject(db, override.policy, override.subject, now_ms // 1000)
        if used is None:
            continue
        taken = used_of_each(credits_of(db, override.policy, override.subject), used)[override.id]
        kept = {"amount": taken, "used_until": used, "until_ms": min(override.until_ms or now_ms, now_ms)}
        state = {"state": IN_FORCE} if taken else {}
        db.execute(sa.update(overrides).where(overrides.c.id == override.id).values(kept | state))


def _require_policy(db: sa.Connection, name: str) -> None:
    plan = plans.active(db)[1] if plans.exists(db) else Plan()
    # Overrides of a policy hold for its candidate, which has none by itself.
    names_known = [policy.name for policy in plan.policies if policy.name == base_name(policy.name)]
    if name and name not in names_known:
        names = ", ".join(names_known) or "there is none"
        raise UnknownPolicy(f"no policy of the plan in force is named {name}: {names}")


def _require_room(db: sa.Connection, subject: Subject) -> None:
    for condition, most in ((sa.true(), OVERRIDES_MAX), (overrides.c.subject_kind == "address", RANGES_MAX)):
        if subject.kind != "address" and most == RANGES_MAX:
            continue
        lasting = sa.select(sa.func.count()).where(overrides.c.state.in_(LASTING), condition)
        if db.execute(lasting).scalar_one() >= most:
            raise TooManyOverrides(f"there are {most:,} of them, the maximum: end some that are not needed")


def stored_overrides(
    engine: sa.Engine, kinds: Collection[OverrideKind], *, ended: bool = False, subject: str | None = None
) -> Iterator[StoredOverride]:
    """Yields overrides of these kinds, those that began last first. Raises StoreAway."""
    statement = sa.select(overrides).where(overrides.c.kind.in_(kinds))
    if not ended:
        statement = statement.where(overrides.c.state.in_(LASTING))
    if subject is not None:
        statement = statement.where(overrides.c.subject == subject)
    statement = statement.order_by(overrides.c.from_ms.desc(), overrides.c.id)
    with (
        slow_reading(engine) as db,
        db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows,
    ):
        yield from map(_stored, rows)


def known_callers(
    engine: sa.Engine, plan: str | None = None, tenant: str | None = None
) -> Iterator[KnownCaller]:
    """Yields the callers with facts, by name, in constant memory. Raises StoreAway."""
    statement = sa.select(*PROFILE).order_by(callers.c.caller)
    for name, value in (("plan", plan), ("tenant", tenant)):
        if value is not None:
            statement = statement.where(HELD[name].element == value)
    with (
        slow_reading(engine) as db,
        db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows,
    ):
        for row in rows:
            caller = KnownCaller(row.caller, Profile(*row[1:]))
            if caller.profile != NO_PROFILE:
                yield caller


class CallerLimit(NamedTuple):
    """The limit of one caller by one policy, in the unit of the policy's meter."""

    policy: str
    stated: int  # by the policy for all; UNLIMITED for none
    limit: int | None  # None: exempt
    unit: Unit | None

    def fields(self) -> dict[str, object]:
        """Returns it as an object, without amounts where there is no limit."""
        stated, limit = (None if number == UNLIMITED else number for number in (self.stated, self.limit))
        return {"policy": self.policy, "limit": limit, "stated": stated, "exempt": self.limit is None}


def caller_profile(engine: sa.Engine, caller: str) -> tuple[Profile, list[CallerLimit]]:
    """Returns the facts about a caller or a tenant, and its limits by the plan in force.

    Shares, which limit no single caller, are not among them. Raises StoreAway, SchemaBehind.
    """
    kind, key = subject_named(caller)
    with reading(engine) as db:
        directory = read_directory(db, [key])
        row = db.execute(sa.select(*PROFILE).where(callers.c.caller == caller)).first()
        profile = NO_PROFILE if row is None else Profile(*row[1:])
        plan = plans.active(db)[1] if plans.exists(db) else Plan()
    limits = Limits(plan, directory)
    caller_limits = []
    for policy in plan.policies:
        if parse_grouping(policy.per).scope == kind and policy_kind(policy).whole_sum is None:
            own: Any = limits.of_key(policy, key)
            common: Any = policy
            limit = None if own is None else own.limit
            caller_limits.append(CallerLimit(policy.name, common.limit, limit, policy.meter_unit))
            for glob, stated in limits_by_route(policy):
                route_limit = None if own is None else dict(limits_by_route(own)).get(glob, own.limit)
                name = f"{policy.name} on {glob}"
                caller_limits.append(CallerLimit(name, stated, route_limit, policy.meter_unit))
    return profile, caller_limits


def in_words(override: StoredOverride, unit: Unit | None = None) -> str:
    """Returns an override as a phrase: "caller api_key:acme, policy daily, limit 5,000".

    `unit` is that of the policy's meter.
    """
    about = f"{override.subject.kind} {override.subject.name}"
    if override.policy:
        about += f", policy {override.policy}"
    match override.kind:
        case "limit":
            return f"{about}, limit {amount_text(override.amount, unit)}"
        case "grant":
            return f"{about}, {granted_text(override, unit)} more"
        case _:
            return f"{about}, exempt"


def granted_text(override: StoredOverride, unit: Unit | None) -> str:
    """Returns the amount of a grant; of one that has ended, what was used of it and what has expired."""
    if override.granted is None or override.expired is None:
        return amount_text(override.amount, unit)
    granted, expired = (amount_text(amount, unit) for amount in (override.granted, override.expired))
    return f"{granted} ({amount_text(override.amount, unit)} used, {expired} expired)"


def _stored(row: sa.Row[Any]) -> StoredOverride:
    return StoredOverride(
        row.id, row.kind, Subject(row.subject_kind, row.subject), row.policy, row.amount,
        row.from_ms, row.until_ms, row.state, row.reason, row.who, row.at_ms,
        row.granted, None if row.used_until is None else row.amount,
    )  # fmt: skip
