"""Transactions in threads that wait before every statement, commit and rollback until they may do it.

A statement that waits for a lock is recognised by asking PostgreSQL whom it waits for.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import cached_property
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import psycopg
import sqlalchemy as sa

from analyzer.kernel.database.engine import open_engine
from gatekeeper.sources.sql import SqlSource
from tests.interleavings.explorer import DoneStep
from tests.interleavings.footprints import (
    CLOCK,
    EVERY_TABLE,
    NOW,
    WRITTEN,
    Footprint,
    Mode,
    commit_of,
    footprint_of,
    of_snapshot,
    reading_all,
    tables_of,
    tables_written,
    without_rows,
)
from tests.support.servers.postgres import dsn_of

ASK_AFTER_S = 0.001  # without an answer to a statement: then PostgreSQL is asked whether it waits
GIVE_UP_S = 20.0  # a step that takes as long is a bug of the harness
CLOSED_WITHIN_S = 5.0  # a thread that waits for nothing any more
# A deadlock is found as soon as every transaction waits. No other time-out may decide about an outcome.
SETTINGS = {
    "deadlock_timeout": "50ms",
    "lock_timeout": "0",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
ENDS = ("commit", "rollback")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Abandoned(Exception):
    """The rest of the order need not be run. Not a BaseException: SQLAlchemy would close the connection."""


class Step(NamedTuple):
    """A statement, commit or rollback that a transaction is ready for."""

    label: str
    footprint: Footprint

    @property
    def ends(self) -> bool:
        """Whether it ends a transaction, which releases locks."""
        return self.label in ENDS


class SimulatedClock:
    """The database's clock, which advances by a millisecond with each step, and by `advance`."""

    def __init__(self) -> None:
        self.now_ms = 0

    def in_place(self, statement: str) -> str:
        """Returns the statement with this time in the place of the database's clock."""
        now = EPOCH + timedelta(milliseconds=self.now_ms)
        return statement.replace(NOW, f"timestamptz '{now:%Y-%m-%d %H:%M:%S.%f+00}'")

    def over(self, engine: sa.Engine) -> None:
        """Puts this clock in the place of the database's, in every statement of the engine."""
        dialect: Any = engine.dialect
        execute, execute_many = dialect.do_execute, dialect.do_executemany

        def do_execute(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
            execute(cursor, self.in_place(statement), parameters, context)

        def do_executemany(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
            execute_many(cursor, self.in_place(statement), parameters, context)

        dialect.do_execute, dialect.do_executemany = do_execute, do_executemany


class Actor:
    """One thread with separate connections, in which transactions run one after the other.

    Attributes:
        engine: For what the transaction does.
        name: Of the transaction; also the owner of partitions and the mark of versions, so that stored rows
            show who has written them.
        pid: Of the server's process behind its connection.
        mutate: Returns the statement to execute instead of one.
        in_snapshot: Tables that the open transaction has read, if it is a read-only snapshot.
        has_waited: Whether the last statement has waited for a lock; set by the scheduler.
    """

    def __init__(self, url: str, clock: SimulatedClock, arrivals: SimpleQueue[Arrival]) -> None:
        self.name = ""
        self.engine = open_engine(url)
        self.pid = 0
        self.in_snapshot: set[str] | None = None
        self.has_waited = False
        self.mutate: Callable[[str], str] = lambda statement: statement
        self._url = url
        self._number = 0
        self._clock = clock
        self._arrivals = arrivals
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._is_watched = self._is_abandoned = False
        self._statements: list[Footprint] = []  # of the open transaction
        self._done: Footprint | None = None  # of the last statement, if it is less than was announced
        self._watch(self.engine)
        self._thread = threading.Thread(target=self._run, name="actor", daemon=True)
        self._thread.start()

    def mark(self) -> str:
        """Returns the name."""
        return self.name

    @cached_property
    def gate_source(self) -> SqlSource:
        """The source of locks of a gate, on a watched connection."""
        # Under another name: it stays connected, and `gatelock doctor` counts the gates of a server.
        url = sa.make_url(self._url).update_query_dict({"application_name": "interleavings"})
        source = SqlSource(url.render_as_string(hide_password=False))
        self._watch(source._engine)
        return source

    def start(self, number: int, name: str, function: TransactionFunction) -> None:
        self._inbox.put((number, name, function))

    def proceed(self) -> None:
        self._inbox.put(True)

    def abandon(self) -> None:
        self._inbox.put(False)

    def release(self) -> None:
        """Lets the transaction end at once: it fails at its next step, and at the one that it waits for."""
        self._is_abandoned = True
        self._inbox.put(False)
        self._inbox.put((0, "", None))

    def close(self) -> None:
        """Ends the thread; leaves one that does not end within seconds, and has lost its connections."""
        self._inbox.put((0, "", None))
        self._thread.join(CLOSED_WITHIN_S)
        if "gate_source" in self.__dict__:
            self.gate_source.close()
        self.engine.dispose()

    def pause(self, label: str, footprint: Footprint) -> None:
        """Waits until the step may be done; a step that touches nothing is done with the one behind it."""
        if not self._is_watched or not (footprint or label in ENDS):
            return
        if not self._is_abandoned:
            done, self._done, self.has_waited = self._done, None, False
            self._arrivals.put(Arrival(self._number, Step(label, footprint), done))
            self._is_abandoned = not self._inbox.get()
        if self._is_abandoned:
            raise Abandoned

    def advance_clock(self, by_ms: int) -> None:
        """Advances the clock, as a step that everything depends on that reads the clock."""
        self.pause(f"the clock advances by {by_ms} ms", frozenset({(CLOCK, Mode.COMMIT)}))
        self._clock.now_ms += by_ms

    def _run(self) -> None:
        while True:
            given = self._inbox.get()
            if given is False:  # released, although it had nothing to do
                continue
            self._number, self.name, function = given
            if function is None:
                return
            self._is_watched, self._is_abandoned, self._statements = True, False, []
            self.in_snapshot = None
            outcome: object
            try:
                outcome = function(self)
            except Exception as error:  # noqa: BLE001 - handed to the test
                outcome = error
            self._is_watched = False
            self._arrivals.put(Arrival(self._number, None, None, outcome))

    def _watch(self, engine: sa.Engine) -> None:
        dialect: Any = engine.dialect
        sa.event.listen(engine, "connect", _set_time_outs)
        engine.connect().close()  # SQLAlchemy's own statements, before known are watched
        self._clock.over(engine)
        execute, commit, roll_back = dialect.do_execute, dialect.do_commit, dialect.do_rollback

        def do_execute(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
            statement = self.mutate(statement)
            self._before(cursor, statement, parameters)
            execute(cursor, statement, parameters, context)
            self._after(cursor, statement)

        def do_executemany(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
            # psycopg sends them all before it waits for the first answer; the server executes one by one.
            statement, rows = self.mutate(statement), 0
            for one in parameters:
                self._before(cursor, statement, one)
                execute(cursor, statement, one, context)
                self._after(cursor, statement)
                rows += cursor.rowcount
            context._rowcount = rows

        def do_commit(connection: Any) -> None:
            self._end("commit")
            commit(connection)

        def do_rollback(connection: Any) -> None:
            if self._statements and not self._is_abandoned:  # otherwise the pool's, of nothing
                self._end("rollback")
            roll_back(connection)

        dialect.do_execute, dialect.do_executemany = do_execute, do_executemany
        dialect.do_commit, dialect.do_rollback = do_commit, do_rollback

    def _before(self, cursor: Any, statement: str, parameters: Any) -> None:
        if not self._is_watched:
            return
        self.pid = cursor.connection.info.backend_pid
        footprint = footprint_of(statement, parameters if isinstance(parameters, dict) else {})
        is_snapshot = cursor.connection.isolation_level == psycopg.IsolationLevel.REPEATABLE_READ
        if is_snapshot and not statement.startswith("set local "):  # all others take the snapshot
            is_first = self.in_snapshot is None
            self.in_snapshot = (self.in_snapshot or set()) | tables_of(footprint)
            footprint = of_snapshot(footprint, is_first=is_first)
        self._statements.append(footprint)
        self.pause(label_of(statement), footprint)

    def _after(self, cursor: Any, statement: str) -> None:
        if self._is_watched and not cursor.rowcount and not self.has_waited:
            self._statements[-1] = self._done = without_rows(statement, self._statements[-1])

    def _end(self, how: str) -> None:
        statements, self._statements = self._statements, []
        self.pause(how, commit_of(statements))


def _set_time_outs(connection: Any, _record: object) -> None:
    for name, value in SETTINGS.items():
        connection.execute(f"set {name} = '{value}'")
    connection.commit()


TransactionFunction = Callable[[Actor], object]  # returns its outcome, or raises it


class Arrival(NamedTuple):
    """A transaction that waits before a step, or that has ended."""

    number: int
    step: Step | None
    done: Footprint | None = None  # of the step before, if it is less than was announced
    outcome: object = None


class Transactions:
    """Runs named transactions step by step: a `System`.

    Attributes:
        outcomes: What each transaction has returned or raised, by its name.
        committed: The names of the transactions, in the order of their commits.
        revised: What the first statements of snapshots have touched, by the number of the step.
        written: Tables that may differ from their state at `begin`.
    """

    def __init__(self, url: str, clock: SimulatedClock, most: int = 4) -> None:
        self.outcomes: dict[str, object] = {}
        self.committed: list[str] = []
        self.written: set[str] = set()
        self.revised: dict[int, Footprint] = {}
        self._snapshots: dict[int, tuple[int, Footprint]] = {}  # the step that took it, by transaction
        self._count = 0
        self._clock = clock
        self._reset: Callable[[], None] = lambda: None
        self._staged: Mapping[str, TransactionFunction] = {}
        self._to_meet: set[str] = set()  # texts of `mutate` that no statement has had yet
        self._arrivals: SimpleQueue[Arrival] = SimpleQueue()
        self._closing = ExitStack()
        self._monitor = self._closing.enter_context(psycopg.connect(dsn_of(url), autocommit=True))
        self._actors = [Actor(url, clock, self._arrivals) for _ in range(most)]
        for actor in self._actors:
            self._closing.callback(actor.close)
        # Each transaction is in one of these three, until it has ended.
        self._ready: dict[int, Step] = {}
        self._running: set[int] = set()
        self._done: dict[int, Footprint] = {}
        self._waiting: dict[int, Step] = {}  # for a lock, in the middle of this statement

    @property
    def is_idle(self) -> bool:
        """Whether each transaction has ended."""
        return not (self._ready or self._running or self._waiting)

    def release(self) -> None:
        """Lets all transactions fail at their next step; none of them is of use any more."""
        for actor in self._actors:
            actor.release()

    def close(self) -> None:
        self._closing.close()

    def stage(self, staged: Mapping[str, TransactionFunction], reset: Callable[[], None]) -> None:
        """Sets the transactions of the orders to come, and what makes the state before each order."""
        self._staged, self._reset = staged, reset

    def mutate(self, replace: Mapping[str, str]) -> None:
        """Replaces texts in all statements to come; {} ends it. Raises AssertionError for a text not met."""
        assert not self._to_meet, f"no statement had {self._to_meet}"
        self._to_meet = {*replace}

        def mutated(statement: str) -> str:
            for old, new in replace.items():
                if old in statement:
                    self._to_meet.discard(old)
                    statement = statement.replace(old, new)
            return statement

        for actor in self._actors:
            actor.mutate = mutated

    def begin(self) -> None:
        self._reset()
        self.outcomes, self.committed, self.written = {}, [], set()
        self.revised, self._snapshots, self._count = {}, {}, 0
        for number, (name, function) in enumerate(self._staged.items()):
            self._running.add(number)
            self._actors[number].start(number, name, function)
            self._settle({})

    def enabled(self) -> frozenset[int]:
        return frozenset(self._ready)

    def next_label(self, actor: int) -> str:
        """Returns the step that the transaction is ready for; "" when it waits for a lock or has ended."""
        return self._ready[actor].label if actor in self._ready else ""

    def step(self, actor: int) -> DoneStep:
        step, name = self._ready.pop(actor), self._actors[actor].name
        if (EVERY_TABLE, Mode.READ) in step.footprint:
            self._snapshots[actor] = self._count, step.footprint
        elif step.ends and actor in self._snapshots:
            number, first = self._snapshots.pop(actor)
            self.revised[number] = reading_all(self._actors[actor].in_snapshot or set(), first)
            self._actors[actor].in_snapshot = None
        self._count += 1
        self._clock.now_ms += 1
        waited = {}
        if step.ends:
            waited, self._waiting = self._waiting, {}
        self._running |= {actor, *waited}
        self._actors[actor].proceed()
        self._settle(waited | {actor: step})
        woken = sorted(waited.keys() - self._waiting.keys())
        if step.label == "commit":
            self.committed.append(name)
        footprint = self._done.pop(actor, None) or step.footprint
        done = DoneStep(
            actor,
            f"{name}: {step.label}"
            + (", waits" if actor in self._waiting else "")
            + "".join(f"; {self._actors[number].name} has waited for it" for number in woken),
            footprint,
            tuple((number, waited[number].footprint) for number in woken),
        )
        self.written |= tables_written([done.whole])
        return done

    def abandon(self) -> None:
        while self._ready:
            number, _ = self._ready.popitem()
            waited, self._waiting = self._waiting, {}
            self._running |= {number, *waited}
            self._actors[number].abandon()
            self._settle(waited)

    def _settle(self, doing: Mapping[int, Step]) -> None:
        """Returns when nothing runs: each transaction is ready for a step, waits for a lock, or has ended.

        `doing` are the statements of those that run.
        """
        patience = round(GIVE_UP_S / ASK_AFTER_S)
        while self._running:
            try:
                arrival = self._arrivals.get(timeout=ASK_AFTER_S)
            except Empty:
                patience -= 1
                assert patience, f"no answer to {doing}"
                if not self._ready:  # a deadlock: PostgreSQL lets one of them fail
                    doing = {**doing, **self._waiting}
                    self._running |= self._waiting.keys()
                    self._waiting.clear()
                elif self._only_wait_for_locks():
                    for number in self._running:
                        self._waiting[number] = doing[number]
                        self._actors[number].has_waited = True
                    self._running.clear()
                continue
            self._running.discard(arrival.number)
            if self._waiting.pop(arrival.number, None) is not None:
                raise AssertionError("a transaction continues, although no other one has ended")
            if arrival.step is None:
                self.outcomes[self._actors[arrival.number].name] = arrival.outcome
            else:
                self._ready[arrival.number] = arrival.step
            if arrival.done is not None:
                self._done[arrival.number] = arrival.done

    def _only_wait_for_locks(self) -> bool:
        """Whether each running transaction waits for a lock that another transaction here holds."""
        pids = [self._actors[number].pid for number in self._running]
        known = {actor.pid for actor in self._actors}
        blocking = "select pg_blocking_pids(pid) from unnest(%s::int[]) as pid"
        found = [set(row[0]) for row in self._monitor.execute(blocking, [pids])]
        return all(blockers and blockers <= known for blockers in found)


def label_of(statement: str) -> str:
    """Returns a statement for display, in a few words."""
    text = " ".join(statement.lower().split())
    if found := WRITTEN.search(text):
        return " ".join(found.groups())
    read = " ".join(["select", *dict.fromkeys(READ_FROM.findall(text))])
    locking = LOCKING.search(text)
    if locking:
        return f"{read} {locking[0]}"
    return read if text.startswith("select") and read != "select" else text[:60]


READ_FROM = re.compile(r"\b(?:from|join) ([a-z]\w*)(?= |$)")
LOCKING = re.compile(r"\bfor (?:update|share)(?: of \w+)?(?: skip locked)?")
