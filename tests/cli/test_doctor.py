"""`gatelock doctor`: its findings on prepared databases, and on an installation of real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from kafka import KafkaConsumer

from analyzer.billing.days.day_rows import add_day
from analyzer.config.settings import load
from analyzer.counting.gaps import SqlGaps
from analyzer.counting.measured_delays import MeasuredDelays, PartitionClock, SourceDelay
from analyzer.faces.signals.doctor import gate_checks
from analyzer.faces.signals.doctor.examination import CHECKS
from analyzer.faces.signals.signal_kinds import SIGNAL_KINDS, Signal
from analyzer.faces.signals.signal_table import store_signals
from analyzer.flush.analyzers import LIVING_MS, AnalyzerFile, SqlAgreement
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.locks import lock_feed
from analyzer.judging.locks.suspension import suspend
from analyzer.judging.sql import plans
from analyzer.kernel.database.clock import instant
from analyzer.kernel.database.engine import NowMs
from analyzer.kernel.jobs.job_runs import SqlJobRuns
from analyzer.kernel.jobs.job_schedules import BegunRun, RunOutcome, Schedule
from analyzer.kernel.model import CountRow, Gap, Partition, PartitionProgress
from analyzer.kernel.tables.billing_tables import day_positions
from analyzer.kernel.tables.schema import (
    analyzers,
    disbelieved,
    job_runs,
    offsets,
    rejects,
    waiting_facts,
)
from analyzer.kernel.tokens import create
from analyzer.plan.meters import DUPLICATES, REQUESTS
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Calendar
from gatekeeper.feed.feed_json import time_text
from gatekeeper.model import SUSPENSION, Cursor, Lock, Set
from gatekeeper.sources.sql import SqlSource
from tests.support.gate_reports import ANN, BOB, SOURCE, gate_status, log_callers, report
from tests.support.gatelock_processes import GatelockProcess
from tests.support.stored_counts import put_counts
from tests.support.upkeep import Upkeep
from tests.support.waiting import wait_for

Gatelock = Callable[..., Any]
Configure = Callable[[str], Path]

DEADLINE_S = 30.0
PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"


@pytest.fixture
def configuration() -> str:
    return SOURCE


def follow_partition(engine: sa.Engine, *, heartbeat_age_ms: int = 0, behind_ms: int = 0) -> None:
    row = {
        "cluster": "c",
        "topic_id": "t",
        "partition": 0,
        "source": "web",
        "topic": "access.jsonl",
        "next": 9,
    }
    with engine.begin() as db:
        beat_ms = NowMs() - heartbeat_age_ms
        db.execute(sa.insert(offsets).values(**row, beat_ms=beat_ms, behind_ms=behind_ms))


def activate_plan(engine: sa.Engine) -> None:
    SqlStore(engine, "here").activate(load(Path("gatelock.toml")).plan())


def make_healthy(engine: sa.Engine) -> None:
    activate_plan(engine)
    follow_partition(engine)


def findings(gatelock: Gatelock, *, exit_code: int) -> dict[str, list[dict[str, str]]]:
    """The findings of a run that ends with this exit code, by check."""
    result = gatelock("doctor", "--json")
    assert result.exit_code == exit_code, result.output
    found: dict[str, list[dict[str, str]]] = {}
    for line in result.output.splitlines():
        finding = json.loads(line)
        found.setdefault(finding["check"], []).append(finding)
    return found


def sentences(gatelock: Gatelock) -> list[str]:
    """Returns the sentence of every finding, for any exit code."""
    return [json.loads(line)["what"] for line in gatelock("doctor", "--json").output.splitlines()]


def first_wrong(gatelock: Gatelock) -> dict[str, dict[str, str]]:
    """The first finding of each check, where that is wrong."""
    found = findings(gatelock, exit_code=1)
    return {check: first for check, (first, *_) in found.items() if first["state"] == "wrong"}


def test_the_page_describes_each_check() -> None:
    described = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert described == [*dict.fromkeys(part.name for part in CHECKS), "kafka"]


def test_the_page_lists_each_signal_with_its_severity() -> None:
    rows = re.findall(r"^\| (critical|warning|info) \|[^|]*\| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    listed = {name: severity for severity, names in rows for name in re.findall(r"`([a-z-]+)`", names)}
    assert listed == {name: kind.severity for name, kind in SIGNAL_KINDS.items()}


def test_a_signal_for_a_decision_is_shown_and_is_not_wrong(gatelock: Gatelock, engine: sa.Engine) -> None:
    make_healthy(engine)
    now = datetime.now(UTC)
    in_shadow = Lock(
        scope="caller", key=ANN, policy="trial", action="shadow", began=now, until=now + timedelta(hours=1)
    )
    with engine.begin() as db:
        lock_feed.publish(db, [Set(in_shadow)], "mark")
    shown = [found for found in findings(gatelock, exit_code=0)["locks"] if found["name"]]
    assert [(found["name"], found["state"]) for found in shown] == [("shadow-locks", "info")]


def test_a_finding_says_since_when_it_stands(gatelock: Gatelock, engine: sa.Engine) -> None:
    make_healthy(engine)
    suspend(engine, 60_000, "ann", "an exercise", lambda: "mark")
    [found] = findings(gatelock, exit_code=1)["gates"][:1]
    assert (found["name"], found["since"]) == ("locks-suspended", None), "no job has looked yet"
    [begun] = store_signals(engine, [Signal("locks-suspended", "", "critical", "all are", "")]).began
    [found] = findings(gatelock, exit_code=1)["gates"][:1]
    assert found["since"] == time_text(instant(begun.since_ms))


def test_a_problem_that_only_an_analyzer_sees_is_found_while_it_lives(
    gatelock: Gatelock, engine: sa.Engine
) -> None:
    make_healthy(engine)
    agreement = SqlAgreement(engine, "here:7", AnalyzerFile("here", load(Path("gatelock.toml")).plan()), str)
    agreement.agree()
    agreement.beat(problems={"kafka": "the broker at b:9092 does not answer"})
    found = [finding for finding in findings(gatelock, exit_code=1)["plan"] if finding["name"]]
    assert [(finding["name"], finding["what"]) for finding in found] == [
        ("analyzer-problem", "here: the broker at b:9092 does not answer")
    ]
    agreement.beat()
    findings(gatelock, exit_code=0)


def test_a_healthy_installation_has_only_fine_findings(gatelock: Gatelock, engine: sa.Engine) -> None:
    make_healthy(engine)
    log_callers(engine, ANN)
    report(engine, gate_status(callers=(ANN,)))
    found = findings(gatelock, exit_code=0)
    assert found.keys() == {"database", "clock", "plan", "sources", "gaps", "rejects", "gates", "callers"}
    assert "nothing is wrong" in gatelock("doctor").output


def measure(engine: sa.Engine, measured: MeasuredDelays) -> None:
    """Stores measurements with the heartbeat of the analyzer that follows the partition."""
    file = AnalyzerFile("here", load(Path("gatelock.toml")).plan())
    agreement = SqlAgreement(engine, "here:7", file, lambda: "mark")
    agreement.agree()
    agreement.beat(measured)


def test_late_records_and_wrong_clocks_are_found(gatelock: Gatelock, engine: sa.Engine) -> None:
    make_healthy(engine)
    measure(engine, MeasuredDelays(sources={"web": SourceDelay(120, 900, 50)}))
    [fine] = findings(gatelock, exit_code=0)["delays"]
    assert fine["what"] == (
        "web: records reach Kafka 0.12 s after their requests, 99 % of them within 0.9 s, by here"
    )
    clocks = {"access.jsonl[0]": PartitionClock("web", 2_700, 10)}
    measure(engine, MeasuredDelays(sources={"web": SourceDelay(120, 30_001, 50)}, clocks=clocks))
    late, skewed = findings(gatelock, exit_code=1)["delays"]
    assert "web 30.001 s" in late["what"]
    assert "access.jsonl[0] has Kafka times 2.7 s ahead" in skewed["what"]
    with Path("gatelock.toml").open("a") as file:
        file.write('[delays]\nshipping_delay_max = "1m"\nclock_skew_max = "3s"\n')
    assert findings(gatelock, exit_code=0)["delays"][0]["state"] == "fine"
    with engine.begin() as db:
        db.execute(sa.update(analyzers).values(beat_ms=analyzers.c.beat_ms - LIVING_MS - 1_000))
    assert "delays" not in findings(gatelock, exit_code=0), "of an analyzer that does not run"


def test_records_that_come_twice_and_short_horizons_are_found(gatelock: Gatelock, engine: sa.Engine) -> None:
    path = Path("gatelock.toml")
    path.write_text(
        path.read_text().replace("[[sources]]", '[[sources]]\nid = "request"', 1)
        + '\n[sources.fields.request]\npath = "request"\n'
    )
    make_healthy(engine)
    minute_s = int(time.time()) // 60 * 60 - 60
    counts = [(ANN, REQUESTS, 900), (ANN, DUPLICATES, 100), (BOB, REQUESTS, 10), (BOB, DUPLICATES, 99)]
    rows = [CountRow("caller", key, "", meter.name, 60, minute_s, number, 0) for key, meter, number in counts]
    with engine.begin() as db:
        put_counts(db, rows)
        db.execute(sa.update(offsets).values(ids_kept_ms=3_600_000))
    [one] = findings(gatelock, exit_code=1)["duplicates"]
    assert one["what"] == (
        f"{ANN}: 100 of its 1,000 records in the last 10 minutes are duplicates (10%), and left out"
    )
    assert gatelock("usage", "--meter", DUPLICATES.name, "--json").exit_code == 0
    with engine.begin() as db:
        db.execute(sa.update(offsets).values(ids_kept_ms=90_000))
    _, short = findings(gatelock, exit_code=1)["duplicates"]
    assert short["what"] == (
        "access.jsonl[0]: ids are remembered for 90 s, instead of 1h: there are more than ids_max"
    )


def test_the_sources_show_their_delays(gatelock: Gatelock, engine: sa.Engine) -> None:
    make_healthy(engine)
    with engine.begin() as db:
        db.execute(sa.update(offsets).values(owner="here:7"))
    assert json.loads(gatelock("upkeep", "sources", "list", "--json").output)["shipping_p99_s"] is None
    clocks = {"access.jsonl[0]": PartitionClock("web", -250, 10)}
    measure(engine, MeasuredDelays(sources={"web": SourceDelay(120, 900, 50)}, clocks=clocks))
    [shown] = [
        json.loads(line) for line in gatelock("upkeep", "sources", "list", "--json").output.splitlines()
    ]
    assert (shown["shipping_p50_s"], shown["shipping_p99_s"]) == (0.12, 0.9)
    assert (shown["kafka_ahead_s"], shown["requests_ahead_s"]) == (-0.25, -0.01)
    printed = gatelock("upkeep", "sources", "list").output
    assert "0.9 s" in printed
    assert "at most 0.2 s behind" in printed


def test_callers_under_another_kind_of_name_are_found_with_the_cause(
    gatelock: Gatelock, engine: sa.Engine
) -> None:
    make_healthy(engine)
    log_callers(engine, ANN, BOB)
    report(engine, gate_status(callers=("api_key:ann", "api_key:bob")))
    callers = first_wrong(gatelock)["callers"]
    assert "the log knows 0% of 2 callers checked, but not api_key:ann, api_key:bob" in callers["what"]
    assert "user:ann" in callers["what"]
    assert "caller_of" in callers["cure"]


def test_problems_of_gates_are_found_each_with_a_cure(gatelock: Gatelock, engine: sa.Engine) -> None:
    make_healthy(engine)
    report(
        engine,
        gate_status("a:1:a", mode="process", clock_skew=9.0),
        gate_status("b:1:b", mode="process"),
        gate_status("c:1:c", application="till", at=Cursor(99, "m")),
    )
    found = findings(gatelock, exit_code=1)["gates"]
    assert [finding["state"] for finding in found] == ["wrong"] * 3
    off, clock, strange = (finding["what"] for finding in found)
    assert re.match(r"shop a:1:a .*GATEKEEPER=off.*; 1 more with this problem$", off)
    assert "9.0 s" in clock
    assert strange.startswith("till c:1:c ")
    assert all(finding["cure"] for finding in found)


def run_job(engine: sa.Engine, job: str, outcome: RunOutcome, error: str = "", rows: int = 0) -> None:
    """Has a process run a job to an outcome."""
    runs = SqlJobRuns(engine, "counter:7")
    run = runs.begin(job, Schedule(60), is_asked=True)
    assert isinstance(run, BegunRun)
    assert runs.end(run, outcome, rows, error)


def pass_ms(engine: sa.Engine, ms: int) -> None:
    """Has the runs of a job be older."""
    with engine.begin() as db:
        older = {column: column - ms for column in (job_runs.c.ended_ms, job_runs.c.done_ms)}
        db.execute(sa.update(job_runs).where(job_runs.c.job == "roll-up").values(older))


def test_upkeep_that_works_is_fine(gatelock: Gatelock, engine: sa.Engine) -> None:
    make_healthy(engine)
    for name in ("end-locks", "roll-up"):
        run_job(engine, name, "failed", "canceling statement due to statement timeout")
        run_job(engine, name, "done")
    (found,) = findings(gatelock, exit_code=0)["upkeep"]
    assert re.fullmatch(r"2 jobs, each done within the last \d s", found["what"])


def test_upkeep_that_fails_is_found_with_its_last_error_and_its_age(
    gatelock: Gatelock, engine: sa.Engine
) -> None:
    make_healthy(engine)
    run_job(engine, "prune", "done")
    run_job(engine, "roll-up", "done")
    run_job(engine, "roll-up", "failed", "deadlock detected")
    pass_ms(engine, 7_200_000)
    run_job(engine, "roll-up", "failed", "canceling statement due to statement timeout")
    (found,) = findings(gatelock, exit_code=1)["upkeep"]
    assert re.fullmatch(
        r"roll-up has failed for 2 h, last \d s ago, in counter:7: canceling statement due to .* timeout",
        found["what"],
    )
    assert found["cure"]


def test_a_refused_configuration_of_a_living_analyzer_is_found_until_a_good_one_is_read(
    gatelock: Gatelock, engine: sa.Engine
) -> None:
    make_healthy(engine)
    living, gone = (
        SqlAgreement(engine, f"{name}:7", AnalyzerFile(name, Plan()), lambda: "mark")
        for name in ("here", "gone")
    )
    for analyzer in (living, gone):
        analyzer.agree()
        analyzer.beat(refused="gatelock.toml:3: [database] x: is not a known key")
    with engine.begin() as db:
        is_gone = analyzers.c.name == "gone"
        db.execute(sa.update(analyzers).where(is_gone).values(beat_ms=analyzers.c.beat_ms - 3_600_000))
    assert [what for what in sentences(gatelock) if "configuration of" in what] == [
        "the changed configuration of here is refused, the one before is in force: "
        "gatelock.toml:3: [database] x: is not a known key"
    ]
    living.beat()
    assert not [what for what in sentences(gatelock) if "configuration of" in what]


def test_upkeep_that_does_not_keep_up_is_found(gatelock: Gatelock, engine: sa.Engine) -> None:
    make_healthy(engine)
    run_job(engine, "roll-up", "done")
    pass_ms(engine, 4 * 86_400_000)
    run_job(engine, "roll-up", "stopped", rows=7)
    (found,) = findings(gatelock, exit_code=1)["upkeep"]
    assert (found["state"], found["what"]) == ("wrong", "roll-up was last done 4 days ago")


@pytest.mark.parametrize(
    ("heartbeat", "message"),
    [
        ({}, "web: no record was ever read"),
        ({"heartbeat_age_ms": 60_000}, r"no heartbeat for [67]\d s from an analyzer of access\.jsonl\[0\]"),
        ({"behind_ms": 90_000}, "web: 90 s behind"),
    ],
    ids=["never read", "no analyzer", "behind"],
)
def test_sources_without_an_analyzer_or_behind_are_found(
    gatelock: Gatelock, engine: sa.Engine, heartbeat: dict[str, int], message: str
) -> None:
    activate_plan(engine)
    if heartbeat:
        follow_partition(engine, **heartbeat)
    assert re.search(message, first_wrong(gatelock)["sources"]["what"])


def test_stopped_partitions_and_rejected_records_are_found(gatelock: Gatelock, engine: sa.Engine) -> None:
    make_healthy(engine)
    part = Partition("c", "t", 0, "web", "access.jsonl")
    SqlGaps(engine, "here").settle({part: Gap("corrupt", 9, None, "a batch is damaged")})
    row = {"cluster": "c", "topic_id": "t", "partition": 0, "source": "web", "topic": "x", "sample": b"{"}
    with engine.begin() as db:
        for number, reason in enumerate(("bad-json", "bad-json", "no-caller")):
            db.execute(sa.insert(rejects).values(**row, offset=number, reason=reason, at_ms=NowMs()))
    found = first_wrong(gatelock)
    assert "access.jsonl[0] is stopped: a batch is damaged" in found["gaps"]["what"]
    assert "3 records could not be read in the last hour, mostly: bad-json" in found["rejects"]["what"]


def test_denials_that_no_lock_supports_are_found_by_their_policy(
    gatelock: Gatelock, engine: sa.Engine
) -> None:
    make_healthy(engine)
    minute_s = int(time.time()) // 60 * 60
    place = {"cluster": "c", "topic_id": "t", "partition": 0, "begin": 0, "next": 9, "series": "[]"}
    with engine.begin() as db:
        for number, (policy, logged_s, requests) in enumerate(
            [
                ("daily", minute_s, 3),
                ("daily", minute_s - 60, 1_200),
                ("", minute_s, 7),
                ("?", minute_s, 2),
                ("old", 60, 9),
            ]
        ):
            row = {"series_digest": f"{number}", "policy": policy, "caller": "user:ann", "requests": requests}
            db.execute(sa.insert(disbelieved).values(**place, **row, logged_s=logged_s, bucket_s=logged_s))
    found = findings(gatelock, exit_code=1)["verdicts"]
    assert [finding["what"] for finding in found] == [
        "1,203 requests of the last hour were logged as denied by daily, and count, because no such lock was "
        "in force",
        "7 requests of the last hour were logged as denied, and count, because no such lock was in force",
        "2 requests of the last hour were logged as denied by a policy that is not in force, and count, "
        "because no such lock was in force",
    ]


def test_a_configuration_other_than_the_analyzers_is_found(gatelock: Gatelock, engine: sa.Engine) -> None:
    follow_partition(engine)
    assert "no analyzer has run on this database" in first_wrong(gatelock)["plan"]["what"]
    SqlStore(engine, "here").activate(Plan(groupings=("caller", "caller+resource")))
    assert "is not in force: source web added" in first_wrong(gatelock)["plan"]["what"]


def test_a_policy_whose_totals_are_still_filled_is_named(
    gatelock: Gatelock, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_healthy(engine)
    monkeypatch.setattr(plans, "ACTIVATION_ROWS", 0)
    SqlStore(engine, "here").activate(make_plan([], [], [Quota("daily", 5, Calendar("day"))]))
    sentence = "not in effect yet: daily; totals are filled from the counts so far"
    assert sentence in sentences(gatelock)
    while Upkeep(engine, str).continue_activation():
        pass
    assert sentence not in sentences(gatelock)


def test_suspended_locks_and_expiring_tokens_are_found(gatelock: Gatelock, engine: sa.Engine) -> None:
    make_healthy(engine)
    now = datetime.now(UTC)
    lock = Lock(**SUSPENSION._asdict(), began=now, until=now + timedelta(hours=1), action="suspend")
    with engine.begin() as db:
        lock_feed.publish(db, [Set(lock)], "m")
    create(engine, "shop", "read", 3_600_000, "ann", "")
    create(engine, "till", "read", None, "ann", "")
    found = first_wrong(gatelock)
    assert "all locks are suspended until" in found["gates"]["what"]
    assert "shop expires at" in found["tokens"]["what"]


def test_facts_that_wait_are_found(gatelock: Gatelock, engine: sa.Engine) -> None:
    make_healthy(engine)
    rows = [{"caller": f"api_key:{n}", "at_ms": NowMs() - 50_000 * n} for n in range(3)]
    with engine.begin() as db:
        db.execute(sa.insert(waiting_facts).values(rows[0]))
    assert "facts" not in findings(gatelock, exit_code=0), "they are applied within seconds"
    with engine.begin() as db:
        for row in rows[1:]:
            db.execute(sa.insert(waiting_facts).values(row))
    what = first_wrong(gatelock)["facts"]["what"]
    assert what.startswith("facts that records state wait for 10")
    assert what.endswith(" s, of 3 callers")


def test_a_day_that_waits_for_a_partition_is_found(gatelock: Gatelock, engine: sa.Engine) -> None:
    make_healthy(engine)
    with engine.begin() as db:
        before = add_day(db, "UTC", int(time.time()) - 3 * 86_400)
        part = {"cluster": "c", "topic_id": "t", "partition": 3, "source": "log", "topic": "access-log"}
        db.execute(sa.insert(day_positions).values(day=before.id, target=7, is_gone=0, **part))
    found = first_wrong(gatelock)["days"]
    day = f"{before.date} (UTC)"
    assert found["what"] == f"{day} waits for access-log[3]: is not counted yet, and must be up to 7"
    assert "gatelock billing days close" in found["cure"]


@pytest.mark.parametrize("database", ["postgresql"])
def test_many_gates_with_a_connection_each_are_found(
    gatelock: Gatelock, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_healthy(engine)
    monkeypatch.setattr(gate_checks, "SQL_GATES_MAX", 2)
    with ExitStack() as stack:
        for wrong in (False, False, True):
            source = SqlSource(engine.url.render_as_string(hide_password=False))
            stack.callback(source.close)
            source.fetch(None)
            gates = findings(gatelock, exit_code=int(wrong))["gates"]
            assert [finding["state"] for finding in gates] == ["fine"] + ["wrong"] * wrong
    assert gates[1]["what"].startswith("3 gates hold a connection each to the database, which allows ")
    assert "over HTTP" in gates[1]["cure"]


def test_a_clock_that_differs_is_found(
    gatelock: Gatelock, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_healthy(engine)
    real_time = time.time
    monkeypatch.setattr("time.time", lambda: real_time() - 10)
    assert "s ahead of this machine's" in first_wrong(gatelock)["clock"]["what"]


@pytest.mark.parametrize("database", ["sqlite"])
def test_tables_of_an_unreleased_version_are_found(gatelock: Gatelock, engine: sa.Engine) -> None:
    with engine.begin() as db:
        db.execute(sa.text("update alembic_version set version_num = '0001'"))
    cure = first_wrong(gatelock)["database"]["cure"]
    assert cure.startswith("stop all analyzers, create the database again with `rm -f ")


def test_an_unreachable_database_exits_with_3(gatelock: Gatelock, configure: Configure) -> None:
    configure('[database]\nurl = "postgresql+psycopg://gate:s3cret@127.0.0.1:9/x"\n')
    result = gatelock("doctor")
    assert result.exit_code == 3
    assert result.output.startswith("away")
    assert "s3cret" not in result.output


def configure_topic(configure: Configure, engine: sa.Engine, bootstrap: str, topic: str) -> None:
    source = SOURCE.replace('file   = "access.jsonl"', f'topic = "{topic}"')
    configure(f'[database]\nurl = "{engine.url}"\n[kafka]\nbootstrap_servers = "{bootstrap}"\n{source}')


@pytest.mark.parametrize("database", ["sqlite"])
def test_an_unreachable_kafka_exits_with_3(
    gatelock: Gatelock, engine: sa.Engine, configure: Configure
) -> None:
    make_healthy(engine)
    configure_topic(configure, engine, "127.0.0.1:9", "access-log")
    (kafka,) = findings(gatelock, exit_code=3)["kafka"]
    assert kafka["state"] == "away"
    assert "127.0.0.1:9" in kafka["what"]


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_missing_topic_is_found(
    gatelock: Gatelock, engine: sa.Engine, configure: Configure, kafka: Any
) -> None:
    make_healthy(engine)
    existing = kafka.create_topic()
    for name, state, message in (
        (existing, "fine", f"{existing} with 4 partitions"),
        ("missing", "wrong", "missing"),
    ):
        configure_topic(configure, engine, kafka.bootstrap, name)
        found = [json.loads(line) for line in gatelock("doctor", "--json").output.splitlines()]
        (finding,) = [finding for finding in found if finding["check"] == "kafka"]
        assert finding["state"] == state
        assert message in finding["what"]


# Real processes

GATES = """
import os, sys, time
from gatekeeper import Gate
from gatekeeper.telemetry import gate_status
from gatekeeper.sources.http import HttpSource
from gatekeeper.sources.sql import SqlSource
from tests.support.patches import replace

