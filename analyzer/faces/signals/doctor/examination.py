"""Examines a running installation: CHECKS is the table of what `gatelock doctor` looks at.

Each check yields observations: one sentence about one part, and what to do if it is wrong. Checks only read.
docs/doctor.md has a row for each name in the table.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence

import sqlalchemy as sa

from analyzer.callers.applied_facts import waiting_since
from analyzer.config.settings import Settings
from analyzer.config.tables.database import CHECK_URL
from analyzer.counting.gaps import recorded_gaps
from analyzer.faces.signals.connections import gate_connections
from analyzer.faces.signals.doctor.counting_checks import (
    delays_and_clocks,
    differing_days,
    doubtful_callers,
    duplicates,
    expiring_days,
    late_locks,
    waiting_days,
)
from analyzer.faces.signals.doctor.kafka_checks import kafka_group, kafka_topics
from analyzer.faces.signals.doctor.observations import LISTED_MAX, Finding, Installation, Observation
from analyzer.faces.signals.status import database_status, installation_status
from analyzer.flush.analyzers import LIVING_MS, KnownAnalyzer, all_known
from analyzer.flush.followed_partitions import SILENT_MS, FollowedPartition, followed
from analyzer.gates.gate_health import (
    CURES,
    KNOWN_MIN,
    NO_REPORTS,
    NOT_REPORTED,
    REPORTS_CURE,
    SKEW_S,
    GateHealth,
    gate_problems,
    living_gates,
    met_locks,
    unknown_clients,
)
from analyzer.gates.gate_reports import known_among, reporting_gates
from analyzer.gates.refused_clients import refused_clients
from analyzer.gates.unasked_values import unasked_values
from analyzer.gates.unknown_callers import LogKnowledge, cause, spellings
from analyzer.gates.unmet_locks import unmet_locks
from analyzer.judging.locks.verdict_decisions import UNKNOWN_POLICY
from analyzer.judging.sql.plans import plan_in_force
from analyzer.judging.sql.usual_history import policies_without_history
from analyzer.kernel.database.clock import instant
from analyzer.kernel.database.dialects import dialect_at
from analyzer.kernel.database.engine import open_engine, require_file
from analyzer.kernel.database.revisions import head, schema_problem
from analyzer.kernel.errors import DatabaseUnusable, SchemaBehind, StoreAway, StoreRefused
from analyzer.kernel.jobs.job_runs import JobOutcome, job_outcomes
from analyzer.kernel.secrets import masked
from analyzer.kernel.tokens import stored_tokens
from analyzer.maintenance.job_table import schedules
from analyzer.plan.mapping import CALLER_FIELDS
from analyzer.plan.plan import Plan
from analyzer.plan.plan_differences import differences, in_words
from analyzer.plan.proposals import applied
from gatekeeper.feed.feed_json import time_text

LAG_S = 30.0
REJECTED_WITHIN_MS = 3_600_000
EXPIRES_SOON_MS = 7 * 86_400_000
FREE_BYTES_MIN = 1 << 30
SQL_GATES_MAX = 50  # half of the connections that PostgreSQL allows by default, for all its clients
JOB_OVERDUE_S = 1_800.0  # beyond the time from one moment of a job to the next
FACTS_WAIT_S = 60.0  # before facts hold: a million callers at once take minutes
POLLS_MIN = 3  # requests for locks: a gate polls on, a port scanner asks once


def examine(settings: Settings) -> Iterator[Finding]:
    """Every finding, as soon as it is made. An unreachable database or Kafka is a finding, too."""
    for finding in _examine(settings):
        yield finding._replace(what=masked(finding.what))


def _examine(settings: Settings) -> Iterator[Finding]:
    engine, partitions = None, None
    try:
        require_file(settings.database.address)
        engine = open_engine(settings.database.address)
        yield from _examine_database(settings, engine)
        partitions = _followed(engine)
    except (DatabaseUnusable, StoreRefused) as refused:
        yield Finding("database", "wrong", f"{settings.database.shown}: {refused.what}", refused.cure)
    except StoreAway as away:
        refusal = f"{settings.database.shown} cannot be reached: {away}"
        yield Finding("database", "away", refusal, CHECK_URL)
    finally:
        if engine is not None:
            engine.dispose()
    is_reached = True
    for observation in kafka_topics(settings):
        is_reached = is_reached and observation.state == "fine"
        yield Finding("kafka", *observation)
    if partitions is not None and is_reached:
        for observation in kafka_group(settings, partitions):
            yield Finding("kafka", *observation)


def _examine_database(settings: Settings, engine: sa.Engine) -> Iterator[Finding]:
    """Every check of CHECKS, unless the tables have another version. Raises StoreAway."""
    status = installation_status(engine, head())
    if problem := schema_problem(status.revision, settings.database.address):
        yield Finding("database", "wrong", f"{settings.database.shown}: {problem.what}", problem.cure)
        return
    yield Finding("database", "fine", f"{settings.database.shown}: reached, tables at version {head()}")
    before_ms = time.time() * 1000
    database = database_status(engine, REJECTED_WITHIN_MS)
    after_ms = time.time() * 1000
    installation = Installation(
        settings=settings,
        engine=engine,
        database=database,
        # The query read the database's clock at some moment between the two readings of ours.
        clock_ahead_s=max(database.now_ms - after_ms, min(0.0, database.now_ms - before_ms)) / 1000,
        suspended_until=status.suspended_until,
        braked=status.braked,
        partitions=followed(engine),
        gates=living_gates(reporting_gates(engine)),
        refused=refused_clients(engine),
    )
    for name, check in CHECKS:
        for observation in check(installation):
            yield Finding(name, *observation)


def _followed(engine: sa.Engine) -> Sequence[FollowedPartition] | None:
    """Returns the partitions of this database; None where the tables have another version."""
    if installation_status(engine, head()).revision != head():
        return None
    return followed(engine)


def _free_space(installation: Installation) -> Iterator[Observation]:
    url = sa.make_url(installation.settings.database.address)
    if (file := dialect_at(url).file(url)) is not None:
        free = shutil.disk_usage(file.parent).free
        if free < FREE_BYTES_MIN:
            yield Observation("wrong", f"{free >> 20} MiB are free where its file is", "free space there")


def _clock(installation: Installation) -> Iterator[Observation]:
    ahead_s = installation.clock_ahead_s
    if abs(ahead_s) <= SKEW_S:
        yield Observation("fine", "the database's clock agrees with this machine's")
    else:
        side = "ahead of" if ahead_s > 0 else "behind"
        sentence = f"the database's clock is {abs(ahead_s):.1f} s {side} this machine's"
        yield Observation(
            "wrong", sentence, "synchronise both (NTP): locks are judged by the database's clock"
        )


def _plan(installation: Installation) -> Iterator[Observation]:
    settings = installation.settings
    if installation.database.plan is None:
        yield Observation("wrong", "no analyzer has run on this database", "start `gatelock run`")
        return
    try:
        plan = plan_in_force(installation.engine) or Plan()
    except SchemaBehind as behind:
        yield Observation("wrong", str(behind), "install the newer version here, too")
        return
    proposed = applied(plan, settings.plan(), prune=False) if settings.sources else plan
    if lines := differences(plan, proposed):
        sentence = f"this configuration is not in force: {in_words(lines)}"
        yield Observation(
            "wrong", sentence, "save it where an analyzer reads it, or run `gatelock policies apply`"
        )
    else:
        yield Observation("fine", "the analyzers count and judge by this configuration")
    analyzers = all_known(installation.engine)
    yield from _files(analyzers, plan)
    yield from _groups([analyzer for analyzer in analyzers if analyzer.age_ms <= LIVING_MS])
    yield from _unready(installation)


def _configurations(installation: Installation) -> Iterator[Observation]:
    """Changed files that living analyzers refuse."""
    for analyzer in all_known(installation.engine):
        if analyzer.age_ms <= LIVING_MS and analyzer.refused:
            sentence = (
                f"the changed configuration of {analyzer.name} is refused, the one before is in force: "
                f"{analyzer.refused}"
            )
            yield Observation("wrong", sentence, "correct the file: it is read again when it changes")


def _files(analyzers: Sequence[KnownAnalyzer], plan: Plan) -> Iterator[Observation]:
    """Living analyzers whose file is not the plan in force."""
    for analyzer in analyzers:
        differing = [part for part, digest in analyzer.file.items() if plan.parts.get(part) != digest]
        if analyzer.age_ms > LIVING_MS or not differing:
            continue
        parts = ", ".join(differing)
        if all(analyzer.settled.get(part) == analyzer.file[part] for part in differing):
            yield Observation(
                "wrong",
                f"{analyzer.name} has a file that is not in force in: {parts}",
                "give it the file of the others, or put its own in force: `gatelock policies apply`",
            )
        else:
            yield Observation(
                "wrong",
                f"{analyzer.name} waits with its changed file ({parts})",
                "it comes in force with the first record that it counts, and not while an analyzer of an "
                "earlier version runs; `gatelock policies apply` does it at once",
            )


def _groups(living: Sequence[KnownAnalyzer]) -> Iterator[Observation]:
    """Topics that living analyzers read in two consumer groups."""
    groups: dict[str, dict[str, list[str]]] = {}
    for analyzer in living:
        for topic in analyzer.reads.topics:
            groups.setdefault(topic, {}).setdefault(analyzer.reads.group_id, []).append(analyzer.name)
    for topic, members in groups.items():
        if len(members) > 1:
            shown = "; ".join(f"{', '.join(names)} in {group}" for group, names in sorted(members.items()))
            yield Observation(
                "wrong",
                f"two groups count {topic} into this database: {shown}",
                "nothing is counted twice, but they lose each other's work: give both one group_id",
            )


def _unready(installation: Installation) -> Iterator[Observation]:
    if names := installation.database.unready:
        yield Observation(
            "wrong",
            f"not in effect yet: {', '.join(names)}; totals are filled from the counts so far",
            "wait: a running analyzer does it beside counting",
        )


def _sources(installation: Installation) -> Iterator[Observation]:
    configured = [source.name for source in installation.settings.sources]
    followed_now = {part.source for part in installation.partitions if part.heard_s is not None}
    names = [*configured, *sorted(followed_now - set(configured))]
    for name in names:
        yield _source(name, [part for part in installation.partitions if part.source == name])
    if not names:
        yield Observation("fine", "no source is configured here, and none is followed")


def _source(name: str, partitions: Sequence[FollowedPartition]) -> Observation:
    ages_s = {part: part.heard_s for part in partitions if part.heard_s is not None}  # of heartbeats
    silent = [part for part, age_s in ages_s.items() if age_s * 1000 > SILENT_MS]
    lag_s = max((part.behind_s for part in ages_s), default=0.0)
    if not partitions:
        return Observation(
            "wrong",
            f"{name}: no record was ever read",
            "start `gatelock run`, and check the name of its topic or file",
        )
    if silent:
        return Observation(
            "wrong",
            f"{name}: no heartbeat for {max(ages_s[part] for part in silent):.0f} s from an analyzer of "
            f"{_listed(silent)}",
            f"start `gatelock run`, or run `gatelock upkeep sources retire {shlex.quote(name)} "
            "--reason TEXT` if it ended",
        )
    if lag_s > LAG_S:
        return Observation(
            "wrong",
            f"{name}: {lag_s:.0f} s behind; locks are late by as much",
            "add analyzers, up to one for each partition",
        )
    if not ages_s:
        return Observation("fine", f"{name}: not followed now; `gatelock run` follows what is configured")
    return Observation(
        "fine", f"{name}: {len(ages_s)} of {len(partitions)} partitions followed, {lag_s:.1f} s behind"
    )


def _listed(partitions: Sequence[FollowedPartition]) -> str:
    names = ", ".join(f"{part.topic}[{part.partition}]" for part in partitions[:LISTED_MAX])
    return names + (f" and {len(partitions) - LISTED_MAX} more" if len(partitions) > LISTED_MAX else "")


def _gaps(installation: Installation) -> Iterator[Observation]:
    gaps = [gap for gap in recorded_gaps(installation.engine) if gap.accepted is None]
    for gap in gaps[:LISTED_MAX]:
        yield Observation(
            "wrong",
            f"{gap.part} is stopped: {gap.gap.why}",
            "run `gatelock upkeep sources list --gaps`: it prints the command that resumes each",
        )
    if len(gaps) > LISTED_MAX:
        yield Observation(
            "wrong", f"{len(gaps) - LISTED_MAX} more are stopped", "see `gatelock upkeep sources list --gaps`"
        )
    if not gaps:
        yield Observation("fine", "no partition is stopped")


def _rejects(installation: Installation) -> Iterator[Observation]:
    rejected = installation.database.rejected
    if rejected:
        most = max(rejected, key=lambda reason: rejected[reason])
        yield Observation(
            "wrong",
            f"{sum(rejected.values()):,} records could not be read in the last hour, mostly: {most}",
            "see `gatelock upkeep rejects list`",
        )
    else:
        yield Observation("fine", "every record of the last hour could be read")


def _verdicts(installation: Installation) -> Iterator[Observation]:
    disbelieved = installation.database.disbelieved
    for policy, requests in sorted(disbelieved.items(), key=lambda item: -item[1])[:LISTED_MAX]:
        phrase = {"": "", UNKNOWN_POLICY: " by a policy that is not in force"}.get(policy, f" by {policy}")
        yield Observation(
            "wrong",
            f"{requests:,} requests of the last hour were logged as denied{phrase}, and count, because no "
            "such lock was in force",
            "see who writes this into the log: an application that passes the header `Gatelock` on, its own "
            "429 in a `deny_if` by status, a gate on another database, or a clock that is wrong",
        )


def _upkeep(installation: Installation) -> Iterator[Observation]:
    outcomes = job_outcomes(installation.engine)
    every_s = {
        name: schedule.every_s for name, schedule in schedules(installation.settings.retention.kept).items()
    }
    wrong = [
        observation for job in outcomes if (observation := _job(job, every_s.get(job.name, 0))) is not None
    ]
    yield from wrong
    if outcomes and not wrong:
        oldest_s = max(outcome.done_s or 0.0 for outcome in outcomes)
        yield Observation("fine", f"{len(outcomes)} jobs, each done within the last {_span(oldest_s)}")


def _job(outcome: JobOutcome, every_s: int) -> Observation | None:
    """Returns what is wrong with a job whose moments are `every_s` apart, or None."""
    if outcome.failing_s is not None:
        return Observation(
            "wrong",
            f"{outcome.name} has failed for {_span(outcome.failing_s)}, last "
            f"{_span(outcome.failed_s or 0.0)} ago, in {outcome.owner}: {outcome.error}",
            "counting continues, but tables grow: remove the cause; the job is tried again by itself",
        )
    if outcome.done_s is not None and outcome.done_s > every_s + JOB_OVERDUE_S:
        return Observation(
            "wrong",
            f"{outcome.name} was last done {_span(outcome.done_s)} ago",
            "it cannot keep up, it is catching up after a pause, or no `gatelock run` works",
        )
    return None


def _span(seconds: float) -> str:
    """Returns a duration in the largest unit of which there are at least two."""
    for unit_s, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def _tokens(installation: Installation) -> Iterator[Observation]:
    tokens = stored_tokens(installation.engine)
    for token in tokens.tokens:
        if token.until_ms is not None and token.until_ms < tokens.now_ms + EXPIRES_SOON_MS:
            verb = "expired" if token.until_ms <= tokens.now_ms else "expires"
            yield Observation(
                "wrong",
                f"{token.name} {verb} at {time_text(instant(token.until_ms))}",
                f"run `gatelock upkeep tokens create NAME --scope {token.scope}`, give its token, then run "
                f"`gatelock upkeep tokens revoke {shlex.quote(token.name)}`",
            )


def _suspension(installation: Installation) -> Iterator[Observation]:
    until = installation.suspended_until
    if until is not None:
        yield Observation(
            "wrong",
            f"all locks are suspended until {time_text(until)}: every gate is open",
            "run `gatelock locks resume --reason TEXT` to end it; `gatelock upkeep events list` shows the "
            "operator and the reason",
        )


def _gates(installation: Installation) -> Iterator[Observation]:
    if not installation.gates:
        yield Observation("fine", f"{NO_REPORTS}; {REPORTS_CURE}")
    for name, gates in installation.applications().items():
        problems: dict[str, list[tuple[GateHealth, str]]] = {}
        for gate in gates:
            for problem, sentence in gate_problems(gate, set(gate.status.callers)).items():
                problems.setdefault(problem, []).append((gate, sentence))
        for problem, named in problems.items():
            gate, sentence = named[0]
            more = f"; {len(named) - 1} more with this problem" if len(named) > 1 else ""
            cure = CURES.get(problem) or (gate.refused.cure if gate.refused else "")
            yield Observation("wrong", f"{name} {gate.status.instance} {sentence}{more}", cure)
        if not problems:
            oldest_s = max(gate.status.age or 0.0 for gate in gates)
            yield Observation(
                "fine", f"{name}: {len(gates)} report, their views at most {oldest_s:.1f} s old"
            )


def _unasked_values(installation: Installation) -> Iterator[Observation]:
    plan = plan_in_force(installation.engine) or Plan()
    for unasked in unasked_values(plan.policies, installation.gates):
        yield Observation("wrong", unasked.sentence, unasked.cure)


def _refused(installation: Installation) -> Iterator[Observation]:
    unknown = [
        client
        for client in unknown_clients(installation.refused, installation.gates)
        if client.requests >= POLLS_MIN
    ]
    for client in unknown[:LISTED_MAX]:
        yield Observation("wrong", f"{client.client} {client.sentence}", client.cure)
    if len(unknown) > LISTED_MAX:
        more = f"{len(unknown) - LISTED_MAX} more clients are refused"
        yield Observation("wrong", more, "see `gatelock upkeep gates list`")


def _unmet_locks(installation: Installation) -> Iterator[Observation]:
    unmet = unmet_locks(installation.engine, met_locks(installation.gates))
    for lock, requests in unmet[:LISTED_MAX]:
        name = "the client's address (`behind`)" if lock.key.startswith("address:") else lock.key
        met = "no gate has met the lock" if installation.gates else f"{NOT_REPORTED}, as {NO_REPORTS}"
        yield Observation(
            "wrong",
            f"{lock.key} is locked by {lock.policy}, and {requests:,} of its requests were counted since: "
            + met,
            f"guard the application that it calls, and have its gate ask for {name}"
            + ("" if installation.gates else f"; if it does: {REPORTS_CURE}"),
        )
    if len(unmet) > LISTED_MAX:
        more = f"{len(unmet) - LISTED_MAX} more locks that no gate has met"
        yield Observation("wrong", more, "see `gatelock locks list`")


def _waiting(installation: Installation) -> Iterator[Observation]:
    number = installation_status(installation.engine, head()).waiting_judgements
    if number:
        lag_s = max((part.behind_s for part in installation.partitions), default=0.0)
        yield Observation(
            "wrong",
            f"judgements wait: {number:,} totals, the analyzers are {lag_s:.0f} s behind",
            "no surge or share is locked until the backlog is counted; add analyzers if it grows",
        )


def _usual(installation: Installation) -> Iterator[Observation]:
    for policy in policies_without_history(installation.engine):
        yield Observation("fine", policy.sentence)


def _sql_gates(installation: Installation) -> Iterator[Observation]:
    connections = gate_connections(installation.engine)
    if connections is not None and connections.gates > SQL_GATES_MAX:
        yield Observation(
            "wrong",
            f"{connections.gates} gates hold a connection each to the database, which allows "
            f"{connections.connections_max} for all clients",
            'let them read over HTTP, Gate("https://HOST:PORT"), from `gatelock run` or `gatelock serve`',
        )


def _callers(installation: Installation) -> Iterator[Observation]:
    for name, gates in installation.applications().items():
        callers = {caller for gate in gates for caller in gate.status.callers}
        counted = known_among(installation.engine, callers)
        unknown = sorted(callers - counted.known)
        if not callers:
            yield Observation("fine", f"{name}: no caller was checked yet")
        elif (share := 1 - len(unknown) / len(callers)) >= KNOWN_MIN:
            yield Observation("fine", f"{name}: the log knows {share:.0%} of {len(callers)} callers checked")
        else:
            reason, cure = _explain_unknown(installation, unknown, counted.overflow)
            shown = ", ".join(unknown[:LISTED_MAX])
            sentence = f"{name}: the log knows {share:.0%} of {len(callers)} callers checked, but not {shown}"
            yield Observation("wrong", f"{sentence}: {reason}", cure)


def _explain_unknown(installation: Installation, unknown: Sequence[str], overflow: bool) -> tuple[str, str]:
    """The likeliest reason why the log does not know these callers, and the cure."""
    kinds = tuple(dict.fromkeys(kind for source in installation.settings.sources for kind in source.callers))
    spelled = {other.name for caller in unknown for other in spellings(caller, kinds or CALLER_FIELDS)}
    lag_s = max((part.behind_s for part in installation.partitions), default=0.0)
    return cause(
        unknown, LogKnowledge(known_among(installation.engine, spelled).known, kinds, lag_s, overflow)
    )


def _braked(installation: Installation) -> Iterator[Observation]:
    """Policies that their brake holds or slows."""
    for policy, text in installation.braked.items():
        cure = f"see whom it locks: `gatelock policies list {policy}`, then change its limit or release it"
        yield Observation("wrong", f"the brake of policy {policy} acts: {text}", cure)


Check = Callable[[Installation], Iterator[Observation]]


def _facts(installation: Installation) -> Iterator[Observation]:
    waiting = waiting_since(installation.engine)
    if waiting is None:
        return
    since_s = (installation.database.now_ms - waiting.since_ms) / 1000
    if since_s > FACTS_WAIT_S:
        sentence = f"facts that records state wait for {since_s:,.0f} s, of {waiting.callers:,} callers"
        yield Observation(
            "wrong", sentence, "look at the `upkeep` of the analyzer that does it, and at its log"
        )


# Names of findings and their checks, in the order of the output. Two checks may share a name.
CHECKS: tuple[tuple[str, Check], ...] = (
    ("database", _free_space),
    ("clock", _clock),
    ("configuration", _configurations),
    ("plan", _plan),
    ("brake", _braked),
    ("sources", _sources),
    ("delays", delays_and_clocks),
    ("gaps", _gaps),
    ("rejects", _rejects),
    ("duplicates", duplicates),
    ("verdicts", _verdicts),
    ("days", waiting_days),
    ("days", differing_days),
    ("days", expiring_days),
    ("upkeep", _upkeep),
    ("tokens", _tokens),
    ("gates", _suspension),
    ("gates", _gates),
    ("gates", _unasked_values),
    ("gates", _refused),
    ("gates", _sql_gates),
    ("facts", _facts),
    ("locks", _unmet_locks),
    ("locks", _waiting),
    ("locks", late_locks),
    ("locks", _usual),
    ("callers", doubtful_callers),
    ("callers", _callers),
)
