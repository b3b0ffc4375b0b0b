"""The signals that stand, stored: every face reads them here, and one job writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.faces.signals.signal_kinds import SIGNAL_KINDS, Signal
from analyzer.kernel.database.clock import clock_ms, instant
from analyzer.kernel.database.engine import insert, reading, writing
from analyzer.kernel.outbox import EventKind, OutboxEvent, put
from analyzer.kernel.tables.job_tables import job_runs
from analyzer.kernel.tables.signal_tables import signals
from analyzer.kernel.time_texts import format_span
from gatekeeper.feed.feed_json import time_text

WATCH = "watch-signals"  # the job
LOOK_EVERY_S = 5
UNWATCHED_MS = 30_000  # some looks may be late on a busy machine
HOLD_MS = 60_000  # a signal that comes back within this time was never over
SUBJECT_MAX = 512  # characters


class SignalChanges(NamedTuple):
    """The signals that began and ended with a look."""

    began: Sequence[Signal]
    ended: Sequence[Signal]


class StoredSignal(NamedTuple):
    """A row: the signal, and since when it is not seen any more."""

    signal: Signal
    over_ms: int | None


def store_signals(engine: sa.Engine, seen: Sequence[Signal]) -> SignalChanges:
    """Makes the table agree with what was seen at this moment; returns what began and what ended.

    A look that changes nothing writes nothing. Raises StoreAway.
    """
    seen = [signal._replace(subject=signal.subject[:SUBJECT_MAX]) for signal in seen]
    with reading(engine) as db:
        if not _has_changed(_rows(db), seen, clock_ms(db)):
            return SignalChanges([], [])
    with writing(engine) as db:
        return _store(db, seen, clock_ms(db))


def _has_changed(rows: Iterable[StoredSignal], seen: Iterable[Signal], now_ms: int) -> bool:
    """Whether a row is to be written."""
    missing = {(signal.name, signal.subject): signal for signal in seen}
    for signal, over_ms in rows:
        newest = missing.pop((signal.name, signal.subject), None)
        if newest is None:
            if over_ms is None or over_ms < now_ms - HOLD_MS:
                return True
        elif over_ms is not None or newest._replace(since_ms=signal.since_ms) != signal:
            return True
    return bool(missing)


def _store(db: sa.Connection, seen: Sequence[Signal], now_ms: int) -> SignalChanges:
    stored = {(row.signal.name, row.signal.subject): row for row in _rows(db)}
    began, ended = [], []
    for signal in sorted(seen, key=lambda signal: (signal.name, signal.subject)):
        before = stored.pop((signal.name, signal.subject), None)
        since_ms = now_ms if before is None else before.signal.since_ms
        lasting = signal._replace(since_ms=since_ms)
        if before is None:
            began.append(lasting)
        values = {**lasting._asdict(), "over_ms": None}
        upsert = insert(db, signals).values(values)
        db.execute(upsert.on_conflict_do_update(index_elements=signals.primary_key, set_=values))
    for (name, subject), (signal, over_ms) in sorted(stored.items()):
        is_row = sa.and_(signals.c.name == name, signals.c.subject == subject)
        if over_ms is None:
            db.execute(sa.update(signals).where(is_row).values(over_ms=now_ms))
        elif over_ms < now_ms - HOLD_MS:
            db.execute(sa.delete(signals).where(is_row))
            ended.append(signal)
    begins = [_event("signal.began", signal) for signal in began]
    put(db, [*begins, *(_event("signal.ended", signal) for signal in ended)])
    return SignalChanges(began, ended)


def _event(kind: EventKind, signal: Signal) -> OutboxEvent:
    details = {
        "name": signal.name,
        "subject": signal.subject,
        "since": time_text(instant(signal.since_ms)),
        "page": signal.page,
    }
    return OutboxEvent(
        *(kind, signal.name, signal.what, signal.severity),
        cure=signal.cure, command=signal.command, details=details,
    )  # fmt: skip


def _rows(db: sa.Connection) -> list[StoredSignal]:
    """Returns all rows. Those of kinds that only another version knows are left out."""
    rows = db.execute(sa.select(signals).where(signals.c.name.in_([*SIGNAL_KINDS])))
    return [
        StoredSignal(
            Signal(row.name, row.subject, row.severity, row.what, row.cure, row.since_ms), row.over_ms
        )
        for row in rows
    ]


def standing_signals(engine: sa.Engine) -> list[Signal]:
    """Returns the signals that stand, the worst first.

    Where no process has looked lately, the first one says so. Raises StoreAway.
    """
    with reading(engine) as db:
        rows, now_ms = _rows(db), clock_ms(db)
        looks = sa.select(sa.func.max(job_runs.c.done_ms)).where(job_runs.c.job == WATCH)
        looked_ms = db.execute(looks).scalar_one_or_none()
    standing = sorted((row.signal for row in rows if row.over_ms is None), key=lambda signal: signal.order)
    if looked_ms is not None and looked_ms > now_ms - UNWATCHED_MS:
        return standing
    since = "ever" if looked_ms is None else f"for {format_span((now_ms - looked_ms) / 1000)}"
    unwatched = Signal(
        *("not-watched", "", SIGNAL_KINDS["not-watched"].severity),
        f"no analyzer has looked for problems {since}: what counts and judges is not known",
        "start `gatelock run`",
        looked_ms or 0,
    )
    return [unwatched, *standing]


def signal_begins(engine: sa.Engine) -> dict[tuple[str, str], str]:
    """Returns when the stored signals began, by name and subject. Raises StoreAway."""
    with reading(engine) as db:
        signals_stored = [row.signal for row in _rows(db)]
    return {(signal.name, signal.subject): time_text(instant(signal.since_ms)) for signal in signals_stored}


def signal_fields(signal: Signal, *, has_details: bool = True) -> dict[str, object]:
    """Returns a signal as JSON has it; without details only what names no caller, path or machine."""
    fields: dict[str, object] = {"name": signal.name, "severity": signal.severity}
    if signal.since_ms:
        fields["since"] = time_text(instant(signal.since_ms))
    if has_details:
        fields |= {"subject": signal.subject, "what": signal.what, "cure": signal.cure}
    return fields
