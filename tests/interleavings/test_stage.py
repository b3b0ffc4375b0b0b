"""A test that fails in the middle of its transactions leaves nothing behind for the next one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
import sqlalchemy as sa

from analyzer.kernel.database.engine import writing
from analyzer.kernel.tables.schema import offsets
from tests.house.reading import ROOT
from tests.interleavings.actors import Actor, SimulatedClock
from tests.interleavings.stage import Stage
from tests.support.servers.postgres import dsn_of

if TYPE_CHECKING:
    from tests.support.servers.postgres import Postgres

OPEN = "select count(*) from pg_stat_activity where state like 'idle in transaction%%' and datname = %s"


@pytest.fixture
def own_stage(postgres: Postgres, postgres_template: str) -> Iterator[Stage]:
    """A stage whose failures are those of this test."""
    made = Stage(postgres, postgres_template, SimulatedClock())
    yield made
    made.discard()


def move_offsets(actor: Actor) -> None:
    """A transaction that locks the rows of a table that every world is made of."""
    with writing(actor.engine) as db:
        db.execute(sa.update(offsets).values(counted=0))


def paused(stage: Stage) -> None:
    """Leaves a transaction paused before its commit, in a world."""
    world, transactions = stage.world("one_sum"), stage.transactions
    transactions.stage({"one": move_offsets}, world.reset)
    transactions.begin()
    while transactions.next_label(0) != "commit":
        transactions.step(0)


def open_transactions(postgres: Postgres, url: str) -> int:
    with psycopg.connect(postgres.dsn) as db:
        row = db.execute(OPEN, [sa.make_url(url).database]).fetchone()
    assert row is not None
    return int(row[0])


def test_a_paused_transaction_is_ended_and_the_next_world_is_made_at_once(
    own_stage: Stage, postgres: Postgres
) -> None:
    paused(own_stage)
    url = own_stage.url
    assert open_transactions(postgres, url) == 1
    own_stage.tidy()
    assert open_transactions(postgres, url) == 0
    assert own_stage.transactions.is_idle
    assert own_stage.world("one_sum").state["offsets"]
    assert own_stage.url != url


def test_idle_transactions_and_their_world_are_kept(own_stage: Stage) -> None:
    paused(own_stage)
    own_stage.transactions.abandon()
    world = own_stage.world("one_sum")
    own_stage.tidy()
    assert own_stage.world("one_sum") is world


def test_a_world_that_another_transaction_blocks_is_made_in_a_new_database(
    own_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.interleavings.worlds.EMPTIED_WITHIN_S", 1)
    own_stage.world("one_sum")
    url = own_stage.url
    with suppress(psycopg.errors.AdminShutdown), psycopg.connect(dsn_of(url)) as db:
        db.execute("update offsets set counted = 0")
        assert own_stage.world("locked").state["locks"]
    assert own_stage.url not in {"", url}


HANGS = """
import threading
from tests.interleavings.test_stage import move_offsets
from tests.interleavings.conftest import clock, rewritten, stage, transactions, world
from tests.conftest import postgres, postgres_template

def test_that_hangs(transactions, world):
    transactions.stage({"one": move_offsets}, world.reset)
    transactions.begin()
    while transactions.next_label(0) != "commit":
        transactions.step(0)
    threading.Event().wait(1000)

def test_behind_it(transactions, world):
    transactions.stage({"one": move_offsets}, world.reset)
    transactions.begin()
    while transactions.enabled():
        transactions.step(0)
    assert transactions.committed == ["one"]
"""


@pytest.mark.deep("starts another PostgreSQL")
def test_the_test_behind_one_that_timed_out_passes(tmp_path: Path) -> None:
    folder = ROOT / "tests/interleavings"
    file = folder / f"test_hang_{tmp_path.name}.py"
    file.write_text(HANGS)
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-n0", "--timeout=20", str(file)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    finally:
        file.unlink()
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert f"slow (ran into a time limit): tests/interleavings/{file.name}::test_that_hangs" in done.stdout
