"""Health: how far counting is behind, how fast it is, which delays make the bound, and what is not fine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, pairwise
from typing import Any

from analyzer.delays.delay_parts import delay_parts
from analyzer.delays.living_delays import living_delays
from analyzer.delays.partition_delays import measured_by_owner, partition_delays
from analyzer.faces.pages.page_content import (
    Bar,
    Chart,
    Chip,
    Column,
    Content,
    Histogram,
    Layer,
    PageTable,
    Tile,
)
from analyzer.faces.pages.page_request import PageRequest
from analyzer.faces.signals.status import installation_status
from analyzer.flush.followed_partitions import SILENT_MS, FollowedPartition, followed
from analyzer.flush.rejects import RejectFilter, rejected
from analyzer.judging.sql.brake_rows import TrafficSample, traffic_samples_since
from analyzer.kernel.database.revisions import head
from analyzer.kernel.logs import printable
from analyzer.kernel.number_texts import count_text, length_text
from analyzer.kernel.sentences import plural
from analyzer.maintenance.job_answers import ListedJob, listed_jobs
from analyzer.maintenance.job_table import schedules
from gatekeeper.feed.feed_json import time_text

STALE_S = 60.0
SAMPLE_MAX = 40  # characters of a rejected record, in which letters and digits are hidden
REJECTS = 50

PARTITION_COLUMNS = (
    Column("where", "Partition", rank=1), Column("source", "Source"), Column("state", "State", "state"),
    Column("behind_s", "Lag", "age"), Column("behind_records", "Behind, records", "count"),
    Column("heard_s", "Heartbeat", "age"), Column("shipping_p99_s", "Shipping, 99 %", "age"),
    Column("next", "Next offset", "count"), Column("owner", "Analyzer"),
)  # fmt: skip
REJECT_COLUMNS = (
    Column("found", "Found", "time"), Column("where", "Where", rank=1), Column("reason", "Reason"),
    Column("sample", "Begin, with its letters and digits hidden", rank=3),
)  # fmt: skip
JOB_COLUMNS = (
    Column("job", "Job", rank=1), Column("outcome", "Outcome", "state"), Column("schedule", "Runs"),
    Column("began", "Last run", "time"), Column("next", "Next", "time"), Column("holder", "By"),
    Column("error", "Error", rank=3),
)  # fmt: skip


def health(request: PageRequest) -> Content:
    """Returns lag, throughput and delays, rejected records with hidden contents, and jobs."""
    engine = request.engine
    parts = followed(engine)
    samples = traffic_samples_since(engine, (request.filters.now_s - request.filters.length_s) * 1000)
    return Content(
        "Health",
        tiles=_tiles(request, parts, samples),
        blocks=[
            *_over_time(samples), _delays(request), _partitions(request, parts), _jobs(request),
            _rejects(request),
        ],
    )  # fmt: skip


def _rates(samples: Sequence[TrafficSample]) -> list[int]:
    """Returns the records per second since the sample before each one but the first."""
    return [
        round(max(0, later.counted - sample.counted) * 1000 / max(1, later.at_ms - sample.at_ms))
        for sample, later in pairwise(samples)
    ]


def _tiles(
    request: PageRequest, parts: Sequence[FollowedPartition], samples: Sequence[TrafficSample]
) -> list[Tile]:
    status = installation_status(request.engine, head())
    lag_s = max((part.behind_s for part in parts), default=0.0)
    rates = _rates(samples)
    silent = [part for part in parts if part.heard_s is not None and part.heard_s * 1000 > SILENT_MS]
    return [
        Tile("lag", length_text(round(lag_s, 1)), "of the partition that is furthest behind",
             "bad" if lag_s > STALE_S else "good", [sample.behind_ms for sample in samples[1:]]),
        Tile("records per second", count_text(rates[-1]) if rates else "unknown", "last minute", line=rates),
        Tile("partitions", f"{len(parts):,}", f"{len(silent)} silent", "bad" if silent else "plain"),
        Tile("waiting judgements", f"{status.waiting_judgements:,}", "until a backlog is counted",
             "watch" if status.waiting_judgements else "plain"),
        Tile("days with a difference", f"{status.differing_days:,}", "found by audits",
             "bad" if status.differing_days else "good", address="/days"),
        Tile("feed", f"{status.feed_version:,}", f"version; tables {status.revision or 'none'}"),
    ]  # fmt: skip


def _over_time(samples: Sequence[TrafficSample]) -> list[Chart]:
    """Returns the lag and the throughput of the last hours, as they were noted each minute."""
    times = [sample.at_ms // 1000 for sample in samples[1:]]
    rates, lags = _rates(samples), [sample.behind_ms * 1000 for sample in samples[1:]]
    most = max(lags, default=0)
    about = f"The partition furthest behind, each minute; at most {length_text(most / 10**6)}." if lags else (
        "Noted each minute while an analyzer runs: nothing yet."
    )  # fmt: skip
    rate = f"Records counted per second; at most {count_text(max(rates))}." if rates else about
    return [
        Chart("Lag", about, times, [Layer("lag", lags)], "duration", is_half=True),
        Chart("Throughput", rate, times, [Layer("records per second", rates)], is_half=True),
    ]


def _delays(request: PageRequest) -> Histogram:
    """Returns the delays from a request to the last gate that applies its lock, which make the bound."""
    engine, settings = request.engine, request.context.settings
    living = living_delays(engine, ())
    parts = delay_parts(settings.analyzer.flush_every, living.measured, living.view_ages_s)
    values = {
        "shipping": parts.delay.shipping_s, "fetch": parts.delay.fetch_s, "flush": parts.delay.flush_s,
        "commit": parts.delay.commit_s, "poll": parts.delay.poll_s, "clocks": parts.delay.clocks_s,
    }  # fmt: skip
    bars = [
        Bar(name, round(values[name] * 10**6), length_text(round(values[name], 3)))
        for name in values
        if name in parts.origins
    ]
    origins = ", ".join(f"{name} {origin}" for name, origin in parts.origins.items())
    total = length_text(round(parts.delay.total_s, 2))
    return Histogram(
        "Delays that make the bound",
        f"A lock reaches the last gate within {total} of the record: {origins}. The request comes in front.",
        bars,
    )


def _partitions(request: PageRequest, parts: Sequence[FollowedPartition]) -> PageTable:
    measured = measured_by_owner(request.engine)
    rows = []
    for part in parts:
        where = f"{part.topic}[{part.partition}]"
        delays = partition_delays(part.owner, part.source, where, measured)
        rows.append(part._asdict() | delays._asdict() | {"where": where, "state": _state(part)})
    rows.sort(key=lambda row: (row["state"].mood == "good", row["where"]))
    return PageTable("partitions", "Partitions", PARTITION_COLUMNS, rows, "No partition was ever read.")


def _state(part: FollowedPartition) -> Chip:
    if part.heard_s is None:
        return Chip("not followed")
    if part.heard_s * 1000 > SILENT_MS:
        return Chip("silent", "bad")
    return Chip("behind", "watch") if part.behind_s > STALE_S else Chip("counting", "good")


def _jobs(request: PageRequest) -> PageTable:
    """Returns the jobs that are not fine, or the sentence that all are."""
    known = listed_jobs(request.engine, schedules(request.context.settings.retention.kept))
    rows = [_job_row(job) for job in sorted(known)]
    wrong = [row for row in rows if row["outcome"] and row["outcome"].mood != "good"]
    never = sum(row["outcome"] is None for row in rows)
    fine = len(rows) - len(wrong) - never
    text = f"{fine} of {plural(len(rows), 'job')} fine"
    text += f", {never} not due yet." if never else "."
    note = f"{text} The files have all." if wrong else ""
    return PageTable("jobs", "Jobs", JOB_COLUMNS, wrong, text, note, all_rows=lambda: rows)


def _job_row(job: ListedJob) -> dict[str, Any]:
    last: dict[str, Any] = dict(job.last or {})
    outcome, moods = str(last.get("outcome") or ""), {"done": "good", "running": "good", "failed": "bad"}
    chip = Chip(outcome, moods.get(outcome, "watch")) if outcome else None  # type: ignore[arg-type]  # moods are texts
    return job._asdict() | last | {"outcome": chip, "next": job.next}


def _rejects(request: PageRequest) -> PageTable:
    since_ms = (request.filters.now_s - request.filters.length_s) * 1000
    samples = [
        {"found": time_text(reject.found), "where": reject.where, "reason": reject.reason,
         "sample": _hidden(reject.sample)}
        for reject in islice(rejected(request.engine, RejectFilter(since_ms=since_ms)), REJECTS)
    ]  # fmt: skip
    return PageTable(
        "rejected", f"Rejected records of {request.filters.time_text}", REJECT_COLUMNS, samples,
        "No record was rejected in this time.", f"The newest {REJECTS}." if len(samples) == REJECTS else "",
    )  # fmt: skip


def _hidden(sample: bytes) -> str:
    """Returns the begin of a sample with its letters and digits replaced: its form remains."""
    text = sample[:SAMPLE_MAX].decode(errors="replace")
    return printable("".join("x" if character.isalnum() else character for character in text))
