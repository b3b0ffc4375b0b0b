"""Checks of what is counted: days, delays and clocks, ids of events, and how records are read."""

from __future__ import annotations

from collections.abc import Iterator

from analyzer.billing.audit.audit_outcomes import differing_in_words
from analyzer.billing.days.targets import awaited_now
from analyzer.billing.hand_over.expiring_usage import expiring_usage
from analyzer.billing.reports.day_status import open_days
from analyzer.config.values import format_duration
from analyzer.counting.measured_delays import alarms
from analyzer.counting.records.reading_doubts import REQUESTS_MIN, doubt
from analyzer.counting.repeated_records import kept_ids, repeated_records
from analyzer.counting.usage import UsageQuery, usage_rows
from analyzer.counting.usage_windows import counted_range
from analyzer.delays.exceeded_overshoots import recent_overshoots
from analyzer.delays.partition_delays import measured_by_owner
from analyzer.faces.awaited_partitions import describe
from analyzer.faces.signals.doctor.observations import Installation
from analyzer.faces.signals.signal_kinds import LISTED_MAX, Observation, fine, raised
from analyzer.plan.meters import DAY_S, REQUESTS

LATE_MS = 600_000  # after the grace of a day: usually it is closed within seconds


def waiting_days(installation: Installation) -> Iterator[Observation]:
    """Yields the partitions that days wait for which should be closed by now."""
    billing = installation.settings.billing
    for day in open_days(installation.engine):
        late_ms = day.due_ms(billing.grace) + LATE_MS
        if day.zone not in billing.zones or installation.database.now_ms < late_ms:
            continue
        for partition in awaited_now(installation.engine, day):
            awaited = describe(installation.engine, installation.settings, day, partition)
            gaps = "" if partition.renamed_ms else "`gatelock upkeep sources list --gaps`, or "
            yield raised(
                "day-waits", str(day), f"{day} waits for {awaited.sentence}", f"{gaps}`{awaited.command}`"
            )


def differing_days(installation: Installation) -> Iterator[Observation]:
    """Yields the closed days in which the last audit found a difference."""
    for day, sentence in differing_in_words(installation.engine).items():
        cure = "`gatelock billing audit --day DATE` compares it again and names all"
        yield raised("day-differs", day, sentence, cure)


def expiring_days(installation: Installation) -> Iterator[Observation]:
    """Yields the usage that a billing service takes for some more days only."""
    expiring = expiring_usage(installation.engine)
    for usage in expiring[:LISTED_MAX]:
        yield raised("usage-expires", str(usage.day), str(usage), f"run `{usage.command}`")
    if len(expiring) > LISTED_MAX:
        more = f"{len(expiring) - LISTED_MAX} more amounts that a billing service takes for some days only"
        yield raised("usage-expires", "", more, "see `gatelock billing days list`")


DELAY_CURES = {
    "shipping-delay": "look at the shipper between the log and Kafka: its buffers, its retries, its machine",
    "clock-skew": "synchronise these machines (NTP): locks are judged by the database's clock",
}
LATE_CURE = (
    "compare the parts of the delay: `gatelock check`; see that gates ask for the caller: "
    "`gatelock explain CALLER`, and that the log shows what they deny: `deny_if`"
)

COUNTING_CURE = (
    "look at the analyzer's log of that time; a second analyzer takes over from one that stops. The line ends"
    " an hour after the last of these locks"
)


def late_locks(installation: Installation) -> Iterator[Observation]:
    """Yields for each cause the locks of the last hour whose overshoot exceeds what `gatelock check` says."""
    for late in recent_overshoots(installation.engine, installation.settings.analyzer.flush_every):
        yield raised("locks-late", late.cause, str(late), COUNTING_CURE if late.cause else LATE_CURE)


def delays_and_clocks(installation: Installation) -> Iterator[Observation]:
    """Yields the shipping delay of each source, and the alarms of each analyzer."""
    for owner, measured in measured_by_owner(installation.engine).items():
        sentences = alarms(measured, installation.settings.delays.limits)
        for name, sentence in sentences.items():
            yield raised(name, owner, f"{owner}: {sentence}", DELAY_CURES[name])
        for source, delay in measured.sources.items() if not sentences else ():
            yield fine(
                f"{source}: records reach Kafka {delay.p50_ms / 1000:g} s after their requests, 99 % of them "
                f"within {delay.p99_ms / 1000:g} s, by {owner}",
            )


def duplicates(installation: Installation) -> Iterator[Observation]:
    """Yields the callers whose records often come twice, and the partitions with a shorter horizon."""
    for repeated in repeated_records(installation.engine):
        cure = "look at what writes these records: it repeats them"
        yield raised("duplicate-records", repeated.caller, str(repeated), cure)
    wanted_s = {source.name: source.id_horizon for source in installation.settings.sources if source.id}
    short = [
        kept
        for kept in kept_ids(installation.engine)
        if kept.source in wanted_s and kept.kept_ms < wanted_s[kept.source] * 1000
    ]
    for kept in short[:LISTED_MAX]:
        yield raised(
            "id-horizon",
            str(kept),
            f"{kept}: ids are remembered for {kept.kept_ms / 1000:,.0f} s, instead of "
            f"{format_duration(wanted_s[kept.source])}: there are more than ids_max",
            "raise ids_max of the source, or lower its id_horizon",
        )
    if len(short) > LISTED_MAX:
        more = f"{len(short) - LISTED_MAX} more partitions keep ids for a shorter time"
        yield raised("id-horizon", "", more, "")


def doubtful_callers(installation: Installation) -> Iterator[Observation]:
    """Yields the question that the newest counted day raises."""
    counted = counted_range(installation.engine, "caller")
    if counted is None:
        return
    from_s = (counted.until_s - 1) // DAY_S * DAY_S
    query = UsageQuery("caller", DAY_S, from_s=from_s, top=REQUESTS_MIN, meter=REQUESTS.name)
    requests: dict[str, int] = {}
    for row in usage_rows(installation.engine, query):
        requests[row.key] = requests.get(row.key, 0) + row.value + row.denied
    busiest = max(requests, key=lambda key: requests[key], default="")
    if question := doubt(sum(requests.values()), len(requests), busiest):
        yield fine(question, "see `gatelock look FILE` for other fields with addresses")
