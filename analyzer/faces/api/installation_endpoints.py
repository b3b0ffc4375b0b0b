"""Policies, callers, overrides, gates, partitions, jobs and the audit log, read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from analyzer.callers.caller_answers import COLUMNS, override_fields, shown_caller
from analyzer.callers.caller_changes import known_callers, stored_overrides
from analyzer.delays.partition_delays import measured_by_owner, partition_delays
from analyzer.faces.answers.job_answers import listed_jobs, run_fields
from analyzer.faces.api.endpoints import ApiContext, Asked, Endpoint, NotThere
from analyzer.faces.api.lock_endpoints import OF_CALLER
from analyzer.faces.api.pages import PlacedRow
from analyzer.faces.api.parameters import OfText, OfTime, Parameter, YesOrNo
from analyzer.flush.followed_partitions import followed
from analyzer.gates.gate_answers import listed_gates
from analyzer.judging.policy_answers import HISTORY_COLUMNS, listed_policies, plan_history, shown_policies
from analyzer.judging.sql.plans import plan_in_force
from analyzer.kernel.database.audit_log import entries
from analyzer.kernel.database.clock import millis
from analyzer.kernel.jobs.job_runs import job_history
from analyzer.maintenance.upkeep_jobs import schedules
from analyzer.plan.plan import Plan
from analyzer.plan.policies import CANDIDATE, OverrideKind
from gatekeeper.feed.feed_json import time_text

SHOWN_S = 7 * 86_400  # of the outcomes of a policy, unless the request says more


def list_policies(at: ApiContext, _asked: Asked) -> Iterator[PlacedRow]:
    """Yields the policies in force, in the order of the plan."""
    for number, fields in enumerate(listed_policies(at.engine)):
        yield (number,), fields


def show_policy(at: ApiContext, asked: Asked) -> Mapping[str, object]:
    """Returns a policy and its candidate, and what each has done."""
    plan, name = plan_in_force(at.engine) or Plan(), asked["policy"]
    shown = [policy for at_ in (name, name + CANDIDATE) if (policy := plan.policy(at_)) is not None]
    if not shown:
        raise NotThere("no such policy is in force")
    return {"policies": shown_policies(at.engine, shown, asked["since"])}


def list_plans(at: ApiContext, _asked: Asked) -> Iterator[PlacedRow]:
    """Yields the plans that came in force, the latest first."""
    for number, row in enumerate(plan_history(at.engine)):
        yield (number,), dict(zip(HISTORY_COLUMNS, row, strict=True))


def list_callers(at: ApiContext, asked: Asked) -> Iterator[PlacedRow]:
    """Yields the callers with facts, by name."""
    for one in known_callers(at.engine, asked["plan"], asked["tenant"]):
        yield (one.caller,), dict(zip(COLUMNS, (one.caller, *one.profile), strict=True))


def show_caller(at: ApiContext, asked: Asked) -> Mapping[str, object]:
    """Returns a caller, where its facts come from, and its limits."""
    return shown_caller(at.engine, at.settings.counted_name(asked["caller"]))


def list_overrides(at: ApiContext, asked: Asked) -> Iterator[PlacedRow]:
    """Yields overrides, grants and exemptions, those that began last first."""
    kinds: tuple[OverrideKind, ...] = ("limit", "grant", "exempt")
    for one in stored_overrides(at.engine, kinds, ended=asked["all"]):
        yield (-one.from_ms, one.id), override_fields(one)


def list_gates(at: ApiContext, asked: Asked) -> Iterator[PlacedRow]:
    """Yields the gates that report, then the clients that are refused."""
    for number, fields in enumerate(listed_gates(at.engine, every=asked["all"]).as_objects()):
        yield (number,), fields


def list_partitions(at: ApiContext, _asked: Asked) -> Iterator[PlacedRow]:
    """Yields every partition that was ever read, by source."""
    measured = measured_by_owner(at.engine)
    for part in followed(at.engine):
        delays = partition_delays(part.owner, part.source, f"{part.topic}[{part.partition}]", measured)
        place = (part.source, part.topic, part.partition, part.topic_id)
        yield place, part._asdict() | delays._asdict()


def list_jobs(at: ApiContext, _asked: Asked) -> Iterator[PlacedRow]:
    """Yields the jobs, by name."""
    for job in sorted(listed_jobs(at.engine, schedules(at.settings.retention.kept))):
        yield (job.job,), job._asdict()


def list_runs(at: ApiContext, asked: Asked) -> Iterator[PlacedRow]:
    """Yields the runs of jobs, the latest first."""
    for run in job_history(at.engine, asked["job"], asked["since"] * 1000):
        yield (-run.began_ms, run.job, -run.number), run_fields(run)


def list_audit_log(at: ApiContext, asked: Asked) -> Iterator[PlacedRow]:
    """Yields the entries of the audit log, the latest first."""
    names = ("at", "who", "act", "about", "why")
    until_ms = None if asked.after is None else -int(asked.after[0])
    for event in entries(at.engine, asked["since"] * 1000, until_ms):
        place = (-millis(event.at), event.id)
        yield place, dict(zip(names, (time_text(event.at), *event[1:5]), strict=True))


ALL = Parameter("all", YesOrNo(), "Also those that have ended.", True, False)
SINCE = Parameter("since", OfTime(), "Begin, inclusive.", "7d", 0)
NAME = Parameter("policy", OfText(), "Its name.", "daily", required=True)
POLICY = {
    "name": "daily", "kind": "quota", "mode": "enforce", "brake": None, "per": "caller",
    "meter": "requests", "what": "daily: at most 100,000 requests per day (Europe/Berlin) per caller",
}  # fmt: skip

ENDPOINTS = (
    Endpoint(
        "GET", "/v1/policies/list", "read", "The policies in force, in the order of the plan.",
        list_policies, POLICY, (), (0,),
    ),
    Endpoint(
        "GET", "/v1/policies/show", "view",
        "A policy and its candidate, and what each has done since a time, by default seven days ago.",
        show_policy, {"policies": [POLICY | {"outcomes": []}]},
        (NAME, SINCE._replace(default=0)),
    ),
    Endpoint(
        "GET", "/v1/policies/history", "view", "The plans that came in force, the latest first.",
        list_plans,
        {"at": "2026-11-20T21:14:03Z", "plan": "plan 3", "who": "ann@ops1", "difference": "policy daily: +"},
        (), (0,),
    ),
    Endpoint(
        "GET", "/v1/callers/list", "view", "Callers with a plan, a tenant, a zone or an anchor, by name.",
        list_callers,
        {"caller": "api_key:acme", "plan": "pro", "tenant": "", "zone": "", "anchor": "2026-01-31"},
        (
            Parameter("plan", OfText(), "Only those with this plan.", "pro"),
            Parameter("tenant", OfText(), "Only those of this tenant.", "acme"),
        ), ("",),
    ),
    Endpoint(
        "GET", "/v1/callers/show", "view",
        "A caller, where its facts come from, and its limits, each in the unit of the policy's meter.",
        show_caller,
        {"caller": "api_key:acme", "plan": "pro", "tenant": "", "zone": "", "anchor": "", "origins": {},
         "limits": [{"policy": "daily", "limit": 150_000, "stated": 100_000}]},
        (OF_CALLER._replace(required=True),),
    ),
    Endpoint(
        "GET", "/v1/overrides/list", "view", "Overrides, grants and exemptions that have not ended.",
        list_overrides,
        {"id": "5f0c9a2e", "for": "caller", "name": "api_key:acme", "policy": "daily", "change": 150_000,
         "from": "2026-11-20T21:14:03Z", "until": None, "state": "in force", "reason": "migration",
         "who": "ann@ops1"},
        (ALL,), (0, ""),
    ),
    Endpoint(
        "GET", "/v1/gates/list", "view", "The gates that report their status, then refused clients.",
        list_gates, {"application": "shop", "instance": "web-3:812:3e221d79", "age_s": 0.4, "wrong": {}},
        (ALL._replace(about="Also gates of replaced processes."),), (0,),
    ),
    Endpoint(
        "GET", "/v1/partitions/list", "view", "Every partition that was ever read, with its lag.",
        list_partitions,
        {"source": "access-log", "topic": "access-log", "partition": 3, "next": 1_200, "behind_records": 0,
         "behind_s": 0.2, "heard_s": 0.4, "owner": "analyzer-1"},
        (), ("", "", 0, ""),
    ),
    Endpoint(
        "GET", "/v1/jobs/list", "view", "When each job runs, how it went last, and who runs it.",
        list_jobs,
        {"job": "prune-locks", "schedule": "each hour", "last": None, "next": "2026-11-20T22:00:00Z",
         "holder": ""},
        (), ("",),
    ),
    Endpoint(
        "GET", "/v1/jobs/history", "view", "The runs of jobs, the latest first.", list_runs,
        {"job": "roll-up", "began": "2026-11-20T21:00:00Z", "seconds": 0.2, "outcome": "done", "rows": 12},
        (Parameter("job", OfText(), "Of this job alone.", "roll-up"), SINCE), (0, "", 0),
    ),
    Endpoint(
        "GET", "/v1/audit/list", "operate", "What operators did and what changed the plan, latest first.",
        list_audit_log,
        {"at": "2026-11-20T21:14:03Z", "who": "token ops", "act": "lock set", "about": "caller user:ann",
         "why": "INC-311"},
        (SINCE,), (0, ""),
    ),
)  # fmt: skip
