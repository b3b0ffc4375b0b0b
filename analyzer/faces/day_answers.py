"""Days that are closed or open, their audits, and the partitions that they wait for."""

from __future__ import annotations

from collections.abc import Iterable

from analyzer.billing.audit.audit_outcomes import AuditOutcome
from analyzer.billing.hand_over.delivered_sums import DeliveredSums
from analyzer.billing.reports.day_status import DayPosition, DayStatus
from analyzer.kernel.time_texts import format_second
from analyzer.replay.generations import Replay


def day_fields(status: DayStatus) -> dict[str, object]:
    """The JSON object of a day, without its partitions."""
    day = status.day
    return {
        "day": day.date, "zone": day.zone, "state": day.state, "begin": format_second(day.begin_s),
        "end": format_second(day.end_s), "cut": _time(day.cut_ms), "closed": _time(day.closed_ms),
        "deleted": _time(status.deleted_ms),
        "groupings": ", ".join(day.groupings), "requests": day.requests, "rows": day.rows,
        "adjusted": status.adjusted, "corrected": status.corrected, "digest": day.digest,
        "digest_before": day.digest_before, "digest_key": day.digest_key,
    }  # fmt: skip


def audit_fields(audit: AuditOutcome | None) -> dict[str, object]:
    """The JSON keys about the last audit of a day; without values shortly after it was closed."""
    if audit is None:
        return {"audit": None, "audited": None, "audited_by": None, "differences": [], "remarks": []}
    return {
        "audit": audit.result, "audited": format_second(int(audit.at.timestamp())), "audited_by": audit.who,
        "differences": list(audit.differences), "remarks": list(audit.remarks),
    }  # fmt: skip


def replay_fields(replays: Iterable[Replay]) -> dict[str, object]:
    """The JSON key about the replays that have corrected a day, with who swapped them in and why."""
    return {"replays": [f"replay {replay.id} by {replay.swapped_by}: {replay.reason}" for replay in replays]}


def delivery_fields(sums: DeliveredSums) -> dict[str, object]:
    """The JSON object of usage that a billing service has acknowledged, and of what the day has."""
    stored, delivery = sums.stored, sums.stored.delivery
    return {
        "destination": stored.destination, "format": stored.format, "by": stored.grouping,
        "meter": stored.meter, "kind": stored.kind, "complete": delivery.finished_ms is not None,
        "events": delivery.events, "amount": delivery.amount, "known": delivery.known,
        "left_out": delivery.left_out, "left_out_amount": delivery.left_out_amount,
        "to_send": sums.to_send.value, "of_day": None if sums.of_day is None else sums.of_day.value,
        "difference": sums.difference, "who": stored.who,
        "began": _time(stored.began_ms), "acknowledged": _time(stored.acknowledged_ms),
    }  # fmt: skip


def position_fields(position: DayPosition) -> dict[str, object]:
    return {
        "partition": str(position.part), "source": position.part.source, "cluster": position.part.cluster,
        "topic_id": position.part.topic_id, "target": position.target, "cut": position.cut,
        "left_out": position.left_out, "left_out_by": position.who, "is_gone": position.is_gone,
    }  # fmt: skip


def _time(ms: int | None) -> str | None:
    return None if ms is None else format_second(ms // 1000)
