"""Goes through an installation, part by part: what is as it should be, what is not, and what to do."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

import sqlalchemy as sa

from analyzer.cli.exit_codes import LOOK
from analyzer.cli.options import must_exist
from analyzer.config.secrets import masked
from analyzer.config.settings import Settings
from analyzer.core.fleet.gate_health import KNOWN_MIN, SKEW_S, GateHealth, living, troubles
from analyzer.core.fleet.unknown_callers import LogKnowledge, cause, spellings
from analyzer.core.records.mapping import CALLER_FIELDS
from analyzer.errors import StoreAway
from analyzer.store.database.clock import instant
from analyzer.store.database.engine import open_engine
from analyzer.store.database.revisions import head
from analyzer.store.operations.followed_partitions import SILENT_MS, FollowedPartition, followed
from analyzer.store.operations.tokens import stored_tokens as known_tokens
from analyzer.store.reports.gate_reports import known_among, reporting_gates
from analyzer.store.reports.status import DatabaseStatus, database_status, installation_status
from analyzer.store.transaction.gaps import recorded_gaps as known_gaps
from gatekeeper.feed.feed_json import time_text

State = Literal["fine", "wrong", "away"]

BEHIND_S = 30.0
REJECTED_WITHIN_MS = 3_600_000
EXPIRES_SOON_MS = 7 * 86_400_000
FREE_BYTES_MIN = 1 << 30
SHOWN_MAX = 3

GATES = {  # what to do about what is wrong with a gate
    "silent": "look whether the application runs; `gatelock gates forget` when it is gone for good",
    "off": "unset GATEKEEPER when it is no longer needed",
    "stale": "look at the application's log for what the logger `gatekeeper` says",
    "strange": "compare its URL with [database] url here",
    "behind": "have it read the primary",
    "clock": "synchronise the clock of its machine (NTP)",
    "old": "upgrade gatelock there",
}


class Finding(NamedTuple):
    """One sentence about one part; `cure` says what to do when it is not as it should be."""

    check: str
    state: State
    what: str
    cure: str = ""


def examine(settings: Settings) -> Iterator[Finding]:
    """Every finding, as it comes. Nothing is raised for what is away."""
    for each in _examine(settings):
        yield each._replace(what=masked(each.what))


def _examine(settings: Settings) -> Iterator[Finding]:
    engine = None
    try:
        must_exist(settings)
        engine = open_engine(settings.database.address)
        yield from _with_database(settings, engine)
    except StoreAway as away:
        yield Finding("database", "away", f"{settings.database.shown} cannot be reached: {away}", LOOK)
    finally:
        if engine is not None:
            engine.dispose()
    yield from _kafka(settings)


def _with_database(settings: Settings, engine: sa.Engine) -> Iterator[Finding]:
    standing = installation_status(engine, head())
    if standing.revision != head():
        have = standing.revision or "none"
        what = f"{settings.database.shown}: tables are at version {have}, this program needs {head()}"
        yield Finding("database", "wrong", what, "run `gatelock db upgrade`")
        return
    yield Finding("database", "fine", f"{settings.database.shown}: reached, tables at version {head()}")
    yield from _room(settings)
    begun_ms = time.time() * 1000
    now = database_status(engine, REJECTED_WITHIN_MS)
    yield _clock(now, begun_ms, time.time() * 1000)
    parts = followed(engine)
    yield from _plan(settings, now)
    yield from _sources(settings, parts)
    yield from _waiting(engine, now)
    yield from _tokens(engine)
    yield from _suspended(standing.suspended_until)
    yield from _gates(settings, engine, max((part.behind_s for part in parts), default=0.0))


def _room(settings: Settings) -> Iterator[Finding]:
    url = sa.make_url(settings.database.address)
    if url.get_backend_name() == "sqlite":
        free = shutil.disk_usage(Path(url.database or "").absolute().parent).free
        if free < FREE_BYTES_MIN:
            yield Finding(
                "database", "wrong", f"{free >> 20} MiB are free where its file is", "make room there"
            )


def _clock(now: DatabaseStatus, begun_ms: float, ended_ms: float) -> Finding:
    """The database's clock against this machine's, which asked for it between two moments."""
    ahead_s = max(now.now_ms - ended_ms, min(0.0, now.now_ms - begun_ms)) / 1000
    if abs(ahead_s) <= SKEW_S:
        return Finding("clock", "fine", "the database's agrees with this machine's")
    side = "ahead of" if ahead_s > 0 else "behind"
    what = f"the database's is {abs(ahead_s):.1f} s {side} this machine's"
    return Finding("clock", "wrong", what, "synchronise both (NTP): judgements go by the database's")


def _plan(settings: Settings, now: DatabaseStatus) -> Iterator[Finding]:
    if now.plan is None:
        yield Finding("plan", "wrong", "no analyzer ever worked here", "start `gatelock run`")
    elif settings.sources and now.plan != settings.plan().digest:
        what = "what the analyzers count and judge is not what this configuration says"
        yield Finding("plan", "wrong", what, "restart them with it, or name theirs with --config")
    else:
        yield Finding("plan", "fine", "the analyzers work by this configuration")


def _sources(settings: Settings, parts: Sequence[FollowedPartition]) -> Iterator[Finding]:
    ours = [source.name for source in settings.sources]
    theirs = sorted({part.source for part in parts if part.heard_s is not None} - set(ours))
    for name in [*ours, *theirs]:
        each = [part for part in parts if part.source == name]
        live = [part for part in each if part.heard_s is not None]
        silent = [part for part in live if (part.heard_s or 0.0) * 1000 > SILENT_MS]
        behind_s = max((part.behind_s for part in live), default=0.0)
        if not each:
            cure = "start `gatelock run`, and look at the name of its topic or file"
            yield Finding("sources", "wrong", f"{name}: nothing of it was ever read", cure)
        elif silent:
            longest_s = max(part.heard_s or 0.0 for part in silent)
            what = f"{name}: nobody was heard of for {longest_s:.0f} s who follows {_some(silent)}"
            cure = f"start `gatelock run`, or `gatelock sources retire {name}` when it is over"
            yield Finding("sources", "wrong", what, cure)
        elif behind_s > BEHIND_S:
            what = f"{name}: {behind_s:.0f} s behind; gates hear of locks by as much later"
            yield Finding("sources", "wrong", what, "add analyzers, up to one for each partition")
        else:
            what = f"{name}: {len(live)} of {len(each)} partitions followed, {behind_s:.1f} s behind"
            yield Finding("sources", "fine", what)
    if not ours and not theirs:
        yield Finding("sources", "fine", "none is configured here, and none is followed")


def _some(parts: Sequence[FollowedPartition]) -> str:
    named = ", ".join(f"{part.topic}[{part.partition}]" for part in parts[:SHOWN_MAX])
    return named + (f" and {len(parts) - SHOWN_MAX} more" if len(parts) > SHOWN_MAX else "")


def _waiting(engine: sa.Engine, now: DatabaseStatus) -> Iterator[Finding]:
    gaps = [each for each in known_gaps(engine) if each.accepted is None]
    for each in gaps[:SHOWN_MAX]:
        cure = "see `gatelock gaps list`, then decide by `gatelock gaps accept`"
        yield Finding("gaps", "wrong", f"{each.part} waits for a person: {each.gap.why}", cure)
    if len(gaps) > SHOWN_MAX:
        yield Finding("gaps", "wrong", f"{len(gaps) - SHOWN_MAX} more wait", "see `gatelock gaps list`")
    if not gaps:
        yield Finding("gaps", "fine", "no partition waits for a person")
    if now.rejected:
        most = max(now.rejected, key=lambda reason: now.rejected[reason])
        what = f"{sum(now.rejected.values()):,} records could not be read in the last hour, most for: {most}"
        yield Finding("rejects", "wrong", what, "see `gatelock rejects list`")
    else:
        yield Finding("rejects", "fine", "every record of the last hour could be read")


def _tokens(engine: sa.Engine) -> Iterator[Finding]:
    known = known_tokens(engine)
    for token in known.tokens:
        if token.until_ms is not None and token.until_ms < known.now_ms + EXPIRES_SOON_MS:
            over = "is over" if token.until_ms <= known.now_ms else "ends"
            what = f"the time of {token.name} {over}: {time_text(instant(token.until_ms))}"
            cure = "make another one (`gatelock tokens create`), and revoke this one"
            yield Finding("tokens", "wrong", what, cure)


def _suspended(until: datetime | None) -> Iterator[Finding]:
    if until is not None:
        what = f"all of them let everybody pass until {time_text(until)}: somebody suspended the locks"
        cure = "`gatelock locks resume` ends that; `gatelock events list` says who it was, and why"
        yield Finding("gates", "wrong", what, cure)


def _gates(settings: Settings, engine: sa.Engine, behind_s: float) -> Iterator[Finding]:
    gates = sorted(
        living(reporting_gates(engine)), key=lambda gate: gate.told.instance
    )  # the same ones each time
    if not gates:
        yield Finding("gates", "fine", "none tells of itself (over SQL they do so only when asked to)")
    applications: dict[str, list[GateHealth]] = {}
    for gate in gates:
        applications.setdefault(gate.told.application, []).append(gate)
    for name, each in sorted(applications.items()):
        yield from _application(name or "(no name)", each)
        yield from _strangers(settings, engine, name or "(no name)", each, behind_s)


def _application(name: str, gates: Sequence[GateHealth]) -> Iterator[Finding]:
    found: dict[str, list[tuple[GateHealth, str]]] = {}
    for gate in gates:
        for word, sentence in troubles(gate, set(gate.told.callers)).items():
            found.setdefault(word, []).append((gate, sentence))
    for word, each in found.items():
        gate, sentence = each[0]
        more = f"; so do {len(each) - 1} more" if len(each) > 1 else ""
        yield Finding("gates", "wrong", f"{name} {gate.told.instance} {sentence}{more}", GATES[word])
    if not found:
        oldest_s = max(gate.told.age or 0.0 for gate in gates)
        yield Finding(
            "gates", "fine", f"{name}: {len(gates)} heard of, their views {oldest_s:.1f} s old at most"
        )


def _strangers(
    settings: Settings, engine: sa.Engine, name: str, gates: Sequence[GateHealth], behind_s: float
) -> Iterator[Finding]:
    callers = {caller for gate in gates for caller in gate.told.callers}
    found = known_among(engine, callers)
    unknown = sorted(callers - found.known)
    if not callers:
        yield Finding("callers", "fine", f"{name}: was asked for nobody yet")
    elif (part := 1 - len(unknown) / len(callers)) >= KNOWN_MIN:
        yield Finding("callers", "fine", f"{name}: the log knows {part:.0%} of {len(callers)} asked for")
    else:
        kinds = tuple(dict.fromkeys(kind for source in settings.sources for kind in source.callers))
        others = {other.name for caller in unknown for other in spellings(caller, kinds or CALLER_FIELDS)}
        seen = LogKnowledge(known_among(engine, others).known, kinds, behind_s, found.overflow)
        why, cure = cause(unknown, seen)
        shown = ", ".join(unknown[:SHOWN_MAX])
        what = f"{name}: the log knows {part:.0%} of {len(callers)} asked for, but not {shown}: {why}"
        yield Finding("callers", "wrong", what, cure)


def _kafka(settings: Settings) -> Iterator[Finding]:
    topics = [source.topic for source in settings.sources if source.topic is not None]
    if not topics:
        return
    from analyzer.kafka.probes.reachability import KafkaAway, partitions_of

    servers = ", ".join(settings.kafka.bootstrap_servers)
    try:
        found = partitions_of(topics, settings.kafka.client())
    except KafkaAway as away:
        yield Finding("kafka", "away", f"{servers}: {away}", "look at [kafka] (docs/kafka.md)")
        return
    for partitions in found.values():
        if isinstance(partitions, str):
            yield Finding("kafka", "wrong", f"{servers}: {partitions}", "look at the source's topic")
    if all(isinstance(partitions, int) for partitions in found.values()):
        each = ", ".join(f"{topic} with {number} partitions" for topic, number in found.items())
        yield Finding("kafka", "fine", f"{servers}: reached; {each}")
