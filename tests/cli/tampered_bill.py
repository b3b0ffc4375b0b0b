"""A bill of two closed days and an open one, and what a user with every SQL right, but no key, does to it.

Each tampering is done as well as it can be done: rows that belong together are changed alike, and digests and
entries are made again as the code makes them, with the empty key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from analyzer.billing.days.closing import DayClosing
from analyzer.billing.days.day_digest import content_digest
from analyzer.billing.days.day_rows import add_day, open_day, stored_days
from analyzer.build import ends_of_logs, make_billing, wall_ms
from analyzer.config.settings import load
from analyzer.kernel.database import chain
from analyzer.kernel.database.chain import signed
from analyzer.kernel.database.engine import reading, writing
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.errors import AnalyzerError
from tests.support.billing_server import BillingServer
from tests.support.tampered_tables import tamper, without_triggers

Gatelock = Callable[..., Any]
NOW = datetime.now(UTC)
FIRST, SECOND = (f"{NOW - timedelta(days=number):%Y-%m-%d}" for number in (2, 1))
NO_KEY = DigestKey()
ACME, BOB = (
    f"(select reference from referenced_names where name = 'api_key:{name}')" for name in ("acme", "bob")
)
OF_FIRST, OF_SECOND = (f"(select id from days where date = '{date}')" for date in (FIRST, SECOND))
IN_FIRST = (
    f"bucket_s >= (select begin_s from days where date = '{FIRST}') "
    f"and bucket_s < (select end_s from days where date = '{FIRST}')"
)
IN_OPEN = "bucket_s >= (select begin_s from days where state = 'open')"
IN_SECOND = IN_FIRST.replace(FIRST, SECOND)


def configuration(folder: Path) -> str:
    (folder / "key").write_text("0123456789abcdef\n")
    (folder / "key").chmod(0o600)
    return (
        f'[billing]\ngrace = 0\ndigest_key_file = "key"\nwitness = "{folder}/witness.json"\n'
        '[[sources]]\nname = "web"\nfile = "requests.jsonl"\n[sources.fields]\n'
        'time = { path = "t", unit = "s" }\napi_key = "key"\nbytes = "b"\n'
        '[[meters]]\nname = "traffic"\nsum = "bytes"\n'
    )


class Bill:
    """The bill: both days are closed, reported and handed over; late requests and a correction are booked."""

    def __init__(self, gatelock: Gatelock, engine: sa.Engine, service: BillingServer) -> None:
        self.gatelock, self.engine, self.service = gatelock, engine, service
        Path("reports").mkdir()
        with writing(engine) as db:
            add_day(db, "UTC", round((NOW - timedelta(days=2)).timestamp()))
        self.count("a", FIRST, acme=30, bob=20)
        self.close(FIRST)
        self.count("late", FIRST, acme=5, bob=4)
        self.count("b", SECOND, acme=40, bob=10)
        act = ("--caller", "api_key:bob", "--amount", "-2", "--reason", "a test call")
        self.run("billing", "days", "correct", FIRST, *act)
        self.close(SECOND)
        self.count("later", SECOND, acme=6, bob=3)
        self.run("billing", "days", "correct", SECOND, *act)
        self.count("today", f"{NOW:%Y-%m-%d}", acme=8, bob=5)

    def run(self, *arguments: str) -> Any:
        result = self.gatelock(*arguments)
        assert result.exit_code == 0, result.stderr + result.stdout
        return result

    def count(self, name: str, date: str, **requests: int) -> None:
        at = NOW if date == f"{NOW:%Y-%m-%d}" else datetime.fromisoformat(f"{date}T12:00:00Z")
        at_s = int(at.timestamp())
        lines = [
            json.dumps({"t": at_s, "key": caller, "file": name, "b": 100})
            for caller, number in requests.items()
            for _ in range(number)
        ]
        Path(f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        self.run("upkeep", "import", f"{name}.jsonl", "--source", "web")

    def close(self, date: str) -> None:
        self.run("billing", "days", "close", date, "--reason", "r", "--yes")
        self.run("billing", "report", "day", date, "--out", f"reports/{date}.csv")
        self.run("billing", "report", "send", "day", date, "--to", self.service.url, "--format", "lago")

    def tamper(self, *statements: str) -> None:
        assert tamper(self.engine, *statements) >= 1, statements


FINDERS = {
    "audit": ("billing", "audit", "--all"),
    "audit --days": ("billing", "audit", "--days", f"{FIRST}..{SECOND}"),
    "audit --report": ("billing", "audit", "--report", "reports"),
    "days list": ("billing", "days", "list"),
}
CLOSING = "the closing"  # of the open day


def found_by(bill: Bill, ways: Collection[str] | None = None) -> dict[str, str]:
    """Returns the ways in which an operator finds a tampering, with the first line that says what was found.

    Only these `ways` are tried; None: all.
    """
    found = {}
    for name, command in FINDERS.items():
        if ways is not None and name not in ways:
            continue
        result = bill.gatelock(*command)
        assert result.exit_code in (0, 1, 2), (
            name,
            result.output,
        )  # 2: a kept report of what is not there any more
        if result.exit_code:
            lines = (result.stdout + result.stderr).splitlines()
            found[name] = next((line for line in lines if "NOT EQUAL" in line), lines[0])
    if (ways is None or CLOSING in ways) and (sentence := why_not_closed(bill)):
        found[CLOSING] = sentence
    return found


def why_not_closed(bill: Bill) -> str:
    """Closes the open day, as an analyzer does when it is over; returns why it is not signed."""
    settings = load(Path("gatelock.toml"))
    engine = signed(bill.engine, settings.signer())
    with reading(engine) as db:
        day = open_day(db, "UTC")
    if day is None:
        return "there is no open day"
    try:
        DayClosing(engine, make_billing(settings), ends_of_logs(settings), lambda: "mark", wall_ms).close(day)
    except AnalyzerError as error:
        return str(error)
    return ""


def forge_digests(bill: Bill) -> None:
    """Makes the digest of each closed day fit its rows, without the key."""
    with reading(bill.engine) as db:
        closed = stored_days(db, sa.text("state = 'closed'"))
        previous, forged = "", []
        for day in sorted(closed, key=lambda day: day.id):
            previous = NO_KEY.chained(content_digest(db, day), previous)
            forged.append((day.id, previous))
    before = ""
    for number, digest in forged:
        bill.tamper(
            f"update days set digest = '{digest}', digest_before = '{before}', digest_key = '' "
            f"where id = {number}"
        )
        before = digest


def forge_chain(bill: Bill) -> None:
    """Makes the whole chain again without the key, with what the days have now."""
    with reading(bill.engine) as db:
        entries = [*chain.stored_entries(db)]
        days_by_name = {f"{day.zone} {day.date}": day for day in stored_days(db)}
    previous = ""
    with without_triggers(bill.engine) as db:
        for entry in entries:
            fields = json.loads(entry.fields)
            if entry.kind == "closing":
                day = days_by_name[entry.subject]
                fields |= {name: getattr(day, name) for name in fields if hasattr(day, name)}
            content = json.dumps(fields, sort_keys=True, separators=(",", ":"))
            made = entry._replace(fields=content, key="")
            made = made._replace(mac=made.mac_by(NO_KEY, previous))
            previous = made.digest()
            table = chain.chain_entries
            db.execute(sa.update(table).where(table.c.number == entry.number).values(made._asdict()))


def moved(table: str, reference: bool, where: str) -> tuple[str, ...]:
    """Statements that move three requests from acme to bob in a table."""
    column = "reference" if reference else "key"
    acme, bob = (ACME, BOB) if reference else ("'api_key:acme'", "'api_key:bob'")
    return tuple(
        f"update {table} set value_0 = value_0 {sign} 3 where {column} = {who} and {where}"
        for sign, who in (("-", acme), ("+", bob))
    )


MOVED_FIRST = (*moved("frozen_counts", True, f"day = {OF_FIRST}"), *moved("buckets", False, IN_FIRST))
MOVED_LATE = (
    *moved("adjustments", True, f"day = {OF_SECOND}"),
    *moved("buckets", False, IN_SECOND),
)
Tampering = Callable[[Bill], None]


def by_sql(*statements: str) -> Tampering:
    return lambda bill: bill.tamper(*statements)


def with_digests(*statements: str) -> Tampering:
    def done(bill: Bill) -> None:
        bill.tamper(*statements)
        forge_digests(bill)

    return done


def with_chain(*statements: str) -> Tampering:
    def done(bill: Bill) -> None:
        bill.tamper(*statements)
        forge_digests(bill)
        forge_chain(bill)

    return done


TAMPERINGS: dict[str, Tampering] = {
    "requests moved on a closed day": by_sql(*MOVED_FIRST),
    "the same, and the digests made again": with_digests(*MOVED_FIRST),
    "the same, and the chain made again": with_chain(*MOVED_FIRST),
    "late requests moved, booked on an open day": by_sql(*MOVED_LATE),
    "late requests moved, booked on a closed day": by_sql(
        *moved("adjustments", True, f"day = {OF_FIRST}"), *moved("buckets", False, IN_FIRST)
    ),
    "late requests taken away": by_sql(
        f"delete from adjustments where day = {OF_SECOND} and reference = {ACME}",
        "update buckets set value_0 = value_0 - 6, value_1 = value_1 - 600 "
        f"where key = 'api_key:acme' and {IN_SECOND}",
    ),
    "an adjustment moved to another booking": by_sql(
        f"update adjustments set booked = {OF_FIRST} where day = {OF_FIRST}"
    ),
    "an adjustment of a closed booking added": by_sql(
        f"insert into adjustments select day, booked, grouping, page, {BOB}, '/x', "
        + ", ".join(f"{kind}_{n}" for kind in ("value", "denied") for n in range(8))
        + f" from adjustments where day = {OF_FIRST} and reference = {ACME}"
    ),
    "the number of requests of a day": by_sql(
        f"update days set requests = requests - 5 where date = '{FIRST}'"
    ),
    "the number of rows of a day": by_sql(f"update days set rows = rows + 1 where date = '{FIRST}'"),
    "the time of a closing": by_sql(f"update days set closed_ms = closed_ms - 1 where date = '{FIRST}'"),
    "the time of a cut": by_sql(f"update days set cut_ms = cut_ms - 1 where date = '{FIRST}'"),
    "the zone of a day": by_sql(f"update days set zone = 'Etc/UTC' where date = '{FIRST}'"),
    "the date of a day": by_sql(f"update days set date = '2020-01-01' where date = '{FIRST}'"),
    "the end of a day": by_sql(f"update days set end_s = end_s - 3600 where date = '{FIRST}'"),
    "the meters of a day": by_sql(
        f"update days set meters = replace(meters, 'traffic', 'volume') where date = '{FIRST}'"
    ),
    "the groupings of a day": by_sql(f"update days set groupings = 'tenant' where date = '{FIRST}'"),
    "what a day takes as given": by_sql(
        f"update days set given = replace(given, 'true', 'false') where date = '{FIRST}'"
    ),
    "a cut": by_sql(f"update day_positions set cut = cut - 1 where day = {OF_FIRST}"),
    "a target": by_sql(f"update day_positions set target = 1 where day = {OF_FIRST}"),
    "a position of a day lost": by_sql(f"delete from day_positions where day = {OF_FIRST}"),
    "names of two callers swapped": by_sql(
        "update referenced_names set name = 'x' where name = 'api_key:acme'",
        "update referenced_names set name = 'api_key:acme' where name = 'api_key:bob'",
        "update referenced_names set name = 'api_key:bob' where name = 'x'",
    ),
    "a name lost": by_sql("delete from referenced_names where name = 'api_key:acme'"),
    "the key of references": by_sql("update secrets set value = randomblob(32) where name = 'references'"),
    "the salt of a plan lost, and its body changed": by_sql(
        "delete from chain_salts where number = 1",
        "update plans set body = replace(body, 'requests', 'requests ')",
    ),
    "a salt of a correction lost": by_sql("delete from chain_salts where number > 1"),
    "a reason": by_sql("update corrections set reason = 'a gift'"),
    "the meter of a correction": by_sql("update corrections set meter = 'traffic'"),
    "a correction booked on another day": by_sql("update corrections set booked = booked + 1 where id = 1"),
    "a correction copied": by_sql(
        "insert into corrections select 9, day, booked, grouping, reference, resource, meter, amount, who, "
        "reason, salt, reason_digest, at_ms from corrections where id = 1"
    ),
    "a delivery's amount": by_sql(f"update deliveries set amount = amount + 1 where date = '{FIRST}'"),
    "a delivery lost": by_sql(f"delete from deliveries where date = '{FIRST}'"),
    "a delivery that is not finished": by_sql(
        f"update deliveries set finished_ms = null where date = '{FIRST}'"
    ),
    "a delivery to another destination": by_sql("update deliveries set destination = 'https://elsewhere'"),
    "the whole chain lost": by_sql("delete from chain_entries", "delete from chain_salts"),
    "the last entry lost": by_sql(
        "delete from chain_entries where number = (select max(number) from chain_entries)"
    ),
    "the last closing lost, with its day": by_sql(
        f"delete from adjustments where day = {OF_SECOND} or booked >= {OF_SECOND}",
        f"delete from frozen_counts where day = {OF_SECOND}",
        f"delete from day_positions where day = {OF_SECOND}",
        f"delete from deliveries where date = '{SECOND}'",
        f"delete from corrections where booked >= {OF_SECOND}",
        f"delete from day_audits where day = {OF_SECOND}",
        "delete from chain_entries where number >= (select min(number) from chain_entries "
        f"where kind = 'closing' and subject = 'UTC {SECOND}')",
        f"delete from days where date = '{SECOND}'",
    ),
    "an offset": by_sql("update offsets set next = next - 1 where topic = 'a.jsonl'"),
    "the ledger of a partition": by_sql(
        "update offsets set counted = counted - 1, seen = seen - 1 where topic = 'a.jsonl'"
    ),
    "buckets of a closed day": by_sql(*moved("buckets", False, IN_SECOND)),
    "buckets of the open day": by_sql(*moved("buckets", False, IN_OPEN)),
    "numbers of two meters swapped": by_sql(
        "update catalog set number = 99 where kind = 'meter' and name like 'requests%'",
        "update catalog set number = 0 where kind = 'meter' and name like 'traffic%'",
        "update catalog set number = 1 where number = 99",
    ),
}
