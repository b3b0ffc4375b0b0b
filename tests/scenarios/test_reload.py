"""A configuration that is edited while the analyzer runs, from the file to a refused request and back."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import sqlalchemy as sa

from analyzer.build import OwnSources, add_reload
from analyzer.config.file_watch import FileWatch
from analyzer.config.reload import ConfigurationReader
from analyzer.config.settings import load
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from analyzer.flush.analyzers import AnalyzerFile, SqlAgreement
from analyzer.kernel.database.audit_log import PLAN_IN_FORCE, entries
from analyzer.maintenance.audit import audit
from tests.scenarios.conftest import OpenWorld
from tests.scenarios.test_surges import SOURCE, locks_of, send
from tests.support.whole_loop import World

HOURLY = """
[[policies]]
name = "hourly"
limit = 60
window = { per = "hour" }
"""
FLOOD = """
[[policies]]
name = "flood"
kind = "surge"
limit = 20
window = { rolling = "60s" }
lock_for = ["2m"]
"""
FOR_BOB = """
[[overrides]]
caller = "api_key:bob"
policy = "hourly"
limit = 10
reason = "trial"
"""


class EditedWorld:
    """A world whose analyzer reads its file again, as `gatelock run` does."""

    def __init__(self, open_world: OpenWorld, file: Path, text: str) -> None:
        self.file = file
        self.world: World = open_world(text)
        self.health = Health(Metrics("1"), self.world.clock.uptime_s)
        settings = load(file)
        self.reader = ConfigurationReader(FileWatch(file), settings, lambda: load(file), self.health)
        known = AnalyzerFile("analyzer", settings.plan())
        plans = SqlAgreement(self.world.engine, "analyzer", known, lambda: "mark")
        plans.agree()
        daemon = self.world.daemon
        daemon.agree = plans.agree
        add_reload(
            daemon,
            settings,
            plans,
            OwnSources(settings, self.world.engine),
            self.reader,
            self.health,
        )

    def edit(self, text: str) -> None:
        """Replaces the file; two looks later it is read."""
        other = self.file.with_suffix(".new")
        other.write_text(text)
        other.rename(self.file)
        self.reader.look()
        self.reader.look()

    def counted(self, caller: str) -> int:
        """Returns the requests of a caller in the buckets, denied ones included."""
        self.world.pass_s(2)
        statement = (
            "select sum(value_0 + coalesce(denied_0, 0)) from buckets where key = :key and width_s = 60"
        )
        with self.world.engine.connect() as db:
            return int(db.execute(sa.text(statement), {"key": f"api_key:{caller}"}).scalar_one() or 0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gatelock.toml"


def test_a_raised_limit_frees_and_a_lowered_one_locks_in_the_middle_of_traffic(
    open_world: OpenWorld, file: Path
) -> None:
    edited = EditedWorld(open_world, file, SOURCE + HOURLY)
    world = edited.world
    assert not send(world, 20, 5)[-1]
    assert world.gate.check("api_key:ann").policy == "hourly"
    edited.edit(SOURCE + HOURLY.replace("60", "600"))
    send(world, 1, 3, "bob")
    assert world.gate.allow("api_key:ann")
    edited.edit(SOURCE + HOURLY.replace("60", "70"))
    assert not send(world, 10, 3)[-1]
    assert "70 requests per hour (UTC), " in world.gate.check("api_key:ann").detail
    assert edited.counted("ann") == 130, "each request once, by one plan or another"
    assert edited.counted("bob") == 3
    assert audit(world.engine).equal


def test_a_policy_and_an_override_are_added_and_removed_while_requests_come(
    open_world: OpenWorld, file: Path
) -> None:
    edited = EditedWorld(open_world, file, SOURCE + HOURLY)
    world = edited.world
    assert all(send(world, 10, 2, "bob"))
    edited.edit(SOURCE + HOURLY + FLOOD + FOR_BOB)
    send(world, 1, 3, "eve")
    assert "10 requests per hour" in world.gate.check("api_key:bob").detail
    send(world, 10, 4)
    assert world.gate.check("api_key:ann").policy == "flood"
    edited.edit(SOURCE + HOURLY)
    send(world, 1, 3, "eve")
    world.pass_s(2)
    assert world.gate.allow("api_key:bob")
    assert world.gate.allow("api_key:ann")
    assert locks_of(world) == 0
    assert (edited.counted("ann"), edited.counted("bob"), edited.counted("eve")) == (40, 20, 6)
    removed, added, _ = (one.why for one in entries(world.engine) if one.act == PLAN_IN_FORCE)
    assert "policy flood added" in added
    assert "policy flood removed" in removed


def test_a_bad_file_changes_nothing_until_a_good_one_is_read(
    open_world: OpenWorld, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    edited = EditedWorld(open_world, file, SOURCE + HOURLY)
    world = edited.world
    bad = HOURLY.replace("60", "6") + FOR_BOB.replace('"hourly"', '"horly"')
    edited.edit(SOURCE + bad)
    assert all(send(world, 10, 3)), "also what is right in it is not in force"
    assert '"horly"' in edited.reader.refusal
    edited.edit(SOURCE + HOURLY.replace("60", "6") + FOR_BOB)
    send(world, 1, 3, "eve")
    assert edited.reader.refusal == ""
    assert "6 requests per hour" in world.gate.check("api_key:ann").detail
    assert edited.counted("ann") == 30
    assert "is refused, and the one before stays in force" in caplog.text
