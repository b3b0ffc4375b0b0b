"""Scenario folders: a configuration, the lines of a log, and which locks they must raise.

tests/scenarios/folders/README.md describes the files. A folder is played by the whole loop under one clock.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from analyzer.callers.caller_changes import set_callers
from analyzer.callers.caller_file import read_file
from analyzer.config.settings import load
from analyzer.flush.analyzers import change_plan
from analyzer.flush.flush_executors import InlineFlushes
from analyzer.judging.locks.locks_by_hand import Effect, LockTarget, clear_locks, set_locks
from analyzer.kernel.by import By
from analyzer.kernel.database.clock import instant, millis
from analyzer.kernel.tables.schema import (
    buckets,
    lock_changes,
    lock_history,
    locks,
    notices,
    postponed,
    rejects,
)
from analyzer.plan.plan import Plan
from analyzer.plan.policies import SHADOW
from analyzer.plan.proposals import promoted
from gatekeeper.model import Decision
from tests.support.whole_loop import STEP_S, World

BEFORE_S = 1.0  # the analyzer runs before the first moment of a story
AFTER_S = 2.0  # and after its last one: a flush, a poll, a turn of the warden
LATEST_S = 10.0  # a lock that has not begun so long after its time does not begin at it any more
NEW_CHANGES = (
    sa.select(lock_changes)
    .where(lock_changes.c.version > sa.bindparam("seen"))
    .order_by(lock_changes.c.version, lock_changes.c.number)
)
ACT_KEYS = {"at", "restart", "stop", "policies", "callers", "promote", "clear", "hold_off_s", "lock", "for_s"}
BY_HAND = By("operator", "the operator's reason")


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """A request that a gate is asked for, and its decision. `refused_by` is null for one that passes."""

    at: datetime
    refused_by: str | None
    caller: str = ""
    resource: str = ""
    address: str = ""
    tenant: str = ""
    values: dict[str, str] = {}
    status: int | msgspec.UnsetType = msgspec.UNSET
    detail: str | msgspec.UnsetType = msgspec.UNSET
    tags: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    also: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class Raised(msgspec.Struct, forbid_unknown_fields=True, rename={"began": "from"}):
    """A lock that was in force without a break."""

    scope: str
    key: str
    policy: str
    began: datetime
    until: datetime
    resource: str = ""

    def __str__(self) -> str:
        on = " ".join(filter(None, (self.scope, self.key, self.resource)))
        return f"lock of {self.policy} on {on} from {self.began} until {self.until}"


class RaisedNotice(msgspec.Struct, forbid_unknown_fields=True):
    """A notice that was raised."""

    key: str
    policy: str
    threshold: float
    at: datetime

    def __str__(self) -> str:
        return f"notice of {self.policy} at {self.threshold:g} about {self.key}, {self.at}"


class Never(msgspec.Struct, forbid_unknown_fields=True):
    """A series that has requests in the log, and never a lock of any policy."""

    key: str
    why: str
    resource: str = ""


class Contrast(msgspec.Struct, forbid_unknown_fields=True):
    """A change of one file with which the expectations must fail: every `old` in it becomes `new`."""

    why: str
    file: str
    old: str
    new: str


class Expected(msgspec.Struct, forbid_unknown_fields=True):
    """Expectations of a folder, as expected.json has them."""

    story: str
    locks: tuple[Raised, ...]  # all of them
    asked: tuple[Asked, ...]
    contrast: tuple[Contrast, ...]
    never: tuple[Never, ...] = ()
    notices: tuple[RaisedNotice, ...] | None = None  # all of them; None: any
    shadow: tuple[Raised, ...] = ()  # all locks that no gate gets, because of the mode of their policy
    rejected: Mapping[str, int] = {}  # records by the reason
    give_or_take_s: float = 0.5  # of the begin and end of a lock


class Repeat(msgspec.Struct, forbid_unknown_fields=True):
    """So many requests instead of one."""

    count: int
    every_s: float
    callers: int = 1


class Moment(NamedTuple):
    """Something that happens at a moment."""

    at: datetime
    act: Callable[[Stage], None]


@dataclass(frozen=True)
class Folder:
    """The files of a folder, as text."""

    files: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> Folder:
        """Returns the folder at `path`. Raises ValueError when one of the three files is missing or empty."""
        files = {file.name: file.read_text() for file in sorted(path.iterdir())}
        for name in ("policies.toml", "requests.jsonl", "expected.json"):
            if not files.get(name, "").strip():
                raise ValueError(f"{path.name}/{name} is missing or empty")
        return cls(files)

    @property
    def expected(self) -> Expected:
        return msgspec.json.decode(self.files["expected.json"], type=Expected)

    def changed(self, contrast: Contrast) -> Folder:
        """Returns the folder with the change. Raises ValueError when it changes nothing."""
        before = self.files[contrast.file]
        after = before.replace(contrast.old, contrast.new)
        if after == before:
            raise ValueError(f"{contrast.file} does not contain {contrast.old!r}")
        return replace(self, files={**self.files, contrast.file: after})

    def plan(self, name: str = "policies.toml") -> Plan:
        """Returns the plan of a configuration. Raises ConfigInvalid."""
        with tempfile.TemporaryDirectory() as at:
            file = Path(at) / "gatelock.toml"
            file.write_text(self.files[name])
            return load(file).plan()

    def moments(self) -> Iterator[Moment]:
        """Yields the records and acts in the order of the file."""
        for number, line in enumerate(self.files["requests.jsonl"].splitlines(), 1):
            if line.strip() and not line.startswith("//"):
                try:
                    yield from self._moments_of(json.loads(line))
                except (KeyError, ValueError) as error:
                    raise ValueError(f"requests.jsonl:{number}: {error!r}") from error

    def _moments_of(self, fields: dict[str, Any]) -> Iterator[Moment]:
        if "at" in fields:
            if unknown := fields.keys() - ACT_KEYS:
                raise ValueError(f"unknown: {unknown}")
            if "stop" in fields:
                yield Moment(instant_of(fields["at"]), Stage.stop)
                return
            if "promote" in fields:
                yield Moment(instant_of(fields["at"]), partial(Stage.promote, policy=fields["promote"]))
                return
            if "clear" in fields:
                hold_off_s = fields.get("hold_off_s")
                act = partial(Stage.clear, caller=fields["clear"], hold_off_s=hold_off_s)
                yield Moment(instant_of(fields["at"]), act)
                return
            if "lock" in fields:
                act = partial(Stage.lock, caller=fields["lock"], for_s=fields["for_s"])
                yield Moment(instant_of(fields["at"]), act)
                return
            if "callers" in fields:
                text = self.files[fields["callers"]]
                yield Moment(instant_of(fields["at"]), partial(Stage.import_callers, text=text))
                return
            plan = self.plan(fields["policies"]) if "policies" in fields else None
            yield Moment(instant_of(fields["at"]), partial(Stage.restart, plan=plan))
            return
        for request in repeated(fields):
            logged = instant_of(request.pop("logged", None) or request["time"])
            text = request["line"] if "line" in request else json.dumps(request)
            yield Moment(logged, partial(Stage.write, text=text, at=logged))


def repeated(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the requests of a line: one, or those of its `repeat`, with the times moved.

    In every text of a repeated request `{n}` is its number, from 0, and `{caller}` the number of its caller.
    """
    if "repeat" not in fields:
        yield fields
        return
    repeat = msgspec.convert(fields.pop("repeat"), Repeat)
    for n in range(repeat.count):
        request = {
            name: value.replace("{n}", str(n)).replace("{caller}", str(n % repeat.callers))
            if isinstance(value, str)
            else value
            for name, value in fields.items()
        }
        for name in {"time", "logged"} & request.keys():
            moved = instant_of(request[name]) + timedelta(seconds=n * repeat.every_s)
            request[name] = moved.isoformat(timespec="microseconds")
        yield request


