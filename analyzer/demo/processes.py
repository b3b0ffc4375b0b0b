"""Processes of the demo: starts them, stops them, and lets none of them outlive the parent."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import sqlalchemy as sa
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from analyzer.alerts.channels.webhook_signatures import new_secret
from analyzer.callers.caller_changes import set_callers
from analyzer.demo import mock_broker
from analyzer.demo.alert_receiver import SECRET
from analyzer.demo.guarded_app import DATABASE, ROUTES
from analyzer.demo.past_traffic import PastTraffic
from analyzer.demo.traffic_size import TrafficSize
from analyzer.judging.caller_limits import Profile
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.kernel.database.engine import open_engine, reading
from analyzer.kernel.database.migrate import require_head
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.tables.schema import offsets

PARTITIONS = 4
START_S = 60.0
REACH_S = 3.0
TOPIC = "access-log"
POLICY = "per-day"
PAST = "before"  # the source of what was logged before the demo began
PAST_DAYS = 2.0
PAST_PER_MINUTE = 30.0
PAST_COUNTED_S = 60.0
PARTNER = "partner"  # the plan of the callers of the past
LAG = re.compile(r"^gatelock_lag_records\{.*\} (\S+)$", re.MULTILINE)


class ProcessNotStarted(Exception):
    """A process of the demo did not start, or a given server cannot be used."""


@dataclass(slots=True)
class DemoProcesses:
    """A broker, an analyzer, and some processes ("workers") of a web application."""

    folder: Path
    size: TrafficSize
    kafka: str | None = None  # HOST:PORT; without one the mock broker is started
    database: str | None = None  # a URL; without one a SQLite file is used
    topic: str = TOPIC
    has_past: bool = False  # whether two days were logged before the demo began
    ports: list[int] = field(default_factory=list)
    analyzer_port: int = 0
    alerts_port: int = 0  # of the page that shows what was delivered; it is there with a past alone
    webhook_secret: str = field(default_factory=new_secret)
    _children: ExitStack = field(default_factory=ExitStack)
    _analyzer: subprocess.Popen[bytes] | None = None

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.folder / 'gatelock.db'}"

    @property
    def config(self) -> Path:
        return self.folder / "gatelock.toml"

    def start(self) -> None:
        """Returns when everything is started and ready. Raises ProcessNotStarted."""
        self._prepare_database()
        options: dict[str, object] = {}
        if self.kafka is not None:
            reach(self.kafka)
            create_topic(self.kafka, self.topic)
        else:
            started = self._start("broker", [sys.executable, "-m", "analyzer.demo.mock_broker"])
            assert started.stdout is not None  # noqa: S101 - a pipe, see _start
            self.kafka = started.stdout.readline().decode().strip()
            options = {"api_version": mock_broker.API_VERSION}
            if not self.kafka:
                raise ProcessNotStarted(self.failure_text("broker"))
        self.analyzer_port, self.alerts_port, *self.ports = free_ports(2 + self.size.processes)
        past = self._write_past() if self.has_past else 0
        if self.has_past:
            receiver = [sys.executable, "-m", "analyzer.demo.alert_receiver", "--port", str(self.alerts_port)]
            self._wait_for_port(self.alerts_port, self._start("receiver", receiver))
        self.config.write_text(self._configuration(options))
        self.start_analyzer()
        self._wait_for_analyzer()
        self._wait_for_past(past)
        producing = {"compression_type": mock_broker.CODEC, **options}
        workers: dict[int, subprocess.Popen[bytes]] = {}
        for port in self.ports:
            command = [sys.executable, "-m", "analyzer.demo.guarded_app", "--port", str(port)]
            command += ["--kafka", self.kafka, "--topic", self.topic, "--options", json.dumps(producing)]
            command += ["--burst", str(self.size.limiter.limit), "--folder", str(self.folder)]
            workers[port] = self._start(f"worker-{port}", command)
        for port, worker in workers.items():
            self._wait_for_port(port, worker)

    def _prepare_database(self) -> None:
        """Creates the tables. Raises ProcessNotStarted if the database is already in use: the plan of the
        demo would replace the one in force."""
        try:
            require_head(self.database_url)
            engine = open_engine(self.database_url)
            with reading(engine) as db:
                topic = db.execute(sa.select(offsets.c.topic).limit(1)).scalar()
            engine.dispose()
        except AnalyzerError as error:
            raise ProcessNotStarted(f"cannot use the database: {error}") from error
        except (sa.exc.ArgumentError, ImportError) as error:
            raise ProcessNotStarted(f"cannot use {self.database} as a database URL: {error}") from error
        if topic is not None:
            raise ProcessNotStarted(
                f"the database already has counts of {topic}: give the demo an empty database"
            )

    def _write_past(self) -> int:
        """Writes the log of the past, and names its callers' plan; returns how many requests it has."""
        past, records = PastTraffic(int(time.time()), PAST_DAYS, PAST_PER_MINUTE), 0
        with self.past.open("wb") as log:
            for record in past.records():
                log.write(record + b"\n")
                records += 1
        profiles = {
            f"api_key:{caller.api_key}": Profile(plan=PARTNER, tenant=caller.tenant)
            for caller in past.callers()
        }
        engine = open_engine(self.database_url)
        try:
            set_callers(engine, profiles, "gatelock demo", "callers of the past", new_mark)
        finally:
            engine.dispose()
        return records

    def close_yesterday(self) -> None:
        """Closes the last whole day of the past, as an operator closes one from before the installation."""
        yesterday = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
        command = [sys.executable, "-m", "analyzer.faces.cli", "--config", str(self.config)]
        command += ["billing", "days", "close", yesterday, "--yes", "--reason", "the demo shows a report"]
        with (self.folder / "closing.log").open("ab") as log:
            subprocess.run(command, stdout=log, stderr=log, check=False)  # noqa: S603 - our own command

    def _wait_for_past(self, records: int) -> None:
        """Returns when the analyzer has counted the past. Raises ProcessNotStarted."""
        engine = open_engine(self.database_url)
        counted = sa.select(sa.func.coalesce(sa.func.sum(offsets.c.counted), 0)).where(
            offsets.c.source == PAST
        )
        deadline_s = time.monotonic() + self.size.patience_s(PAST_COUNTED_S)
        try:
            while records:
                with reading(engine) as db:
                    if db.execute(counted).scalar_one() >= records:
                        return
                if time.monotonic() > deadline_s or not self.analyzer_runs:
                    raise ProcessNotStarted(self.failure_text("analyzer"))
                time.sleep(0.1)
        finally:
            engine.dispose()

    @property
    def past(self) -> Path:
        return self.folder / "before.log"

    def start_analyzer(self) -> None:
        command = [sys.executable, "-m", "analyzer.demo.tied_module", "analyzer.faces.cli"]
        command += ["--config", str(self.config), "run"]
        self._analyzer = self._start("analyzer", command)

    def kill_analyzer(self) -> None:
        """Kills the analyzer with SIGKILL, so that it cannot store what it has counted."""
        if self._analyzer is not None:
            self._analyzer.send_signal(signal.SIGKILL)
            self._analyzer.wait()

    @property
    def analyzer_runs(self) -> bool:
        return self._analyzer is not None and self._analyzer.poll() is None

    def lag(self) -> int | None:
        """Returns how many records the analyzer has not read yet; None if it does not answer."""
        url = f"http://127.0.0.1:{self.analyzer_port}/metrics"
        try:
            with urllib.request.urlopen(url, timeout=self.size.patience_s(REACH_S)) as answer:
                lags = LAG.findall(answer.read().decode())
        except OSError:
            return None
        return sum(int(float(lag)) for lag in lags) if lags else None

    def close(self) -> None:
        """Stops every process and waits for it."""
        self._children.close()

    def _configuration(self, options: dict[str, object]) -> str:
        client_options = "".join(f'{name} = "{value}"\n' for name, value in options.items())
        return CONFIGURATION.format(
            database=self.database_url,
            kafka=self.kafka,
            topic=self.topic,
            limit=self.size.limit,
            policy=POLICY,
            port=self.analyzer_port,
            options=client_options,
            zone=zone_far_from_midnight(),
            past=PAST_SOURCE.format(file=self.past, name=PAST, routes=json.dumps(ROUTES))
            if self.has_past
            else "",
            alerts=self._alerts() if self.has_past else "",
        )

    def _past_source(self) -> str:
        """Returns the table of the source of the past."""
        return PAST_SOURCE.format(file=self.past, name=PAST, routes=json.dumps(ROUTES))

    def _alerts(self) -> str:
        """Returns the tables of alerts, and writes the secret that they are signed with."""
        secret = self.folder / "webhook-secret"
        secret.touch(0o600)
        secret.write_text(self.webhook_secret)
        return ALERTS.format(port=self.alerts_port, secret=secret)

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        log = self._children.enter_context((self.folder / f"{name}.log").open("ab"))
        child = subprocess.Popen(  # noqa: S603 - our own modules
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if name == "broker" else log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which stops them in order
            # A command line would show the password and the secret.
            env=os.environ | {DATABASE: self.database_url, SECRET: self.webhook_secret},
        )
        self._children.callback(stop, child)
        return child

    def failure_text(self, name: str) -> str:
        """Returns an error message with the end of this process's log."""
        return f"{name} did not start:\n" + (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]

    def _wait_for_analyzer(self) -> None:
        url = f"http://127.0.0.1:{self.analyzer_port}/readyz"
        deadline_s = time.monotonic() + self.size.patience_s(START_S)
        while time.monotonic() < deadline_s and self.analyzer_runs:
            try:
                with urllib.request.urlopen(url, timeout=1) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.05)
        raise ProcessNotStarted(self.failure_text("analyzer"))

    def _wait_for_port(self, port: int, worker: subprocess.Popen[bytes]) -> None:
        deadline_s = time.monotonic() + self.size.patience_s(START_S)
        while time.monotonic() < deadline_s and worker.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise ProcessNotStarted(self.failure_text(f"worker-{port}"))


