"""The reduction loses no outcome: it leads to the same final states and answers as all orders do."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from random import Random

import pytest

from analyzer.kernel.database.engine import reading, writing
from tests.interleavings.actors import Actor, TransactionFunction, Transactions
from tests.interleavings.explorer import DoneStep, Explored, explore, sample
from tests.interleavings.footprints import Footprint, Mode, are_dependent, commit_of, footprint_of
from tests.interleavings.orders import Orders
from tests.interleavings.worlds import World

FIRST, SECOND = "gates", "leases"  # always in this order, so that no two wait for each other
NAME = {FIRST: "instance", SECOND: "name"}
ADD = {
    FIRST: "insert into gates (instance, number, at_ms, first_ms, told) values ('{row}', {n}, 0, 0, '') "
    "on conflict (instance) do update set number = gates.number * 3 + {n}",
    SECOND: "insert into leases (name, holder, until_ms) values ('{row}', '', {n}) "
    "on conflict (name) do update set until_ms = leases.until_ms * 3 + {n}",
}
VALUE = {FIRST: "number", SECOND: "until_ms"}


def some_statements(random: Random) -> list[str]:
    """Returns two or three statements that write, read and lock a few rows."""
    statements = []
    for table in (FIRST, SECOND):
        for is_first in (True, False):
            row, n = random.choice("ab"), random.randint(1, 9)
            value = f"select {NAME[table]}, {VALUE[table]} from {table} where {NAME[table]} >= '{row}'"
            kinds = [ADD[table].format(row=row, n=n), value, f"update {table} set {VALUE[table]} = {n}"]
            kinds += [f"{value} order by 1 for update", f"delete from {table} where {NAME[table]} = '{row}'"]
            kinds += [f"lock table {table} in exclusive mode"] if is_first else []
            statements.append(random.choice(kinds))
    return [one for number, one in enumerate(statements) if number in random.sample(range(4), 3)]


def executing(statements: Sequence[str], *, is_snapshot: bool = False) -> TransactionFunction:
    """Returns a transaction of these statements, whose outcome is what they have read."""

    def execute(actor: Actor) -> object:
        with (reading if is_snapshot else writing)(actor.engine) as db:
            found = [db.exec_driver_sql(statement) for statement in statements]
            return [sorted(map(tuple, one)) for one in found if one.returns_rows]

    return execute


def outcomes(
    transactions: Transactions, world: World, staged: Sequence[TransactionFunction], *, reduced: bool
) -> tuple[set[str], Explored]:
    """Returns the different final states, and what the transactions have read on the way to each."""
    found: set[str] = set()

    def reset() -> None:
        world.changed(transactions.written)
        world.reset()

    def see(_steps: Sequence[DoneStep]) -> None:
        state = world.read()
        rows = sorted((row["instance"], row["number"]) for row in state[FIRST])
        rows += sorted((row["name"], row["until_ms"]) for row in state[SECOND])
        found.add(f"{rows} {sorted(transactions.outcomes.items())}")

    transactions.stage({f"t{number}": one for number, one in enumerate(staged)}, reset)
    explored = explore(transactions, see, reduced=reduced)
    world.changed([FIRST, SECOND])
    return found, explored


@pytest.mark.parametrize("seed", range(10))
def test_two_transactions_have_the_same_outcomes_with_and_without_it(
    transactions: Transactions, world: World, seed: int
) -> None:
    random = Random(seed)
    staged = [executing(some_statements(random)) for _ in range(2)]
    every, all_orders = outcomes(transactions, world, staged, reduced=False)
    found, orders = outcomes(transactions, world, staged, reduced=True)
    assert found == every
    assert orders.run + orders.cut_short <= all_orders.run


def test_three_transactions_have_the_same_outcomes_with_and_without_it(
    transactions: Transactions, world: World
) -> None:
    """A writer of two tables, one of the second table, and a reader of both in one snapshot."""
    both = [ADD[FIRST].format(row="a", n=1), ADD[SECOND].format(row="a", n=2)]
    reads = [f"select {NAME[table]}, {VALUE[table]} from {table}" for table in (SECOND, FIRST)]
    staged = [
        executing(both),
        executing([ADD[SECOND].format(row="a", n=3)]),
        executing(reads, is_snapshot=True),
    ]
    every, all_orders = outcomes(transactions, world, staged, reduced=False)
    found, orders = outcomes(transactions, world, staged, reduced=True)
    assert found == every
    assert len(every) > 4
    assert orders.run < all_orders.run / 4


def test_all_orders_of_two_leases_are_run_without_it(transactions: Transactions, world: World) -> None:
    """In six steps, some of which wait in some orders; in each exactly one holds the lease."""
    seen: list[list[object]] = []
    orders = Orders(
        transactions, world, ["lease", "lease"], see=lambda _state, found: seen.append(sorted(found.values()))
    )
    assert 4 <= orders.explore(reduced=False).run <= comb(6, 3)
    assert orders.explore().run == 6
    assert {tuple(found) for found in seen} == {(False, True)}


def only(footprint: Footprint, table: str) -> set[Mode]:
    return {mode for name, mode in footprint if name == table}


@pytest.mark.parametrize(
    ("statement", "table", "mode"),
    [
        ("SELECT a FROM locks", "locks", Mode.READ),
        ("SELECT a FROM plans WHERE b = 1 FOR SHARE", "plans", Mode.SHARE),
        ("SELECT a FROM locks JOIN x ON true FOR UPDATE OF locks", "locks", Mode.WRITE),
        ("INSERT INTO totals (a) SELECT b FROM buckets ON CONFLICT DO NOTHING", "totals", Mode.WRITE),
        ("INSERT INTO totals (a) SELECT b FROM buckets ON CONFLICT DO NOTHING", "buckets", Mode.READ),
        ("WITH written AS (INSERT INTO totals (a) VALUES (1) RETURNING a) SELECT a", "totals", Mode.WRITE),
        (
            "WITH x AS (SELECT a FROM rejects FOR UPDATE SKIP LOCKED) DELETE FROM rejects",
            "rejects",
            Mode.WRITE,
        ),
        ("lock table plans in exclusive mode", "plans", Mode.LOCK),
    ],
)
def test_the_footprint_of_a_statement(statement: str, table: str, mode: Mode) -> None:
    assert only(footprint_of(statement), table) == {mode}


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT brakes.locks FROM brakes WHERE brakes.policy = 'a' FOR UPDATE",
        "INSERT INTO brakes (policy, locks) VALUES (1, 2) ON CONFLICT (policy) DO UPDATE SET locks = 1",
        "UPDATE brakes SET requests = 1, locks = brakes.locks + 1",
    ],
)
def test_a_column_may_have_the_name_of_a_table(statement: str) -> None:
    footprint = footprint_of(statement)
    assert only(footprint, "brakes") == {Mode.WRITE}
    assert only(footprint, "locks") == set()


def test_entries_of_the_audit_log_do_not_depend_on_each_other() -> None:
    statement = "insert into events (id, who) values (%(id)s, 'operator')"
    one, other = (footprint_of(statement, {"id": name}) for name in ("1f", "2f"))
    assert not are_dependent(one, other)
    assert are_dependent(commit_of([one]), footprint_of("select who from events"))


def test_a_sample_has_different_orders(transactions: Transactions, world: World) -> None:
    Orders(transactions, world, ["lease", "lease"])
    found: set[tuple[int, ...]] = set()
    explored = sample(transactions, lambda steps: found.add(tuple(step.actor for step in steps)), 20)
    assert explored.run == 20
    assert len(found) > 4


def test_a_statement_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="which tables"):
        footprint_of("truncate buckets")


def test_a_plain_read_depends_on_the_commit_of_a_write_and_not_on_the_write() -> None:
    read, write = footprint_of("select a from feed"), footprint_of("update feed set a = 1")
    assert not are_dependent(read, write)
    assert are_dependent(read, commit_of([write]))
    assert are_dependent(write, write)


def test_rows_of_two_partitions_do_not_depend_on_each_other() -> None:
    statement = "update offsets set next = 1 where partition = %(at_partition)s"
    one, other = (footprint_of(statement, {"at_partition": number}) for number in (0, 1))
    assert not are_dependent(one, other)
    assert are_dependent(one, one)
    assert are_dependent(one, footprint_of("select a from offsets for update"))
    assert are_dependent(commit_of([one]), footprint_of("select a from offsets"))
