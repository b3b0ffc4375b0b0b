"""Policies that are not in force: their faults, and whom they would have locked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from time import monotonic
from typing import Any

from analyzer.acting.parameters import Fault, OfLines, OfText, Time
from analyzer.config.diagnostics.faults import ConfigInvalid
from analyzer.config.settings import Settings, load_policies
from analyzer.faces.acts import POLICY
from analyzer.faces.api.endpoints import TEXTS, ApiContext, ApiRequest, Endpoint, NotPossible
from analyzer.faces.api.requested_values import parameter
from analyzer.faces.simulation_report import SimulationReport, chosen_policies, is_refused
from analyzer.faces.table_rows import as_json
from analyzer.forecast.simulation.comparison import compare
from analyzer.judging.policy_answers import stated_policy
from analyzer.judging.sql.plans import plan_in_force

TEXT_MAX = 32_000  # characters: of a body of at most 64 KiB, in which a line may take two bytes more
SIMULATED_S = 12.0  # of one request, before it is given up

STATED = '[[policies]]\nname = "daily"\nlimit = 5000\nwindow = { per = "day" }\n'
ABOUT_TEXT = "TOML with [[policies]], [[meters]] and [[groupings]]; the rest is the server's configuration"


def check_policies(context: ApiContext, request: ApiRequest) -> Mapping[str, object]:
    """Returns the faults of policies; without any, what each does."""
    try:
        settings = load_policies(request["policies"], context.settings)
    except ConfigInvalid as invalid:
        return {"faults": [asdict(fault) for fault in invalid.faults], "policies": []}
    return {"faults": [], "policies": [stated_policy(policy) for policy in settings.plan().policies]}


def simulate_policies(context: ApiContext, request: ApiRequest) -> Mapping[str, object]:
    """Returns whom policies would have locked. Raises NotPossible for faults, TimeoutError."""
    plan = plan_in_force(context.engine)
    settings = _stated(request["policies"], context.settings)
    among = settings.plan() if request["policies"] is not None or plan is None else plan
    try:
        chosen = chosen_policies(among, request["policy"], request["limit"])
    except Fault as fault:
        sentence = fault.why.replace("<policy>", "`policy`")
        raise NotPossible(f"`{fault.name}` {sentence}" if fault.name else sentence) from fault
    ends_s = monotonic() + SIMULATED_S

    def give_up(_done: int, _all: int) -> None:
        if monotonic() > ends_s:
            raise TimeoutError

    from_s = context.second(request["since"])
    reports = [
        SimulationReport(compare(context.engine, policy, among.meters, plan, from_s, give_up))
        for policy in chosen
    ]
    answer: dict[str, object] = {"policies": [report.as_object() for report in reports]}
    if request.values.get("texts"):
        parts = [as_json(report.parts(show_all=show_all)) for report in reports for show_all in (False, True)]
        answer["texts"] = {"parts": parts[::2], "all": parts[1::2], "is_refused": is_refused(reports)}
    return answer


def _stated(text: str | None, settings: Settings) -> Settings:
    """Returns the settings with the policies of a text. Raises NotPossible with the first of its faults."""
    if text is None:
        return settings
    try:
        return load_policies(text, settings)
    except ConfigInvalid as invalid:
        more = f" and {len(invalid.faults) - 1} more" if len(invalid.faults) > 1 else ""
        raise NotPossible(f"{invalid.faults[0]}{more}") from invalid


SIMULATED: Mapping[str, Any] = {
    "policy": "daily", "limit": 5_000, "from": "2026-10-21T00:00:00Z", "to": "2026-11-20T21:14:00Z",
    "resolution_s": 60, "callers": 120, "requests": 1_204_000,
    "simulated": {"callers": 3, "locks": 7, "requests": 12_040},
}  # fmt: skip

ENDPOINTS = (
    Endpoint(
        "POST", "/v1/policies/check", "view",
        "Every fault of policies, with its line and what to write instead; without faults, what each policy "
        "does. Nothing is changed.",
        check_policies, {"faults": [], "policies": [POLICY]},
        (parameter("policies", OfLines(TEXT_MAX), f"{ABOUT_TEXT}.", STATED, required=True),),
        has_body_to_read=True,
    ),
    Endpoint(
        "POST", "/v1/policies/simulate", "view",
        "The callers that policies would have locked, when and for how long, by stored counts; beside the "
        "policy of this name that is in force. Nothing is changed.",
        simulate_policies, {"policies": [SIMULATED]},
        (
            parameter("policies", OfLines(TEXT_MAX), f"{ABOUT_TEXT}. Default: those in force.", STATED),
            parameter("policy", OfText(), "Only this policy.", "daily"),
            parameter("limit", OfText(), "The policy with this limit: 5000, 2 GiB, 1h.", "5000"),
            parameter("since", Time(), "Begin of the counts.", "30d", "30d"),
            TEXTS,
        ),
        has_body_to_read=True,
    ),
)  # fmt: skip
