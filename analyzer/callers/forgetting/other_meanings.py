"""Other meanings of a name without its kind: a text that has it alone stays as it is."""

from __future__ import annotations

import sqlalchemy as sa

from analyzer.callers.counted_names import KINDS
from analyzer.callers.forgetting.renaming import Renaming
from analyzer.counting.usage_windows import was_counted
from analyzer.judging.sql.plans import plan_in_force
from analyzer.kernel.database.engine import reading
from analyzer.kernel.tables.schema import callers, offsets, tokens
from gatekeeper.identity import typed

CHARS_MIN = 3  # a shorter text stands in many others


def other_meaning(engine: sa.Engine, caller: Renaming) -> str:
    """Returns what else the name without its kind means, as a noun; "": nothing. Raises StoreAway."""
    plain = caller.plain
    if len(plain) < CHARS_MIN or plain.isdecimal():
        return "a short text" if len(plain) < CHARS_MIN else "a number"
    plan = plan_in_force(engine)
    if plan is not None:
        names = [*plan.sources, *plan.named_values, *plan.groupings, *(meter.name for meter in plan.meters)]
        if plain in names or plain in {policy.name for policy in plan.policies}:
            return "a name in the configuration"
    kinds = {
        *KINDS,
        *(kind for mapping in (plan.sources.values() if plan else ()) for kind in mapping.caller),
    }
    for text in dict.fromkeys((plain, caller.name.partition(":")[2])):
        for name in sorted({typed(kind, text) for kind in kinds} - {caller.name}):
            if was_counted(engine, "caller", name):
                return f"the caller {name}"
    with reading(engine) as db:
        for noun, columns in (
            ("a tenant", (callers.c.tenant, callers.c.record_tenant)),
            ("a plan", (callers.c.plan, callers.c.record_plan)),
            ("a topic", (offsets.c.topic,)),
            ("a token", (tokens.c.name,)),
        ):
            is_named = sa.or_(*(column == plain for column in columns))
            if db.execute(sa.select(sa.literal(1)).where(sa.exists().where(is_named))).scalar():
                return noun
    return "a tenant" if was_counted(engine, "tenant", plain) else ""
