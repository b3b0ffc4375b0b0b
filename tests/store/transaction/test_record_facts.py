"""Facts from records: exact through crashes, restarts and changes of owner, and judged without traffic."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple, cast

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzer.callers import applied_facts, caller_changes
from analyzer.callers import record_facts as module
from analyzer.counting.counter import counter
from analyzer.counting.counter.counter import PythonCounter
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.caller_limits import Profile
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.sql import directory
from analyzer.kernel.database.partition_keys import key_tuple
from analyzer.kernel.model import Partition, Record, Records
from analyzer.kernel.tables.schema import callers, record_facts, waiting_facts
from analyzer.plan.mapping import SourceMapping, TextField, TimeField
from analyzer.plan.plan import Plan, make_plan
from tests.store.flushing import locked, now_s, quota
from tests.support.depth import deeper
from tests.support.upkeep import Upkeep

NAMES = ("plan", "tenant")
MAPPING = SourceMapping(
    time=TimeField(("ts",), "s"),
    caller=("api_key",),
    fields={"api_key": TextField(("key",)), **{name: TextField((name,)) for name in NAMES}},
    facts=NAMES,
)
LIMITS: Mapping[str, int] = {"free": 2, "pro": 1_000}
OTHERWISE = 5
BY_PLAN = make_plan([], [], [quota(OTHERWISE, plan_limits=tuple(LIMITS.items()))], {"log": MAPPING})
NUMBERS = count(1)


class Stated(NamedTuple):
    """A record: its caller, what it states, and its Kafka time."""

    caller: str
    plan: str = ""
    tenant: str = ""
    ms: int = 0


class Process:
    """An analyzer: memory of what its partitions have stated, and of the counter."""

    def __init__(self, engine: sa.Engine) -> None:
        self.store = SqlStore(engine, "analyzer", new_mark)
        self.begin()

    def begin(self) -> None:
        """Drops everything in memory, as after an error."""
        self.counter = PythonCounter({"log": MAPPING}, ["caller"])
        self.at: dict[Partition, int] = {}  # where the counter is


class Installation:
    """Partitions that several analyzers count in turn, on one database."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine, self.upkeep, self.base_s = engine, Upkeep(engine, new_mark), now_s(engine)
        self.processes = [Process(engine), Process(engine)]
        self.version = self.processes[0].store.activate(BY_PLAN)
        self.topic = f"topic {next(NUMBERS)}"

    def part(self, number: int) -> Partition:
        return Partition("cluster", self.topic, number, "log", "access-log")

    def count(self, process: int, number: int, records: Sequence[Stated], *, crash: str = "") -> None:
        """Counts records of a partition from its stored position; `crash`: before or after the commit."""
        of, part = self.processes[process], self.part(number)
        start = of.store.begin(part, 0).next
        if of.at.get(part) != start:  # another analyzer has counted it
            of.counter.resume(part, of.store.counter_state(part))
        items = [
            Record(start + n, self.base_s * 1000 + one.ms, self.value(one)) for n, one in enumerate(records)
        ]
        of.counter.feed(Records.of(part, start, start + len(items), items))
        counted = of.counter.drain()
        with suppress(ZeroDivisionError), of.store.transaction() as tx:
            tx.move_offsets(counted.parts, {})
            now = tx.check_plan(BY_PLAN, self.version)
            tx.apply(BY_PLAN, self.version, counted, now)
            _ = 1 / (crash != "before")
        of.at[part] = start + len(items)
        if crash:
            of.begin()
        if crash == "after":
            self.processes[process] = Process(self.engine)

    def value(self, one: Stated) -> bytes:
        return json.dumps(
            {"key": self.named(one.caller), "ts": self.base_s, "plan": one.plan, "tenant": one.tenant}
        ).encode()

    def named(self, caller: str) -> str:
        return f"{caller} of {self.topic}"

    def apply(self) -> None:
        while self.upkeep.apply_facts():
            pass

    def rows(self, table: sa.Table, *columns: str) -> set[tuple[Any, ...]]:
        with self.engine.connect() as db:
            return {tuple(row) for row in db.execute(sa.select(*(table.c[name] for name in columns)))}

    @property
    def applied(self) -> set[tuple[Any, ...]]:
        """The facts of the callers of this topic, by records."""
        rows = self.rows(callers, "caller", "record_plan", "record_tenant")
        return {row for row in rows if row[0].endswith(f" of {self.topic}")}

    @property
    def locked(self) -> set[str]:
        return {key for key, _ in locked(self.engine) if key.endswith(f" of {self.topic}")}


@pytest.fixture
def shop(engine: sa.Engine) -> Installation:
    return Installation(engine)


