"""`/livez`, `/readyz` and `/metrics` through a real server and a real client, on a manual clock."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count

import httpx2
import pytest
import sqlalchemy as sa
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from analyzer.alerts.message_rows import MessageCounts
from analyzer.counting.measured_delays import MeasuredDelays, PartitionClock, SourceDelay
from analyzer.faces.app import HIDDEN, AppState, create_app
from analyzer.faces.authentication import Authenticator
from analyzer.faces.signals import metrics as metrics_module
from analyzer.faces.signals.health import FLUSH_OVERDUE_S, LOOP_MAX_S, LOSSES_MAX, LOSSES_WITHIN_S, Health
from analyzer.faces.signals.metrics import Metric, Metrics, RememberedIds
from analyzer.faces.signals.signal_kinds import Signal
from analyzer.faces.signals.status import InstallationStatus, installation_status
from analyzer.flush.pipeline import FlushResult
from analyzer.gates.fleet_summary import FleetSummary
from analyzer.judging.earned_notices import Notice, NoticeKey
from analyzer.judging.judge import NOTHING, Judged
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.database.revisions import head, schema_problem
from analyzer.kernel.errors import StoreAway
from analyzer.kernel.flush_steps import StepTimes
from analyzer.kernel.model import DrainedCounts, Gap, Lag, Partition, PartitionProgress, Rejected
from analyzer.kernel.shipping_delays import measure_delays
from analyzer.kernel.tables.schema import brakes, feed, locks
from analyzer.kernel.tokens import Token, TokenList, token_digest
from analyzer.server.server import CannotListen, serving
from gatekeeper.model import Clear, Lock, Set
from tests.support import plain_http
from tests.support.serving import NO_TOKENS
from tests.support.waiting import wait_until

PART = Partition("cluster", "topic-id", 0, "calls", "access-log")
OTHER = PART._replace(number=1)
BEGAN = datetime(2026, 11, 21, tzinfo=UTC)
A_LOCK = Lock("caller", "api_key:noisy", "daily", BEGAN, BEGAN + timedelta(days=1))

FLEET = FleetSummary({("shop", "stale"): 2}, {"shop": 41.5})


@dataclass
class World:
    """The application, on a manual clock, over a loop, sources and a database that a test controls."""

    now_s: float = 1000.0
    source_problems: dict[str, str] = field(default_factory=dict)
    status: InstallationStatus | Exception = field(
        default_factory=lambda: InstallationStatus("head", {"daily": 2}, 57)
    )
    database_answers: threading.Event = field(default_factory=threading.Event)
    database_reads: int = 0
    unmet_locks: int | Exception | None = 3
    unmet_counts: int = 0
    signals: list[Signal] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.database_answers.set()
        self.health = Health(Metrics("1.2.3"), lambda: self.now_s)

    def read_status(self) -> InstallationStatus:
        self.database_reads += 1
        self.database_answers.wait(30)
        if isinstance(self.status, Exception):
            raise self.status
        return self.status

    def count_unmet_locks(self) -> int | None:
        self.unmet_counts += 1
        if isinstance(self.unmet_locks, Exception):
            raise self.unmet_locks
        return self.unmet_locks

    def state(self, authenticator: Authenticator) -> AppState:
        return AppState(
            self.health,
            lambda: self.source_problems,
            self.read_status,
            self.count_unmet_locks,
            lambda: FLEET,
            lambda: self.signals,
            lambda: MessageCounts({"waiting": 2, "sent": 7, "dead": 1}, 4.5, 0),
            partial(schema_problem, url="sqlite:///gatelock.db", needed="head"),
            authenticator,
        )

    def flush(self, *, seconds: float = 0.004, lags: dict[Partition, Lag] | None = None) -> None:
        """Reports a loop with a flush that set a lock, after which the warden ended that lock."""
        self.health.loop_completed()
        steps = StepTimes(iter([1.0, 1.25]).__next__)
        steps.ended("judge")
        self.health.flush_committed(
            FlushResult(
                counted=DrainedCounts(
                    [PartitionProgress(PART, 0, 10, seen=10, counted=6, duplicate=1, dead=2, late=1)],
                    [],
                    [Rejected(PART, 3, "bad-json", b"{"), Rejected(PART, 4, "bad-json", b"{")],
                ),
                lags={PART: Lag(7, 1.5), OTHER: Lag(0, 0.0)} if lags is None else lags,
                judged=Judged([Set(A_LOCK)]),
                seconds=seconds,
                disbelieved={"calls": 3},
                denied={("calls", "daily"): 5},
                steps=steps,
            )
        )
        self.health.judged(Judged([], in_shadow=[Clear(A_LOCK.at)]), "end-locks")


def an_authenticator(known: TokenList = NO_TOKENS) -> Authenticator:
    return Authenticator(lambda: known, time.monotonic)


@contextmanager
def serving_to_a_token(world: World) -> Iterator[str]:
    """Yields the URL of a server that has a token with the scope read, gatelock_shop."""
    known = TokenList((Token("shop", token_digest("gatelock_shop"), "read", 0, None),), 1_000)
    with serving(create_app(world.state(an_authenticator(known))), ("127.0.0.1", 0)) as address:
        assert address is not None
        yield f"http://127.0.0.1:{address[1]}"


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.database_answers.set()


@pytest.fixture
def client(world: World) -> Iterator[httpx2.Client]:
    app = create_app(world.state(an_authenticator()))
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


def test_livez_fails_when_the_loop_has_not_completed_for_too_long(
    world: World, client: httpx2.Client
) -> None:
    assert client.get("/livez").json() == {"live": True, "since_loop_s": None}
    world.health.loop_completed()
    world.now_s += LOOP_MAX_S - 1
    assert client.get("/livez").status_code == 200
    world.now_s += 1
    answer = client.get("/livez")
    assert answer.status_code == 503
    assert answer.json() == {"live": False, "since_loop_s": LOOP_MAX_S}


def test_a_loop_that_never_completes_is_alive_only_for_a_while(world: World, client: httpx2.Client) -> None:
    world.now_s += LOOP_MAX_S
    assert client.get("/livez").status_code == 503


def test_livez_answers_without_the_database(world: World, client: httpx2.Client) -> None:
    world.database_answers.clear()
    assert client.get("/livez").status_code == 200
    assert world.database_reads == 0


# Ready


def test_the_analyzer_is_ready_once_it_has_flushed(world: World, client: httpx2.Client) -> None:
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["problems"] == {"partitions": "no partition is assigned yet"}
    world.flush()
    answer = client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {
        "ready": True,
        "problems": {},
        "partitions": ["access-log[0]", "access-log[1]"],
        "signals": [],
    }


def test_a_spare_analyzer_is_ready_after_the_time_that_an_assignment_takes(
    world: World, client: httpx2.Client
) -> None:
    """With more analyzers than partitions some hold none, which is not a problem."""
    world.now_s += FLUSH_OVERDUE_S
    world.health.loop_completed()
    assert client.get("/readyz").json() == {"ready": True, "problems": {}, "partitions": [], "signals": []}


def test_readyz_names_every_problem(world: World, client: httpx2.Client) -> None:
    world.flush()
    world.now_s += LOOP_MAX_S
    world.source_problems["access-log[1]"] = "a batch is damaged: offset 7, the next batch begins at 9"
    world.health.dependency_failed("database", "connection to postgresql://ada:s3cret@db refused")
    world.status = StoreAway("connection refused")
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["problems"] == {
        "access-log[1]": "a batch is damaged: offset 7, the next batch begins at 9",
        "database": "connection to postgresql://ada:***@db refused",
        "loop": "the loop has not completed for 30 s",
    }


def test_a_job_that_fails_does_not_make_the_process_unready(world: World, client: httpx2.Client) -> None:
    """Records are counted meanwhile, so requests need no other analyzer."""
    world.flush()
    world.health.job_failed("roll-up", "cannot reach postgresql://ada:s3cret@db")
    answer = client.get("/readyz")
    assert answer.status_code == 200
    text = client.get("/metrics").text
    assert 'gatelock_failing_job{name="roll-up"} 1' in text
    assert 'gatelock_failures_total{what="roll-up"} 1' in text
    world.health.job_recovered("roll-up")
    assert "gatelock_failing_job{" not in client.get("/metrics").text


def test_a_refused_configuration_does_not_make_the_process_unready(
    world: World, client: httpx2.Client
) -> None:
    """Records are counted meanwhile, by the configuration before it."""
    world.flush()
    assert "gatelock_config_last_reload_successful 1" in client.get("/metrics").text
    world.health.configuration_refused("gatelock.toml:3: [database] x: is not a known key")
    answer = client.get("/readyz")
    assert answer.status_code == 200
    assert "gatelock_config_last_reload_successful 0" in client.get("/metrics").text
    world.health.configuration_accepted()
    assert "gatelock_config_last_reload_successful 1" in client.get("/metrics").text


def test_a_dependency_that_recovered_is_not_a_problem(world: World, client: httpx2.Client) -> None:
    world.flush()
    world.health.dependency_failed("database", "away")
    assert client.get("/readyz").status_code == 503
    world.health.dependency_recovered("database")
    assert client.get("/readyz").status_code == 200


@pytest.mark.parametrize("revision", [None, "0000"])
def test_tables_of_another_version_are_a_problem_with_a_cure(
    world: World, client: httpx2.Client, revision: str | None
) -> None:
    world.flush()
    world.status = InstallationStatus(revision, {}, 0)
    assert "gatelock upkeep db upgrade" in client.get("/readyz").json()["problems"]["schema"]


def test_a_database_that_hangs_delays_an_answer_for_a_bounded_time_and_costs_one_thread(
    world: World, client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analyzer.server.single_flight.TIMEOUT_S", 0.2)
    world.flush()
    world.database_answers.clear()
    for _ in range(3):
        answer = client.get("/readyz")
        assert answer.json()["problems"] == {"database": "the database has not answered for 0.2 s"}
    assert world.database_reads == 1
    world.database_answers.set()
    wait_until(lambda: client.get("/readyz").status_code == 200)


# Metrics


def by_cause(change: str, mode: str, cause: str) -> tuple[tuple[str, str], ...]:
    return ("cause", cause), ("change", change), ("mode", mode), ("policy", "daily")


def test_metrics_have_counters_and_current_values(world: World, client: httpx2.Client) -> None:
    world.flush(seconds=0.004)
    world.flush(seconds=0.3)
    world.health.dependency_failed("database", "away")
    world.health.partitions_stopped({OTHER: Gap("retention", 5, 9, "records are gone")})
    world.now_s += 2
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    values = samples(answer.text)
    part = (("partition", "0"), ("source", "calls"), ("topic", "access-log"))
    for name, labels, value in [
        ("gatelock_records_total", (("result", "counted"), ("source", "calls")), 12),
        ("gatelock_records_total", (("result", "late"), ("source", "calls")), 2),
        ("gatelock_rejected_records_total", (("reason", "bad-json"), ("source", "calls")), 4),
        ("gatelock_disbelieved_verdicts_total", (("source", "calls"),), 6),
        ("gatelock_denied_requests_total", (("policy", "daily"), ("source", "calls")), 10),
        ("gatelock_flush_step_seconds_total", (("step", "judge"),), 0.5),
        ("gatelock_lock_changes_total", by_cause("set", "enforced", "records"), 2),
        ("gatelock_lock_changes_total", by_cause("clear", "shadow", "end-locks"), 2),
        ("gatelock_gates", (("application", "shop"), ("state", "stale")), 2),
        ("gatelock_gates_view_age_seconds", (("application", "shop"),), 41.5),
        ("gatelock_failures_total", (("what", "database"),), 1),
        ("gatelock_lag_records", part, 7),
        ("gatelock_lag_seconds", part, 1.5),
        ("gatelock_flush_seconds_count", (), 2),
        ("gatelock_flush_seconds_bucket", (("le", "0.005"),), 1),
        ("gatelock_since_flush_seconds", (), 2),
        ("gatelock_since_loop_seconds", (), 2),
        ("gatelock_stopped_partitions", (("kind", "retention"), ("source", "calls")), 1),
        ("gatelock_problems", (), 1),
        ("gatelock_problem", (("name", "database"),), 1),
        ("gatelock_active_locks", (("policy", "daily"),), 2),
        ("gatelock_unmet_locks", (), 3),
        ("gatelock_feed_version", (), 57),
        ("gatelock_build_info", (("version", "1.2.3"),), 1),
    ]:
        assert values[name, labels] == value, name


HELD = Signal("brake", "daily", "warning", "the brake of daily acts: noon", "see `gatelock policies list`", 1)


def test_signals_are_in_readyz_and_the_metrics_and_do_not_make_the_process_unready(world: World) -> None:
    world.flush()
    world.signals = [HELD, HELD._replace(subject="hourly"), HELD._replace(name="locks-late", subject="")]
    with serving_to_a_token(world) as url:
        named = plain_http.get(f"{url}/readyz")
        answer = plain_http.get(f"{url}/readyz", headers={"authorization": "Bearer gatelock_shop"})
        values = samples(plain_http.get(f"{url}/metrics").text)
    assert answer.status_code == named.status_code == 200
    since = "1970-01-01T00:00:00.001000Z"
    assert named.json()["signals"][0] == {"name": "brake", "severity": "warning", "since": since}
    assert "daily" not in named.text, "a sentence may name a caller or a machine"
    first, *others = answer.json()["signals"]
    fields = {name: value for name, value in HELD._asdict().items() if name != "since_ms"}
    assert first == fields | {"since": since}
    assert len(others) == 2
    assert values["gatelock_signal", (("name", "brake"), ("severity", "warning"))] == 2
    assert values["gatelock_signal", (("name", "locks-late"), ("severity", "warning"))] == 1


def test_the_list_of_metrics_is_complete_and_no_metric_has_a_label_for_the_caller(
    world: World, client: httpx2.Client
) -> None:
    world.flush()
    world.status = InstallationStatus("head", {"daily": 2}, 57, braked={"daily": "in shadow since noon"})
    world.signals = [HELD]
    world.health.dependency_failed("database", "away")
    world.health.job_failed("roll-up", "away")
    world.health.metrics.record_refusal("no-token")
    half = NoticeKey("daily", "caller requests day UTC", "user:ann", "", 0, 500)
    world.health.metrics.record_judged(Judged((), [Notice(half, "caller", 50, 100, 86_400, "")]), "records")
    world.health.metrics._unusable_facts.labels("calls", "zone").inc()
    world.health.metrics._without_id.labels("calls").inc()
    world.health.remembered = {PART: RememberedIds(5, 3_600_000)}
    world.health.partitions_stopped({OTHER: Gap("retention", 5, 9, "records are gone")})
    clocks = {str(PART): PartitionClock("calls", 9_000, 3)}
    world.health.measured = MeasuredDelays(sources={"calls": SourceDelay(1, 2, 3)}, clocks=clocks)
    families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
    listed = {
        metric.name.removesuffix("_total"): metric
        for metric in vars(metrics_module).values()
        if isinstance(metric, Metric)
    }
    assert families.keys() == listed.keys()
    for name, family in families.items():
        assert family.type == listed[name].kind
        assert family.documentation == listed[name].help
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert labels == set(listed[name].labels)
        assert "caller" not in labels


def test_metrics_are_in_openmetrics_format_on_request(world: World, client: httpx2.Client) -> None:
    world.flush()
    accept = "application/openmetrics-text; version=1.0.0"
    answer = client.get("/metrics", headers={"accept": accept})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert any(family.name == "gatelock_records" for family in openmetrics(answer.text))


def test_a_partition_that_another_analyzer_took_over_leaves_no_time_series(
    world: World, client: httpx2.Client
) -> None:
    world.flush()
    world.flush(lags={PART: Lag(0, 0.0)})
    values = samples(client.get("/metrics").text)
    assert {labels for name, labels in values if name == "gatelock_lag_records"} == {
        (("partition", "0"), ("source", "calls"), ("topic", "access-log"))
    }
    world.now_s += FLUSH_OVERDUE_S
    assert not any(name == "gatelock_lag_records" for name, _ in samples(client.get("/metrics").text))


def test_metrics_of_the_process_do_not_need_the_database(world: World, client: httpx2.Client) -> None:
    world.flush()
    world.status = StoreAway("away")
    values = samples(client.get("/metrics").text)
    assert values["gatelock_problems", ()] == 1
    assert ("gatelock_flush_seconds_count", ()) in values
    assert not any(name in ("gatelock_active_locks", "gatelock_feed_version") for name, _ in values)


def test_unmet_locks_are_counted_once_a_minute(world: World, client: httpx2.Client) -> None:
    for _ in range(3):
        assert samples(client.get("/metrics").text)["gatelock_unmet_locks", ()] == 3
    assert world.unmet_counts == 1


@pytest.mark.parametrize("unknown", [None, StoreAway("away")])
def test_unmet_locks_that_are_not_known_are_left_out(
    world: World, client: httpx2.Client, unknown: Exception | None
) -> None:
    world.unmet_locks = unknown
    assert ("gatelock_unmet_locks", ()) not in samples(client.get("/metrics").text)


def problems_of(client: httpx2.Client) -> dict[str, str]:
    problems: dict[str, str] = client.get("/readyz").json()["problems"]
    return problems


def test_holding_partitions_without_storing_anything_is_a_problem(
    world: World, client: httpx2.Client
) -> None:
    """Two analyzers that keep taking partitions from each other hold some in every other loop."""
    world.flush()
    for loop in range(60):
        world.health.loop_completed(loop % 2)
        assert "flush" not in problems_of(client) or loop >= FLUSH_OVERDUE_S
        world.now_s += 1
    assert "has stored nothing for 59 s" in problems_of(client)["flush"]
    world.flush()
    assert problems_of(client) == {}


def test_an_analyzer_without_partitions_need_not_store(world: World, client: httpx2.Client) -> None:
    world.health.loop_completed(4)
    world.flush()
    for _ in range(60):
        world.health.loop_completed(0)
        world.now_s += 1
    assert "flush" not in problems_of(client)
    world.health.loop_completed(4)
    assert "flush" not in problems_of(client), "the partitions have just been assigned"


def test_two_analyzers_of_the_same_partitions_are_a_problem(world: World, client: httpx2.Client) -> None:
    world.flush()
    for _ in range(LOSSES_MAX - 1):
        world.health.partition_lost()
        world.now_s += 0.5
    assert problems_of(client) == {}, "now and then another analyzer takes over a partition"
    world.health.partition_lost()
    assert "two analyzers read the same partitions" in problems_of(client)["contention"]
    assert samples(client.get("/metrics").text)["gatelock_problem", (("name", "contention"),)] == 1
    world.now_s += LOSSES_WITHIN_S
    world.flush()
    assert problems_of(client) == {}


# The status in the database


def test_the_status_has_locks_in_force_and_the_version_of_the_feed(migrated_url: str) -> None:
    engine = open_engine(migrated_url)
    numbers = count()
    future_ms, past_ms = 4_102_444_800_000, 1
    with engine.begin() as db:
        db.execute(sa.update(feed).values(version=41))
        for policy, until_ms in [
            ("daily", future_ms),
            ("daily", future_ms),
            ("daily", past_ms),
            ("hourly", future_ms),
        ]:
            db.execute(
                sa.insert(locks).values(
                    scope="caller", key=f"user:{next(numbers)}", resource="", policy=policy, status=429,
                    began_ms=0, until_ms=until_ms,
                )
            )  # fmt: skip
    assert installation_status(engine, head()) == InstallationStatus(head(), {"daily": 2, "hourly": 1}, 41)
    assert installation_status(engine, "another") == InstallationStatus(head(), {}, 0)
    with engine.begin() as db:
        db.execute(sa.insert(brakes).values(policy="hourly", since_ms=0))
        db.execute(sa.insert(brakes).values(policy="daily", braked_ms=0, since_ms=0, why="it locks too many"))
    assert installation_status(engine, head()).braked == {"daily": "in shadow since 1970-01-01 00:00:00Z"}
    engine.dispose()


def test_the_status_of_an_empty_database_has_no_revision(database_url: str) -> None:
    engine = open_engine(database_url)
    assert installation_status(engine, head()) == InstallationStatus(None, {}, 0)
    engine.dispose()


# The server


def test_without_an_address_nothing_listens() -> None:
    with serving(None, None) as address:
        assert address is None


def test_a_port_in_use_is_an_error_with_a_cure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(CannotListen, match=rf"127\.0\.0\.1:{port}: Address already in use; set"),
            serving(None, ("127.0.0.1", port)),
        ):
            pytest.fail("it listens")


def test_an_unknown_host_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(CannotListen, match=r"nowhere\.invalid"),
        serving(None, ("nowhere.invalid", 0)),
    ):
        pytest.fail("it listens")
    assert not caplog.records


def test_stopping_closes_the_port_and_ends_the_thread(world: World) -> None:
    app = create_app(world.state(an_authenticator()))
    with plain_http.Client() as kept_alive:  # an idle connection must not delay it
        with serving(app, ("127.0.0.1", 0)) as address:
            assert address is not None
            assert kept_alive.get(f"http://127.0.0.1:{address[1]}/livez").status_code == 200
            (thread,) = (thread for thread in threading.enumerate() if thread.name == "web")
        assert not thread.is_alive()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(address)


def test_other_paths_and_methods_are_refused(client: httpx2.Client) -> None:
    for path in ("/", "/docs", "/openapi.json", "/redoc"):
        assert client.get(path).status_code == 404
    assert client.post("/metrics").status_code == 405
    assert "server" not in client.get("/livez").headers
    assert json.loads(client.get("/livez").text)


# What is shown without a token


def test_without_a_token_problems_have_no_contents(world: World) -> None:
    secret = "sk_live_SECRET42"
    part = Partition("file", "digest", 0, "calls", "/var/log/nginx/access.log")
    world.flush(lags={part: Lag(0, 0.0)})
    world.health.partitions_stopped({part: Gap("rejected", 5890, None, f"bad-time: {secret}")})
    world.health.dependency_failed("database", f"connection to db7:5432 as ann failed: {secret}")
    world.health.job_failed("prune", secret)
    world.health.configuration_refused(f"gatelock.toml:3: {secret}")
    world.source_problems = {part.topic: f"stopped: {secret}", "kafka-login": f"SASL: {secret}"}
    with serving_to_a_token(world) as server:
        url = f"{server}/readyz"
        answer = plain_http.get(url)
        assert answer.status_code == 503
        assert answer.json() == {
            "ready": False,
            "problems": {
                "access.log": "stopped at offset 5890: rejected", "database": HIDDEN, "kafka-login": HIDDEN,
            },
            "partitions": ["access.log[0]"],
            "signals": [],
        }  # fmt: skip
        wrong = plain_http.get(url, headers={"authorization": "Bearer gatelock_other"})
        assert wrong.text == answer.text
        shown = plain_http.get(url, headers={"authorization": "Bearer gatelock_shop"}).json()
        assert shown["problems"][part.topic] == f"stopped: {secret}"
        assert shown["partitions"] == [str(part)]


def test_without_a_token_metrics_have_no_paths(world: World) -> None:
    part = Partition("file", "digest", 0, "calls", "/var/log/nginx/access.log")
    world.health.loop_completed()
    world.health.flush_committed(
        FlushResult(
            DrainedCounts([PartitionProgress(part, 0, 10, seen=10, counted=10, renamed=3)], [], []),
            lags={part: Lag(7, 1.5)},
            judged=NOTHING,
            seconds=0.004,
        )
    )
    world.source_problems = {part.topic: "cannot be read", "/srv/old/access.log": "cannot be read"}
    with serving_to_a_token(world) as server:
        url = f"{server}/metrics"
        found = plain_http.get(url)
        assert "/var/log" not in found.text
        assert "/srv" not in found.text
        values = samples(found.text)
        of = (("partition", "0"), ("source", "calls"), ("topic", "access.log"))
        assert values["gatelock_lag_records", of] == 7
        assert values["gatelock_renamed_records_total", of] == 3
        assert values["gatelock_problem", (("name", "access.log"),)] == 1
        assert found.text.count("gatelock_problem{") == 1, "one sample for each series"
        assert values["gatelock_problems", ()] == 2
        shown = samples(plain_http.get(url, headers={"authorization": "Bearer gatelock_shop"}).text)
        assert shown["gatelock_lag_records", (*of[:2], ("topic", part.topic))] == 7
        assert shown["gatelock_problem", (("name", part.topic),)] == 1


def test_delays_and_clocks_are_shown_without_a_problem(world: World) -> None:
    world.health.loop_completed()
    progress = PartitionProgress(PART, 0, 2, seen=2, counted=2)
    now = datetime.fromtimestamp(1_000, UTC)
    delays = measure_delays([1_004_000, 1_004_000], [1_003_900, 999_000])
    result = FlushResult(
        DrainedCounts([progress._replace(delays=delays)], [], []),
        {PART: Lag(0, 0.0)},
        NOTHING,
        0.004,
        now=now,
    )
    world.health.flush_committed(result)
    with serving_to_a_token(world) as server:
        values = samples(plain_http.get(f"{server}/metrics").text)
        of = (("partition", "0"), ("source", "calls"), ("topic", "access-log"))
        assert values["gatelock_shipping_delay_p50_seconds", (("source", "calls"),)] == 0.1
        assert values["gatelock_shipping_delay_p99_seconds", (("source", "calls"),)] == 5
        assert values["gatelock_kafka_clock_ahead_seconds", of] == 4
        assert values["gatelock_request_clock_ahead_seconds", of] == -0.1
        answer = plain_http.get(f"{server}/readyz")
        assert (answer.status_code, answer.json()["ready"]) == (200, True)


def test_nothing_is_redirected_before_a_token(client: httpx2.Client) -> None:
    assert client.get("/livez/", follow_redirects=False).status_code == 404


@pytest.mark.parametrize(
    ("fields", "status"),
    [("content-length: 2\r\ntransfer-encoding: chunked", 400), ("x: " + "x" * (20 << 10), 431)],
    ids=["ambiguous length", "long head"],
)
def test_a_head_that_may_be_misread_is_refused_with_one_answer(
    client: httpx2.Client, fields: str, status: int
) -> None:
    hidden = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
    with socket.create_connection((client.base_url.host, client.base_url.port), 10) as line:
        line.sendall(f"GET /livez HTTP/1.1\r\nhost: x\r\n{fields}\r\n\r\n0\r\n\r\n".encode() + hidden)
        raw = b""
        while piece := line.recv(1 << 16):
            raw += piece
    assert raw.startswith(f"HTTP/1.1 {status} ".encode())
    assert raw.count(b"HTTP/1.1 ") == 1
