"""The status that each gate reported last, and which callers the log knows.

No count and no lock depends on it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.gates.gate_health import GateHealth, gate_refusal
from analyzer.gates.refused_clients import recent_refusals
from analyzer.gates.refused_requests import RefusedRequests
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql import plans
from analyzer.judging.sql.directory import newest, read_limits
from analyzer.kernel.database.audit_log import record
from analyzer.kernel.database.bounded_deletes import delete_at
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import NowMs, commit_soon, insert, reading, slow_reading, writing
from analyzer.kernel.errors import SchemaBehind
from analyzer.kernel.tables.counter_tables import named_callers
from analyzer.kernel.tables.schema import feed, feed_versions, gates, totals
from analyzer.kernel.tables.schema import tokens as tokens_table
from analyzer.plan import catalog
from analyzer.plan.groupings import parse_grouping
from gatekeeper.identity import NAME_BYTES_MAX, is_name
from gatekeeper.model import Cursor, GateStatus, SourceError
from gatekeeper.telemetry import status_json

GATES_KEPT_MS = 86_400_000  # since the last report; a living gate reports every few seconds
GATES_KEPT = 10_000  # the newest: a client may report under any number of names
GATES_LISTED_MAX = 2_000
GATES_PER_TOKEN_MAX = 2_000  # as many as are listed, and as a server stores between two reports of a gate
OWNED_S = 90.0  # a gate belongs to its token until its last report is older
CALLER_BYTES_MAX = 2 * NAME_BYTES_MAX  # with the kind of name in front
AT_ONCE = 500  # rows in one statement
NAMES_AT_ONCE = 4  # rows of `named_callers`, each up to some megabytes


def store_statuses(
    engine: sa.Engine, statuses: Iterable[GateStatus], tokens: Mapping[str, str] | None = None
) -> None:
    """Stores the newest status of each gate; an older one changes nothing. Raises StoreAway.

    `tokens` has the name of the token by instance, as far as there is one. A status with another token than
    the gate's changes nothing either, unless the gate has reported nothing for `OWNED_S`, or its token was
    revoked.
    """
    token_of = tokens or {}
    # Sorted: two servers that report the same gates cannot wait for each other in a circle.
    rows = [
        {
            "instance": status.instance, "number": status.number, "at_ms": NowMs(), "first_ms": NowMs(),
            "told": status_json.dump(status), "token": token_of.get(status.instance, ""),
        }
        for status in sorted(statuses, key=lambda status: status.instance)
    ]  # fmt: skip
    with writing(engine) as db:
        commit_soon(db)  # the next report comes in some seconds
        for begin in range(0, len(rows), AT_ONCE):
            added = insert(db, gates).values(rows[begin : begin + AT_ONCE])
            newer = {name: added.excluded[name] for name in ("number", "at_ms", "told", "token")}
            is_newer = sa.and_(
                gates.c.number < added.excluded.number,
                sa.or_(gates.c.token == added.excluded.token, gates.c.token == ""),
            )
            # Regardless of its number: another client may have used the highest one.
            is_given_up = sa.and_(gates.c.token.is_distinct_from(added.excluded.token), sa.not_(_is_owned()))
            where = sa.or_(is_newer, is_given_up)
            db.execute(added.on_conflict_do_update(index_elements=["instance"], set_=newer, where=where))
        _delete_beyond(db, sorted(set(token_of.values())))


def _is_owned() -> sa.ColumnElement[bool]:
    """Condition for gates that reported lately, over SQL or with a token that was not revoked."""
    is_recent = gates.c.at_ms > NowMs() - round(OWNED_S * 1000)
    is_token = gates.c.token.in_(sa.select(tokens_table.c.name))
    return sa.and_(is_recent, sa.or_(gates.c.token.is_(None), is_token))


def _delete_beyond(db: sa.Connection, tokens: Collection[str]) -> None:
    """Deletes gates of these tokens beyond `GATES_PER_TOKEN_MAX`: silent ones first, of these the newest.

    Names that a client has invented are newer than those of gates.
    """
    of_token, number = gates.c.token.in_(tokens), sa.func.count()
    counts = sa.select(gates.c.token).where(of_token).group_by(gates.c.token)
    for token in db.scalars(counts.having(number > GATES_PER_TOKEN_MAX)).all():
        is_silent = sa.case((gates.c.at_ms < NowMs() - round(OWNED_S * 1000), 1), else_=0)
        beyond = (
            sa.select(gates.c.instance)
            .where(gates.c.token == token)
            .order_by(is_silent, gates.c.first_ms, gates.c.instance)
            .offset(GATES_PER_TOKEN_MAX)
        )
        db.execute(delete_at(gates, beyond))


class GateOwner(NamedTuple):
    """The token that a gate reports with, None over SQL, and the time since its last report."""

    instance: str
    token: str | None
    report_age_s: float


def gate_owners(engine: sa.Engine) -> list[GateOwner]:
    """Returns the gates that belong to a token, or report over SQL. Raises StoreAway."""
    columns, age_ms = gates.c, NowMs() - gates.c.at_ms
    with reading(engine) as db:
        rows = db.execute(
            sa.select(columns.instance, columns.token, age_ms)
            .where(_is_owned())
            .order_by(columns.at_ms.desc())
            .limit(GATES_KEPT)
        )
        return [GateOwner(instance, token, max(0, ms) / 1000) for instance, token, ms in rows]


def reporting_gates(engine: sa.Engine) -> list[GateHealth]:
    """Returns the gates that reported within a day, the latest report first. Raises StoreAway."""
    columns = gates.c
    ago = [(NowMs() - column).label(column.name) for column in (columns.at_ms, columns.first_ms)]
    with reading(engine) as db:
        versions, refused = _feed_versions(db), recent_refusals(db)
        rows = db.execute(
            sa.select(columns.told, columns.at_ms.label("then_ms"), *ago)
            .where(columns.at_ms > NowMs() - GATES_KEPT_MS)
            .order_by(columns.at_ms.desc(), columns.instance)
            .limit(GATES_LISTED_MAX)
        ).all()
    return [gate for row in rows if (gate := _gate(row, versions, refused)) is not None]


class FeedVersions(NamedTuple):
    """The versions of the feed that are still stored."""

    at: Cursor  # the latest
    marks: dict[int, str]
    published: list[tuple[int, int]]  # version and time, ascending

    def missed_ms(self, cursor: Cursor, then_ms: int) -> int | None:
        """Returns how long a gate had been missing the version after `cursor` at a given time.

        0 when it missed none; None when `cursor` is not of this feed.
        """
        mark = self.marks.get(cursor.version, cursor.mark)  # of a pruned version, the gate's own
        if cursor.version > self.at.version or mark != cursor.mark:
            return None
        later = bisect_right(self.published, cursor.version, key=itemgetter(0))
        return max(0, then_ms - self.published[later][1]) if later < len(self.published) else 0


def _feed_versions(db: sa.Connection) -> FeedVersions:
    columns = feed_versions.c
    rows = db.execute(sa.select(columns.version, columns.mark, columns.at_ms).order_by(columns.version)).all()
    row = db.execute(sa.select(feed.c.version, feed.c.mark)).first()
    latest = Cursor(0, "") if row is None else Cursor(row.version, row.mark)
    marks = {version: mark for version, mark, _ in rows} | {latest.version: latest.mark}
    return FeedVersions(latest, marks, [(version, at_ms) for version, _, at_ms in rows])


def _gate(row: sa.Row[Any], versions: FeedVersions, refused: Iterable[RefusedRequests]) -> GateHealth | None:
    text, then_ms, at_ms, first_ms = tuple(row)
    try:
        status = status_json.load(text)
    except SourceError:  # not written by a gate
        return None
    missed_ms = 0 if status.at is None else versions.missed_ms(status.at, then_ms)
    report_age_s = max(0, at_ms) / 1000
    return GateHealth(
        status,
        report_age_s=report_age_s,
        first_report_age_s=max(0, first_ms) / 1000,
        missed_s=(missed_ms or 0) / 1000,
        is_foreign=missed_ms is None,
        refused=gate_refusal(status.instance, report_age_s, refused),
    )


def expired(now_ms: int) -> sa.ColumnElement[bool]:
    """Returns the condition for gates without a report for a day, and for those beyond GATES_KEPT."""
    newest = sa.select(gates.c.at_ms).order_by(gates.c.at_ms.desc()).offset(GATES_KEPT).limit(1)
    return sa.or_(gates.c.at_ms < now_ms - GATES_KEPT_MS, gates.c.at_ms <= newest.scalar_subquery())


def forget_gates(engine: sa.Engine, name: str, who: str, reason: str) -> int:
    """Deletes the gates of the application `name`, or the instance of this name; returns their number.

    Living ones return within a minute. Raises StoreAway.
    """
    gates_of = [gate.status.instance for gate in reporting_gates(engine) if gate.status.application == name]
    with writing(engine) as db:
        statement = sa.delete(gates).where(gates.c.instance.in_([name, *gates_of]))
        number = len(db.execute(statement.returning(gates.c.instance)).all())
        if number:
            record(db, who, "upkeep gates forget", name, reason)
        return number


class KnownCallers(NamedTuple):
    """Callers, among some given ones, that the log knows."""

    known: frozenset[str]
    overflow: bool  # a partition had too many callers in the last hours to count each by name


def known_among(engine: sa.Engine, callers: Collection[str]) -> KnownCallers:
    """Returns those of `callers` that are in the log. Raises StoreAway.

    A caller is known when it was counted in a partition's present or previous hour, or has a total of a
    recent window.
    """
    # A gate may be asked for anything; a text that cannot be a name is in no log.
    names = {caller for caller in callers if is_name(caller, CALLER_BYTES_MAX)}
    logged, overflow = set[str](), False
    with slow_reading(engine) as db:
        rows = db.execute(
            sa.select(named_callers.c.how, named_callers.c.callers),
            execution_options={"yield_per": NAMES_AT_ONCE},
        )
        for row in rows:
            logged |= names.intersection(row.callers.split("\n"))
            overflow = overflow or row.how == "drawn"  # callers are drawn only beyond the limit
        for number, window_s, callers_of in _windows_of_callers(db, names):
            logged |= _with_totals(db, number, window_s, sorted(callers_of - logged))
    return KnownCallers(frozenset(logged), overflow)


def _windows_of_callers(db: sa.Connection, callers: Collection[str]) -> list[tuple[int, int, set[str]]]:
    """Returns number and start of the windows, current and previous, in which totals of `callers` are kept.

    Each with those of them whose window it is.
    """
    try:
        _, plan = plans.active(db)
    except (LookupError, SchemaBehind):  # nothing was counted yet, or by a later version
        return []
    numbers, now_s = catalog.load(db), clock_ms(db) // 1000
    limits = read_limits(db, plan, newest(db), callers)
    windows = []
    for sum_ in plan_sums(plan).policies_by_sum:
        if parse_grouping(sum_.grouping).is_of_callers:
            of_start: dict[int, set[str]] = {}
            for caller in callers:
                current = limits.series_window(sum_, caller, now_s)
                previous = limits.series_window(sum_, caller, current.start_s - 1)
                for window in (current, previous):
                    of_start.setdefault(window.start_s, set()).add(caller)
            windows += [(numbers.sum_number(sum_), start_s, names) for start_s, names in of_start.items()]
    return windows


def _with_totals(db: sa.Connection, number: int, window_s: int, callers: list[str]) -> set[str]:
    columns, names = totals.c, set[str]()
    of_window = sa.and_(columns.sum == number, columns.window_s == window_s)
    for begin in range(0, len(callers), AT_ONCE):
        chunk = callers[begin : begin + AT_ONCE]
        names.update(db.scalars(sa.select(columns.key).where(of_window, columns.key.in_(chunk)).distinct()))
    return names
