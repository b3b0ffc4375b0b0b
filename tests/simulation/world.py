"""A whole installation in one thread: analyzers, a log, a database, applications with gates, and a story.

`run` plays a story. After each commit the database is compared with the truth, after each event the gates.
In the end every fault is over: then everything must have been counted, judged and passed on.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from math import inf
from random import Random
from typing import NamedTuple
from unittest.mock import patch

from kafka import TopicPartition

from analyzer.build import new_counter
from analyzer.counting.gaps import NoSuchGap, accept, recorded_gaps
from analyzer.delays.delay_bound import POLL_S, own_delay
from analyzer.flush.pipeline import FlushPace
from analyzer.flush.rejects import RejectFilter, SqlRejects
from analyzer.flush.retry import RejectRetry, without_limits
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.locks import lock_feed
from analyzer.judging.sql import activation, plans
from analyzer.kernel.errors import StoreAway
from analyzer.kernel.jobs import step_sizes
from analyzer.maintenance import job_table
from analyzer.maintenance.audit import audit
from analyzer.plan.policies import Brake, Quota
from analyzer.plan.windows import Window, window_at
from gatekeeper.model import SUSPENSION, Cursor
from tests.simulation.acts import Act
from tests.simulation.analyzers import CORRECTED, SimulatedAnalyzer
from tests.simulation.applications import HTTP_PACE_S, Application
from tests.simulation.database import SimulatedDatabase
from tests.simulation.kafka_log import SOURCE, TOPIC, Expected, Logged, PartitionLog, Topic
from tests.simulation.policies.plans import CALLERS, NETWORKS, RESOURCES, WRITTEN_PLANS, address_of
from tests.simulation.policies.rolling_truth import Wrong
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.stories import Story
from tests.simulation.truth import Stored, Truth

FLUSH_S = FlushPace().flush_every_s
QUIET_S = 0.5  # between two looks whether everything is done
QUIET_MAX_S = 30.0
LOCKS_S = 12.0  # in which locks of rolling windows are as they must be, when all is counted and judged
# Bounds of one step, so small that a few rows take several.
SMALL_STEPS = (
    (plans, "ACTIVATION_ROWS", 1),
    (job_table, "ACTIVATION_ROWS", 2),
    (activation, "LOCKS_AT_ONCE", 1),
    (step_sizes, "FIRST_ROWS", 1),
    (step_sizes, "MIN_ROWS", 1),
    (lock_feed, "LAPSED_MAX", 1),
)


class Asked(NamedTuple):
    """A request: when it came, when its record is in the log, and how it is logged."""

    at_s: float
    arrives_s: float
    request: Expected


class World:
    """The installation of one story."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.scheduler = Scheduler()
        self.database = SimulatedDatabase(self.scheduler, self.wall_s)
        self.topic = Topic(story.size.partitions, self.scheduler)
        self.truth = Truth(self.database, self.topic)
        self.outside = Process("outside")
        marks = itertools.count(1)
        self.new_mark: Callable[[], str] = lambda: f"m{next(marks)}"
        self.dump: tuple[sqlite3.Connection, Stored] | None = None
        self.producers = itertools.count(1)
        self.wrong: Wrong | None = None
        self.done: Counter[str] = Counter()  # acts that had an effect, by kind
        self.asked: list[Asked] = []
        self.overshoot = 0  # the highest, in a story with requests only
        self.ranks: dict[str, int] = {}
        self.restored_s = -1.0
        self.settled_s = inf  # when all was counted and judged, in the end
        self.coming = 0  # events outside of all processes that an act has caused
        self.database.after_commit = self.committed
        self.scheduler.after_event = self.happened
        self.analyzers = [
            SimulatedAnalyzer(
                f"analyzer {number}", WRITTEN_PLANS[plan], self.scheduler, self.database, self.topic,
                self.wall_s, self.new_mark, Random(f"{story.seed} {number}"),
            )
            for number, plan in enumerate(story.plans)
        ]  # fmt: skip
        self.applications = [
            Application(f"application {number}", self.scheduler, self.database, self.wall_s, is_http=is_http)
            for number, is_http in enumerate((False, True))
        ]

    def wall_s(self) -> float:
        """Returns the time by the database's clock."""
        return self.story.begins_s + self.scheduler.now_s

    def wall_ms(self) -> int:
        return int(self.wall_s() * 1000)

    # -- the run ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Plays the story. Raises Wrong, and errors of the product."""
        with ExitStack() as patched:
            for module, name, value in SMALL_STEPS if self.story.has_small_steps else ():
                patched.enter_context(patch.object(module, name, value))
            self.play()

    def play(self) -> None:
        for at_s, act in self.story.acts:
            self.scheduler.after(at_s, self.outside, str(act), partial(self.do, act))
        self.scheduler.run_until(self.story.acts[-1][0] + 0.01 if self.story.acts else 0.0)
        self.heal()
        end_s = self.scheduler.now_s + QUIET_MAX_S
        while self.unfinished():
            if self.scheduler.now_s > end_s:
                raise Wrong(f"not at rest after {QUIET_MAX_S} s: {self.unfinished()}")
            self.scheduler.run_until(self.scheduler.now_s + QUIET_S)
            self.accept_gaps()
        self.check_rest()

    def heal(self) -> None:
        self.database.away_until_s = 0.0
        self.database.faults.clear()
        for log in self.topic.logs.values():
            log.end_transaction(log.open_producer, commits=True)
        for analyzer in self.analyzers:
            analyzer.process.paused_until_s = 0.0
            analyzer.is_impatient = False
            analyzer.records_arrived()
        for application in self.applications:
            application.link.faults.clear()
            application.clock.set(0.0)

    def unfinished(self) -> str:
        """Returns what is not yet as it must be in the end."""
        if self.coming:
            return "records that are on their way"
        offsets = dict(self.database.read('select partition, "next" from offsets'))
        for log in self.topic.logs.values():
            if offsets.get(log.number) != log.stable_end:
                return f"partition {log.number} is at {offsets.get(log.number)} of {log.stable_end}"
        if self.database.read("select 1 from plans where active = 1 and pending != ''"):
            return "an activation"
        if not self.truth.is_clock_believed():
            return "a clock that was ahead, and no warden has seen that it is back"
        return self.unfinished_locks()

    def unfinished_locks(self) -> str:
        """Returns what locks and gates do not have yet."""
        now_ms = self.wall_s() * 1000
        if self.database.read("select 1 from locks where until_ms < ?", now_ms - 3_000):
            return "a lock that has ended"
        if self.database.read("select 1 from postponed where due_ms < ?", now_ms - 3_000):
            return "a judgement that waits"
        if unfinished := self.truth.unfinished():
            self.settled_s = min(self.settled_s, self.scheduler.now_s)
            if self.scheduler.now_s > self.settled_s + LOCKS_S:  # before windows are empty
                raise Wrong(f"{LOCKS_S} s after all is counted: {unfinished}")
            return unfinished
        for application in self.applications:
            at = application.gate._runtime.knowledge.view.at
            if at is None or Cursor(*at) != self.truth.stored.version:
                return f"{application.name} is at {at}, the feed at {self.truth.stored.version}"
        return ""

    def check_rest(self) -> None:
        self.truth.check_rest()
        found = audit(self.database.engine, every_day=True)
        if not found.equal:
            raise Wrong(f"the audit: {found}")
        for analyzer in self.analyzers:
            for job, outcome in analyzer.observer.seen:
                if outcome != "recovered" and "server closed" not in outcome:
                    raise Wrong(f"{analyzer.name}: {job}: {outcome}")
        if self.story.is_calm:
            self.check_overshoot()

    def check_overshoot(self) -> None:
        """Checks that callers are denied as soon after their limit as the known delays allow.

        From the arrival of the record that reaches the limit to the poll of the last gate; as `own_delay`
        says, with the pace of the slower gate.
        """
        delay_s = own_delay(FLUSH_S).total_s - POLL_S + 1.1 * HTTP_PACE_S
        [plan] = {WRITTEN_PLANS[number] for number in self.story.plans}
        for policy in plan.policies:
            wanted = "caller", "requests", "deny"
            if (
                not isinstance(policy, Quota)
                or policy.is_shadow
                or isinstance(policy.brake, Brake)  # locks that it stops are late
                or (policy.per, policy.meter, policy.action) != wanted
            ):
                continue
            for caller in CALLERS:
                of_caller = [one for one in self.asked if one.request.caller == f"api_key:{caller}"]
                for window in {window_at(policy.window, one.request.at_s) for one in of_caller}:
                    self.check_window(policy.limit, window, of_caller, delay_s)

    def check_window(self, limit: int, window: Window, asked: Sequence[Asked], delay_s: float) -> None:
        admitted = [
            one
            for one in asked
            if window.start_s <= one.request.at_s < window.until_s and not one.request.is_denied
        ]
        if len(admitted) <= limit:
            return
        reached_s = sorted(one.arrives_s for one in admitted)[limit - 1]
        late = [one for one in admitted if one.at_s > reached_s + delay_s]
        self.overshoot = max(self.overshoot, len(admitted) - limit)
        if late:
            raise Wrong(f"{late[0]} was admitted more than {delay_s} s after the limit at {reached_s}")

    def faults(self) -> Counter[str]:
        """Returns the faults that had an effect, by kind."""
        links = [application.link.applied for application in self.applications]
        return sum(links, self.database.applied)

    # -- checks ----------------------------------------------------------------------------------

    def committed(self) -> None:
        """Is called after each commit, inside of the product's code: an error must not be handled there."""
        if self.wrong is None:
            try:
                self.truth.check()
            except Wrong as wrong:
                self.wrong = wrong

    def happened(self) -> None:
        if self.wrong is not None:
            raise self.wrong
        for application in self.applications:
            self.check_gate(application)

    def check_gate(self, application: Application) -> None:
        gate, clock = application.gate, application.clock
        known = gate._runtime.knowledge
        at = known.view.at
        if at is not None:
            cursor = Cursor(*at)
            if cursor not in self.truth.locks_at:
                raise Wrong(f"{application.name} has an unknown version: {cursor}")
            locks = self.truth.locks_at[cursor]
            # An answer from before a dump was restored may arrive afterwards.
            rank = self.rank(cursor) if known.confirmed_s > self.restored_s else 0
            if 0 < rank < self.ranks.get(application.name, 0):
                raise Wrong(f"{application.name} went back to {cursor}")
            self.ranks[application.name] = rank
        else:
            locks = frozenset()
            if application.name in self.ranks:
                raise Wrong(f"{application.name} has forgotten its view")
        now_ns = clock.wall_ns()
        in_force = [lock for lock in locks if lock.until_ms * 1_000_000 > now_ns]
        is_suspended = any(lock.at == SUSPENSION for lock in in_force)
        denying = [] if is_suspended else [lock for lock in in_force if lock.action == "deny"]
        is_sure = at is None or known.confirmed_s > clock.set_back_s
        for caller in CALLERS:
            key = f"api_key:{caller}"
            of_caller = [lock for lock in denying if lock.at.scope != "range" and lock.at.key in (key, "")]
            is_allowed = all(lock.at.resource for lock in of_caller)
            if gate.allow(key) != is_allowed and is_sure:
                raise Wrong(f"{application.name} at {at} answers {gate.allow(key)} to {key}: {in_force}")
            network, address = f"{NETWORKS[caller]}.0/24", address_of(caller, 0)
            of_caller += [lock for lock in denying if lock.at.key == network]
            for resource in RESOURCES if denying and is_sure else ():
                is_allowed = all(lock.at.resource not in ("", resource) for lock in of_caller)
                if gate.check(key, resource=resource, address=address).allowed != is_allowed:
                    raise Wrong(f"{application.name} at {at}: {caller} and {resource}: {in_force}")
        if gate.age > application.oldest_s():
            raise Wrong(f"{application.name} has a view that is {gate.age} s old")

    def rank(self, cursor: Cursor) -> int:
        """Returns the place of a version among all, in the order in which they were the feed's."""
        return len(self.truth.order) - self.truth.order[::-1].index(cursor)

    # -- for acts --------------------------------------------------------------------------------

    def do(self, act: Act) -> None:
        """Does the act, if it can be done now."""
        with suppress(StoreAway):  # an operator's command fails while the database is away
            if act.do(self):
                self.done[type(act).__name__] += 1

    def later(self, delay_s: float, name: str, action: Callable[[], object]) -> None:
        """Has something happen outside of all processes; the story does not end before."""
        self.coming += 1

        def happen() -> None:
            self.coming -= 1
            action()

        self.scheduler.after(delay_s, self.outside, name, happen)

    def log(self, number: int) -> PartitionLog:
        return self.topic.logs[TopicPartition(TOPIC, number)]

    def note_requests(self, records: Sequence[Logged], shipping_s: float) -> None:
        """Remembers requests for the bounds on delays."""
        now_s = self.scheduler.now_s
        self.asked += [
            Asked(now_s, now_s + shipping_s, record.expected)
            for record in records
            if record.expected is not None
        ]

    def append(self, log: PartitionLog, records: Sequence[Logged]) -> None:
        log.append(records, self.wall_ms())
        self.announce()

    def end_transaction(self, log: PartitionLog, producer: int, *, commits: bool) -> None:
        log.end_transaction(producer, commits=commits)
        self.announce()

    def announce(self) -> None:
        """Lets the analyzers notice new records."""
        for analyzer in self.analyzers:
            analyzer.records_arrived()

    def accept_gaps(self) -> bool:
        """Accepts every gap, as an operator does; returns whether there was one."""
        has_accepted = False
        for recorded in list(recorded_gaps(self.database.engine)):
            self.truth.is_skipping = True
            try:
                accept(self.database.engine, recorded, recorded.gap.behind or 0, "ann", "test")
                has_accepted = True
            except NoSuchGap:
                continue
            finally:
                self.truth.is_skipping = False
        return has_accepted

    def retry(self) -> bool:
        """Retries rejected records with a corrected mapping, as an operator does.

        Returns whether one was counted.
        """
        try:
            _, plan = SqlStore(self.database.engine, "ann").active_plan()
        except LookupError:
            return False  # none is in force yet
        corrected = plan.with_sources(without_limits({SOURCE: CORRECTED}))
        rejects = SqlRejects(self.database.engine, self.new_mark)
        retry = RejectRetry(rejects, plan, {SOURCE}, lambda: new_counter(corrected))
        self.truth.is_retrying = True
        try:
            outcomes = list(retry.run(RejectFilter(), "ann", "test"))
        finally:
            self.truth.is_retrying = False
        return any(not outcome.why for outcome in outcomes)

    def sleep(self, seconds: float) -> None:
        """Suspends all machines."""
        self.truth.slept_at_s = self.scheduler.now_s + seconds
        self.scheduler.sleep(seconds)
        for application in self.applications:
            application.link.disturbed(seconds)