replace(gate_status, REPORT_EVERY_S=0.2)
url, name, kind = sys.argv[1:]
source = HttpSource(url, wait=0.1) if url.startswith("http:") else SqlSource(url, report_status=True)
gate = Gate(source, name=name)  # before the fork: each process has its own
os.fork()
while True:
    for number in range(20):
        gate.allow(f"{kind}:{number}")
    time.sleep(0.01)
"""


@pytest.fixture
def children() -> Iterator[list[GatelockProcess | subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        if isinstance(child, GatelockProcess):
            child.kill()
        else:
            os.killpg(child.pid, signal.SIGKILL)  # of several processes
        child.wait()


def test_gates_in_processes_report_and_a_wrong_kind_of_name_is_found(
    migrated_url: str,
    configure: Configure,
    tmp_path: Path,
    gatelock: Gatelock,
    children: list[GatelockProcess | subprocess.Popen[bytes]],
) -> None:
    policy = '[[policies]]\nname = "ever"\nlimit = 3\nwindow = { per = "month" }\n'
    configure(f'[database]\nurl = "{migrated_url}"\n[analyzer]\nhttp = "127.0.0.1:0"\n{SOURCE}{policy}')
    now_ms = int(time.time() * 1000)
    users = [str(number) for number in range(20)] + ["0"] * 3
    lines = [json.dumps({"ts": now_ms, "user": user}) + "\n" for user in users]
    (tmp_path / "access.jsonl").write_text("".join(lines))
    log = tmp_path / "run.log"
    with log.open("wb") as stream:
        children.append(GatelockProcess(["run"], stderr=stream))
    url = wait_for(lambda: served_url(log))
    for source, name, kind in (
        (url, "shop", "user"),
        (migrated_url, "desk", "user"),
        (url, "till", "api_key"),
    ):
        command = [sys.executable, "-c", GATES, source, name, kind]
        children.append(subprocess.Popen(command, start_new_session=True))
    rows = wait_for(lambda: complete_reports(gatelock))
    assert len({row["instance"] for row in rows}) == 6, "one in each process"
    for row in rows:
        if row["application"] == "till":
            assert (row["known"], row["checks"], len(row["wrong"])) == (0.0, 0, 1)
            continue
        assert (row["known"], row["unknown"], row["wrong"]) == (1.0, [], {})
        assert row["locks"][0]["key"] == "user:0"
        assert row["checks"] == row["denials"] > 0
    result = gatelock("doctor")
    assert result.exit_code == 1
    assert "1 thing is wrong" in result.output
    assert "they differ in the kind of name: the log has user: in front" in result.output


def complete_reports(gatelock: Gatelock) -> list[dict[str, Any]] | None:
    """The rows of all six gates, as soon as each has checked its callers and four of them met a lock."""
    rows = [json.loads(line) for line in gatelock("upkeep", "gates", "list", "--json").output.splitlines()]
    checked = [row for row in rows if row["callers"] == 20]
    met = [row for row in checked if row["checks"]]
    return rows if len(checked) == 6 and len(met) == 4 else None


def served_url(log: Path) -> str | None:
    for line in log.read_text().splitlines(keepends=True):
        if line.endswith("\n") and "listening" in json.loads(line)["message"]:
            return str(json.loads(line)["message"].split()[-1])
    return None


@pytest.mark.parametrize("database", ["sqlite"])
def test_two_databases_in_one_consumer_group_are_found(
    gatelock: Gatelock, engine: sa.Engine, configure: Configure, kafka: Any
) -> None:
    """A consumer of another database has a partition of the topic that this database counts."""
    topic = kafka.create_topic(partitions=2)
    configure_topic(configure, engine, kafka.bootstrap, topic)
    group = f'group_id = "{topic}"\n'
    text = Path("gatelock.toml").read_text()
    Path("gatelock.toml").write_text(text.replace("[kafka]\n", f"[kafka]\n{group}"))
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap,
        group_id=topic,
        client_id="gatelock-other-7-0a1b2c3d",
        # The topic is new, and the first answer may not have it.
        metadata_max_age_ms=500,
    )
    try:
        wait_for(
            lambda: consumer.poll(3_000) or consumer.assignment(), DEADLINE_S
        )  # a shorter poll gives a join up
        [problem] = [one for one in findings(gatelock, exit_code=1)["kafka"] if one["state"] == "wrong"]
        assert f"gatelock-other-7-0a1b2c3d on 127.0.0.1 reads {topic}[0], {topic}[1]" in problem["what"]
        assert "group_id" in problem["cure"]
        store = SqlStore(engine, "other:7")
        for number in (0, 1):
            part = Partition("c", "t", number, topic, topic)
            at = store.begin(part, 0).next
            with store.transaction() as tx:
                tx.move_offsets([PartitionProgress(part, at, at)], {})
        assert all(one["state"] == "fine" for one in findings(gatelock, exit_code=1)["kafka"])
    finally:
        consumer.close(autocommit=False)
