"""Exceptions from the policies for a caller: overrides, grants, exemptions and hold-offs in force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analyzer.callers.caller_changes import granted_text, stored_overrides
from analyzer.callers.caller_standing import CallerStanding
from analyzer.faces.pages.page_content import ActForm, Chip, Column, PageTable
from analyzer.faces.pages.page_request import PageRequest, utc_text
from analyzer.judging.sql.plans import plan_in_force
from analyzer.plan.policies import OverrideKind

COLUMNS = (
    Column("what", "What", "state", 1), Column("policy", "Policy", "policy"), Column("amount", "Amount"),
    Column("for", "For"), Column("from", "From", "time"), Column("until", "Until", "time"),
    Column("who", "By"), Column("reason", "Why", rank=3), Column("end", "", "act"),
)  # fmt: skip
KINDS: Mapping[OverrideKind, str] = {"limit": "other limit", "grant": "grant", "exempt": "exempt"}
EMPTY = "It has the limits of all: no override, grant, exemption or hold-off is in force."


def exceptions_table(request: PageRequest, standing: CallerStanding, name: str) -> PageTable:
    """Returns a row for each exception of the caller and its tenant, with the form that ends it."""
    may_act = request.visitor.may_act("operate")
    plan = plan_in_force(request.engine)
    units = {} if plan is None else {policy.name: policy.meter_unit for policy in plan.policies}
    rows: list[dict[str, Any]] = []
    for kind, subject in (("caller", name), ("tenant", standing.tenant)):
        for override in stored_overrides(request.engine, [*KINDS], subject=subject) if subject else ():
            if override.subject.kind != kind:
                continue
            amount = granted_text(override, units.get(override.policy))
            form = ActForm("End", "/v1/callers/end", {"id": override.id}, [], "End it now")
            rows.append(
                {
                    "what": Chip(KINDS[override.kind] + (", planned" if override.state == "planned" else "")),
                    "policy": override.policy,
                    "amount": {"limit": amount, "grant": f"+{amount}"}.get(override.kind, ""),
                    "for": kind, "from": utc_text(override.from_ms / 1000),
                    "until": "no end" if override.until_ms is None else utc_text(override.until_ms / 1000),
                    "who": override.who, "reason": override.reason, "end": form if may_act else None,
                }
            )  # fmt: skip
    rows += [
        {
            "what": Chip("hold-off", "watch"), "policy": hold.at.policy, "amount": "", "for": hold.at.scope,
            "from": utc_text(hold.at_ms / 1000), "until": utc_text(hold.until_ms / 1000), "who": hold.who,
            "reason": hold.reason, "end": None,
        }
        for hold in standing.held_off
    ]  # fmt: skip
    return PageTable("exceptions", "In force for it", COLUMNS, rows, EMPTY)
