"""Examines a running installation: CHECKS is the table of what `gatelock doctor` looks at.

Each check yields observations: one sentence about one part, and what to do if it is wrong. Checks only read.
docs/doctor.md has a row for each name in the table.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.callers.applied_facts import waiting_since
from analyzer.config.settings import Settings
from analyzer.config.tables.database import CHECK_URL
from analyzer.counting.gaps import recorded_gaps
from analyzer.faces.signals.doctor.alert_delivery_checks import undelivered_alerts
from analyzer.faces.signals.doctor.counting_checks import (
    delays_and_clocks,
    differing_days,
    doubtful_callers,
    duplicates,
    expiring_days,
    late_locks,
    waiting_days,
)
from analyzer.faces.signals.doctor.gate_checks import (
    acting_brakes,
    attacks,
    checked_callers,
    disbelieved_verdicts,
    gate_states,
    gates_over_sql,
    locks_unmet,
    policies_in_shadow,
    refused_by_server,
    suspension,
    usual_histories,
    values_unasked,
    waiting_judgements,
)
from analyzer.faces.signals.doctor.kafka_checks import kafka_group, kafka_topics
from analyzer.faces.signals.doctor.observations import Finding, Installation
from analyzer.faces.signals.signal_kinds import LISTED_MAX, Observation, fine, raised
from analyzer.faces.signals.signal_table import LOOK_EVERY_S, signal_begins
from analyzer.faces.signals.status import InstallationStatus, database_status, installation_status
from analyzer.flush.analyzers import KnownAnalyzer, all_known
from analyzer.flush.followed_partitions import SILENT_MS, FollowedPartition, followed
from analyzer.gates.gate_health import (
    SKEW_S,
    living_gates,
)
from analyzer.gates.gate_reports import reporting_gates
from analyzer.gates.refused_clients import refused_clients
from analyzer.judging.sql.plans import plan_in_force
from analyzer.kernel.database.clock import instant
from analyzer.kernel.database.dialects import dialect_at
from analyzer.kernel.database.engine import open_engine, require_file
from analyzer.kernel.database.revisions import head, schema_problem
from analyzer.kernel.errors import DatabaseUnusable, SchemaBehind, StoreAway, StoreRefused
from analyzer.kernel.jobs.job_runs import JobOutcome, job_outcomes
from analyzer.kernel.secrets import masked
from analyzer.kernel.time_texts import format_span
from analyzer.kernel.tokens import stored_tokens
from analyzer.maintenance.job_table import schedules
from analyzer.plan.plan import Plan
from analyzer.plan.plan_differences import differences, in_words
from analyzer.plan.proposals import applied
from gatekeeper.feed.feed_json import time_text

LAG_S = 30.0
REJECTED_WITHIN_MS = 3_600_000
EXPIRES_SOON_MS = 7 * 86_400_000
FREE_BYTES_MIN = 1 << 30
JOB_OVERDUE_S = 1_800.0  # beyond the time from one moment of a job to the next
FACTS_WAIT_S = 60.0  # before facts hold: a million callers at once take minutes


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
        what = f"{settings.database.shown}: {refused.what}"
        yield Finding.of("database", raised("database-unusable", "", what, refused.cure))
    except StoreAway as away:
        refusal = f"{settings.database.shown} cannot be reached: {away}"
        yield Finding.of("database", Observation("away", refusal, CHECK_URL, "database-away"))
    finally:
        if engine is not None:
            engine.dispose()
    is_reached = True
    for observation in kafka_topics(settings):
        is_reached = is_reached and observation.state == "fine"
        yield Finding.of("kafka", observation)
    if partitions is not None and is_reached:
        for observation in kafka_group(settings, partitions):
            yield Finding.of("kafka", observation)


def _examine_database(settings: Settings, engine: sa.Engine) -> Iterator[Finding]:
    """Every check of CHECKS, unless the tables have another version. Raises StoreAway."""
    status = installation_status(engine, head())
    if problem := schema_problem(status.revision, settings.database.address):
        what = f"{settings.database.shown}: {problem.what}"
        yield Finding.of("database", raised("schema-version", "", what, problem.cure))
        return
    yield Finding.of("database", fine(f"{settings.database.shown}: reached, tables at version {head()}"))
    installation, begins = observed(settings, engine, status), signal_begins(engine)
    for part in CHECKS:
        for observation in part.check(installation):
            yield Finding.of(part.name, observation, begins)


def observed(settings: Settings, engine: sa.Engine, status: InstallationStatus) -> Installation:
    """Returns the installation as the checks look at it. Raises StoreAway."""
    before_ms = time.time() * 1000
    database = database_status(engine, REJECTED_WITHIN_MS)
    after_ms = time.time() * 1000
    plan, unreadable = Plan(), ""
    try:
        plan = plan_in_force(engine) or plan
    except SchemaBehind as behind:
        unreadable = str(behind)
    return Installation(
        settings=settings,
        engine=engine,
        database=database,
        # The query read the database's clock at some moment between the two readings of ours.
        clock_ahead_s=max(database.now_ms - after_ms, min(0.0, database.now_ms - before_ms)) / 1000,
        status=status,
        partitions=followed(engine),
        gates=living_gates(reporting_gates(engine)),
        refused=refused_clients(engine),
        plan=plan,
        plan_unreadable=unreadable,
        analyzers=all_known(engine),
    )


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
            yield raised("disk-space", "", f"{free >> 20} MiB are free where its file is", "free space there")


def _clock(installation: Installation) -> Iterator[Observation]:
    ahead_s = installation.clock_ahead_s
    if abs(ahead_s) <= SKEW_S:
        yield fine("the database's clock agrees with this machine's")
    else:
        side = "ahead of" if ahead_s > 0 else "behind"
        sentence = f"the database's clock is {abs(ahead_s):.1f} s {side} this machine's"
        cure = "synchronise both (NTP): locks are judged by the database's clock"
        yield raised("database-clock", "", sentence, cure)


def _plan(installation: Installation) -> Iterator[Observation]:
    if installation.database.plan is None:
        yield raised("no-analyzer", "", "no analyzer has run on this database", "start `gatelock run`")
    elif installation.plan_unreadable:
        cure = "install the newer version here, too"
        yield raised("plan-unreadable", "", installation.plan_unreadable, cure)
    else:
        yield from _files(installation.living_analyzers, installation.plan)
        yield from _groups(installation.living_analyzers)
        yield from _unready(installation)


def _own_configuration(installation: Installation) -> Iterator[Observation]:
    """Whether the configuration that `doctor` was given is in force."""
    settings, plan = installation.settings, installation.plan
    if installation.database.plan is None or installation.plan_unreadable:
        return
    proposed = applied(plan, settings.plan(), prune=False) if settings.sources else plan
    if lines := differences(plan, proposed):
        sentence = f"this configuration is not in force: {in_words(lines)}"
        cure = "save it where an analyzer reads it, or run `gatelock policies apply`"
        yield raised("plan-differs", "", sentence, cure)
    else:
        yield fine("the analyzers count and judge by this configuration")


def _configurations(installation: Installation) -> Iterator[Observation]:
    """Changed files that living analyzers refuse."""
    for analyzer in installation.living_analyzers:
        if analyzer.refused:
            sentence = (
                f"the changed configuration of {analyzer.name} is refused, the one before is in force: "
                f"{analyzer.refused}"
            )
            cure = "correct the file: it is read again when it changes"
            yield raised("configuration-refused", analyzer.name, sentence, cure)


def _files(living: Sequence[KnownAnalyzer], plan: Plan) -> Iterator[Observation]:
    """Living analyzers whose file is not the plan in force."""
    for analyzer in living:
        differing = [part for part, digest in analyzer.file.items() if plan.parts.get(part) != digest]
        if not differing:
            continue
        parts = ", ".join(differing)
        if all(analyzer.settled.get(part) == analyzer.file[part] for part in differing):
            yield raised(
                "analyzer-file-differs",
                analyzer.name,
                f"{analyzer.name} has a file that is not in force in: {parts}",
                "give it the file of the others, or put its own in force: `gatelock policies apply`",
            )
        else:
            yield raised(
                "analyzer-file-waits",
                analyzer.name,
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
            yield raised(
                "two-groups",
                topic,
                f"two groups count {topic} into this database: {shown}",
                "nothing is counted twice, but they lose each other's work: give both one group_id",
            )


def _unready(installation: Installation) -> Iterator[Observation]:
    if names := installation.database.unready:
        yield raised(
            "totals-filling",
            "",
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
        yield fine("no source is configured here, and none is followed")


def _source(name: str, partitions: Sequence[FollowedPartition]) -> Observation:
    ages_s = {part: part.heard_s for part in partitions if part.heard_s is not None}  # of heartbeats
    silent = [part for part, age_s in ages_s.items() if age_s * 1000 > SILENT_MS]
    lag_s = max((part.behind_s for part in ages_s), default=0.0)
    if not partitions:
        return raised(
            "source-unread",
            name,
            f"{name}: no record was ever read",
            "start `gatelock run`, and check the name of its topic or file",
        )
    if silent:
        return raised(
            "source-silent",
            name,
            f"{name}: no heartbeat for {max(ages_s[part] for part in silent):.0f} s from an analyzer of "
            f"{_listed(silent)}",
            f"start `gatelock run`, or run `gatelock upkeep sources retire {shlex.quote(name)} "
            "--reason TEXT` if it ended",
        )
    if lag_s > LAG_S:
        return raised(
            "source-lag",
            name,
            f"{name}: {lag_s:.0f} s behind; locks are late by as much",
            "add analyzers, up to one for each partition",
        )
    if not ages_s:
        return fine(f"{name}: not followed now; `gatelock run` follows what is configured")
    return fine(f"{name}: {len(ages_s)} of {len(partitions)} partitions followed, {lag_s:.1f} s behind")


def _listed(partitions: Sequence[FollowedPartition]) -> str:
    names = ", ".join(f"{part.topic}[{part.partition}]" for part in partitions[:LISTED_MAX])
    return names + (f" and {len(partitions) - LISTED_MAX} more" if len(partitions) > LISTED_MAX else "")


def _gaps(installation: Installation) -> Iterator[Observation]:
    gaps = [gap for gap in recorded_gaps(installation.engine) if gap.accepted is None]
    for gap in gaps[:LISTED_MAX]:
        yield raised(
            "partition-stopped",
            str(gap.part),
            f"{gap.part} is stopped: {gap.gap.why}",
            "run `gatelock upkeep sources list --gaps`: it prints the command that resumes each",
        )
    if len(gaps) > LISTED_MAX:
        more = f"{len(gaps) - LISTED_MAX} more are stopped"
        yield raised("partition-stopped", "", more, "see `gatelock upkeep sources list --gaps`")
    if not gaps:
        yield fine("no partition is stopped")


def _rejects(installation: Installation) -> Iterator[Observation]:
    rejected = installation.database.rejected
    if rejected:
        most = max(rejected, key=lambda reason: rejected[reason])
        yield raised(
            "rejected-records",
            "",
            f"{sum(rejected.values()):,} records could not be read in the last hour, mostly: {most}",
            "see `gatelock upkeep rejects list`",
        )
    else:
        yield fine("every record of the last hour could be read")


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
        yield fine(f"{len(outcomes)} jobs, each done within the last {format_span(oldest_s)}")


def _job(outcome: JobOutcome, every_s: int) -> Observation | None:
    """Returns what is wrong with a job whose moments are `every_s` apart, or None."""
    if outcome.failing_s is not None:
        return raised(
            "job-fails",
            outcome.name,
            f"{outcome.name} has failed for {format_span(outcome.failing_s)}, last "
            f"{format_span(outcome.failed_s or 0.0)} ago, in {outcome.owner}: {outcome.error}",
            "counting continues, but tables grow: remove the cause; the job is tried again by itself",
        )
    if outcome.done_s is not None and outcome.done_s > every_s + JOB_OVERDUE_S:
        return raised(
            "job-late",
            outcome.name,
            f"{outcome.name} was last done {format_span(outcome.done_s)} ago",
            "it cannot keep up, it is catching up after a pause, or no `gatelock run` works",
        )
    return None


def _tokens(installation: Installation) -> Iterator[Observation]:
    tokens = stored_tokens(installation.engine)
    for token in tokens.tokens:
        if token.until_ms is not None and token.until_ms < tokens.now_ms + EXPIRES_SOON_MS:
            verb = "expired" if token.until_ms <= tokens.now_ms else "expires"
            yield raised(
                "token-expires",
                token.name,
                f"{token.name} {verb} at {time_text(instant(token.until_ms))}",
                f"run `gatelock upkeep tokens create NAME --scope {token.scope}`, give its token, then run "
                f"`gatelock upkeep tokens revoke {shlex.quote(token.name)}`",
            )


def _analyzer_problems(installation: Installation) -> Iterator[Observation]:
    """Problems that only a living analyzer can see."""
    for analyzer in installation.living_analyzers:
        for name, sentence in analyzer.problems.items():
            what = f"{analyzer.name}: {sentence}"
            yield raised("analyzer-problem", f"{analyzer.name} {name}", what, "see its log")


Check = Callable[[Installation], Iterator[Observation]]


def _facts(installation: Installation) -> Iterator[Observation]:
    waiting = waiting_since(installation.engine)
    if waiting is None:
        return
    since_s = (installation.database.now_ms - waiting.since_ms) / 1000
    if since_s > FACTS_WAIT_S:
        sentence = f"facts that records state wait for {since_s:,.0f} s, of {waiting.callers:,} callers"
        cure = "look at the `upkeep` of the analyzer that does it, and at its log"
        yield raised("facts-wait", "", sentence, cure)


class ExaminationPart(NamedTuple):
    """A check.

    Attributes:
        name: The name of its findings; several checks may share one.
        check: Yields what it observes.
        every_s: How often it is done for the table of signals; 0: for `gatelock doctor` alone.
    """

    name: str
    check: Check
    every_s: int = LOOK_EVERY_S


MINUTE_S = 60  # of checks that read many rows

# In the order of the output
CHECKS: tuple[ExaminationPart, ...] = (
    ExaminationPart("database", _free_space),
    ExaminationPart("clock", _clock),
    ExaminationPart("configuration", _configurations),
    ExaminationPart("plan", _own_configuration, 0),
    ExaminationPart("plan", _plan),
    ExaminationPart("plan", _analyzer_problems),
    ExaminationPart("brake", acting_brakes),
    ExaminationPart("sources", _sources),
    ExaminationPart("delays", delays_and_clocks),
    ExaminationPart("gaps", _gaps),
    ExaminationPart("rejects", _rejects),
    ExaminationPart("duplicates", duplicates, MINUTE_S),
    ExaminationPart("verdicts", disbelieved_verdicts),
    ExaminationPart("days", waiting_days, MINUTE_S),
    ExaminationPart("days", differing_days),
    ExaminationPart("days", expiring_days, MINUTE_S),
    ExaminationPart("upkeep", _upkeep),
    ExaminationPart("alerts", undelivered_alerts, MINUTE_S),
    ExaminationPart("tokens", _tokens),
    ExaminationPart("gates", suspension),
    ExaminationPart("gates", gate_states),
    ExaminationPart("gates", values_unasked),
    ExaminationPart("gates", refused_by_server),
    ExaminationPart("gates", gates_over_sql, MINUTE_S),
    ExaminationPart("facts", _facts),
    ExaminationPart("locks", locks_unmet, MINUTE_S),
    ExaminationPart("locks", waiting_judgements),
    ExaminationPart("locks", attacks),
    ExaminationPart("locks", policies_in_shadow),
    ExaminationPart("locks", late_locks, MINUTE_S),
    ExaminationPart("locks", usual_histories, 0),
    ExaminationPart("callers", doubtful_callers, 0),
    ExaminationPart("callers", checked_callers, MINUTE_S),
)
