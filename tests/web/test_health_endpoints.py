"""The web application through a real server and a real client; only the clock is moved by hand."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count

import httpx2
import pytest
import sqlalchemy as sa
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from analyzer.core.model import DrainedCounts, Gap, Lag, Partition, PartitionProgress, Rejected
from analyzer.errors import StoreAway
from analyzer.health import FLUSH_OVERDUE_S, LOOP_MAX_S, LOSSES_MAX, LOSSES_WITHIN_S, Health
from analyzer.metrics import METRICS, Metrics
from analyzer.pipeline import FlushResult
from analyzer.store.database.engine import open_engine
from analyzer.store.database.revisions import head
from analyzer.store.database.schema import feed, locks
from analyzer.store.reports.status import InstallationStatus, installation_status
from analyzer.web.app import AppState, create_app
from analyzer.web.server import CannotListen, serving
from gatekeeper.model import Clear, Lock, Set
from tests.support import plain_http

PART = Partition("cluster", "topic-id", 0, "calls", "access-log")
OTHER = PART._replace(number=1)
BEGAN = datetime(2026, 11, 21, tzinfo=UTC)
A_LOCK = Lock("caller", "api_key:noisy", "daily", BEGAN, BEGAN + timedelta(days=1))


@dataclass
class World:
    """An application whose surroundings a test can change."""

    now_s: float = 1000.0
    problems: dict[str, str] = field(default_factory=dict)
    stands: InstallationStatus | Exception = field(
        default_factory=lambda: InstallationStatus("head", {"daily": 2}, 57)
    )
    gate: threading.Event = field(default_factory=threading.Event)  # a database that hangs: not set
    asked: int = 0

    def __post_init__(self) -> None:
        self.gate.set()
        self.health = Health(Metrics("1.2.3"), lambda: self.now_s)

    def look(self) -> InstallationStatus:
        self.asked += 1
        self.gate.wait(30)
        if isinstance(self.stands, Exception):
            raise self.stands
        return self.stands

    def flush(self, *, seconds: float = 0.004, lags: dict[Partition, Lag] | None = None) -> None:
        self.health.loop_completed()
        self.health.flush_committed(
            FlushResult(
                counted=DrainedCounts(
                    [PartitionProgress(PART, 0, 10, seen=10, counted=6, duplicate=1, dead=2, late=1)],
                    [],
                    [Rejected(PART, 3, "bad-json", b"{"), Rejected(PART, 4, "bad-json", b"{")],
                ),
                lags={PART: Lag(7, 1.5), OTHER: Lag(0, 0.0)} if lags is None else lags,
                changes=[Set(A_LOCK)],
                seconds=seconds,
            )
        )
        self.health.locks_ended([Clear(A_LOCK.at)])


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.gate.set()


@pytest.fixture
def client(world: World) -> Iterator[httpx2.Client]:
    app = create_app(AppState(world.health, lambda: world.problems, world.look, "head"))
    with serving(app, ("127.0.0.1", 0)) as address:
        assert address is not None
        with plain_http.Client(base_url=f"http://127.0.0.1:{address[1]}", timeout=10) as client:
            yield client


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# Alive


def test_a_loop_that_turns_is_alive_and_one_that_stands_still_is_not(
    world: World, client: httpx2.Client
) -> None:
    assert client.get("/livez").json() == {"live": True, "since_turn_s": None}
    world.health.loop_completed()
    world.now_s += LOOP_MAX_S - 1
    assert client.get("/livez").status_code == 200
    world.now_s += 1
    answer = client.get("/livez")
    assert answer.status_code == 503
    assert answer.json() == {"live": False, "since_turn_s": LOOP_MAX_S}


def test_a_loop_that_never_began_to_turn_is_not_alive_for_ever(world: World, client: httpx2.Client) -> None:
    world.now_s += LOOP_MAX_S
    assert client.get("/livez").status_code == 503


def test_whether_the_loop_turns_is_answered_while_the_database_hangs(
    world: World, client: httpx2.Client
) -> None:
    world.gate.clear()
    assert client.get("/livez").status_code == 200
    assert world.asked == 0


# Ready


def test_it_is_ready_once_it_has_flushed(world: World, client: httpx2.Client) -> None:
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["problems"] == {"partitions": "no partition is assigned yet"}
    world.flush()
    answer = client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {"ready": True, "problems": {}, "partitions": ["access-log[0]", "access-log[1]"]}


def test_having_no_partition_is_right_when_others_have_them_all(world: World, client: httpx2.Client) -> None:
    """More analyzers than partitions: after the time that an assignment takes, the spare ones are ready."""
    world.now_s += FLUSH_OVERDUE_S
    world.health.loop_completed()
    assert client.get("/readyz").json() == {"ready": True, "problems": {}, "partitions": []}


def test_everything_that_is_in_the_way_is_named(world: World, client: httpx2.Client) -> None:
    world.flush()
    world.now_s += LOOP_MAX_S
    world.problems["access-log[1]"] = "a batch is damaged: offset 7, the next batch begins at 9"
    world.health.dependency_failed("database", "connection to postgresql://ada:s3cret@db refused")
    world.stands = StoreAway("connection refused")
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["problems"] == {
        "access-log[1]": "a batch is damaged: offset 7, the next batch begins at 9",
        "database": "connection to postgresql://ada:***@db refused",
        "loop": "the loop has not turned for a long time",
    }


def test_what_is_back_is_no_problem_any_more(world: World, client: httpx2.Client) -> None:
    world.flush()
    world.health.dependency_failed("database", "away")
    assert client.get("/readyz").status_code == 503
    world.health.dependency_recovered("database")
    assert client.get("/readyz").status_code == 200


@pytest.mark.parametrize("revision", [None, "0000"])
def test_tables_of_another_version_are_a_problem_with_its_cure(
    world: World, client: httpx2.Client, revision: str | None
) -> None:
    world.flush()
    world.stands = InstallationStatus(revision, {}, 0)
    assert "gatelock db upgrade" in client.get("/readyz").json()["problems"]["schema"]


def test_a_database_that_hangs_holds_up_neither_the_answer_nor_more_than_one_thread(
    world: World, client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analyzer.web.single_flight.TIMEOUT_S", 0.2)
    world.flush()
    world.gate.clear()
    for _ in range(3):
        answer = client.get("/readyz")
        assert answer.json()["problems"] == {"database": "the database has not answered for 0.2 s"}
    assert world.asked == 1
    world.gate.set()
    deadline = time.monotonic() + 10
    while client.get("/readyz").status_code != 200:
        assert time.monotonic() < deadline


# Metrics


def test_metrics_tell_what_happened_and_how_it_stands(world: World, client: httpx2.Client) -> None:
    world.flush(seconds=0.004)
    world.flush(seconds=0.3)
    world.health.dependency_failed("database", "away")
    world.health.partitions_stopped({OTHER: Gap("retention", 5, 9, "records are gone")})
    world.now_s += 2
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    seen = samples(answer.text)
    part = (("partition", "0"), ("source", "calls"), ("topic", "access-log"))
    for name, labels, value in [
        ("gatelock_records_total", (("result", "counted"), ("source", "calls")), 12),
        ("gatelock_records_total", (("result", "late"), ("source", "calls")), 2),
        ("gatelock_rejected_records_total", (("reason", "bad-json"), ("source", "calls")), 4),
        ("gatelock_lock_changes_total", (("change", "set"), ("policy", "daily")), 2),
        ("gatelock_lock_changes_total", (("change", "clear"), ("policy", "daily")), 2),
        ("gatelock_failures_total", (("what", "database"),), 1),
        ("gatelock_lag_records", part, 7),
        ("gatelock_lag_seconds", part, 1.5),
        ("gatelock_flush_seconds_count", (), 2),
        ("gatelock_flush_seconds_bucket", (("le", "0.005"),), 1),
        ("gatelock_since_flush_seconds", (), 2),
        ("gatelock_since_turn_seconds", (), 2),
        ("gatelock_stopped_partitions", (("kind", "retention"), ("source", "calls")), 1),
        ("gatelock_problems", (), 1),
        ("gatelock_problem", (("name", "database"),), 1),
        ("gatelock_active_locks", (("policy", "daily"),), 2),
        ("gatelock_feed_version", (), 57),
        ("gatelock_build_info", (("version", "1.2.3"),), 1),
    ]:
        assert seen[name, labels] == value, name


def test_the_list_of_metrics_is_complete_and_no_metric_is_labelled_by_caller(
    world: World, client: httpx2.Client
) -> None:
    world.flush()
    world.health.dependency_failed("database", "away")
    world.health.partitions_stopped({OTHER: Gap("retention", 5, 9, "records are gone")})
    families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
    listed = {metric.name.removesuffix("_total"): metric for metric in METRICS}
    assert families.keys() == listed.keys()
    for name, family in families.items():
        assert family.type == listed[name].kind
        assert family.documentation == listed[name].help
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert labels == set(listed[name].labels)
        assert "caller" not in labels


def test_metrics_speak_openmetrics_when_asked(world: World, client: httpx2.Client) -> None:
    world.flush()
    accept = "application/openmetrics-text; version=1.0.0"
    answer = client.get("/metrics", headers={"accept": accept})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert any(family.name == "gatelock_records" for family in openmetrics(answer.text))


def test_a_partition_that_went_elsewhere_leaves_nothing_behind(world: World, client: httpx2.Client) -> None:
    world.flush()
    world.flush(lags={PART: Lag(0, 0.0)})
    seen = samples(client.get("/metrics").text)
    assert {labels for name, labels in seen if name == "gatelock_lag_records"} == {
        (("partition", "0"), ("source", "calls"), ("topic", "access-log"))
    }
    world.now_s += FLUSH_OVERDUE_S
    assert not any(name == "gatelock_lag_records" for name, _ in samples(client.get("/metrics").text))


def test_metrics_of_ours_are_told_while_the_database_is_away(world: World, client: httpx2.Client) -> None:
    world.flush()
    world.stands = StoreAway("away")
    seen = samples(client.get("/metrics").text)
    assert seen["gatelock_problems", ()] == 1
    assert ("gatelock_flush_seconds_count", ()) in seen
    assert not any(name in ("gatelock_active_locks", "gatelock_feed_version") for name, _ in seen)


def problems_of(client: httpx2.Client) -> dict[str, str]:
    found: dict[str, str] = client.get("/readyz").json()["problems"]
    return found


def test_partitions_that_are_held_and_not_stored_are_a_problem(world: World, client: httpx2.Client) -> None:
    """Two that take everything from each other hold partitions in every other turn, and store nothing."""
    world.flush()
    for turn in range(60):
        world.health.loop_completed(turn % 2)
        assert "flush" not in problems_of(client) or turn >= FLUSH_OVERDUE_S
        world.now_s += 1
    assert "nothing has been stored for 59 s" in problems_of(client)["flush"]
    world.flush()
    assert problems_of(client) == {}


def test_who_holds_nothing_need_not_store(world: World, client: httpx2.Client) -> None:
    world.health.loop_completed(4)
    world.flush()
    for _ in range(60):
        world.health.loop_completed(0)
        world.now_s += 1
    assert "flush" not in problems_of(client)
    world.health.loop_completed(4)
    assert "flush" not in problems_of(client), "it has just begun"


def test_two_that_read_the_same_are_told_of_each_other(world: World, client: httpx2.Client) -> None:
    world.flush()
    for _ in range(LOSSES_MAX - 1):
        world.health.partition_lost()
        world.now_s += 0.5
    assert problems_of(client) == {}, "a partition changes hands now and then"
    world.health.partition_lost()
    assert "two read the same partitions" in problems_of(client)["contention"]
    assert samples(client.get("/metrics").text)["gatelock_problem", (("name", "contention"),)] == 1
    world.now_s += LOSSES_WITHIN_S
    world.flush()
    assert problems_of(client) == {}


# The database's part


def test_a_glance_tells_locks_in_force_and_the_feeds_version(migrated_url: str) -> None:
    engine = open_engine(migrated_url)
    numbers = count()
    far, past = 4_102_444_800_000, 1
    with engine.begin() as db:
        db.execute(sa.update(feed).values(version=41))
        for policy, until_ms in [("daily", far), ("daily", far), ("daily", past), ("hourly", far)]:
            db.execute(
                sa.insert(locks).values(
                    scope="caller", key=f"user:{next(numbers)}", resource="", policy=policy, status=429,
                    began_ms=0, until_ms=until_ms,
                )
            )  # fmt: skip
    assert installation_status(engine, head()) == InstallationStatus(head(), {"daily": 2, "hourly": 1}, 41)
    assert installation_status(engine, "another") == InstallationStatus(head(), {}, 0)
    engine.dispose()


def test_a_glance_at_an_empty_database_finds_no_tables(database_url: str) -> None:
    engine = open_engine(database_url)
    assert installation_status(engine, head()) == InstallationStatus(None, {}, 0)
    engine.dispose()


# The server


def test_nothing_listens_when_it_is_off() -> None:
    with serving(None, None) as address:
        assert address is None


def test_a_port_that_is_taken_is_said_with_its_cure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(CannotListen, match=rf"127\.0\.0\.1:{port}: Address already in use; set"),
            serving(None, ("127.0.0.1", port)),
        ):
            pytest.fail("it listens")


def test_a_host_that_is_not_known_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(CannotListen, match=r"nowhere\.invalid"),
        serving(None, ("nowhere.invalid", 0)),
    ):
        pytest.fail("it listens")
    assert not caplog.records


def test_leaving_closes_the_port_and_ends_the_thread(world: World) -> None:
    app = create_app(AppState(world.health, dict, world.look, "head"))
    with plain_http.Client() as kept_alive:  # an idle connection must not hold it up
        with serving(app, ("127.0.0.1", 0)) as address:
            assert address is not None
            assert kept_alive.get(f"http://127.0.0.1:{address[1]}/livez").status_code == 200
            (thread,) = (thread for thread in threading.enumerate() if thread.name == "web")
        assert not thread.is_alive()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(address)


def test_only_what_is_offered_is_answered(client: httpx2.Client) -> None:
    for path in ("/", "/docs", "/openapi.json", "/redoc"):
        assert client.get(path).status_code == 404
    assert client.post("/metrics").status_code == 405
    assert "server" not in client.get("/livez").headers
    assert json.loads(client.get("/livez").text)
