"""Messages in SQL: gathered, tried, acknowledged or given up; resent and listed."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.alerts.alert_messages import AlertEvent, AlertMessage
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import ROWS_AT_ONCE, Engine, NowMs, reading, slow_reading
from analyzer.kernel.tables.outbox_tables import alert_messages, outbox

OUTBOX_KEPT_MS = 24 * 3_600_000  # events that no analyzer routes
LATE_S = 900.0  # for which a message is tried before that is a signal
DEAD_SHOWN_MS = 24 * 3_600_000  # for which a dead message is one
EACH_MAX = 20  # due messages of one receiver, in one step
READ_MAX = 100  # of all: each may have some 350 KB
_numbers = count()  # of messages of this process: those of one millisecond keep their order
WAITING = alert_messages.c.ended_ms.is_(None)


class DueMessage(NamedTuple):
    """A message that is to be tried.

    Attributes:
        id: Its name.
        receiver: The name of its destination or contact.
        topic: What it gathers.
        tries: Before.
        begun_ms: When it was tried first; None: it was not.
        made_ms: When it began to gather.
        number: Of its events.
        listed: Those that it has, as JSON.
    """

    id: str
    receiver: str
    topic: str
    tries: int
    begun_ms: int | None
    made_ms: int
    number: int
    listed: str

    def message(self, link: str) -> AlertMessage:
        """Returns what is sent."""
        events = [AlertEvent(*event) for event in json.loads(self.listed)]
        return AlertMessage(self.id, events, self.number, self.made_ms, link)


class GatheringMessage(NamedTuple):
    """A message that takes more events."""

    id: str
    number: int
    listed: str


class MessageCounts(NamedTuple):
    """Numbers of messages.

    Attributes:
        by_state: By "waiting", "sent", "dead"; those that are kept.
        oldest_s: For how long the oldest one is due and not acknowledged; 0: there is none.
        outbox: Events that are not routed.
    """

    by_state: Mapping[str, int]
    oldest_s: float
    outbox: int


def new_message_id() -> str:
    """Returns a random name, which rises with time."""
    order = f"{time.time_ns() // 1_000_000:012x}{next(_numbers) & 0xFFFF:04x}"
    return f"msg_{order}{secrets.token_hex(5)}"


def gathering(db: sa.Connection, receiver: str, topic: str) -> GatheringMessage | None:
    """Returns the message that gathers events of a topic, and blocks others from sending it."""
    columns = alert_messages.c
    statement = sa.select(columns.id, columns.events, columns.listed).where(
        columns.receiver == receiver, columns.topic == topic, columns.state == "gathering"
    )
    row = db.execute(statement.order_by(columns.made_ms.desc()).limit(1).with_for_update()).first()
    return None if row is None else GatheringMessage(*row)


def last_due_ms(db: sa.Connection, receiver: str, topic: str) -> int | None:
    """Returns when the last message of a topic was due first; None: there is none."""
    columns = alert_messages.c
    due = sa.func.coalesce(columns.begun_ms, columns.due_ms)
    of_topic = columns.receiver == receiver, columns.topic == topic
    statement = sa.select(due).where(*of_topic).order_by(columns.made_ms.desc()).limit(1)
    return db.execute(statement).scalar()


def add_message(
    db: sa.Connection, receiver: str, topic: str, severity: str, now_ms: int, due_ms: int,
    events: Sequence[AlertEvent], count: int,
) -> None:  # fmt: skip
    values = {
        "id": new_message_id(),
        "receiver": receiver,
        "topic": topic,
        "state": "gathering",
        "severity": severity,
        "events": count,
        "listed": listed_text(events),
        "made_ms": now_ms,
        "due_ms": due_ms,
    }
    db.execute(sa.insert(alert_messages).values(values))


def extend(db: sa.Connection, message: GatheringMessage, events: Sequence[AlertEvent], count: int) -> None:
    """Adds events to a message that gathers; `events` of the `count` are listed."""
    listed = json.dumps([*json.loads(message.listed), *events], ensure_ascii=False)
    more = {"listed": listed, "events": message.number + count}
    db.execute(sa.update(alert_messages).where(alert_messages.c.id == message.id).values(more))


def listed_text(events: Sequence[AlertEvent]) -> str:
    return json.dumps(list(events), ensure_ascii=False)


def due(db: sa.Connection) -> list[DueMessage]:
    """Returns messages that are due, the oldest first; of each receiver some."""
    c = alert_messages.c
    number = sa.func.row_number().over(partition_by=c.receiver, order_by=(c.made_ms, c.id)).label("number")
    columns = (c.id, c.receiver, c.topic, c.tries, c.begun_ms, c.made_ms, c.events)
    numbered = sa.select(c.id, number).where(WAITING, c.due_ms <= clock_ms(db)).subquery()
    statement = sa.select(*columns, c.listed).join(numbered, numbered.c.id == c.id)
    statement = statement.where(numbered.c.number <= EACH_MAX).order_by(c.made_ms, c.id)
    return [DueMessage(*row) for row in db.execute(statement.limit(READ_MAX))]


def begin_try(db: sa.Connection, message_id: str, again_ms: int) -> bool:
    """Notes a try, before it is made; without an answer there is another one at `again_ms`.

    Returns False if the message has ended meanwhile.
    """
    columns = alert_messages.c
    values = {
        "state": "sending",
        "begun_ms": sa.func.coalesce(columns.begun_ms, NowMs()),
        "tries": columns.tries + 1,
        "due_ms": again_ms,
    }
    return db.execute(_of(message_id).values(values)).rowcount == 1


def end(db: sa.Connection, message_id: str, state: str, status: int, error: str) -> None:
    """Ends a message as "sent" or "dead"."""
    values = {"state": state, "ended_ms": NowMs(), "status": status, "error": error}
    db.execute(_of(message_id).values(values))


def put_off(db: sa.Connection, message_id: str, receiver: str, status: int, error: str, due_ms: int) -> None:
    """Stores why a try failed; no message to its receiver is tried before `due_ms`."""
    db.execute(_of(message_id).values(status=status, error=error))
    columns = alert_messages.c
    # Those that gather continue to: what comes meanwhile is in one message.
    earlier = sa.update(alert_messages).where(WAITING, columns.receiver == receiver, columns.due_ms < due_ms)
    db.execute(earlier.values(due_ms=due_ms))


def _of(message_id: str) -> sa.Update:
    return sa.update(alert_messages).where(alert_messages.c.id == message_id, WAITING)


def send_again(db: sa.Connection, ids: Sequence[str]) -> list[str]:
    """Has messages that have ended sent again, with a new time to give up; returns their ids."""
    columns = alert_messages.c
    again = sa.update(alert_messages).where(columns.id.in_(ids), ~WAITING)
    again = again.values(
        state="sending", ended_ms=None, begun_ms=NowMs(), due_ms=NowMs(), tries=0, error="", status=0
    )
    return sorted(db.scalars(again.returning(columns.id)))


class StoredMessage(NamedTuple):
    """A message as lists show it."""

    id: str
    receiver: str
    state: str
    severity: str
    events: int
    made_ms: int
    due_ms: int
    ended_ms: int | None
    tries: int
    status: int
    error: str
    title: str


def stored_messages(
    engine: Engine,
    state: str = "",
    receiver: str = "",
    until: tuple[int, str] | None = None,
    behind: tuple[int, str] | None = None,
) -> Iterator[StoredMessage]:
    """Yields messages, the newest first, in constant memory. Raises StoreAway.

    Args:
        engine: The database.
        state: Only those that are "waiting", "sent" or "dead".
        receiver: Only those to it.
        until: Time and id of the newest one to begin with.
        behind: Time and id of one; only those that are older.
    """
    c = alert_messages.c
    columns = (
        *(c.id, c.receiver, c.state, c.severity, c.events, c.made_ms, c.due_ms, c.ended_ms, c.tries),
        *(c.status, c.error, c.listed),
    )
    statement = sa.select(*columns)
    if state:
        statement = statement.where(WAITING if state == "waiting" else c.state == state)
    if receiver:
        statement = statement.where(c.receiver == receiver)
    if until is not None:
        statement = statement.where(sa.tuple_(c.made_ms, c.id) <= sa.tuple_(*map(sa.literal, until)))
    if behind is not None:
        statement = statement.where(sa.tuple_(c.made_ms, c.id) < sa.tuple_(*map(sa.literal, behind)))
    statement = statement.order_by(c.made_ms.desc(), c.id.desc())
    with (
        slow_reading(engine) as db,
        db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows,
    ):
        for row in rows:
            fields, listed = row[:-1], row.listed
            events = [AlertEvent(*event) for event in json.loads(listed)]
            title = AlertMessage(fields[0], events, fields[4], fields[5]).title
            yield StoredMessage._make((*fields, title))


class ReceiverCounts(NamedTuple):
    """The messages to one destination or contact.

    Attributes:
        waiting: That are not acknowledged yet.
        sent: That were.
        dead: That were given up.
        error: Of the last try, if it failed and messages wait.
    """

    waiting: int = 0
    sent: int = 0
    dead: int = 0
    error: str = ""


NO_MESSAGES = ReceiverCounts()


def count_by_receiver(engine: Engine) -> dict[str, ReceiverCounts]:
    """Returns the messages of each receiver that has any. Raises StoreAway."""
    c = alert_messages.c
    numbers = [
        sa.func.count(sa.case((condition, 1)))
        for condition in (WAITING, c.state == "sent", c.state == "dead")
    ]
    error = sa.func.max(sa.case((WAITING, c.error), else_=""))
    statement = sa.select(c.receiver, *numbers, error).group_by(c.receiver)
    with slow_reading(engine) as db:
        return {receiver: ReceiverCounts(*counts) for receiver, *counts in db.execute(statement)}


def dead_ids(engine: Engine, receiver: str | None, most: int) -> list[str]:
    """Returns dead messages, the oldest first. Raises StoreAway."""
    c = alert_messages.c
    statement = sa.select(c.id).where(c.state == "dead").order_by(c.made_ms, c.id).limit(most)
    if receiver is not None:
        statement = statement.where(c.receiver == receiver)
    with reading(engine) as db:
        return list(db.scalars(statement))


def count_messages(engine: Engine) -> MessageCounts:
    """Returns how many messages there are, and how old the oldest is that waits. Raises StoreAway."""
    c = alert_messages.c
    state = sa.case((WAITING, "waiting"), else_=c.state)
    with reading(engine) as db:
        rows = db.execute(sa.select(state, sa.func.count()).group_by(state))
        by_state = {str(name): int(number) for name, number in rows}
        now_ms = clock_ms(db)
        first_ms = sa.select(sa.func.min(sa.func.coalesce(c.begun_ms, c.due_ms))).where(WAITING)
        oldest_ms = db.execute(first_ms).scalar()
        waiting = db.execute(sa.select(sa.func.count()).select_from(outbox)).scalar_one()
    oldest_s = 0.0 if oldest_ms is None else max(0.0, (now_ms - oldest_ms) / 1000)
    return MessageCounts({"waiting": 0, "sent": 0, "dead": 0} | by_state, oldest_s, int(waiting))


class UndeliveredMessages(NamedTuple):
    """Messages that a receiver does not take.

    Attributes:
        receiver: The name of the destination or contact.
        waiting_s: For how long the oldest one is tried; None: none waits for longer than LATE_S.
        dead: How many were given up within a day.
        error: Of the last try.
    """

    receiver: str
    waiting_s: float | None
    dead: int
    error: str


def undelivered(engine: Engine) -> list[UndeliveredMessages]:
    """Returns the receivers that have not taken messages for LATE_S, or for a whole time to give up.

    Raises StoreAway.
    """
    c = alert_messages.c
    with reading(engine) as db:
        now_ms = clock_ms(db)
        is_late = sa.and_(WAITING, c.begun_ms < now_ms - round(LATE_S * 1000))
        is_dead = sa.and_(c.state == "dead", c.ended_ms > now_ms - DEAD_SHOWN_MS)
        statement = (
            sa.select(
                c.receiver,
                sa.func.min(sa.case((is_late, c.begun_ms))),
                sa.func.count(sa.case((is_dead, 1))),
                sa.func.max(c.error),
            )
            .where(sa.or_(is_late, is_dead))
            .group_by(c.receiver)
            .order_by(c.receiver)
        )
        return [
            UndeliveredMessages(
                receiver, None if begun_ms is None else (now_ms - begun_ms) / 1000, dead, error
            )
            for receiver, begun_ms, dead, error in db.execute(statement)
        ]


def outdated(before_ms: int) -> sa.ColumnElement[bool]:
    """Returns the condition for messages that ended before a time."""
    return alert_messages.c.ended_ms < before_ms


def unrouted(now_ms: int) -> sa.ColumnElement[bool]:
    """Returns the condition for events that no analyzer has routed for a day."""
    return outbox.c.at_ms < now_ms - OUTBOX_KEPT_MS
