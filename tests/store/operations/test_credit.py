"""Prepaid balances: grants expire in the order of their ends, and what was used of them stays used."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import pytest
import sqlalchemy as sa
from hypothesis import example, given
from hypothesis import strategies as st

from analyzer.callers import caller_changes as callers
from analyzer.callers.caller_changes import OverrideRequest, StoredOverride
from analyzer.callers.credit import Credit, used_of_each
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.caller_limits import Subject
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Calendar
from gatekeeper.testing import ManualClock
from tests.store.flushing import ACME, a_row, flush, locked, now_s, plan
from tests.support.upkeep import Upkeep
from tests.support.whole_loop import DatabaseClock

DAY_S = 86_400
PREPAID = Quota("prepaid", 0, Calendar("lifetime"), notify=(800,))


class Use(NamedTuple):
    amount: int


class Grant(NamedTuple):
    amount: int
    lasts: int  # steps; 0: forever


acts = st.lists(
    st.one_of(st.builds(Use, st.integers(1, 40)), st.builds(Grant, st.integers(1, 60), st.integers(0, 6))),
    max_size=12,
)


@given(acts)
@example([Grant(100, 4), Use(60), Grant(50, 0), Use(70), Use(1), Use(1)])
def test_each_unit_is_taken_from_the_grant_that_ends_first(acts: list[Use | Grant]) -> None:
    """One unit after the other, with what is left of each grant, against the moments that are stored."""
    grants: list[Credit] = []
    left: dict[str, int] = {}
    used = 0
    for at_ms, act in enumerate(acts):
        for number, credit in enumerate(grants):
            if credit.until_ms == at_ms:
                grants[number] = credit._replace(used_until=used)
        lasting = [credit for credit in grants if credit.used_until is None]
        if isinstance(act, Grant):
            until_ms = at_ms + act.lasts if act.lasts else None
            grants.append(Credit(f"{at_ms:03}", act.amount, at_ms, until_ms, used))
            left[f"{at_ms:03}"] = act.amount
            continue
        used += act.amount
        for _ in range(act.amount):
            in_order = sorted(
                lasting, key=lambda credit: (credit.until_ms is None, credit.until_ms or 0, credit.id)
            )
            taken = next((credit.id for credit in in_order if left[credit.id]), None)
            if taken is not None:
                left[taken] -= 1
    assert used_of_each(grants, used) == {credit.id: credit.amount - left[credit.id] for credit in grants}


class Account:
    """A caller that pays before it uses."""

    def __init__(self, engine: sa.Engine, clock: ManualClock) -> None:
        self.engine, self.clock = engine, clock
        self.store, self.upkeep, self.plan = SqlStore(engine, "here"), Upkeep(engine, new_mark), plan(PREPAID)
        self.store.activate(self.plan)

    def grant(self, amount: int, days: int | None = None, *, in_days: int = 0) -> str:
        now_ms = now_s(self.engine) * 1000
        from_ms = now_ms + in_days * DAY_S * 1000 if in_days else None
        until_ms = None if days is None else now_ms + (in_days + days) * DAY_S * 1000
        request = OverrideRequest("grant", Subject("caller", ACME), "prepaid", amount, from_ms, until_ms)
        return callers.add_override(self.engine, request, "ann", "paid", new_mark)[0].id

    def use(self, amount: int) -> None:
        flush(self.store, self.plan, [a_row(amount, now_s(self.engine))])

    def pass_days(self, days: int) -> None:
        self.clock.jump(days * DAY_S)
        while self.upkeep.change_overrides():
            pass

    @property
    def is_locked(self) -> bool:
        return (ACME, "prepaid") in locked(self.engine)

    @property
    def limit(self) -> int | None:
        _, [limit] = callers.caller_profile(self.engine, ACME)
        return limit.limit

    def grants(self) -> dict[str, StoredOverride]:
        return {stored.id: stored for stored in callers.stored_overrides(self.engine, ("grant",), ended=True)}


@pytest.fixture
def account(engine: sa.Engine) -> Iterator[Account]:
    clock = ManualClock(datetime(2026, 3, 2, 12, tzinfo=UTC))
    database_clock = DatabaseClock(clock)
    database_clock.install()
    yield Account(engine, clock)
    database_clock.remove()


def test_a_balance_is_refused_when_it_is_empty_and_opens_when_it_is_paid(account: Account) -> None:
    account.use(1)
    assert account.is_locked, "nothing is paid"
    account.grant(100)
    assert (account.is_locked, account.limit) == (False, 100)
    account.use(99)
    assert account.is_locked
    account.grant(50)
    assert (account.is_locked, account.limit) == (False, 150)
    account.pass_days(400)
    assert not account.is_locked


def test_the_used_part_of_a_grant_that_expires_is_not_taken_from_another(account: Account) -> None:
    first, second = account.grant(100, 30), account.grant(50)
    account.use(80)
    account.pass_days(31)
    assert account.limit == 80 + 50, "20 have expired"
    assert (account.grants()[first].granted, account.grants()[first].used) == (100, 80)
    assert account.grants()[first].expired == 20
    assert account.grants()[second].used is None
    account.use(49)
    assert not account.is_locked
    account.use(1)
    assert account.is_locked
    text = callers.in_words(account.grants()[first])
    assert text.endswith("100 (80 used, 20 expired) more")


def test_a_grant_pays_for_what_is_used_while_it_lasts_alone(account: Account) -> None:
    account.grant(100)
    account.use(80)
    later = account.grant(50, 10)
    account.use(5)
    account.pass_days(11)
    assert account.grants()[later].used == 5, "the 80 were paid before it began"
    assert account.limit == 105


def test_an_unused_grant_ends_whole_and_a_planned_one_begins_with_its_day(account: Account) -> None:
    unused = account.grant(10, 5)
    planned = account.grant(40, 20, in_days=10)
    account.pass_days(6)
    assert (account.grants()[unused].state, account.limit) == ("ended", 0)
    assert account.is_locked, "nothing is left, and no request was needed to find it"
    account.pass_days(5)
    assert (account.is_locked, account.limit) == (False, 40)
    account.use(15)
    account.pass_days(21)
    assert (account.grants()[planned].used, account.limit, account.is_locked) == (15, 15, True)


def test_a_grant_that_an_operator_ends_keeps_its_used_part_and_ends_once(account: Account) -> None:
    id_ = account.grant(100)
    account.use(30)
    end = (account.engine, id_, ("grant",), "ann", "refunded", new_mark)
    assert callers.end_override(*end) is not None
    assert (account.limit, account.is_locked) == (30, True)
    assert callers.end_override(*end) is None
    assert account.limit == 30
