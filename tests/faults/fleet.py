"""Real analyzers as processes, records whose truth is kept outside, and somebody who kills at random."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import sqlalchemy as sa
from confluent_kafka import Producer

from analyzer.store.engine import open_engine
from analyzer.store.migrate import upgrade
from analyzer.store.schema import buckets, locks, offsets

MUTANT = Path(__file__).with_name("mutant.py")
CONFIGURATION = """
[database]
url = "{database}"
[kafka]
bootstrap_servers = "{kafka}"
group_id = "{topic}"
session_timeout = "{session_s}s"
options = {{ heartbeat_interval_ms = 500, reconnect_backoff_max_ms = 500 }}
[analyzer]
http = "{http}"
log = "json"
flush_every = "{flush_s}s"
[[sources]]
topic = "{topic}"
deny_if = {{ status = 429 }}
[sources.fields]
time = {{ path = "ts", unit = "ms" }}
api_key = "key"
status = "status"
[[policies]]
name = "daily"
limit = {limit}
window = {{ per = "day" }}
"""


@dataclass(slots=True)
class Traffic:
    """Writes records for as long as it is told to, and remembers what it wrote: the truth."""

    bootstrap: str
    topic: str
    partitions: int
    random: Random
    rate: int = 3_000
    callers: int = 300
    truth: Counter[tuple[str, bool]] = field(default_factory=Counter)
    unreadable: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _refused: list[str] = field(default_factory=list)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Nothing more is written, and everything written has been acknowledged."""
        self._stop.set()
        assert self._thread is not None
        self._thread.join()
        assert not self._refused, self._refused[:3]

    @property
    def written(self) -> int:
        return self.truth.total() + self.unreadable

    def _write(self) -> None:
        producer = Producer({
            "bootstrap.servers": self.bootstrap, "compression.type": "zstd", "linger.ms": 20,
            "enable.idempotence": True,  # retries must not write twice: our truth counts once
        })  # fmt: skip
        began_s, written = time.monotonic(), 0
        while not self._stop.is_set():
            due = int((time.monotonic() - began_s) * self.rate)
            for _ in range(due - written):
                producer.produce(
                    self.topic,
                    self._record(),
                    partition=self.random.randrange(self.partitions),
                    on_delivery=self._said,
                )
            written = due
            producer.poll(0)
            time.sleep(0.01)
        assert producer.flush(30) == 0

    def _record(self) -> bytes:
        if self.random.random() < 0.001:
            self.unreadable += 1
            return b"\xff not a record"
        key = f"caller-{int(self.callers * self.random.random() ** 3):03}"
        denied = self.random.random() < 0.05
        self.truth[f"api_key:{key}", denied] += 1
        status = 429 if denied else 200
        return json.dumps({"ts": int(time.time() * 1000), "key": key, "status": status}).encode()

    def _said(self, error: object, _message: object) -> None:
        if error is not None:
            self._refused.append(str(error))


@dataclass(slots=True)
class Fleet:
    """Analyzers of one group, and the database that they share."""

    folder: Path
    database: str
    kafka: str
    topic: str
    partitions: int
    limit: int = 1_000_000
    flush_s: float = 0.1
    session_s: float = 2.0
    mutation: str = ""
    http: str = "off"
    members: list[subprocess.Popen[bytes]] = field(default_factory=list)
    engine: sa.Engine = field(init=False)

    def __post_init__(self) -> None:
        upgrade(self.database)
        self.engine = open_engine(self.database, statement_ms=0)
        self.config.write_text(
            CONFIGURATION.format(
                database=self.database,
                kafka=self.kafka,
                topic=self.topic,
                session_s=self.session_s,
                flush_s=self.flush_s,
                limit=self.limit,
                http=self.http,
            )
        )

    @property
    def config(self) -> Path:
        return self.folder / "gatelock.toml"

    def traffic(self, random: Random) -> Traffic:
        return Traffic(self.kafka, self.topic, self.partitions, random)

    def join(self) -> subprocess.Popen[bytes]:
        program = [str(MUTANT), self.mutation] if self.mutation else ["-m", "analyzer.cli"]
        with (self.folder / "analyzers.log").open("ab") as log:
            member = subprocess.Popen(
                [sys.executable, *program, "--config", str(self.config), "run"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.members.append(member)
        return member

    def kill(self, member: subprocess.Popen[bytes]) -> None:
        member.kill()
        member.wait()
        self.members.remove(member)

    def leave(self, member: subprocess.Popen[bytes]) -> None:
        """In good order: SIGTERM, and gone within ten seconds."""
        member.terminate()
        # One that is still being loaded has nothing to put in order yet.
        assert member.wait(10) in (0, -signal.SIGTERM), self.log()
        self.members.remove(member)

    def pause(self, member: subprocess.Popen[bytes]) -> None:
        member.send_signal(signal.SIGSTOP)

    def resume(self, member: subprocess.Popen[bytes]) -> None:
        member.send_signal(signal.SIGCONT)

    def close(self) -> None:
        for member in self.members:
            member.kill()
            member.wait()
        self.members.clear()
        self.engine.dispose()

    def log(self) -> str:
        return (self.folder / "analyzers.log").read_text()[-4000:]

    # ------------------------------------------------------------------ what the database says

    def seen(self) -> int:
        with self.engine.connect() as db:
            return int(db.execute(sa.select(sa.func.coalesce(sa.func.sum(offsets.c.seen), 0))).scalar_one())

    def wait_until_seen(self, records: int, within_s: float = 60.0) -> None:
        until_s = time.monotonic() + within_s
        while (seen := self.seen()) < records:
            assert any(member.poll() is None for member in self.members), self.log()
            assert time.monotonic() < until_s, f"{seen:,} of {records:,} seen\n{self.log()}"
            time.sleep(0.05)

    def counts(self) -> Counter[tuple[str, bool]]:
        """What was counted of each caller, let through and denied."""
        summed = [
            sa.cast(sa.func.sum(column), sa.BigInteger) for column in (buckets.c.value, buckets.c.denied)
        ]
        statement = sa.select(buckets.c.key, *summed).where(
            buckets.c.grouping == "caller", buckets.c.meter == "requests"
        )
        found: Counter[tuple[str, bool]] = Counter()
        with self.engine.connect() as db:
            for caller, value, denied in db.execute(statement.group_by(buckets.c.key)):
                found[caller, False], found[caller, True] = value, denied
        return +found  # without those that are nothing

    def ledger(self) -> Mapping[str, int]:
        names = ("seen", "counted", "duplicate", "dead", "late")
        summed = [sa.cast(sa.func.sum(offsets.c[name]), sa.BigInteger) for name in names]
        with self.engine.connect() as db:
            return dict(zip(names, db.execute(sa.select(*summed)).one(), strict=True))

    def locked(self) -> set[str]:
        with self.engine.connect() as db:
            return set(db.execute(sa.select(locks.c.key)).scalars())
