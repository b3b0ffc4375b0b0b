"""Facts about callers, where they come from, and overrides."""

from __future__ import annotations

from typing import Any

from analyzer.callers.applied_facts import FactOrigin, fact_origins
from analyzer.callers.caller_changes import StoredOverride, caller_profile
from analyzer.judging.caller_limits import Profile
from analyzer.kernel.database.clock import instant
from analyzer.kernel.database.engine import Engine
from gatekeeper.feed.feed_json import time_text

COLUMNS = ("caller", "plan", "tenant", "zone", "anchor")


def shown_caller(engine: Engine, name: str) -> dict[str, object]:
    """Returns a caller, where its facts come from, and its limits. Raises StoreAway, SchemaBehind."""
    profile, limits = caller_profile(engine, name)
    shown = [limit.fields() for limit in limits]
    by_fact = {origin.fact: origin_values(origin) for origin in fact_origins(engine, name)}
    return {"caller": name, **profile._asdict(), "origins": by_fact, "limits": shown}


def facts_in_words(profile: Profile) -> str:
    """Returns facts about a caller as a phrase: "plan pro, tenant (none), zone (none), anchor 2026-01-31"."""
    return ", ".join(f"{name} {value or '(none)'}" for name, value in profile._asdict().items())


def origin_values(origin: FactOrigin) -> dict[str, object]:
    """Returns where a fact comes from, as JSON has it."""
    record = origin.record
    if record is None:
        return {"from": "command"}
    return {
        "from": "record",
        "topic": origin.topic,
        "partition": record.partition,
        "offset": record.offset,
        "since": time_text(instant(record.since_ms)),
    }


def override_fields(override: StoredOverride) -> dict[str, Any]:
    """Returns an override as an object."""
    until_ms = override.until_ms
    changes = {"limit": override.amount, "grant": f"+{override.amount}", "exempt": "exempt"}
    return {
        "id": override.id,
        "for": override.subject.kind,
        "name": override.subject.name,
        "policy": override.policy or None,
        "change": changes[override.kind],
        "from": time_text(instant(override.from_ms)),
        "until": None if until_ms is None else time_text(instant(until_ms)),
        "state": override.state,
        "granted": override.granted,
        "used": override.used,
        "expired": override.expired,
        "reason": override.reason,
        "who": override.who,
    }