def instant_of(text: str) -> datetime:
    """Returns a time that is written in RFC 3339. Raises ValueError, also without an offset."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text} has no offset: write Z, or +01:00")
    return found


class Stage:
    """A world in which a folder is played, and what its gate and its feed have shown.

    Args:
        url: Of a migrated database, from which a gate has read nothing.
        plan: The plan at the beginning.
        start: When the analyzer starts.
    """

    def __init__(self, url: str, plan: Plan, start: datetime) -> None:
        self.world = World(url, InlineFlushes(), plan, start)
        self.raised: list[Raised] = []
        self.differences: list[str] = []
        self._version = 0
        self._is_running = True
        self._marks = count()
        with self.world.engine.begin() as db:  # verdicts are believed from here on
            db.execute(sa.update(lock_history).where(lock_history.c.scope == "").values(began_ms=0))
        self.world.gate.ready(1)

    def write(self, text: str, at: datetime) -> None:
        self.world.log.append(text.encode(), millis(at))

    def restart(self, plan: Plan | None) -> None:
        """Restarts the analyzer, perhaps with another configuration, which then comes in force."""
        self._is_running = True
        self.world.plan = plan or self.world.plan
        self.world.restart_analyzer()

    def stop(self) -> None:
        """Stops the analyzer until `restart`."""
        self._is_running = False

    def import_callers(self, text: str) -> None:
        """Imports a CSV file, as `gatelock callers set --file` does."""
        with tempfile.TemporaryDirectory() as at:
            file = Path(at) / "callers.csv"
            file.write_text(text)
            fields, profiles = read_file(file)
        marks = partial(next, map(str, count()))
        set_callers(self.world.engine, profiles, "operator", "", marks, fields)

    def promote(self, policy: str) -> None:
        """Enforces a policy or its candidate, as `gatelock policies enforce` does."""
        if (
            self.world.store.active_plan()[1].policy(policy) is not None
        ):  # a folder is played without its policies
            change_plan(self.world.engine, lambda plan: promoted(plan, policy) or plan, "operator")

    def clear(self, caller: str, hold_off_s: int | None) -> None:
        """Clears a caller's locks, as `gatelock locks unlock` does."""
        hold_off_ms = None if hold_off_s is None else hold_off_s * 1000
        clear_locks(self.world.engine, [LockTarget("caller", caller)], None, hold_off_ms, BY_HAND, self._mark)

    def lock(self, caller: str, for_s: int) -> None:
        """Locks a caller, as `gatelock locks lock` does."""
        wanted = [LockTarget("caller", caller)]
        set_locks(self.world.engine, wanted, for_s * 1000, Effect(), BY_HAND, self._mark)

    def _mark(self) -> str:
        return f"hand{next(self._marks)}"

    def ask(self, asked: Asked) -> None:
        """Asks the gate, and notes what differs."""
        decision = self.world.gate.check(
            asked.caller,
            resource=asked.resource,
            address=asked.address,
            tenant=asked.tenant,
            **{name: value for name, value in asked.values.items() if name in self.world.gate.values},
        )
        found = shown(decision)
        wanted = {name: getattr(asked, name) for name in found}
        for name, value in wanted.items():
            if value is not msgspec.UNSET and value != found[name]:
                who = asked.caller or asked.tenant or asked.address or asked.resource
                self.differences.append(f"{asked.at} {who}: {name} is {found[name]!r}, not {value!r}")

    def play(self, moments: Sequence[Moment], is_decided: Callable[[], bool]) -> None:
        """Plays the moments in the order of their times, to the end or until `is_decided`.

        Time in which nothing happens is skipped.
        """
        quiet_since = self.world.clock.now()
        at = 0
        while True:
            now = self.world.clock.now()
            while at < len(moments) and moments[at].at <= now:
                moments[at].act(self)
                quiet_since = now
                at += 1
            self.world.step(is_running=self._is_running)
            self._read_feed()
            if is_decided():
                return
            if (now - quiet_since).total_seconds() >= AFTER_S:
                if at == len(moments):
                    return
                self._skip_to(moments[at].at)
                quiet_since = self.world.clock.now()

    def has_failed(self, expected: Expected) -> bool:
        """Whether nothing that may still happen makes the outcome the expected one."""
        give_or_take = timedelta(seconds=expected.give_or_take_s)
        latest = self.world.clock.now() - give_or_take - timedelta(seconds=LATEST_S)

        def has_begun(one: Raised, locks: Sequence[Raised]) -> bool:
            return any(
                lock_of(one) == lock_of(other) and abs(one.began - other.began) <= give_or_take
                for other in locks
            )

        return (
            bool(self.differences)
            or any(one.began < latest and not has_begun(one, self.raised) for one in expected.locks)
            or not all(has_begun(one, expected.locks) for one in self.raised)
        )

    def _skip_to(self, moment: datetime) -> None:
        """Sets all clocks forward to shortly before `moment`, or before the warden has something to do."""
        now = self.world.clock.now()
        with self.world.engine.connect() as db:
            for due in (locks.c.until_ms, postponed.c.due_ms):
                next_ms = db.execute(sa.select(sa.func.min(due)).where(due > millis(now))).scalar()
                moment = moment if next_ms is None else min(moment, instant(next_ms))
        by_s = (moment - now).total_seconds() - 1.0
        if by_s > STEP_S:
            self.world.clock.jump(by_s)

    def _read_feed(self) -> None:
        with self.world.engine.connect() as db:
            rows = db.execute(NEW_CHANGES, {"seen": self._version}).all()
        now = self.world.clock.now()
        for row in rows:
            self._version = row.version
            at = (row.scope, row.key, row.resource, row.policy)
            began = now if row.op == "clear" else instant(row.began_ms)
            last = next((one for one in reversed(self.raised) if lock_of(one) == at), None)
            is_open = last is not None and last.until >= began
            if is_open and last is not None:  # it ends earlier, or lasts longer
                last.until = min(last.until, now) if row.op == "clear" else instant(row.until_ms)
            elif row.op == "set":
                self.raised.append(
                    Raised(row.scope, row.key, row.policy, began, instant(row.until_ms), row.resource)
                )

    def rejected(self) -> dict[str, int]:
        """Returns the number of rejected records by the reason."""
        by_reason = sa.select(rejects.c.reason, sa.func.count().label("records")).group_by(rejects.c.reason)
        with self.world.engine.connect() as db:
            return {row.reason: row.records for row in db.execute(by_reason)}

    def notices(self) -> list[RaisedNotice]:
        """Returns the notices that were raised, in the order of their times."""
        columns = (notices.c.key, notices.c.policy, notices.c.threshold, notices.c.at_ms)
        with self.world.engine.connect() as db:
            rows = db.execute(sa.select(*columns).order_by(notices.c.at_ms, *notices.primary_key)).all()
        return [RaisedNotice(row.key, row.policy, row.threshold / 1_000, instant(row.at_ms)) for row in rows]

    def in_shadow(self) -> list[Raised]:
        """Returns the locks that no gate has got, because of the mode of their policy."""
        columns = lock_history.c
        was_cut = columns.ended_ms < columns.until_ms
        end_ms = sa.case((was_cut, columns.ended_ms), else_=columns.until_ms)
        series = (columns.scope, columns.key, columns.policy, columns.began_ms, columns.resource)
        of_shadow = sa.select(*series, sa.func.max(end_ms).label("until_ms")).group_by(*series)
        with self.world.engine.connect() as db:
            rows = db.execute(of_shadow.where(columns.action == SHADOW).order_by(*series)).all()
        return [
            Raised(row.scope, row.key, row.policy, instant(row.began_ms), instant(row.until_ms), row.resource)
            for row in rows
        ]

    def has_requests(self, never: Never) -> bool:
        """Whether requests of a series are counted."""
        of_series = sa.select(buckets.c.key).where(
            buckets.c.key == never.key, buckets.c.resource == never.resource
        )
        with self.world.engine.connect() as db:
            return db.execute(of_series.limit(1)).first() is not None


