"""Acts that change limits: facts about callers, overrides and grants, policies."""

from __future__ import annotations

from collections.abc import Mapping

from analyzer.callers.caller_answers import override_fields
from analyzer.callers.caller_changes import (
    OverrideRequest,
    add_override,
    end_override,
    profile_of,
    set_callers,
)
from analyzer.faces.answers.asked_changes import (
    amount_of,
    checked_profile,
    length_ms,
    policies_by_name,
    require_limit,
)
from analyzer.faces.api.endpoints import ApiContext, Asked, Endpoint, NotPossible, NotThere
from analyzer.faces.api.installation_endpoints import NAME
from analyzer.faces.api.lock_endpoints import OF_CALLER
from analyzer.faces.api.parameters import LENGTH, OfText, OneOf, Parameter, YesOrNo
from analyzer.faces.signals.status import shadow_locks
from analyzer.flush.analyzers import promote_policy
from analyzer.judging.caller_limits import Profile, Subject
from analyzer.judging.judged_changes import JudgedChanges
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.sql.plans import plan_in_force
from analyzer.kernel.database.clock import database_now, millis
from analyzer.plan.plan import Plan
from analyzer.plan.policies import CANDIDATE
from analyzer.plan.proposals import promoted

DAYS_MAX = 100 * 366  # more is probably a typing error


def set_caller(at: ApiContext, asked: Asked) -> Mapping[str, object]:
    """Stores facts about a caller."""
    given = {name: asked[name] for name in Profile._fields if asked[name] is not None}
    if not given:
        raise NotPossible(f"give one of {', '.join(Profile._fields)}")
    name = at.settings.counted_name(asked["caller"])
    try:
        profile = checked_profile(
            Profile(**{key: "" if text == "-" else text for key, text in given.items()})
        )
    except ValueError as error:
        raise NotPossible(str(error)) from error
    judged = set_callers(at.engine, {name: profile}, asked.who, asked["reason"], new_mark, list(given))
    stored, _ = profile_of(at.engine, name)
    return {"caller": name, **stored._asdict(), **JudgedChanges(judged).fields}


def add_one(at: ApiContext, asked: Asked) -> Mapping[str, object]:
    """Gives a caller or a tenant another limit, or a grant."""
    caller, tenant = asked["caller"], asked["tenant"]
    if (caller is None) is (tenant is None):
        raise NotPossible("give caller or tenant, one of them")
    if asked["change"] == "grant" and caller is None:
        raise NotPossible("a grant is for one caller")
    policy = policies_by_name(at.engine).get(asked["policy"])
    if policy is None:
        raise NotPossible("no such policy is in force")
    try:
        require_limit(policy)
        amount = amount_of(policy, asked["amount"])
        long_ms = None if asked["for"] is None else length_ms(asked["for"], DAYS_MAX)
    except ValueError as error:
        raise NotPossible(str(error)) from error
    ends_ms = None if long_ms is None else millis(database_now(at.engine)) + long_ms
    subject = Subject("tenant", tenant)
    if caller is not None:
        subject = Subject("caller", at.settings.counted_name(caller))
    request = OverrideRequest(asked["change"], subject, policy.name, amount, until_ms=ends_ms)
    stored, judged = add_override(at.engine, request, asked.who, asked["reason"], new_mark)
    return override_fields(stored) | JudgedChanges(judged).fields


def end_one(at: ApiContext, asked: Asked) -> Mapping[str, object]:
    """Ends an override or a grant."""
    ended = end_override(at.engine, asked["id"], ("limit", "grant"), asked.who, asked["reason"], new_mark)
    if ended is None:
        raise NotThere("none with this id is in force or planned")
    stored, judged = ended
    return override_fields(stored) | {"state": "ended"} | JudgedChanges(judged).fields


def promote(at: ApiContext, asked: Asked) -> Mapping[str, object]:
    """Enforces a policy that is in shadow, or its candidate."""
    plan, name = plan_in_force(at.engine) or Plan(), asked["policy"]
    if name not in policies_by_name(at.engine):
        raise NotThere("no such policy is in force")
    if promoted(plan, name) is None:
        raise NotPossible(f"{name} is enforced, and has no candidate")
    waiting = shadow_locks(at.engine, name + CANDIDATE if plan.policy(name + CANDIDATE) else name)
    done = promote_policy(at.engine, name, asked.who, asked["reason"], is_shown_only=asked["dry_run"])
    fields = {"plan": done.version, "differences": list(done.differences), "shadow_locks": waiting}
    return fields | {"changed": not asked["dry_run"]} | JudgedChanges(done.judged).fields


JUDGED = {"locked": 0, "freed": 1, "notices": 0, "judged": []}
OVERRIDE = {
    "id": "5f0c9a2e", "for": "caller", "name": "api_key:acme", "policy": "daily", "change": 150_000,
    "from": "2026-11-20T21:14:03Z", "until": None, "state": "in force", "reason": "INC-311",
    "who": "token ops",
}  # fmt: skip

ENDPOINTS = (
    Endpoint(
        "POST", "/v1/callers/set", "operate", "Set facts about a caller; its limits hold at once.",
        set_caller,
        {"caller": "api_key:acme", "plan": "pro", "tenant": "", "zone": "", "anchor": ""} | JUDGED,
        (
            OF_CALLER._replace(required=True),
            Parameter("plan", OfText(), "The plan; - for none.", "pro"),
            Parameter("tenant", OfText(), "The tenant; - for none.", "acme"),
            Parameter("zone", OfText(), "The time zone; - for none.", "Europe/Berlin"),
            Parameter("anchor", OfText(), "The day on which its periods begin; - for none.", "2026-01-31"),
        ),
    ),
    Endpoint(
        "POST", "/v1/overrides/add", "operate",
        "Give a caller, or each caller of a tenant, another limit, or a caller an additional amount.",
        add_one, OVERRIDE | JUDGED,
        (
            OF_CALLER, Parameter("tenant", OfText(), "Each caller of a tenant.", "acme"),
            NAME._replace(about="The policy."),
            Parameter("change", OneOf(["limit", "grant"]), "Another limit, or more.", "limit", "limit"),
            Parameter(
                "amount", OfText(), "In the unit of the policy's meter: 150_000, 2 GiB.", "150000",
                required=True,
            ),
            Parameter("for", OfText(LENGTH, "30m, 2h or 7d"), "Time from now until it ends.", "30d"),
        ),
    ),
    Endpoint(
        "POST", "/v1/overrides/end", "operate", "End an override or a grant now.", end_one,
        OVERRIDE | {"state": "ended"} | JUDGED,
        (Parameter("id", OfText(), "As the list shows it.", "5f0c9a2e", required=True),),
    ),
    Endpoint(
        "POST", "/v1/policies/promote", "admin", "Enforce a policy that is in shadow, or its candidate.",
        promote, {"plan": 4, "differences": [], "shadow_locks": 2, "changed": True} | JUDGED,
        (NAME, Parameter("dry_run", YesOrNo(), "Show what would change.", True, False)),
    ),
)  # fmt: skip