def truth(shop: Installation, log: Mapping[int, Sequence[Stated]]) -> dict[str, tuple[str, ...]]:
    """Returns the facts of each caller as a function of the records of each partition."""
    found: dict[str, dict[str, tuple[Any, ...]]] = {}
    for number, records in log.items():
        last: dict[tuple[str, str], tuple[str, int]] = {}
        for one in records:
            for name in NAMES:
                value, at = getattr(one, name), (one.caller, name)
                if value and last.get(at, ("", 0))[0] != value:
                    last[at] = value, one.ms
        for (caller, name), (value, ms) in last.items():
            rank = (ms, *key_tuple(shop.part(number)), value)
            facts = found.setdefault(caller, {})
            facts[name] = max(facts.get(name, rank), rank)
    return {
        caller: tuple(facts[name][-1] if name in facts else "" for name in NAMES)
        for caller, facts in found.items()
    }


RECORDS = st.lists(
    st.builds(
        Stated,
        st.sampled_from("abc"),
        st.sampled_from(["", "free", "pro", "gold"]),
        st.sampled_from(["", "", "shop", "mall"]),
        st.integers(0, 6),
    ),
    min_size=1,
    max_size=6,
)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 1),  # the analyzer
        st.integers(0, 2),  # the partition
        RECORDS,
        st.sampled_from(["", "", "", "", "before", "after"]),
        st.sampled_from([False, False, True]),  # whether the warden works then
    ),
    max_size=8,
)