def differences(
    folder: Folder, url: str, *, without_policies: bool = False, must_fail: bool = False
) -> list[str]:
    """Plays a folder; returns how its outcome differs from what it expects, nothing if it does not.

    `url` is that of a migrated database, which belongs to this story alone. One that `must_fail` is played
    until something differs that remains so.
    """
    expected, plan = folder.expected, folder.plan()
    asked = [Moment(one.at, partial(Stage.ask, asked=one)) for one in expected.asked]
    moments = sorted([*folder.moments(), *asked], key=attrgetter("at"))
    if without_policies:
        plan = replace(plan, policies=())
    stage = Stage(url, plan, moments[0].at - timedelta(seconds=BEFORE_S))
    try:
        stage.play(moments, lambda: must_fail and stage.has_failed(expected))
        return [
            *stage.differences,
            *lock_differences(stage.raised, expected.locks, expected),
            *(f"in shadow: {one}" for one in lock_differences(stage.in_shadow(), expected.shadow, expected)),
            *notice_differences(stage.notices(), expected),
            *(
                f"there are no requests of {one.key} {one.resource}"
                for one in expected.never
                if not stage.has_requests(one)
            ),
            *(
                f"rejected records are {found}, not {dict(expected.rejected)}"
                for found in [stage.rejected()]
                if found != expected.rejected
            ),
        ]
    finally:
        stage.world.close()


