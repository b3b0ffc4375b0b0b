"""Plans of replays: whether counts by two of them can be compared, and by what the log is counted again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import msgspec

from analyzer.plan.mapping import NO_FACTS
from analyzer.plan.meter_units import UNLIMITED
from analyzer.plan.meters import BUILT_IN
from analyzer.plan.plan import Plan, meaning, meaning_digest

BUILT_IN_NAMES = frozenset(meter.name for meter in BUILT_IN)


def counting_digest(plan: Plan, source: str) -> str:
    """Returns the digest of all that the counts of a source depend on; equal digests, equal counts."""
    mapping = plan.sources.get(source)
    counts = {
        "groupings": plan.groupings,
        "meters": {meter.name: meaning_digest(meter) for meter in plan.bucket_meters},
        "mapping": None if mapping is None else meaning(mapping),
        "forgotten": plan.forgotten,
    } | ({"named_values": dict(plan.named_values)} if plan.named_values else {})
    return hashlib.sha256(json.dumps(counts, sort_keys=True, default=list).encode()).hexdigest()


def counting_plan(plan: Plan, source: str, newest: Plan) -> Plan:
    """Returns what counts one source as `plan` did, without what only judgements need.

    No run of rejected records stops it. Callers that were forgotten since, by `newest`, have their
    pseudonyms, as the stored counts have them.
    """
    mapping = msgspec.structs.replace(plan.sources[source], rejected_in_row_max=UNLIMITED, facts=NO_FACTS)
    meters = tuple(meter for meter in plan.meters if meter.joined.in_buckets)
    return Plan(plan.groupings, meters, (), {source: mapping}, (), newest.forgotten, dict(plan.named_values))


def why_not_comparable(old_plan: Plan, plan: Plan, source: str) -> str:
    """Returns why counts by `old_plan` cannot be replaced by those of `plan`; "" when they can."""
    if source not in old_plan.sources or source not in plan.sources:
        return f"a plan that it was counted by has no source {source}"
    if any(not meter.joined.adds_up for meter in (*old_plan.bucket_meters, *plan.bucket_meters)):
        return "a meter keeps the largest value, from which no record's can be taken back"
    if lost := sorted({*old_plan.groupings} - {*plan.groupings}):
        return f"the plan in force does not count by {', '.join(lost)} any more"
    for name, field in old_plan.named_values.items():
        if plan.named_values.get(name, field) != field:
            return f"the grouping {name} counts by another field since"
    return _other_meter(_meanings(old_plan), _meanings(plan))


def _meanings(plan: Plan) -> Mapping[str, str]:
    return {meter.name: meaning_digest(meter) for meter in plan.bucket_meters}


def _other_meter(old_meanings: Mapping[str, str], now: Mapping[str, str]) -> str:
    for name, means in old_meanings.items():
        if name not in now and name not in BUILT_IN_NAMES:
            return f"the plan in force has no meter {name} any more"
        if now.get(name, means) != means:
            return f"the meter {name} counts something else since"
    return ""
