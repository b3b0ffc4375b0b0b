"""Which configuration is in force, and by which records are counted, in a fleet of analyzers.

Each test is one line of the table of what simpler rules do wrong: a crash loop, files put back, one file
edited, a restore, a colleague's file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from concurrent.futures import Future

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from analyzer.flush.analyzers import agree_on_source, all_known, apply_file, promote_policy
from analyzer.judging.locks.stored_locks import locks_in_force
from analyzer.kernel.database.audit_log import entries
from analyzer.kernel.errors import CannotCount, SourceDiffers
from analyzer.kernel.tables.schema import analyzers, lock_history, plans
from analyzer.maintenance.audit import audit
from analyzer.plan import plan as plan_module
from analyzer.plan.mapping import Condition, TextField
from analyzer.plan.meters import Meter
from analyzer.plan.plan import Plan
from gatekeeper.identity import NameDigest
from tests.store.fleet_of_analyzers import BY_KEY, BY_NAME, WITH_STATUS, Fleet, FleetAnalyzer, file_of, limit
from tests.store.flushing import quota
from tests.support.stored_counts import stored_counts

ERRORS = Meter("errors", where=(Condition("status", ("400-599",)),))


@pytest.fixture
def fleet(new_engine: Callable[[], sa.Engine]) -> Fleet:
    return Fleet(new_engine)


def counted(fleet: Fleet, caller: str) -> int:
    with fleet.engine.connect() as db:
        return sum(row.value for row in stored_counts(db) if row.key == f"api_key:{caller}")


def test_the_first_configuration_of_a_database_is_in_force_at_once(fleet: Fleet) -> None:
    analyzer = fleet.start("web-1", limit(500))
    assert (fleet.version, fleet.limit, analyzer.agreement.is_proposal) == (1, 500, False)


def test_an_edited_file_comes_in_force_with_the_first_record_counted(fleet: Fleet) -> None:
    fleet.count(fleet.start("web-1", limit(500)), "ann", 3)
    edited = fleet.start("web-1", limit(2000))
    edited.run()
    assert fleet.limit == 500, "nothing was counted by it yet"
    fleet.count(edited, "ann", 1)
    assert (fleet.limit, fleet.version) == (2000, 2)
    fleet.count(edited, "ann", 1)
    assert fleet.version == 2
    assert counted(fleet, "ann") == 5
    assert fleet.stretches() == [(0, 1), (3, 2)]


def test_an_idle_analyzer_puts_its_file_in_force_after_some_seconds(fleet: Fleet) -> None:
    """A raised limit does not wait for traffic."""
    fleet.count(fleet.start("web-1", limit(5)), "ann", 7)
    assert fleet.is_locked("ann")
    edited = fleet.start("web-1", limit(2000))
    edited.run(seconds=8.0)
    assert fleet.limit == 5
    edited.run(seconds=8.0)
    fleet.end_activation()
    assert fleet.limit == 2000
    assert not fleet.is_locked("ann")


def test_processes_of_one_name_with_different_files_take_no_turns(fleet: Fleet) -> None:
    """The process with the old file continues on a machine whose file is changed."""
    first = fleet.start("web-1", limit(500))
    fleet.count(first, "ann", 1)
    second, third = fleet.start("web-1", limit(2000), 1), fleet.start("web-1", limit(3000), 2)
    fleet.count(second, "ann", 1, 1)
    assert (fleet.limit, fleet.version) == (2000, 2)
    fleet.count(third, "ann", 1, 2)
    for _ in range(3):
        for number, analyzer in enumerate((first, second, third)):
            fleet.count(analyzer, "ann", 1, number)
    assert (fleet.limit, fleet.version) == (3000, 3)
    assert "not in force" in " ".join(second.notes)
    assert counted(fleet, "ann") == 12


def test_a_crash_loop_of_the_first_one_changes_nothing(fleet: Fleet) -> None:
    others = fleet.start("web-2", limit(500), 1)
    fleet.start("web-1", limit(500)).run()
    for _ in range(3):
        fleet.start("web-1", limit(2000)).run()  # and is killed before it counted a record
        fleet.count(others, "ann", 1, 1)
        assert (fleet.limit, fleet.version) == (500, 1)
    fleet.count(fleet.start("web-1", limit(2000)), "ann", 1)
    assert fleet.limit == 2000, "in the end it counts"


def test_a_file_that_is_put_back_is_an_edit(fleet: Fleet) -> None:
    """500, 2,000, 500 in one file."""
    for number, version in ((500, 1), (2000, 2), (500, 3)):
        fleet.count(fleet.start("web-1", limit(number)), "ann", 1)
        assert (fleet.limit, fleet.version) == (number, version)


def test_files_that_are_put_back_by_a_deployment_come_in_force(fleet: Fleet) -> None:
    for number in (500, 2000, 500):
        for at, name in enumerate(("web-1", "web-2")):
            fleet.count(fleet.start(name, limit(number), at), "ann", 1, at)
        assert fleet.limit == number
    assert fleet.version == 3, "the second of each deployment changed nothing"


def test_a_rolling_change_is_taken_by_those_that_still_have_the_old_file(fleet: Fleet) -> None:
    first, second = fleet.start("web-1", limit(500)), fleet.start("web-2", limit(500), 1)
    fleet.count(second, "bob", 3, 1)
    first = fleet.start("web-1", limit(2))
    fleet.count(first, "ann", 1)
    assert fleet.limit == 2
    fleet.count(second, "bob", 1, 1)
    assert fleet.is_locked("bob"), "counted and judged by the new plan"
    assert "limit 2 to 500" in second.notes[0]
    assert "gatelock policies apply" in second.notes[0]
    assert fleet.limit == 2
    assert fleet.stretches(1) == [(0, 1), (3, 2)]


def test_one_edited_file_is_kept_when_the_others_restart(fleet: Fleet) -> None:
    fleet.start("web-1", limit(500))
    fleet.start("web-2", limit(500), 1)
    fleet.count(fleet.start("web-1", limit(2000)), "ann", 1)
    again = fleet.start("web-2", limit(500), 1)
    fleet.count(again, "ann", 1, 1)
    assert (fleet.limit, fleet.version) == (2000, 2)
    assert again.agreement.notes, "it says so"
    fleet.count(fleet.start("web-2", limit(500), 1), "ann", 1, 1)
    assert fleet.limit == 2000, "also at its next start"


def test_a_file_edited_on_another_machine_decides_later(fleet: Fleet) -> None:
    fleet.start("web-1", limit(500))
    fleet.start("web-2", limit(500), 1)
    fleet.count(fleet.start("web-1", limit(2000)), "ann", 1)
    fleet.count(fleet.start("web-2", limit(700), 1), "ann", 1, 1)
    assert fleet.limit == 700


def test_a_restored_dump_gets_the_files_again(fleet: Fleet) -> None:
    """The dump has plan 1 and remembers files with it; the files say 2 meanwhile."""
    fleet.start("web-1", limit(500)).run()
    with fleet.engine.connect() as db:
        tables = (plans, analyzers)
        dump = {table: [dict(row._mapping) for row in db.execute(sa.select(table))] for table in tables}
    running = fleet.start("web-1", limit(2000))
    fleet.count(running, "ann", 1)
    assert fleet.limit == 2000
    with fleet.engine.begin() as db:
        for table, rows in dump.items():
            db.execute(sa.delete(table))
            db.execute(sa.insert(table), rows)
    assert fleet.limit == 500
    for _ in range(2):  # it learns of it, and then counts by its file again
        fleet.count(running, "ann", 1)
    assert fleet.limit == 2000
    assert counted(fleet, "ann") == 3


def test_a_dump_from_before_an_analyzer_was_known_gets_its_file(fleet: Fleet) -> None:
    other = fleet.start("web-0", limit(500), 1)
    fleet.count(other, "bob", 1, 1)
    running = fleet.start("web-1", limit(2000), is_applied=True)
    fleet.count(running, "ann", 1)
    with fleet.engine.begin() as db:
        db.execute(sa.delete(analyzers).where(analyzers.c.name == "web-1"))
        db.execute(sa.delete(plans).where(plans.c.version == 2))
        db.execute(sa.update(plans).values(active=1))
    for _ in range(2):
        fleet.count(running, "ann", 1)
    assert fleet.limit == 2000


def test_a_colleagues_file_opens_no_gate(fleet: Fleet) -> None:
    """Neither with other policies nor without any."""
    fleet.count(fleet.start("web-1", limit(2)), "ann", 3)
    assert fleet.is_locked("ann")
    for file in (limit(1_000_000), file_of()):
        for _ in range(2):  # also at the second start
            laptop = fleet.start("laptop", file, 1)
            fleet.count(laptop, "bob", 3, 1)
            assert (fleet.limit, fleet.version) == (2, 1)
        assert fleet.is_locked("ann")
    assert fleet.is_locked("bob"), "what it counts is judged by the plan in force"
    fleet.count(fleet.start("laptop", limit(1_000), 1), "bob", 1, 1)
    assert fleet.limit == 1_000, "an edit is a decision"


def test_an_unknown_analyzer_adds_sources_that_are_missing(fleet: Fleet) -> None:
    fleet.start("web-1", limit(2)).run()
    other = fleet.start("proxy-1", file_of(quota(9), sources={"proxy": WITH_STATUS}), 1)
    fleet.count(other, "bob", 1, 1)
    _, plan = fleet.store.active_plan()
    assert (fleet.limit, dict(plan.sources)) == (2, {"log": BY_KEY, "proxy": WITH_STATUS})


def test_an_unknown_analyzer_decides_when_no_other_lives(fleet: Fleet) -> None:
    """A container has another host name after each start."""
    fleet.start("container-1", limit(500)).run()
    waiting = fleet.start("container-2", limit(2000))
    fleet.count(waiting, "ann", 1)
    assert fleet.limit == 500
    for name in ("container-1", "container-2"):
        fleet.pass_minutes(name)
    fleet.count(fleet.start("container-3", limit(2000)), "ann", 1)
    assert fleet.limit == 2000


def test_apply_puts_the_whole_file_in_force_once(fleet: Fleet) -> None:
    one = fleet.start("web-1", limit(500))
    applied = fleet.start("laptop", limit(2000), 1, is_applied=True)
    fleet.count(applied, "ann", 1, 1)
    assert fleet.limit == 2000
    one = fleet.start("web-1", limit(700))
    fleet.count(one, "ann", 1)
    fleet.count(applied, "ann", 1, 1)
    assert fleet.limit == 700, "the process that applied its file does not fight for it"


def test_a_part_that_a_file_lacks_stays_in_force(fleet: Fleet) -> None:
    """Machines read different files, and a file of sources alone takes no policy away."""
    fleet.start("web-1", file_of(quota(5), sources={"log": BY_KEY})).run()
    other = fleet.start("proxy-1", file_of(sources={"proxy": BY_KEY}), 1)
    fleet.count(other, "bob", 1, 1)
    fleet.pass_minutes("web-1")
    again = fleet.start("proxy-1", file_of(sources={"proxy": WITH_STATUS}), 1)
    fleet.count(again, "bob", 1, 1)
    _, plan = fleet.store.active_plan()
    assert fleet.limit == 5
    assert dict(plan.sources) == {"log": BY_KEY, "proxy": WITH_STATUS}


def test_records_are_counted_by_the_mapping_in_force_and_not_by_the_files(fleet: Fleet) -> None:
    """A new mapping with an old analyzer beside: both count the same."""
    new, old = fleet.start("web-1", limit(500)), fleet.start("web-2", limit(500), 1)
    fleet.count(old, "ann", 1, 1)
    new = fleet.start("web-1", file_of(quota(500), sources={"log": BY_NAME}))
    fleet.count(new, "ann", 1)  # has no name: rejected, and therefore not in force yet
    fleet.log(0).append(fleet.log(0)[0]._replace(offset=1, value=b'{"ts":%d,"name":"bob"}' % fleet.now_ms))
    new.run()
    assert counted(fleet, "bob") == 1
    fleet.log(1).append(fleet.log(0)[1])
    old.run()
    assert counted(fleet, "bob") == 2, "the old one reads records by the new mapping, too"


def test_a_release_with_one_more_default_changes_no_plan(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.count(fleet.start("web-1", limit(500)), "ann", 1)
    text = Plan.to_json

    def with_default(self: Plan) -> str:
        format_, body = json.loads(text(self))
        for _, policy in body["policies"]:
            policy["new_setting"] = None
        return json.dumps([format_, body])

    monkeypatch.setattr(Plan, "to_json", with_default)
    fleet.count(fleet.start("web-1", limit(500)), "ann", 1)
    assert fleet.version == 1


def test_an_analyzer_of_an_earlier_version_is_waited_for(fleet: Fleet) -> None:
    """Such an analyzer reads no plan of this format."""
    fleet.count(fleet.start("web-1", limit(500)), "ann", 1)
    with fleet.engine.begin() as db:
        row = dict(db.execute(sa.select(analyzers)).one()._mapping)
        db.execute(sa.insert(analyzers).values(row | {"name": "web-9", "format": plan_module.FORMAT - 1}))
    edited = fleet.start("web-1", limit(2000))
    fleet.count(edited, "ann", 1)
    assert fleet.limit == 500
    assert "web-9 run an earlier version" in edited.notes[0]
    edited.run(seconds=40.0)
    assert fleet.limit == 500
    with fleet.engine.begin() as db:
        beat = sa.update(analyzers).where(analyzers.c.name == "web-9")
        db.execute(beat.values(beat_ms=analyzers.c.beat_ms - 100_000))
    edited.run(seconds=8.0)
    fleet.count(edited, "ann", 1)
    assert fleet.limit == 2000, "without another start"
    assert counted(fleet, "ann") == 3


def test_a_plan_without_sources_is_counted_by_the_files_until_they_are_added(fleet: Fleet) -> None:
    fleet.store.activate(limit(3).with_sources({}))
    analyzer = fleet.start("web-1", limit(3))
    fleet.count(analyzer, "ann", 2)
    assert counted(fleet, "ann") == 2
    assert list(fleet.store.active_plan()[1].sources) == ["log"]


def test_an_analyzer_that_cannot_read_the_plan_releases_its_partitions_and_comes_back(fleet: Fleet) -> None:
    analyzer = fleet.start("web-1", limit(500))
    fleet.count(analyzer, "ann", 1)
    source = analyzer.source
    with fleet.engine.begin() as db:
        body, digest = db.execute(sa.select(plans.c.body, plans.c.digest)).one()
        newer = f"[{plan_module.FORMAT + 1}{body[2:]}"
        db.execute(sa.update(plans).values(body=newer, digest="newer"))
    fleet.give("ann", 1)
    analyzer.run()
    assert source.is_closed
    assert "another version of Gatelock" in analyzer.problems["plan"]
    assert counted(fleet, "ann") == 1, "nothing is counted by a plan that it cannot read"
    with fleet.engine.begin() as db:
        db.execute(sa.update(plans).values(body=body, digest=digest))
    analyzer.run(seconds=8.0)
    assert not analyzer.problems
    assert analyzer.source is not source
    assert counted(fleet, "ann") == 2


def test_an_import_changes_no_rule_and_adds_its_source(fleet: Fleet) -> None:
    fleet.count(fleet.start("web-1", limit(2)), "ann", 3)
    file = file_of(quota(1_000_000), sources={"old": BY_NAME})
    agreement = agree_on_source(fleet.engine, "import:1", file, "old")
    assert agreement.plan.policy("daily") == quota(2)
    assert dict(agreement.plan.sources) == {"log": BY_KEY, "old": BY_NAME}
    assert fleet.is_locked("ann")


def test_an_import_by_another_mapping_is_refused_with_the_difference(fleet: Fleet) -> None:
    fleet.start("web-1", limit(2)).run()
    file = file_of(quota(2), sources={"log": BY_NAME})
    with pytest.raises(SourceDiffers, match=r"source log: fields\.api_key\.path key to name.*another name"):
        agree_on_source(fleet.engine, "import:1", file, "log")


def test_each_change_is_an_event_with_its_difference(fleet: Fleet) -> None:
    fleet.count(fleet.start("web-1", limit(500)), "ann", 1)
    fleet.count(fleet.start("web-1", limit(2000)), "ann", 1)
    latest, first = entries(fleet.engine)
    assert (latest.who, latest.act, latest.about, latest.why) == (
        "web-1:1",
        "plan put in force",
        "plan 2",
        "policy daily: limit 500 to 2,000",
    )
    assert first.why == "policy daily added; source log added"


def test_each_lock_that_a_plan_sets_or_lifts_is_logged(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fleet.count(fleet.start("web-1", limit(500)), "ann", 3)
    fleet.count(fleet.start("web-1", limit(2)), "bob", 1)
    assert "plan 2: locked api_key:ann from" in caplog.text
    fleet.count(fleet.start("web-1", limit(500)), "bob", 1)
    assert "plan 3: unlocked api_key:ann: plan 3 ends its lock by daily" in caplog.text


def test_a_meter_of_another_meaning_is_judged_from_then_on(fleet: Fleet) -> None:
    mapping = {"log": BY_KEY}
    errors = quota(5, meter="errors")
    before = file_of(errors, meters=[Meter("errors")], sources=mapping)
    fleet.count(fleet.start("web-1", before), "ann", 7)
    assert fleet.is_locked("ann")
    fleet.count(fleet.start("web-1", file_of(errors, meters=[ERRORS], sources=mapping)), "ann", 1)
    assert not fleet.is_locked("ann"), "no request of the new meaning was counted"
    with fleet.engine.connect() as db:
        values = {row.meter: row.value for row in stored_counts(db) if row.key == "api_key:ann" and row.value}
    assert values == {"errors (until plan 2)": 7, "requests": 8}
    after = file_of(errors, meters=[Meter("errors")], sources=mapping)
    fleet.count(fleet.start("web-1", after), "ann", 4)
    assert not fleet.is_locked("ann")
    fleet.count(fleet.start("web-1", after), "ann", 1)
    assert fleet.is_locked("ann"), "5 since it means all requests again"


def test_the_table_knows_name_file_and_age(fleet: Fleet) -> None:
    fleet.start("web-1", limit(500))
    analyzer = fleet.start("web-2", limit(2000), 1)
    fleet.pass_minutes("web-2", 3)
    known = {row.name: row for row in all_known(fleet.engine)}
    assert known["web-1"].file == known["web-1"].settled == limit(500).parts
    assert known["web-2"].settled == limit(2000).parts, "declined: it will not be proposed again"
    assert 180_000 <= known["web-2"].age_ms < 240_000
    analyzer.run()
    assert {row.name: row for row in all_known(fleet.engine)}["web-2"].age_ms < 60_000


def test_an_analyzer_with_another_secret_stands_by(fleet: Fleet) -> None:
    """The plan has the fingerprint of the secret by which keys are counted, and not the secret."""
    digest = NameDigest("kept in a secret file")
    keyed = replace(BY_KEY, fields={"api_key": TextField(("key",), digest.fingerprint)})
    fleet.count(fleet.start("web-1", limit(500)), "ann", 1)
    analyzer = fleet.start("web-2", limit(500), 1)
    source = analyzer.source
    fleet.store.activate(file_of(quota(500), sources={"log": keyed}))
    fleet.give("bob", 1, 1)
    analyzer.run()
    assert source.is_closed
    assert f"another secret (fingerprint {digest.fingerprint})" in analyzer.problems["plan"]
    with fleet.engine.connect() as db:
        bodies = db.execute(sa.select(plans.c.body)).scalars().all()
    assert not any("secret file" in body for body in bodies)


def test_an_analyzer_that_does_not_stand_by_ends(fleet: Fleet) -> None:
    """An import: it has no source to open again, and would wait forever."""
    keyed = replace(
        BY_KEY, fields={"api_key": TextField(("key",), NameDigest("kept in a secret file").fingerprint)}
    )
    analyzer = fleet.start("web-1", limit(500))
    fleet.count(analyzer, "ann", 1)
    analyzer.daemon.open_source = None
    fleet.store.activate(file_of(quota(500), sources={"log": keyed}))
    fleet.give("ann", 1)
    with pytest.raises(CannotCount, match="another secret"):
        analyzer.run()


def test_a_long_flush_stands_for_the_heartbeat(fleet: Fleet) -> None:
    """Two writers of a SQLite file wait for each other: the heartbeat would fail, and counting start over."""
    analyzer = fleet.start("web-1", limit(500))
    fleet.count(analyzer, "ann", 1)
    beats: list[float] = []
    analyzer.daemon.beat = lambda: beats.append(analyzer.uptime_s)
    analyzer.uptime_s += 40.0
    analyzer.daemon.pipeline.in_flight = Future()
    analyzer.daemon.send_heartbeat()
    assert beats == []
    analyzer.daemon.pipeline.in_flight = None
    analyzer.daemon.send_heartbeat()
    assert beats == [analyzer.uptime_s]


def test_an_analyzer_lives_while_it_stores_what_it_counts(fleet: Fleet) -> None:
    fleet.count(fleet.start("web-1", limit(500)), "ann", 1)
    with fleet.engine.begin() as db:
        db.execute(sa.update(analyzers).values(beat_ms=analyzers.c.beat_ms - 120_000))
    [known] = all_known(fleet.engine)
    assert known.age_ms < 60_000
    fleet.pass_minutes("web-1")
    [known] = all_known(fleet.engine)
    assert known.age_ms >= 120_000


def test_the_ledger_says_how_many_records_count_under_another_name(fleet: Fleet) -> None:
    analyzer = fleet.start("web-1", limit(500))
    fleet.give("ann", 2)
    fleet.give("a\u202e", 3)
    analyzer.run()
    [ledger] = audit(fleet.engine).partitions
    assert (ledger.counted, ledger.renamed) == (5, 3)
    assert counted(fleet, "ann") == 2


SHADOW = file_of(quota(5, mode="shadow"))


def promoted_fleet(fleet: Fleet) -> FleetAnalyzer:
    """An analyzer whose file has the policy in shadow, after a command has promoted it, with one lock."""
    analyzer = fleet.start("web-1", SHADOW)
    fleet.count(analyzer, "ann", 7)
    promote_policy(fleet.engine, "daily", "ann@ops1", "only crawlers")
    analyzer.run()
    assert fleet.is_locked("ann")
    return analyzer


def test_a_file_that_is_saved_again_does_not_stop_what_a_command_enforces(fleet: Fleet) -> None:
    analyzer = promoted_fleet(fleet)
    analyzer.edit(file_of(quota(6, mode="shadow")))
    fleet.count(analyzer, "ann", 1)
    fleet.count(fleet.start("web-1", file_of(quota(4, mode="shadow"))), "ann", 1)
    applied = fleet.start("web-1", file_of(quota(3, mode="shadow")), is_applied=True)
    fleet.count(applied, "ann", 1)
    for notes in (analyzer.notes, applied.notes):
        assert "by daily, and a command or another file enforces daily" in notes[0]
        assert "gatelock policies apply" in notes[0]
    assert fleet.version == 2
    assert [lock.key for lock in locks_in_force(fleet.engine)] == ["api_key:ann"]


@pytest.mark.parametrize("is_reloaded", [True, False], ids=["reload", "start"])
def test_a_file_that_was_edited_from_enforce_to_shadow_is_its_operators_word(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, *, is_reloaded: bool
) -> None:
    analyzer = promoted_fleet(fleet)
    analyzer.edit(limit(5))  # as the command has it
    fleet.count(analyzer, "ann", 1)
    assert fleet.version == 2
    with caplog.at_level(logging.INFO):
        if is_reloaded:
            analyzer.edit(SHADOW)
        else:
            analyzer = fleet.start("web-1", SHADOW)
            assert "this stops enforcing 1 lock by daily" in analyzer.notes[0]
        fleet.count(analyzer, "ann", 1)
        fleet.end_activation()
    assert fleet.version == 3
    assert list(locks_in_force(fleet.engine)) == []
    assert "unlocked api_key:ann: plan 3 ends its lock by daily" in caplog.text
    event = next(iter(entries(fleet.engine)))
    assert "mode enforce to shadow; this stops enforcing 1 lock by daily" in event.why


def test_a_policy_that_its_file_enforced_may_be_edited_after_another_was_promoted(
    fleet: Fleet,
) -> None:
    other = quota(9, name="other", mode="shadow")
    analyzer = fleet.start("web-1", file_of(quota(5), other))
    fleet.count(analyzer, "ann", 1)
    promote_policy(fleet.engine, "other", "ann@ops1", "")
    analyzer.edit(file_of(quota(5, mode="shadow"), quota(9, name="other")))
    fleet.count(analyzer, "ann", 1)
    assert fleet.version == 3
    assert {policy.name for policy in analyzer.plan.policies if policy.is_shadow} == {"daily"}


@pytest.mark.parametrize("mode", ["shadow", "enforce"])
def test_the_history_of_a_lock_says_that_a_plan_has_ended_it(fleet: Fleet, mode: str) -> None:
    analyzer = fleet.start("web-1", limit(5))
    fleet.count(analyzer, "ann", 7)
    changed = SHADOW if mode == "shadow" else file_of(quota(50))
    apply_file(fleet.engine, changed, "ann@ops1")
    fleet.end_activation()
    with fleet.engine.connect() as db:
        causes = db.execute(sa.select(lock_history.c.cause).where(lock_history.c.action == "deny")).scalars()
        assert list(causes) == ["plan"]
