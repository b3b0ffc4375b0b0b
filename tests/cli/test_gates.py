"""`gates` and `doctor`: on a database with something in it, and on a living installation."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.core.judging.plan import Plan
from analyzer.core.model import Gap, Partition
from analyzer.store.database.engine import NowMs
from analyzer.store.database.schema import feed_versions, gates, named_callers, offsets, rejects
from analyzer.store.operations.tokens import create
from analyzer.store.reports.gate_reports import store_statuses
from analyzer.store.transaction import lock_feed
from analyzer.store.transaction.gaps import SqlGaps
from analyzer.store.transaction.sql_store import SqlStore
from gatekeeper.model import SUSPENSION, Cursor, GateStatus, Lock, LockHits, LockKey, Set

Gatelock = Callable[..., Any]
Configure = Callable[[str], Path]

PATIENCE_S = 30.0
ANN, BOB = "user:ann", "user:bob"
MET = (LockHits(LockKey("caller", ANN, "", "daily"), 7, 5),)
SOURCE = """
    [[sources]]
    name   = "web"
    file   = "access.jsonl"
    caller = ["user", "address"]
    [sources.fields]
    time    = { path = "ts", unit = "ms" }
    user    = "user"
    address = "ip"
"""


@pytest.fixture
def configuration() -> str:
    return SOURCE


def told(instance: str = "host:1:ab", **said: Any) -> GateStatus:
    given: dict[str, Any] = {"number": 1, "application": "shop", "library": "0.1.0", "at": Cursor(0, ""),
                             "age": 0.4, "locks": (), "more": (0, 0), "callers": ()}  # fmt: skip
    return GateStatus(instance=instance, **given | said)


def tell(engine: sa.Engine, *feedback: GateStatus) -> None:
    """Of a gate whose view is as new as the feed."""
    with engine.connect() as db:
        at = Cursor(*db.execute(sa.text("select version, mark from feed")).one())
    store_statuses(engine, [each._replace(at=at) if each.at == Cursor(0, "") else each for each in feedback])


def log_knows(engine: sa.Engine, *callers: str) -> None:
    row = {"cluster": "c", "topic_id": "t", "partition": 0, "hour": 1, "how": "new", "next": 1}
    with engine.begin() as db:
        db.execute(sa.insert(named_callers).values(**row, callers="\n".join(callers)))


def follow(engine: sa.Engine, *, heard_ms_ago: int = 0, behind_ms: int = 0) -> None:
    place = {
        "cluster": "c",
        "topic_id": "t",
        "partition": 0,
        "source": "web",
        "topic": "access.jsonl",
        "next": 9,
    }
    with engine.begin() as db:
        db.execute(sa.insert(offsets).values(**place, beat_ms=NowMs() - heard_ms_ago, behind_ms=behind_ms))


def in_force(engine: sa.Engine) -> None:
    SqlStore(engine, "here").activate(Plan())


def healthy(engine: sa.Engine) -> None:
    in_force(engine)
    follow(engine)


class TestGates:
    def test_each_gate_is_listed_with_its_view_what_it_met_and_whom_the_log_knows(
        self, gatelock: Gatelock, engine: sa.Engine
    ) -> None:
        log_knows(engine, ANN, BOB)
        tell(engine, told(locks=MET, more=(3, 1), callers=(ANN, BOB)))
        listed = gatelock("gates", "list", "--json")
        assert listed.exit_code == 0
        row = json.loads(listed.output)
        assert {name: row[name] for name in ("application", "instance", "library", "version", "age_s")} == {
            "application": "shop", "instance": "host:1:ab", "library": "0.1.0", "version": 0, "age_s": 0.4,
        }  # fmt: skip
        assert (row["checks"], row["denials"], row["known"], row["unknown"], row["wrong"]) == (
            10,
            6,
            1.0,
            [],
            {},
        )
        assert 0 <= row["heard_s"] < 10
        shown = gatelock("gates", "list").output
        for cell in ("shop", "host:1:ab", "0.4 s", "100% of 2", "fine"):
            assert cell in shown

    def test_a_gate_that_is_stale_behind_or_asked_for_strangers_is_named(
        self, gatelock: Gatelock, engine: sa.Engine
    ) -> None:
        with engine.begin() as db:
            for number in range(2):
                now = datetime.now(UTC)
                lock = Lock("caller", f"user:{number}", "daily", now, now + timedelta(days=1))
                lock_feed.publish(db, [Set(lock)], f"m{number + 1}")
            db.execute(sa.update(feed_versions).values(at_ms=NowMs() - 60_000))
        log_knows(engine, ANN)
        tell(
            engine,
            told("a:1:a", age=99.0),
            told("b:1:b", at=Cursor(1, "m1")),
            told("c:1:c", callers=(ANN, BOB)),
        )
        listed = gatelock("gates", "list")
        assert listed.exit_code == 1
        assert "shop a:1:a had its last answer 99 s before: its view is stale" in listed.output
        assert "shop b:1:b lacked a version that had been there for" in listed.output
        assert "shop c:1:c is asked for callers of whom the log knows 50%" in listed.output
        wrong = [
            json.loads(line)["wrong"].keys()
            for line in gatelock("gates", "list", "--json").output.splitlines()
        ]
        assert sorted(word for words in wrong for word in words) == ["behind", "stale", "strangers"]

    def test_a_process_that_was_replaced_is_listed_when_asked_for(
        self, gatelock: Gatelock, engine: sa.Engine
    ) -> None:
        tell(engine, told("old:1:a"))
        with engine.begin() as db:
            db.execute(sa.update(gates).values(at_ms=NowMs() - 300_000))
        assert re.search(r"was not heard of for 3[01]\d s", gatelock("gates", "list").output)
        tell(engine, told("new:1:b"))
        listed = gatelock("gates", "list")
        assert (listed.exit_code, "old:1:a" in listed.output) == (0, False)
        assert "old:1:a" in gatelock("gates", "list", "--all").output

    def test_without_any_it_is_said_how_a_gate_comes_to_tell(
        self, gatelock: Gatelock, engine: sa.Engine
    ) -> None:
        listed = gatelock("gates", "list")
        assert (listed.exit_code, "feedback=True" in listed.output) == (0, True)
        assert gatelock("gates", "list", "--json").output == ""

    def test_what_an_application_calls_itself_is_no_markup(
        self, gatelock: Gatelock, engine: sa.Engine
    ) -> None:
        tell(engine, told(application="[red]\x1b[2J"))
        assert "[red]\\x1b[2J" in gatelock("gates", "list").output

    def test_locks_are_listed_by_how_often_they_were_met(self, gatelock: Gatelock, engine: sa.Engine) -> None:
        tell(engine, told("a:1:a", locks=MET), told("b:1:b", locks=MET))
        row = json.loads(gatelock("gates", "locks", "--json").output)
        assert row == {
            "scope": "caller", "key": ANN, "resource": "", "policy": "daily",
            "checks": 14, "denials": 10, "gates": 2,
        }  # fmt: skip
        assert ANN in gatelock("gates", "locks").output

    def test_gates_that_are_gone_for_good_can_be_forgotten(
        self, gatelock: Gatelock, engine: sa.Engine
    ) -> None:
        tell(engine, told("a:1:a"), told("b:1:b"))
        forgotten = gatelock("gates", "forget", "shop", "--reason", "moved away")
        assert forgotten.output == "shop: 2 gates forgotten\n"
        (event,) = map(json.loads, gatelock("events", "list", "--json").output.splitlines())
        assert (event["act"], event["about"], event["why"]) == ("gates forgotten", "shop", "moved away")
        again = gatelock("gates", "forget", "shop")
        assert (again.exit_code, again.stdout, again.stderr[:24]) == (1, "", "no gate is called shop: ")


class TestDoctor:
    def findings(self, gatelock: Gatelock, *, ends_with: int) -> dict[str, list[dict[str, str]]]:
        told = gatelock("doctor", "--json")
        assert told.exit_code == ends_with, told.output
        found: dict[str, list[dict[str, str]]] = {}
        for line in told.output.splitlines():
            finding = json.loads(line)
            found.setdefault(finding["check"], []).append(finding)
        return found

    def wrong(self, gatelock: Gatelock) -> dict[str, dict[str, str]]:
        found = self.findings(gatelock, ends_with=1)
        return {check: each for check, (each, *_) in found.items() if each["state"] == "wrong"}

    def test_where_nothing_is_wrong_it_says_so(self, gatelock: Gatelock, engine: sa.Engine) -> None:
        healthy(engine)
        log_knows(engine, ANN)
        tell(engine, told(callers=(ANN,)))
        found = self.findings(gatelock, ends_with=0)
        assert found.keys() == {"database", "clock", "plan", "sources", "gaps", "rejects", "gates", "callers"}
        assert "nothing is wrong" in gatelock("doctor").output

    def test_callers_of_another_kind_are_found_with_the_cause(
        self, gatelock: Gatelock, engine: sa.Engine
    ) -> None:
        healthy(engine)
        log_knows(engine, ANN, BOB)
        tell(engine, told(callers=("api_key:ann", "api_key:bob")))
        found = self.wrong(gatelock)
        assert "the log knows 0% of 2 asked for, but not api_key:ann, api_key:bob" in found["callers"]["what"]
        assert "the log knows user:ann, the gate is asked for api_key:ann" in found["callers"]["what"]
        assert "caller_of" in found["callers"]["cure"]

    def test_gates_that_fare_badly_are_found_each_with_its_cure(
        self, gatelock: Gatelock, engine: sa.Engine
    ) -> None:
        healthy(engine)
        tell(engine, told("a:1:a", mode="process", clock_skew=9.0), told("b:1:b", mode="process"),
             told("c:1:c", application="till", at=Cursor(99, "m")))  # fmt: skip
        found = self.findings(gatelock, ends_with=1)["gates"]
        assert [each["state"] for each in found] == ["wrong"] * 3
        off, clock, strange = (each["what"] for each in found)
        assert "shop a:1:a is switched off by GATEKEEPER=off: it refuses nobody; so do 1 more" in off
        assert "a clock that is 9.0 s ahead" in clock
        assert "till c:1:c holds a version that was never this feed's" in strange
        assert all(each["cure"] for each in found)

    @pytest.mark.parametrize(
        ("circumstances", "said"),
        [
            ({}, "web: nothing of it was ever read"),
            ({"heard_ms_ago": 60_000}, r"nobody was heard of for [67]\d s who follows access\.jsonl\[0\]"),
            ({"behind_ms": 90_000}, "web: 90 s behind"),
        ],
        ids=["never", "silent", "behind"],
    )
    def test_sources_that_are_not_followed_or_behind_are_found(
        self, gatelock: Gatelock, engine: sa.Engine, circumstances: dict[str, int], said: str
    ) -> None:
        in_force(engine)
        if circumstances:
            follow(engine, **circumstances)
        assert re.search(said, self.wrong(gatelock)["sources"]["what"])

    def test_what_waits_for_a_person_is_found(self, gatelock: Gatelock, engine: sa.Engine) -> None:
        healthy(engine)
        part = Partition("c", "t", 0, "web", "access.jsonl")
        SqlGaps(engine, "here").settle({part: Gap("corrupt", 9, None, "a batch is damaged")})
        row = {"cluster": "c", "topic_id": "t", "partition": 0, "source": "web", "topic": "x", "sample": b"{"}
        with engine.begin() as db:
            for number, reason in enumerate(("bad-json", "bad-json", "no-caller")):
                db.execute(sa.insert(rejects).values(**row, offset=number, reason=reason, at_ms=NowMs()))
        found = self.wrong(gatelock)
        assert "access.jsonl[0] waits for a person: a batch is damaged" in found["gaps"]["what"]
        assert "3 records could not be read in the last hour, most for: bad-json" in found["rejects"]["what"]

    def test_another_configuration_than_the_analyzers_is_found(
        self, gatelock: Gatelock, engine: sa.Engine
    ) -> None:
        follow(engine)
        assert "no analyzer ever worked here" in self.wrong(gatelock)["plan"]["what"]
        SqlStore(engine, "here").activate(Plan(groupings=("caller", "caller+resource")))
        assert "not what this configuration says" in self.wrong(gatelock)["plan"]["what"]

    def test_gates_that_are_suspended_and_tokens_that_end_are_found(
        self, gatelock: Gatelock, engine: sa.Engine
    ) -> None:
        healthy(engine)
        now = datetime.now(UTC)
        lock = Lock(**SUSPENSION._asdict(), began=now, until=now + timedelta(hours=1), action="suspend")
        with engine.begin() as db:
            lock_feed.publish(db, [Set(lock)], "m")
        create(engine, "shop", "read", 3_600_000, "ann", "")
        create(engine, "till", "read", None, "ann", "")
        found = self.wrong(gatelock)
        assert "let everybody pass until" in found["gates"]["what"]
        assert "the time of shop ends" in found["tokens"]["what"]

    def test_a_wrong_clock_is_found(
        self, gatelock: Gatelock, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        healthy(engine)
        real = time.time
        monkeypatch.setattr("time.time", lambda: real() - 10)
        assert "s ahead of this machine's" in self.wrong(gatelock)["clock"]["what"]

    @pytest.mark.parametrize("database", ["sqlite"])
    def test_old_tables_are_found(self, gatelock: Gatelock, engine: sa.Engine) -> None:
        with engine.begin() as db:
            db.execute(sa.text("update alembic_version set version_num = '0001'"))
        assert self.wrong(gatelock)["database"]["cure"] == "run `gatelock db upgrade`"

    def test_a_database_that_is_away_is_3(self, gatelock: Gatelock, configure: Configure) -> None:
        configure('[database]\nurl = "postgresql+psycopg://gate:s3cret@127.0.0.1:9/x"\n')
        told = gatelock("doctor")
        assert told.exit_code == 3
        assert told.output.startswith("away")
        assert "s3cret" not in told.output

    @pytest.mark.parametrize("database", ["sqlite"])
    def test_kafka_that_is_away_is_3(
        self, gatelock: Gatelock, engine: sa.Engine, configure: Configure
    ) -> None:
        healthy(engine)
        topic = SOURCE.replace('file   = "access.jsonl"', 'topic = "access-log"')
        configure(f'[database]\nurl = "{engine.url}"\n[kafka]\nbootstrap_servers = "127.0.0.1:9"\n{topic}')
        (kafka,) = self.findings(gatelock, ends_with=3)["kafka"]
        assert kafka["state"] == "away"
        assert "127.0.0.1:9" in kafka["what"]

    @pytest.mark.parametrize("database", ["sqlite"])
    def test_a_topic_that_is_not_there_is_found(
        self, gatelock: Gatelock, engine: sa.Engine, configure: Configure, kafka: Any
    ) -> None:
        healthy(engine)
        there = kafka.create_topic()
        for name, state, said in (
            (there, "fine", f"{there} with 4 partitions"),
            ("nowhere", "wrong", "no topic nowhere"),
        ):
            topic = SOURCE.replace('file   = "access.jsonl"', f'topic = "{name}"')
            configure(
                f'[database]\nurl = "{engine.url}"\n[kafka]\nbootstrap_servers = "{kafka.bootstrap}"\n{topic}'
            )
            found = [json.loads(line) for line in gatelock("doctor", "--json").output.splitlines()]
            (kafka_found,) = [each for each in found if each["check"] == "kafka"]
            assert kafka_found["state"] == state
            assert said in kafka_found["what"]


GATES = """
import os, sys, time
from gatekeeper import Gate
from gatekeeper.telemetry import gate_status
from gatekeeper.sources.http import HttpSource
from gatekeeper.sources.sql import SqlSource

