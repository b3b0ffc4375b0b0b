"""Policies, gates, days, health and trail: what is configured, who enforces it, and whether it all works."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any, cast

from analyzer.billing.audit.audit_outcomes import outcomes
from analyzer.billing.hand_over.delivered_sums import read_delivered_sums
from analyzer.billing.reports.day_status import day_statuses
from analyzer.delays.partition_delays import measured_by_owner, partition_delays
from analyzer.faces.api.endpoints import NotThere
from analyzer.faces.day_answers import audit_fields, day_fields, delivery_fields
from analyzer.faces.pages.page_content import ActForm, Column, Content, PageTable, Tile
from analyzer.faces.pages.page_filters import SPANS_S
from analyzer.faces.pages.page_request import PageRequest, utc_text
from analyzer.faces.pages.traffic_pages import LOCK_COLUMNS
from analyzer.faces.signals.status import installation_status
from analyzer.flush.followed_partitions import followed
from analyzer.flush.rejects import RejectFilter, rejected
from analyzer.gates.gate_answers import listed_gates
from analyzer.judging.locks.stored_locks import locks_in_force
from analyzer.judging.policy_answers import HISTORY_COLUMNS, listed_policies, plan_history, shown_policies
from analyzer.judging.sql.plans import plan_in_force
from analyzer.kernel.database.audit_log import entries
from analyzer.kernel.database.revisions import head
from analyzer.kernel.logs import printable
from analyzer.maintenance.job_answers import listed_jobs
from analyzer.maintenance.job_table import schedules
from analyzer.plan.plan import Plan
from gatekeeper.feed.feed_json import change_fields, time_text
from gatekeeper.model import Set

ROWS = 500
DELIVERED_DAYS = 10  # whose deliveries are compared with their rows for a page
SAMPLE_MAX = 40  # characters of a rejected record, in which letters and digits are hidden


def policies(request: PageRequest) -> Content:
    """Returns the policies in force with their locks, and the plans before."""
    engine, filters = request.engine, request.filters
    held = Counter(lock.policy for lock in islice(locks_in_force(engine), 100_000))
    in_shadow = Counter(lock.policy for lock in islice(locks_in_force(engine, in_shadow=True), 100_000))
    rows = [
        row | {"locks": held[str(row["name"])], "shadow": in_shadow[str(row["name"])]}
        for row in listed_policies(engine)
        if filters.mode in ("", row["mode"]) and filters.policy.lower() in str(row["name"]).lower()
    ]
    columns = (
        Column("name", "Policy", "policy"), Column("mode", "Mode", "state"), Column("what", "Rule"),
        Column("locks", "Locks", "count"), Column("shadow", "Locks in shadow", "count"),
        Column("brake", "Brake", "state"),
    )  # fmt: skip
    history = [dict(zip(HISTORY_COLUMNS, row, strict=True)) for row in islice(plan_history(engine), 50)]
    plans = (
        Column("at", "In force since", "time"), Column("plan", "Plan"), Column("who", "By"),
        Column("difference", "What changed"),
    )  # fmt: skip
    return Content(
        "Policies",
        tables=[
            PageTable(
                "policies", "In force", columns, rows, "No policy is in force: add one to [[policies]]."
            ),
            PageTable("plans", "Plans that came in force", plans, history, "No plan came in force yet."),
        ],
    )


def policy(request: PageRequest) -> Content:
    """Returns a policy, its candidate, and what both have done. Raises NotThere for an unknown one."""
    engine, name = request.engine, request.filters.policy
    plan = plan_in_force(engine) or Plan()
    shown = plan.family(name)
    if not shown:
        raise NotThere("no such policy is in force")
    fields = shown_policies(engine, shown, request.filters.now_s - SPANS_S[request.filters.span])
    outcome_rows = [
        {"policy": answer["name"], **outcome}
        for answer in fields
        for outcome in cast("list[dict[str, Any]]", answer["outcomes"])
    ]
    names = list(dict.fromkeys(key for row in outcome_rows for key in row))
    columns = [
        Column(key, key.replace("_", " ").capitalize(), "count" if key == "locks" else "text")
        for key in names
    ]
    rows = [change_fields(Set(lock)) for lock in islice(locks_in_force(engine, policy=name), ROWS)]
    is_held = shown[0].is_shadow or len(shown) > 1 or bool(fields[0]["brake"])
    forms = (
        [ActForm("Enforce it", "/v1/policies/enforce", {"policy": name}, [], "Enforce")]
        if is_held and request.visitor.may_act("admin")
        else []
    )
    return Content(
        name,
        "; ".join(str(answer["what"]) for answer in fields),
        tiles=[
            Tile(f"mode of {answer['name']}", str(answer["mode"]), str(answer["brake"] or ""))
            for answer in fields
        ],
        forms=forms,
        tables=[
            PageTable("outcomes", f"What it did in the last {request.filters.span}", columns or LOCK_COLUMNS,
                  outcome_rows, "It has set no lock in this time."),
            PageTable("locks", "Locks in force", LOCK_COLUMNS, rows, "It locks no caller at this time."),
        ],
    )  # fmt: skip


def gates(request: PageRequest) -> Content:
    """Returns the gates that report, with the age of their views and what is wrong with each."""
    rows: list[dict[str, Any]] = []
    for gate in listed_gates(request.engine).as_objects():
        wrong = cast("dict[str, str]", gate["wrong"])
        rows.append(gate | {"state": "; ".join(wrong.values())})
    columns = (
        Column("application", "Application"), Column("instance", "Process"), Column("mode", "Mode"),
        Column("version", "Version", "count"), Column("age_s", "Age of its view", "age"),
        Column("heard_s", "Reported", "age"), Column("checks", "Checks", "count"),
        Column("denials", "Denied", "count"), Column("state", "Wrong", "state"),
    )  # fmt: skip
    empty = "No gate has reported yet. An application gets one by gatekeeper.Gate."
    return Content("Gates", tables=[PageTable("gates", "Gates", columns, rows, empty)])


def days(request: PageRequest) -> Content:
    """Returns the days of billing: open, closed, corrected, audited, and what was handed over."""
    engine = request.engine
    audited = {outcome.day: outcome for outcome in outcomes(engine)}
    statuses = sorted(day_statuses(engine, None), key=lambda status: (-status.day.begin_s, status.day.zone))
    rows = [day_fields(status) | audit_fields(audited.get(status.day.id)) for status in statuses]
    columns = (
        Column("day", "Day"), Column("zone", "Zone"), Column("state", "State", "state"),
        Column("requests", "Requests", "count"), Column("rows", "Rows", "count"),
        Column("adjusted", "Late", "count"), Column("corrected", "Corrected", "count"),
        Column("closed", "Closed", "time"), Column("audit", "Audit", "state"),
        Column("digest", "Digest"),
    )  # fmt: skip
    empty = "No day is closed yet: set zones in [billing], and the first day closes after its end."
    reports = [
        {"day": status.day.date, "zone": status.day.zone,
         "address": f"/download/report?day={status.day.date}&zone={status.day.zone}"}
        for status in statuses if status.day.state == "closed" and status.deleted_ms is None
    ]  # fmt: skip
    files = (Column("day", "Day"), Column("zone", "Zone"), Column("address", "Report"))
    newest = {status.day.id: status.day for status in statuses[:DELIVERED_DAYS]}
    delivered = [
        {"day": newest[day].date, "zone": newest[day].zone, **delivery_fields(sums)}
        for day, deliveries in read_delivered_sums(engine, list(newest.values())).items()
        for sums in deliveries
    ]
    delivery_columns = (
        Column("day", "Day"), Column("zone", "Zone"), Column("destination", "To"), Column("by", "By"),
        Column("meter", "Meter"), Column("kind", "Kind"), Column("amount", "Acknowledged", "count"),
        Column("left_out_amount", "Left out", "count"), Column("to_send", "Left to send", "count"),
        Column("of_day", "The day has", "count"), Column("difference", "Differs", "state"),
    )  # fmt: skip
    return Content(
        "Days",
        tables=[
            PageTable("days", "Days", columns, rows, empty),
            PageTable(
                "deliveries",
                f"Handed over, of the last {DELIVERED_DAYS} days",
                delivery_columns,
                delivered,
                "Nothing of these days was handed over to a billing service.",
            ),
            PageTable("reports", "Reports to download", files, reports, "No closed day has rows to report."),
        ],
    )


def health(request: PageRequest) -> Content:
    """Returns lag and delays of each partition, rejected records with hidden contents, and jobs."""
    engine = request.engine
    measured = measured_by_owner(engine)
    parts = [
        part._asdict()
        | partition_delays(part.owner, part.source, f"{part.topic}[{part.partition}]", measured)._asdict()
        for part in followed(engine)
    ]
    columns = (
        Column("source", "Source"), Column("topic", "Topic"), Column("partition", "Partition"),
        Column("next", "Next offset", "count"), Column("behind_records", "Behind", "count"),
        Column("behind_s", "Lag", "age"), Column("heard_s", "Heartbeat", "age"),
        Column("shipping_p99_s", "Shipping, 99 %", "age"), Column("owner", "Analyzer"),
    )  # fmt: skip
    since_ms = (request.filters.now_s - SPANS_S[request.filters.span]) * 1000
    samples = [
        {
            "found": time_text(reject.found),
            "where": reject.where,
            "reason": reject.reason,
            "sample": _hidden(reject.sample),
        }
        for reject in islice(rejected(engine, RejectFilter(since_ms=since_ms)), 50)
    ]
    rejects = (
        Column("found", "Found", "time"), Column("where", "Where"), Column("reason", "Reason"),
        Column("sample", "Begin, with its letters and digits hidden"),
    )  # fmt: skip
    jobs = (
        Column("job", "Job"), Column("schedule", "Runs"), Column("began", "Last run", "time"),
        Column("outcome", "Outcome"), Column("error", "Error", "state"),
        Column("next", "Next", "time"), Column("holder", "By"),
    )  # fmt: skip
    listed = sorted(listed_jobs(engine, schedules(request.context.settings.retention.kept)))
    job_rows = [job._asdict() | (job.last or {}) | {"next": job.next} for job in listed]
    status = installation_status(engine, head())
    return Content(
        "Health",
        tiles=[
            Tile("version of the tables", status.revision or "none", "needed: " + head()),
            Tile("version of the feed", f"{status.feed_version:,}"),
            Tile("waiting judgements", f"{status.waiting_judgements:,}", "until a backlog is counted"),
            Tile("days with a difference", f"{status.differing_days:,}", "found by audits",
                 "bad" if status.differing_days else "good"),
        ],
        tables=[
            PageTable("partitions", "Partitions", columns, parts, "No partition was ever read."),
            PageTable("rejected", f"Rejected records of the last {request.filters.span}", rejects, samples,
                  "No record was rejected in this time."),
            PageTable("jobs", "Jobs", jobs, job_rows, "No job is known."),
        ],
    )  # fmt: skip


def trail(request: PageRequest) -> Content:
    """Returns the audit log: who did what, and why."""
    since_ms = (request.filters.now_s - SPANS_S[request.filters.span]) * 1000
    text = request.filters.caller.lower()
    matching = (entry for entry in entries(request.engine, since_ms) if text in entry.about.lower())
    rows = [
        {
            "at": utc_text(entry.at.timestamp()),
            "who": entry.who,
            "act": entry.act,
            "about": entry.about,
            "why": entry.why,
        }
        for entry in islice(matching, ROWS)
    ]
    columns = (
        Column("at", "Time", "time"), Column("who", "By"), Column("act", "Act"), Column("about", "About"),
        Column("why", "Why"),
    )  # fmt: skip
    empty = f"Nothing was done in the last {request.filters.span}."
    return Content("Trail", tables=[PageTable("trail", "Audit log", columns, rows, empty)])


def _hidden(sample: bytes) -> str:
    """Returns the begin of a sample with its letters and digits replaced: its form remains."""
    text = sample[:SAMPLE_MAX].decode(errors="replace")
    return printable("".join("x" if character.isalnum() else character for character in text))