def reach(address: str) -> None:
    """Raises ProcessNotStarted unless a server accepts connections at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), REACH_S).close()
    except (OSError, ValueError) as error:
        raise ProcessNotStarted(f"cannot reach Kafka at {address}: {error}") from error


def create_topic(bootstrap: str, topic: str) -> None:
    """Creates the topic of the demo. Raises ProcessNotStarted."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics(
            {topic: {"num_partitions": PARTITIONS, "replication_factor": 1}}, timeout_ms=10_000
        )
    except KafkaError as error:
        raise ProcessNotStarted(f"cannot create the topic {topic} at {bootstrap}: {error}") from error
    finally:
        admin.close()


def stop(child: subprocess.Popen[bytes]) -> None:
    """Stops a process by the end of its input, after five seconds by SIGKILL."""
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    try:
        child.wait(5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def zone_far_from_midnight() -> str:
    """Returns a time zone in which no midnight ends the lock during the demo."""
    return "UTC" if datetime.now(UTC).hour < 23 else "Asia/Tokyo"


def free_ports(count: int) -> list[int]:
    """Returns ports that are free at the moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))
        return [bound.getsockname()[1] for bound in sockets]


CONFIGURATION = """\
[database]
url = "{database}"

[kafka]
bootstrap_servers = "{kafka}"
group_id = "gatelock-demo"
assign = "all"  # the only analyzer: after a kill it need not wait for the session of the old one
[kafka.options]
{options}
[analyzer]
http = "127.0.0.1:{port}"
log = "json"

{alerts}
[billing]
groupings = ["caller", "tenant"]

[[sources]]
topic = "{topic}"
caller = ["api_key", "address"]
deny_if = {{ gate = "denied" }}
count_if = {{ status = {{ not = ["401", "403"] }} }}
groupings = ["resource", "caller+resource", "tenant", "address", "address/24"]
[sources.fields]
time = {{ path = "ts", unit = "us" }}
api_key = "caller.api_key"
address = {{ path = "address", prefix6 = 64 }}
tenant = "tenant"
resource = "resource"
status = "status"
bytes = {{ path = "bytes", kind = "bytes" }}
duration = {{ path = "duration", unit = "us" }}
gate = "gate"
policy = "policy"
{past}
[[meters]]
name = "busy"
sum = "duration"
[[meters]]
name = "sent"
sum = "bytes"
[[meters]]
name = "errors"
count = true
where = {{ status = "500-599" }}
[[meters]]
name = "failures"
count = true
where = {{ status = ["401", "403"] }}

[[policies]]
name = "{policy}"
kind = "quota"
per = "caller"
limit = {{ partner = 40_000, default = {limit} }}
window = {{ per = "day", zone = "{zone}" }}
notify = [0.5, 0.8, 1.0]

[[policies]]
name = "neighbour"
kind = "share"
meter = "busy"
per = "caller"
of = "resource"
where = {{ resource = "/v1/export" }}
limit = 0.60
floor = "50ms/s"
hold = "30s"
release = 0.30
window = {{ rolling = "5m" }}
action = {{ slow = "1/s" }}

[[policies]]
name = "password-guessing"
kind = "surge"
meter = "failures"
per = "address/24"
limit = 90
share = 0.5
window = {{ rolling = "60s" }}
lock_for = ["5m", "1h", "24h"]

[[policies]]
name = "monthly"
per = "tenant"
limit = 25_000
window = {{ per = "month" }}
mode = "shadow"
"""

ALERTS = """
[[alerts]]
name = "page"
webhook = "http://127.0.0.1:{port}/"
secret_file = "{secret}"
severity = "info"
group_wait = "2s"
group_every = "20s"

[alerting]
allow_networks = ["127.0.0.0/8"]
allow_http = ["127.0.0.1"]
"""

PAST_SOURCE = """
[[sources]]
name = "{name}"
file = "{file}"
format = "json"
caller = ["api_key", "address"]
deny_if = {{ gate = "denied" }}
count_if = {{ status = {{ not = ["401", "403"] }} }}
[sources.fields]
time = {{ path = "ts", unit = "s" }}
api_key = "api_key"
address = {{ path = "ip", prefix6 = 64 }}
tenant = "org"
resource = {{ path = "path", routes = {routes}, else = "other" }}
status = "status"
bytes = {{ path = "bytes", kind = "bytes" }}
duration = {{ path = "took", unit = "s" }}
gate = "gate"
"""