gate_status.TELL_EVERY_S = 0.2
url, name, kind = sys.argv[1:]
source = HttpSource(url, wait=0.1) if url.startswith("http:") else SqlSource(url, feedback=True)
gate = Gate(source, name=name)  # before the fork: each process has its own
os.fork()
while True:
    for number in range(20):
        gate.allow(f"{kind}:{number}")
    time.sleep(0.01)
"""


def test_the_page_tells_of_each_check() -> None:
    root = Path(__file__).parents[2]
    made = set(re.findall(r'Finding\(\s*"(\w+)"', (root / "analyzer/doctor.py").read_text()))
    told = re.findall(r"^\| `(\w+)` \|", (root / "docs/doctor.md").read_text(), re.MULTILINE)
    assert made == set(told)


class TestALivingInstallation:
    @pytest.fixture
    def children(self) -> Iterator[list[subprocess.Popen[bytes]]]:
        started: list[subprocess.Popen[bytes]] = []
        yield started
        for child in started:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def test_gates_in_processes_tell_an_analyzer_and_a_wrong_kind_of_name_is_found(
        self, migrated_url: str, configure: Configure, tmp_path: Path, gatelock: Gatelock,
        children: list[subprocess.Popen[bytes]],
    ) -> None:  # fmt: skip
        policy = '[[policies]]\nname = "ever"\nlimit = 3\nwindow = { per = "month" }\n'
        configure(f'[database]\nurl = "{migrated_url}"\n[analyzer]\nhttp = "127.0.0.1:0"\n{SOURCE}{policy}')
        now_ms = int(time.time() * 1000)
        records = [{"ts": now_ms, "user": str(number)} for number in range(20)] + [
            {"ts": now_ms, "user": "0"}
        ] * 3
        (tmp_path / "access.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        log = tmp_path / "run.log"
        with log.open("wb") as stream:
            command = [sys.executable, "-m", "analyzer.cli", "run"]
            children.append(subprocess.Popen(command, stderr=stream, start_new_session=True))
        url = until(lambda: url_in(log))
        for way, name, kind in (
            (url, "shop", "user"),
            (migrated_url, "desk", "user"),
            (url, "till", "api_key"),
        ):
            command = [sys.executable, "-c", GATES, way, name, kind]
            children.append(subprocess.Popen(command, start_new_session=True))
        rows = until(lambda: enough(gatelock))
        assert len({row["instance"] for row in rows}) == 6, "one in each process"
        for row in rows:
            if row["application"] == "till":
                assert (row["known"], row["checks"], row["wrong"].keys()) == (0.0, 0, {"strangers"})
                continue
            assert (row["known"], row["unknown"], row["wrong"]) == (1.0, [], {})
            assert row["locks"][0]["key"] == "user:0"
            assert row["checks"] == row["denials"] > 0
        told = gatelock("doctor")
        assert told.exit_code == 1
        assert "1 thing is wrong" in told.output
        assert "they differ in the kind of name: the log has user: in front" in told.output


def enough(gatelock: Gatelock) -> list[dict[str, Any]] | None:
    """Six gates that were asked for all of their callers, once four of them met a lock."""
    rows = [json.loads(line) for line in gatelock("gates", "list", "--json").output.splitlines()]
    asked = [row for row in rows if row["callers"] == 20]
    met = [row for row in asked if row["checks"]]
    return rows if len(asked) == 6 and len(met) == 4 else None


def url_in(log: Path) -> str | None:
    for line in log.read_text().splitlines(keepends=True):
        if line.endswith("\n") and "listening" in json.loads(line)["message"]:
            return str(json.loads(line)["message"].split()[-1])
    return None


def until(ask: Callable[[], Any]) -> Any:
    """What `ask` gives, as soon as that is something."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := ask()):
        assert time.monotonic() < deadline_s, "it does not come"
        time.sleep(0.1)
    return found