def lock_differences(
    raised: Sequence[Raised], wanted_locks: Sequence[Raised], expected: Expected
) -> Iterator[str]:
    """Yields which of the wanted locks are missing, and which locks are not expected."""
    left = list(raised)
    for wanted in wanted_locks:
        match = next((one for one in left if is_alike(one, wanted, expected.give_or_take_s)), None)
        if match is None:
            yield f"there is no {wanted}"
        else:
            left.remove(match)
    names = {(one.key, one.resource): one.why for one in expected.never}
    for one in left:
        why = names.get((one.key, one.resource), "it is not in `locks`")
        yield f"there must be no {one}: {why}"


def notice_differences(raised: Sequence[RaisedNotice], expected: Expected) -> Iterator[str]:
    """Yields which of the expected notices are missing, and which are not expected."""
    left = list(raised)
    for wanted in expected.notices or ():
        series = (wanted.key, wanted.policy, wanted.threshold)
        alike = (
            one
            for one in left
            if (one.key, one.policy, one.threshold) == series
            and abs((one.at - wanted.at).total_seconds()) <= max(1.0, expected.give_or_take_s)
        )
        match = next(alike, None)
        if match is None:
            yield f"there is no {wanted}"
        else:
            left.remove(match)
    if expected.notices is not None:
        yield from (f"there must be no {one}" for one in left)


def is_alike(one: Raised, other: Raised, give_or_take_s: float) -> bool:
    """Whether two locks are on one series by one policy, and begin and end together."""
    apart = abs((one.began - other.began).total_seconds()), abs((one.until - other.until).total_seconds())
    return lock_of(one) == lock_of(other) and max(apart) <= give_or_take_s


def lock_of(one: Raised) -> tuple[str, str, str, str]:
    """Returns the key of a lock."""
    return one.scope, one.key, one.resource, one.policy


def shown(decision: Decision) -> dict[str, Any]:
    """Returns what expectations may name of a decision."""
    return {
        "refused_by": None if decision.allowed else decision.policy,
        "status": decision.status,
        "detail": decision.detail,
        "tags": decision.tags,
        "also": decision.also,
    }
