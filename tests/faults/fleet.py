"""Fleet of real analyzers as processes, and queries for what they have stored."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import sqlalchemy as sa

from analyzer.faces.cli.exit_codes import UNREACHABLE
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.database.migrate import upgrade
from analyzer.kernel.errors import StoreAway
from analyzer.kernel.tables.schema import locks, offsets
from analyzer.plan.plan import Plan
from tests.faults.traffic import CountKey, Traffic
from tests.support.gatelock_processes import GatelockProcess
from tests.support.stored_counts import stored_counts
from tests.support.waiting import wait_until

MUTANT = Path(__file__).with_name("mutant_analyzer.py")
LEDGER = ("seen", "counted", "duplicate", "dead", "late")
CONFIGURATION = """
[database]
url = "{database}"
[kafka]
bootstrap_servers = "{kafka}"
group_id = "{group}"
session_timeout = "{session_s}s"
options = {{ heartbeat_interval_ms = 500, reconnect_backoff_max_ms = 500, metadata_max_age_ms = 1000 }}
[analyzer]
http = "{http}"
log = "json"
flush_every = "{flush_s}s"
[retention]
days = "36500d"  # there are records of 1970, and their counts are compared, too
[[sources]]
topic = "{topic}"
deny_if = {{ status = 429 }}
[sources.fields]
time = {{ path = "ts", unit = "ms" }}
api_key = "key"
status = "status"
item = "item"
"""
POLICY = """
[[policies]]
name = "{name}"
limit = {limit}
window = {{ per = "{per}" }}
"""

Member = GatelockProcess | subprocess.Popen[bytes]


@dataclass(slots=True)
class Fleet:
    """Analyzers of one consumer group, and the database that they share.

    `policies` has the limit of each quota, by its name and period; `further` has other policies.
    `analyzers_database` is the URL for the analyzers, if it differs from the test's `database`.
    """

    folder: Path
    database: str
    kafka: str
    topic: str
    partitions: int
    policies: Mapping[tuple[str, str], int] = field(default_factory=lambda: {("daily", "day"): 1_000_000})
    flush_s: float = 0.1
    session_s: float = 2.0
    mutation: str = ""
    http: str = "off"
    analyzers_database: str = ""
    further: str = ""  # tables of the configuration
    members: list[Member] = field(default_factory=list)
    engine: sa.Engine = field(init=False)

    def __post_init__(self) -> None:
        upgrade(self.database)
        self.engine = open_engine(self.database, statement_ms=0)
        self.configure()

    def configure(self, group: str = "") -> Path:
        """Writes a configuration file for `group`, by default the one that shares the work."""
        path = self.folder / f"{group or 'gatelock'}.toml"
        head = CONFIGURATION.format(
            database=self.analyzers_database or self.database,
            kafka=self.kafka,
            group=group or self.topic,
            topic=self.topic,
            session_s=self.session_s,
            flush_s=self.flush_s,
            http=self.http,
        )
        limits = self.policies.items()
        path.write_text(
            head
            + "".join(POLICY.format(name=name, per=per, limit=n) for (name, per), n in limits)
            + self.further
        )
        return path

    @property
    def config(self) -> Path:
        return self.folder / "gatelock.toml"

    @property
    def plan(self) -> Plan:
        from analyzer.config.settings import load

        return load(self.config).plan()

    def activate(self) -> None:
        """Puts the plan of the configuration in force."""
        for attempt in range(30):
            try:
                SqlStore(self.engine, "operator").activate(self.plan)
                return
            except StoreAway:  # perhaps busy: a statement waits for rows at most 2 s
                if attempt == 29:
                    raise

    def traffic(self, random: Random) -> Traffic:
        return Traffic(self.kafka, self.topic, self.partitions, random)

    def join(self, variant: str = "", config: Path | None = None) -> Member:
        """Starts one more analyzer, as the `variant` of mutant_analyzer.py if one is named."""
        variant = variant or self.mutation
        member = self._start(variant, ["--config", str(config or self.config), "run"])
        self.members.append(member)
        return member

    def _start(self, variant: str, arguments: Sequence[str]) -> Member:
        with (self.folder / "analyzers.log").open("ab") as log:
            if not variant:
                return GatelockProcess(arguments, stdout=log, stderr=log)
            command = [sys.executable, str(MUTANT), variant, *arguments]
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _start_again(self, member: Member) -> Member:
        if isinstance(member, GatelockProcess):
            return self._start("", member.args)
        return self._start(*member.args[2:3], member.args[3:])

    def restart_ended(self, without: Sequence[Member] = ()) -> int:
        """Starts analyzers again that found no database at their start, as systemd does; returns how many.
        Fails if one has ended for another reason."""
        ended = [member for member in self.members if member not in without and member.poll() is not None]
        for member in ended:
            assert member.returncode == UNREACHABLE, f"ended with {member.returncode}\n{self.log()}"
            self.members[self.members.index(member)] = self._start_again(member)
        return len(ended)

    def kill(self, member: Member) -> None:
        member.kill()
        member.wait()
        self.members.remove(member)

    def leave(self, member: Member) -> None:
        """Stops an analyzer with SIGTERM; it must end within ten seconds."""
        member.terminate()
        self.wait_until_left(member)

    def wait_until_left(self, member: Member) -> None:
        # Ended by the signal: it was still loading. UNREACHABLE: its database did not answer.
        assert (code := member.wait(10)) in (0, -signal.SIGTERM, UNREACHABLE), (
            f"ended with {code}\n{self.log()}"
        )
        self.members.remove(member)

    def pause(self, member: Member) -> None:
        member.send_signal(signal.SIGSTOP)

    def resume(self, member: Member) -> None:
        member.send_signal(signal.SIGCONT)

    def close(self) -> None:
        for member in self.members:
            member.kill()
            member.wait()
        self.members.clear()
        self.engine.dispose()

    def log(self) -> str:
        """The last lines of the analyzers' log, without those of locks."""
        lines = (self.folder / "analyzers.log").read_text().splitlines()
        return "\n".join([line[:600] for line in lines if '"message": "locked' not in line][-25:])

    # What the database has

    def seen(self) -> int:
        """Returns the number of records that were read; 0 while the database cannot be reached."""
        try:
            with self.engine.connect() as db:
                return int(
                    db.execute(sa.select(sa.func.coalesce(sa.func.sum(offsets.c.seen), 0))).scalar_one()
                )
        except sa.exc.OperationalError:
            return 0

    def has_stored(self, member: Member) -> bool:
        """Whether `member` was the last to store a partition's offset; False while the database is away."""
        owners = sa.select(offsets.c.owner).where(offsets.c.owner.endswith(f":{member.pid}"))
        try:
            with self.engine.connect() as db:
                return db.execute(owners.limit(1)).first() is not None
        except sa.exc.OperationalError:
            return False

    def wait_until_seen(self, records: int, within_s: float = 60.0) -> None:
        def is_seen() -> bool:
            assert any(member.poll() is None for member in self.members), self.log()
            return self.seen() >= records

        wait_until(
            is_seen,
            within_s,
            lambda: f"{self.seen():,} of {records:,} seen\n{self.log()}",
            every_s=0.05,
        )

    def counts(self) -> Counter[CountKey]:
        """Requests of each caller in each minute, admitted and denied."""
        found: Counter[CountKey] = Counter()
        with self.engine.connect() as db:
            for row in stored_counts(db):
                if (row.grouping, row.meter) == ("caller", "requests"):
                    found[CountKey(row.key, False, row.bucket_s)] += row.value
                    found[CountKey(row.key, True, row.bucket_s)] += row.denied
        return +found  # without zeros

    def ledger(self) -> Mapping[str, int]:
        summed = [sa.cast(sa.func.sum(offsets.c[name]), sa.BigInteger) for name in LEDGER]
        with self.engine.connect() as db:
            return dict(zip(LEDGER, db.execute(sa.select(*summed)).one(), strict=True))

    def locked(self) -> set[str]:
        with self.engine.connect() as db:
            return set(db.execute(sa.select(locks.c.key)).scalars())