@settings(max_examples=deeper(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_facts_and_locks_are_a_function_of_the_log(engine: sa.Engine, steps: list[Any]) -> None:
    shop = Installation(engine)
    log: dict[int, list[Stated]] = {}
    for process, number, records, crash, applies in steps:
        shop.count(process, number, records, crash=crash)
        if crash != "before":
            log.setdefault(number, []).extend(records)
        if applies:
            shop.apply()
    shop.apply()
    expected = truth(shop, log)
    assert shop.applied == {(f"api_key:{shop.named(caller)}", *facts) for caller, facts in expected.items()}
    used = Counter(one.caller for records in log.values() for one in records)
    limits = {caller: LIMITS.get(expected.get(caller, ("",))[0], OTHERWISE) for caller in used}
    assert shop.locked == {
        f"api_key:{shop.named(caller)}" for caller in used if used[caller] >= limits[caller]
    }
    assert not shop.rows(waiting_facts, "caller")


def requests(number: int, caller: str = "a", **stated: Any) -> list[Stated]:
    return [Stated(caller, **stated)] * number


def test_a_plan_that_a_record_states_holds_without_further_traffic(shop: Installation) -> None:
    shop.count(0, 0, requests(3))
    assert shop.locked == set()
    shop.count(0, 0, requests(1, plan="free"))
    shop.apply()
    assert shop.locked == {f"api_key:{shop.named('a')}"}
    shop.count(0, 0, requests(1, plan="pro"))
    shop.apply()
    assert shop.locked == set()


def test_a_plan_that_no_policy_names_has_the_default_limit(shop: Installation) -> None:
    shop.count(0, 0, requests(4, plan="platinum"))
    shop.apply()
    assert shop.locked == set()
    shop.count(0, 0, requests(1, plan="platinum"))
    assert shop.locked == {f"api_key:{shop.named('a')}"}
    assert {row[1] for row in shop.applied} == {"platinum"}


def test_a_plan_that_an_operator_has_set_comes_before_that_of_records(shop: Installation) -> None:
    name = f"api_key:{shop.named('a')}"

    def set_plan(plan: str) -> None:
        caller_changes.set_callers(shop.engine, {name: Profile(plan)}, "ann", "", new_mark, ["plan"])

    set_plan("pro")
    shop.count(0, 0, requests(3, plan="free", tenant="shop"))
    shop.apply()
    assert shop.locked == set()
    profile, _ = caller_changes.caller_profile(shop.engine, name)
    assert profile == Profile("pro", "shop")
    set_plan("")
    assert shop.locked == {name}, "what records state holds again"


def written(shop: Installation, run: Callable[[], object]) -> list[str]:
    """Returns the tables of facts that `run` writes to."""
    found: list[str] = []

    def note(_db: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        words = statement.lower().split()
        if words[:2] == ["insert", "into"] and words[2].split("(")[0] in ("record_facts", "waiting_facts"):
            found.append(words[2].split("(")[0])

    sa.event.listen(shop.engine, "before_cursor_execute", note)
    run()
    sa.event.remove(shop.engine, "before_cursor_execute", note)
    return found


def test_a_repeated_statement_writes_nothing(shop: Installation) -> None:
    stated = requests(2, plan="free") + requests(2, "b", plan="pro", tenant="shop")
    assert written(shop, lambda: shop.count(0, 0, stated)) == ["record_facts", "waiting_facts"]
    shop.apply()
    with shop.engine.connect() as db:
        before = directory.newest(db)
    assert written(shop, lambda: shop.count(0, 0, stated)) == []
    shop.count(1, 0, stated)  # another analyzer takes the partition over: it reads what is stored
    assert written(shop, lambda: shop.count(0, 0, stated)) == []
    assert shop.upkeep.apply_facts().rows == 0
    with shop.engine.connect() as db:
        assert directory.newest(db) == before


def test_memory_of_an_earlier_owner_is_not_used(shop: Installation) -> None:
    """The partition comes back to the first analyzer after another one has stored a change."""
    shop.count(0, 0, requests(1, plan="free"))
    shop.count(1, 0, requests(1, plan="pro"))
    shop.count(0, 0, requests(1, plan="free"))
    shop.apply()
    assert {row[1] for row in shop.applied} == {"free"}


def test_memory_is_bounded(shop: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter, "FACTS_KNOWN_MAX", 2)
    stated = [Stated(caller, "free") for caller in "abc"]
    shop.count(0, 0, stated)
    memory = shop.processes[0].counter._memories[shop.part(0)].facts
    assert memory.known == 0
    assert written(shop, lambda: shop.count(0, 0, stated)) == [], "what is stored is read"
    shop.count(0, 0, stated[:1])
    assert memory.known == 1


def test_beyond_their_number_new_callers_have_no_facts(
    shop: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.count(0, 0, requests(1, plan="free"))
    shop.apply()
    shop.count(0, 0, requests(1))  # reads the directory
    monkeypatch.setattr(directory, "CALLERS_MAX", 1)
    shop.count(0, 0, requests(1, plan="pro") + requests(1, "b", plan="pro"))
    shop.apply()
    assert shop.applied == {(f"api_key:{shop.named('a')}", "pro", "")}


def test_many_callers_are_applied_some_at_a_time(shop: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applied_facts, "CALLERS_MAX", 2)
    shop.count(0, 0, [Stated(caller, "free") for caller in "abcde"])
    assert [shop.upkeep.apply_facts().rows for _ in range(4)] == [2, 2, 1, 0]
    assert len(shop.applied) == 5


def test_the_last_change_of_several_partitions_wins(shop: Installation) -> None:
    """The `free` of the second partition is repeated, and older than the `pro` of the first one."""
    shop.count(0, 0, [Stated("a", "free", ms=1), Stated("a", "pro", ms=5)])
    shop.count(0, 1, [Stated("a", "free", ms=2), Stated("a", "free", ms=9)])
    shop.apply()
    assert {row[1] for row in shop.applied} == {"pro"}


def memory_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PythonCounter, "resume", lambda *_: None)


def first_taken_for_changed(patch: pytest.MonkeyPatch) -> None:
    right = module._changed

    def changed(db: sa.Connection, stated: Any, names: Any) -> Any:
        runs = {
            caller: [run and run._replace(is_first=False) for run in of] for caller, of in stated.runs.items()
        }
        return right(db, stated._replace(runs=runs), names)

    patch.setattr(module, "_changed", changed)


def by_offsets_of_all_partitions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(applied_facts, "winners", winners_by_offset)


def winners_by_offset(db: sa.Connection, names: Iterable[str]) -> dict[str, list[module.Statement]]:
    found: dict[str, dict[str, module.Statement]] = {}
    wanted = [record_facts.c[name] for name in ("caller", *module.Statement._fields)]
    for row in db.execute(sa.select(*wanted).where(record_facts.c.caller.in_(names))):
        one = module.Statement(*row[1:])
        known = found.setdefault(row.caller, {}).setdefault(one.fact, one)
        found[row.caller][one.fact] = max(known, one, key=lambda of: of.offset)
    return {caller: [*facts.values()] for caller, facts in found.items()}


def not_queued(patch: pytest.MonkeyPatch) -> None:
    right = module.upsert_columns

    def upsert(db: sa.Connection, table: Any, *rest: Any) -> Any:
        return right(db, table, *rest) if table is record_facts else None

    patch.setattr(module, "upsert_columns", upsert)


@pytest.mark.parametrize(
    "mutate", [memory_kept, first_taken_for_changed, by_offsets_of_all_partitions, not_queued]
)
def test_the_oracle_finds_mistakes(engine: sa.Engine, mutate: Callable[[pytest.MonkeyPatch], None]) -> None:
    stories: list[list[Any]] = [
        [
            (0, 0, requests(1, plan="free"), "", False),
            (1, 0, requests(1, plan="pro"), "", False),
            (0, 0, requests(2, plan="free"), "", True),
        ],
        [
            (0, 0, [Stated("a", "free", ms=1), Stated("a", "pro", ms=5)], "", False),
            (0, 1, requests(1, ms=2) + requests(1, ms=2) + [Stated("a", "free", ms=2)], "", True),
        ],
        [
            (0, 0, [Stated("a", "free", ms=1)], "after", False),
            (0, 1, [Stated("a", "pro", ms=3)], "", False),
            (0, 0, [Stated("a", "free", ms=5)], "", True),
        ],
    ]
    check = cast(Any, test_facts_and_locks_are_a_function_of_the_log).hypothesis.inner_test
    for story in stories:
        check(engine, story)
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        failed = 0
        for story in stories:
            try:
                check(engine, story)
            except AssertionError:
                failed += 1
    assert failed


def test_a_mapping_with_facts_is_refused_by_versions_that_do_not_know_them() -> None:
    """Earlier versions refuse unknown keys; without facts the key is absent, so their plans stay equal."""
    assert '"facts":["plan","tenant"]' in BY_PLAN.to_json()
    assert '"facts"' not in Plan(sources={"log": SourceMapping()}).to_json()
