"""The directory of callers in SQL: its versions, and what flushes and judgements know of it.

Each command that changes a caller or an override writes a new version, under the lock of an activation. A
flush keeps the whole directory in memory and reads what has changed since the version that it knows, in the
transaction that found a newer one; a judgement of a few series reads the rows of these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.judging.caller_limits import EMPTY, Directory, Limits, Override, Profile, Subject
from analyzer.kernel.database.clock import instant
from analyzer.kernel.database.engine import NowMs, insert
from analyzer.kernel.database.row_parameters import is_among
from analyzer.kernel.tables.schema import callers, directory_versions, overrides
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.mapping import TENANT
from analyzer.plan.plan import Plan
from analyzer.plan.policies import StatedOverride

PLANNED, IN_FORCE, ENDED = "planned", "in force", "ended"
LASTING = (PLANNED, IN_FORCE)
OF_PLAN, OF_COMMAND = "plan", "command"  # origins
WIDE = 1 << 32  # times the wide changes, plus the version of the plan: what totals are marked with
ROWS_AT_ONCE = 10_000
CALLERS_MAX = 2_000_000  # with facts; then records state none about further callers. 112 bytes of memory each

NEWEST = (
    sa.select(directory_versions.c.version, directory_versions.c.mark, directory_versions.c.wide)
    .order_by(directory_versions.c.version.desc())
    .limit(1)
    .subquery("newest")
)
# What an operator has stated comes before what records state.
HELD = {
    name: sa.func.coalesce(sa.func.nullif(callers.c[name], ""), callers.c[f"record_{name}"]).label(name)
    for name in Profile._fields
}
PROFILE = (callers.c.caller, *HELD.values())
OVERRIDE = (
    overrides.c.id, overrides.c.subject_kind, overrides.c.subject,
    overrides.c.kind, overrides.c.policy, overrides.c.amount, overrides.c.state, overrides.c.from_ms,
)  # fmt: skip


class DirectoryVersion(NamedTuple):
    """A state of the directory. After a restore another state may have the number, with another mark."""

    version: int
    mark: str
    wide: int  # changes so far whose callers are not known by name: of tenants, addresses and ranges

    def judged_by(self, plan_version: int) -> int:
        """Returns the mark of totals that are judged by a plan and this directory.

        A change for named callers marks their totals itself; after any other one, all totals are judged when
        they grow next, as after a change of the plan.
        """
        return plan_version + self.wide * WIDE


NO_DIRECTORY = DirectoryVersion(0, "", 0)


def newest(db: sa.Connection) -> DirectoryVersion:
    """Returns the version of the directory."""
    row = db.execute(sa.select(*NEWEST.c)).first()
    return DirectoryVersion(*row) if row else NO_DIRECTORY


def written_at(db: sa.Connection, version: int) -> datetime | None:
    """Returns when a version was written; None if it is not known any more."""
    at_ms = sa.select(directory_versions.c.at_ms).where(directory_versions.c.version == version)
    written_ms = db.execute(at_ms).scalar()
    return None if written_ms is None else instant(written_ms)


def add_version(db: sa.Connection, mark: str, *, is_wide: bool) -> DirectoryVersion:
    """Writes the next version. The transaction holds the lock of an activation."""
    previous = newest(db)
    added = DirectoryVersion(previous.version + 1, mark, previous.wide + is_wide)
    db.execute(sa.insert(directory_versions).values(**added._asdict(), at_ms=NowMs()))
    return added


def outdated_versions(before_ms: int) -> sa.ColumnElement[bool]:
    """Returns the condition for versions that were written before a time, without the newest one."""
    columns = directory_versions.c
    newer = sa.select(columns.version).where(columns.at_ms >= before_ms).order_by(columns.version).limit(1)
    last = sa.select(sa.func.max(columns.version))
    return columns.version < sa.func.coalesce(newer.scalar_subquery(), last.scalar_subquery())


def forgotten_overrides() -> sa.ColumnElement[bool]:
    """Returns the condition for overrides that ended in a version which is deleted.

    A flush that knows only such a version reads the whole directory again, so it misses no end.
    """
    oldest = sa.select(sa.func.min(directory_versions.c.version)).scalar_subquery()
    return sa.and_(overrides.c.state == ENDED, overrides.c.version < oldest)


def store_stated(
    db: sa.Connection, plan: Plan, now_ms: int, who: str, random_mark: Callable[[], str]
) -> None:
    """Stores the overrides of `plan`, which comes in force here, in place of those of the last plan.

    One of which only the reason differs continues, from when it began.
    """
    is_stated = sa.and_(overrides.c.origin == OF_PLAN, overrides.c.state.in_(LASTING))
    rows = db.execute(sa.select(overrides.c.id, overrides.c.reason).where(is_stated))
    reasons = {row.id: row.reason for row in rows}
    stored = reasons.keys()
    plan_overrides = {
        _override_id(override): override
        for override in plan.overrides
        if override.until_s is None or override.until_s * 1000 > now_ms
    }
    for id_ in sorted(stored & plan_overrides.keys()):
        if reasons[id_] != plan_overrides[id_].reason:
            explained = {"reason": plan_overrides[id_].reason, "who": who}
            db.execute(sa.update(overrides).where(overrides.c.id == id_).values(explained))
    dropped, new = sorted(stored - plan_overrides.keys()), sorted(plan_overrides.keys() - stored)
    if not dropped and not new:
        return
    version = add_version(db, random_mark(), is_wide=True).version
    for id_ in dropped:
        ended = {"state": ENDED, "due_ms": None, "version": version}
        db.execute(sa.update(overrides).where(overrides.c.id == id_).values(ended))
    for id_ in new:
        row = _override_row(plan_overrides[id_], now_ms) | {
            "id": id_,
            "who": who,
            "at_ms": now_ms,
            "version": version,
        }
        added = insert(db, overrides).values(row)
        db.execute(added.on_conflict_do_update(index_elements=overrides.primary_key, set_=row))


def _override_id(override: StatedOverride) -> str:
    return f"plan-{override.digest[:12]}"


def _override_row(override: StatedOverride, now_ms: int) -> dict[str, Any]:
    from_ms = now_ms if override.from_s is None else override.from_s * 1000
    until_ms = None if override.until_s is None else override.until_s * 1000
    state = PLANNED if from_ms > now_ms else IN_FORCE
    due_ms = from_ms if state == PLANNED else until_ms
    columns = {
        name: getattr(override, name) for name in ("kind", "subject_kind", "subject", "policy", "amount")
    }
    return columns | {
        "from_ms": from_ms, "until_ms": until_ms, "state": state, "due_ms": due_ms,
        "reason": override.reason, "origin": OF_PLAN,
    }  # fmt: skip


class DirectoryCache:
    """The whole directory in memory, as flushes of one analyzer use it. Not shared between threads."""

    def __init__(self) -> None:
        self._version = NO_DIRECTORY
        self._directory = Directory()
        self._limits: tuple[Plan, Limits] | None = None

    @property
    def callers(self) -> Container[str]:
        """The callers with facts, as of the last call of `limits`."""
        return self._directory.numbers

    @property
    def has_room(self) -> bool:
        """Whether records may state facts about further callers."""
        return len(self._directory.numbers) < CALLERS_MAX

    def limits(self, db: sa.Connection, plan: Plan, version: DirectoryVersion) -> Limits:
        """Returns the limits by `plan` and the directory, whose `version` the transaction has locked."""
        if version != self._version:
            self._refresh(db, version)
            self._limits = None
        if self._limits is None or self._limits[0] is not plan:
            self._limits = plan, Limits(plan, self._directory)
        return self._limits[1]

    def _refresh(self, db: sa.Connection, version: DirectoryVersion) -> None:
        previous, self._version = self._version, NO_DIRECTORY  # nothing, should reading fail
        if not self._continues(db, previous, version):
            previous, self._directory = NO_DIRECTORY, Directory()
        changed = callers.c.version > previous.version
        _add_profiles(self._directory, db.execute(_streamed(sa.select(*PROFILE).where(changed))))
        changed = overrides.c.version > previous.version
        _add_overrides(self._directory, db.execute(_streamed(sa.select(*OVERRIDE).where(changed))))
        self._version = version

    def _continues(self, db: sa.Connection, previous: DirectoryVersion, version: DirectoryVersion) -> bool:
        """Whether `version` follows from the known one: after a restore it may not."""
        is_previous = sa.and_(
            directory_versions.c.version == previous.version, directory_versions.c.mark == previous.mark
        )
        row = db.execute(sa.select(directory_versions.c.version).where(is_previous)).first()
        return row is not None and previous.version < version.version


def read_limits(db: sa.Connection, plan: Plan, version: DirectoryVersion, keys: Collection[str]) -> Limits:
    """Returns limits that are right for series with these keys, read from their rows."""
    if version == NO_DIRECTORY:
        return Limits(plan, EMPTY)
    has_tenants = any(parse_grouping(policy.per).scope == "tenant" for policy in plan.policies)
    return Limits(plan, read_directory(db, keys, has_tenants=has_tenants))


def read_directory(db: sa.Connection, keys: Collection[str], *, has_tenants: bool = True) -> Directory:
    """Returns the part of the directory that series with these keys depend on.

    Without `has_tenants` none of them is a tenant.
    """
    directory, in_order = Directory(), sorted(keys)
    dialect = db.dialect.name
    _read_profiles(db, directory, in_order)
    tenants = directory.tenants.union(keys if has_tenants else ())
    _read_profiles(db, directory, sorted({TENANT + tenant for tenant in tenants} - {*keys}))
    subjects = sorted({*in_order, *directory.tenants})
    for first in range(0, len(subjects), ROWS_AT_ONCE):
        is_subject = is_among(dialect, overrides.c.subject, subjects[first : first + ROWS_AT_ONCE])
        is_in_force = overrides.c.state == IN_FORCE
        _add_overrides(directory, db.execute(sa.select(*OVERRIDE).where(is_subject, is_in_force)))
    # A key may lie within any range; there are few.
    is_range = sa.and_(overrides.c.subject_kind == "address", overrides.c.state == IN_FORCE)
    _add_overrides(directory, db.execute(sa.select(*OVERRIDE).where(is_range)))
    return directory


def has_refused(db: sa.Connection) -> bool:
    """Whether an override in force allows a caller or a tenant nothing."""
    refused = overrides.c.kind == "limit", overrides.c.amount == 0, overrides.c.state == IN_FORCE
    return db.execute(sa.select(overrides.c.id).where(*refused).limit(1)).first() is not None


def known_names(db: sa.Connection, behind: str, most: int) -> list[str]:
    """Returns the first names behind one, in their order, of callers and tenants with a fact or a limit."""
    of_callers = sa.select(callers.c.caller.label("name")).where(callers.c.caller > behind)
    is_tenant = overrides.c.subject_kind == "tenant"
    name = sa.case((is_tenant, TENANT + overrides.c.subject), else_=overrides.c.subject)
    limited = sa.select(name.label("name")).where(
        overrides.c.kind == "limit", overrides.c.state == IN_FORCE, name > behind
    )
    first = of_callers.order_by(callers.c.caller).limit(most).subquery()
    names = sa.union(sa.select(first.c.name), limited).subquery()
    return list(db.execute(sa.select(names.c.name).order_by(names.c.name).limit(most)).scalars())


def _read_profiles(db: sa.Connection, directory: Directory, names: Sequence[str]) -> None:
    for first in range(0, len(names), ROWS_AT_ONCE):
        chunk = names[first : first + ROWS_AT_ONCE]
        statement = sa.select(*PROFILE).where(is_among(db.dialect.name, callers.c.caller, chunk))
        _add_profiles(directory, db.execute(statement))


def _streamed(statement: sa.Select[Any]) -> sa.Select[Any]:
    return statement.execution_options(yield_per=ROWS_AT_ONCE)


def _add_profiles(directory: Directory, rows: Iterable[sa.Row[Any]]) -> None:
    for row in rows:
        directory.set_profile(row.caller, Profile(*row[1:]))


def _add_overrides(directory: Directory, rows: Iterable[sa.Row[Any]]) -> None:
    for row in rows:
        override = None
        if row.state == IN_FORCE:
            override = Override(row.kind, row.policy, row.amount, row.from_ms)
        directory.set_override(row.id, Subject(row.subject_kind, row.subject), override)
