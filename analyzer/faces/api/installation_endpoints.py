"""A policy, a caller, and why a caller is locked: what is read of one thing."""

from __future__ import annotations

from collections.abc import Mapping

from analyzer.acting.parameters import Caller, OfText, Time
from analyzer.callers.caller_answers import shown_caller
from analyzer.callers.explained_caller import explained_caller
from analyzer.faces.acts import LOCK, POLICY
from analyzer.faces.api.endpoints import TEXTS, ApiContext, ApiRequest, Endpoint, NotThere
from analyzer.faces.api.requested_values import parameter
from analyzer.faces.explanation import explanation
from analyzer.faces.table_rows import as_json
from analyzer.judging.policy_answers import shown_policies
from analyzer.judging.sql.plans import plan_in_force
from analyzer.plan.plan import Plan


def show_policy(context: ApiContext, request: ApiRequest) -> Mapping[str, object]:
    """Returns a policy, or its periods, and its candidate, and what each has done."""
    plan, name = plan_in_force(context.engine) or Plan(), request["policy"]
    shown = plan.family(name)
    if not shown:
        raise NotThere("no such policy is in force")
    return {"policies": shown_policies(context.engine, shown, context.second(request["since"]))}


def show_caller(context: ApiContext, request: ApiRequest) -> Mapping[str, object]:
    """Returns a caller, where its facts come from, and its limits."""
    return shown_caller(context.engine, context.settings.counted_name(request["caller"]))


def explain_caller(context: ApiContext, request: ApiRequest) -> Mapping[str, object]:
    """Returns why a caller is locked, or not."""
    name = context.settings.counted_name(request["caller"])
    explained = explained_caller(context.engine, name, context.second(request["since"]))
    answer = dict(explained.as_object())
    if not request.values.get("texts"):
        return answer
    parts = explanation(context.engine, explained, context.settings.analyzer.flush_every)
    absence = None if explained.absence is None else str(explained.absence)
    answer["texts"] = {"parts": as_json(parts), "absence": absence, "is_unknown": explained.is_unknown}
    return answer


CALLER = parameter("caller", Caller(), "The caller, with its kind in front.", "api_key:acme", required=True)
SINCE = parameter("since", Time(), "Begin, inclusive.", "7d")

ENDPOINTS = (
    Endpoint(
        "GET", "/v1/policies/show", "view", "A policy and its candidate, and what each has done.",
        show_policy, {"policies": [POLICY | {"outcomes": []}]},
        (parameter("policy", OfText(), "Its name.", "daily", required=True), SINCE),
    ),
    Endpoint(
        "GET", "/v1/callers/show", "view",
        "A caller, where its facts come from, and its limits, each in the unit of the policy's meter.",
        show_caller,
        {"caller": "api_key:acme", "plan": "pro", "tenant": "", "zone": "", "anchor": "", "origins": {},
         "limits": [{"policy": "daily", "limit": 150_000, "stated": 100_000}]},
        (CALLER,),
    ),
    Endpoint(
        "GET", "/v1/explain", "view",
        "The reasons why a caller is locked, or not: its locks, its use and limit by each policy with what "
        "remains, its busiest resources of the last day, its locks since a time.",
        explain_caller, {"caller": "api_key:acme", "plan": "pro", "tenant": "", "locks": [LOCK]},
        (CALLER, SINCE, TEXTS),
    ),
)  # fmt: skip
