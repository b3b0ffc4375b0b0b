"""The table of acts and lists: what commands, endpoints and forms are made from.

A row names a function of a chapter; its parameters, with their help, bounds and examples, are the
function's. The words of a row are those of the command, and its path is `/v1/` with the last two of them.
What needs more than a row can say is written by hand: `run`, `check`, `explain` and others in
`analyzer.faces.cli`, usage and reports in `analyzer.faces.api`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal, NamedTuple

ActScope = Literal["read", "view", "operate", "admin"]


class Act(NamedTuple):
    """An act, which changes something.

    Attributes:
        words: Those of the command.
        run: Its function, "module:name" below `analyzer`.
        scope: The least scope of a token that may ask for it.
        line: One line about it.
        example: An answer, as JSON.
        reason: Whether a reason is required.
        has_dry_run: Whether it can be shown before it is done.
        foresee: The function that tells what it will do, if it may have to be confirmed.
    """

    words: str
    run: str
    scope: ActScope
    line: str
    example: Mapping[str, Any]
    reason: Literal["required", "optional"] = "required"
    has_dry_run: bool = False
    foresee: str = ""


class List(NamedTuple):
    """A list, which changes nothing.

    Attributes:
        words: Those of the command.
        run: Its function, "module:name" below `analyzer`.
        scope: The least scope of a token that may ask for it.
        line: One line about it.
        example: A row, as JSON.
        columns: Of its table, in order: names of fields, or of cells.
        place: What the places of its rows look like.
        empty: The sentence of a table without rows.
    """

    words: str
    run: str
    scope: ActScope
    line: str
    example: Mapping[str, Any]
    columns: Sequence[str]
    place: tuple[int | str, ...]
    empty: str


def function(path: str) -> Callable[..., Any]:
    """Returns the function at "module:name" below `analyzer`; imports its module."""
    module, _, name = path.partition(":")
    return getattr(import_module(f"analyzer.{module}"), name)  # type: ignore[no-any-return]  # by its name


def path_of(row: Act | List) -> str:
    """Returns the path of a row's endpoint: `/v1/` with the last two of its words."""
    return "/".join(["/v1", *row.words.split()[-2:]])


LOCK = {
    "scope": "caller", "key": "api_key:acme", "resource": None, "policy": "daily", "kind": "quota",
    "action": "deny", "status": 429, "reason": "quota-exceeded",
    "detail": "100,000 requests per day (Europe/Berlin), 100,214 counted",
    "began": "2026-11-20T21:14:03Z", "until": "2026-11-20T23:00:00Z", "on_stale": "keep",
}  # fmt: skip
CHANGED_LOCKS = {"locks": [LOCK | {"done": "set", "changed": True}]}
POLICY = {
    "name": "daily", "kind": "quota", "mode": "enforce", "brake": None, "per": "caller",
    "meter": "requests", "what": "daily: at most 100,000 requests per day (Europe/Berlin) per caller",
}  # fmt: skip
JUDGED = {"locked": 0, "freed": 1, "notices": 0, "judged": []}
OVERRIDE = {
    "id": "5f0c9a2e", "for": "caller", "name": "api_key:acme", "policy": "daily", "change": 150_000,
    "from": "2026-11-20T21:14:03Z", "until": None, "state": "in force", "reason": "INC-311",
    "who": "token ops",
}  # fmt: skip

LOCKS: tuple[Act | List, ...] = (
    List(
        "locks list", "judging.lock_acts:list_locks", "read", "Show the locks in force.",
        LOCK | {"met": {"checks": 12, "denials": 12, "gates": 2}},
        ("since", "until", "scope", "key", "resource", "policy", "does", "denied", "detail"),
        (0, "", "", "", ""),
        "no lock is in force",
    ),
    Act(
        "locks unlock", "judging.lock_acts:unlock", "operate",
        "Clear locks now, and do not set them again for a time.", CHANGED_LOCKS,
        has_dry_run=True, foresee="judging.lock_acts:foresee_unlock",
    ),
    Act(
        "locks lock", "judging.lock_acts:lock", "operate", "Lock a client by hand, for a time.",
        CHANGED_LOCKS, has_dry_run=True,
    ),
    Act(
        "locks extend", "judging.lock_acts:extend", "operate",
        "Let locks last longer: until a time from now.",
        CHANGED_LOCKS, has_dry_run=True,
    ),
    Act(
        "locks suspend", "judging.lock_acts:suspend", "admin", "Open every gate for a time: the off switch.",
        {"suspended_until": "2026-11-20T21:44:03Z"},
    ),
    Act(
        "locks resume", "judging.lock_acts:resume", "admin",
        "End `suspend`: the gates enforce their locks again.", {"suspended_until": None},
    ),
    List(
        "locks notices", "judging.lock_acts:list_notices", "view", "Show the notices, the latest first.",
        {"id": "9f3c", "at": "2026-11-20T21:14:03Z", "scope": "caller", "key": "api_key:acme",
         "resource": "", "policy": "daily", "threshold": 0.8, "used": 80_000, "limit": 100_000},
        ("at", "scope", "key", "resource", "policy", "threshold", "detail"), (0, ""),
        "no threshold was reached",
    ),
)  # fmt: skip
POLICIES: tuple[Act | List, ...] = (
    List(
        "policies list", "flush.plan_acts:list_policies", "read", "Show the policies in force.", POLICY,
        ("policy", "kind", "mode", "what"), (0,), "no policy is in force: no caller is locked",
    ),
    Act(
        "policies enforce", "flush.plan_acts:enforce", "admin",
        "Enforce a policy that is in shadow, its candidate, or one that its brake holds.",
        {"policy": "daily", "plan": 4, "differences": [], "braked": None, "shadow_locks": 2, "changed": True}
        | JUDGED,
        has_dry_run=True,
    ),
)  # fmt: skip
CALLERS: tuple[Act | List, ...] = (
    List(
        "callers list", "callers.caller_acts:list_callers", "view",
        "Show the callers with a plan, a tenant, a zone or an anchor.",
        {"caller": "api_key:acme", "plan": "pro", "tenant": "", "zone": "", "anchor": "2026-01-31"},
        ("caller", "plan", "tenant", "zone", "anchor"), ("",),
        "no caller has a plan, a tenant, a zone or an anchor",
    ),
    Act(
        "callers set", "callers.caller_acts:set_facts", "operate",
        "Set the plan, tenant, time zone or anchor of a caller, or of many from a file.",
        {"caller": "api_key:acme", "plan": "pro", "tenant": "", "zone": "", "anchor": ""} | JUDGED,
        reason="optional",
    ),
    Act(
        "callers limit", "callers.caller_acts:limit", "operate",
        "Give a caller or a tenant another limit, or a caller more.", OVERRIDE | JUDGED,
    ),
    Act(
        "callers allow", "callers.caller_acts:allow", "operate",
        "Exempt callers, a tenant, addresses or a range from all locks.",
        OVERRIDE | {"policy": None, "change": "exempt"} | JUDGED,
    ),
    List(
        "callers overrides", "callers.caller_acts:list_overrides", "view",
        "Show the limits and exemptions that have not ended.", OVERRIDE,
        ("id", "for", "name", "policy", "change", "from", "until", "state", "reason", "who"), (0, ""),
        "there is no override",
    ),
    Act(
        "callers end", "callers.caller_acts:end", "operate", "End a limit or an exemption now.",
        OVERRIDE | {"state": "ended"} | JUDGED, reason="optional",
    ),
    Act(
        "callers forget", "callers.caller_acts:forget", "admin",
        "Replace a caller's name by a pseudonym, everywhere and for good.",
        {"pseudonym": "forgotten:5f0c9a2e", "rows": 31, "is_new": True},
        has_dry_run=True, foresee="callers.caller_acts:foresee_forget",
    ),
)  # fmt: skip
GATES: tuple[Act | List, ...] = (
    List(
        "upkeep gates list", "gates.gate_acts:list_gates", "view", "Show the gates that report their status.",
        {"application": "shop", "instance": "web-3:812:3e221d79", "age_s": 0.4, "wrong": {}},
        ("application", "instance", "library", "version", "age", "heard", "checks", "denials", "known",
         "state"),
        (0,),
        "no gate has reported; over SQL gates report only when set up to: Gate(..., report_status=True)",
    ),
    Act(
        "upkeep gates forget", "gates.gate_acts:forget", "operate",
        "Remove gates that will not report again.", {"name": "shop", "gates": 2}, reason="optional",
    ),
)  # fmt: skip
SOURCES: tuple[Act | List, ...] = (
    List(
        "upkeep sources list", "flush.plan_acts:list_partitions", "view",
        "Show every partition that was ever read.",
        {"source": "access-log", "topic": "access-log", "partition": 3, "next": 1_200, "behind_records": 0,
         "behind_s": 0.2, "heard_s": 0.4, "owner": "analyzer-1"},
        ("source", "partition", "next", "records behind", "seconds behind", "shipping", "Kafka's clock",
         "heard", "analyzer"),
        ("", "", 0, ""), "nothing was read yet",
    ),
    Act(
        "upkeep sources retire", "flush.plan_acts:retire", "operate",
        "Retire a source that no analyzer reads any more.", {"source": "billing-log", "partitions": 3},
    ),
)  # fmt: skip
JOBS: tuple[Act | List, ...] = (
    List(
        "upkeep jobs list", "maintenance.job_acts:list_jobs", "view",
        "Show when each job runs, how it went last, and who runs it.",
        {"job": "prune-locks", "schedule": "each hour", "last": None, "next": "2026-11-20T22:00:00Z",
         "holder": ""},
        ("job", "schedule", "began", "outcome", "rows", "next", "holder", "error"), ("",), "there is no job",
    ),
    List(
        "upkeep jobs history", "maintenance.job_acts:list_runs", "view",
        "Show the runs of jobs, the latest first.",
        {"job": "roll-up", "began": "2026-11-20T21:00:00Z", "seconds": 0.2, "outcome": "done", "rows": 12},
        ("job", "scheduled", "began", "seconds", "outcome", "rows", "owner", "error"), (0, "", 0),
        "no run is stored",
    ),
)  # fmt: skip
EVENTS: tuple[Act | List, ...] = (
    List(
        "upkeep events list", "maintenance.job_acts:list_events", "operate",
        "Show what operators did, and what changed the plan, the latest first.",
        {"at": "2026-11-20T21:14:03Z", "who": "token ops", "act": "locks lock", "about": "caller user:ann",
         "why": "INC-311"},
        ("at", "who", "act", "about", "why"), (0, ""), "no act was recorded",
    ),
)  # fmt: skip

ALERTS: tuple[Act | List, ...] = (
    List(
        "alerts list", "alerts.alert_acts:list_destinations", "view",
        "Show the destinations of alerts and the contacts of customers, with their messages.",
        {"name": "ops", "to": "slack https://hooks.slack.com:443/...", "for": "", "waiting": 1, "sent": 12,
         "dead": 0, "error": "503 no service"},
        ("name", "to", "for", "waiting", "sent", "dead", "error"), (0, ""),
        "no destination is configured: write [[alerts]] into the configuration",
    ),
    List(
        "alerts messages", "alerts.alert_acts:list_messages", "view",
        "Show the messages of alerts, the newest first.",
        {"id": "msg_0193f2a1b7c04f2e9d1ab27c4e", "made": "2026-11-20T21:14:03.250Z", "to": "ops",
         "state": "sent", "severity": "warning", "events": 500, "title": "500 locks began by daily",
         "tries": 1, "next": None, "ended": "2026-11-20T21:14:34.100Z", "status": 200, "answer": "ok"},
        ("made", "to", "state", "severity", "events", "title", "tries", "answer", "id"), (0, ""),
        "no message was made",
    ),
    Act(
        "alerts test", "alerts.alert_acts:test", "operate",
        "Send a test message to a destination now, and say what it answers.",
        {"to": "ops", "id": "msg_0193f2a1b7c04f2e9d1ab27c4e", "accepted": True, "status": 200,
         "answer": "ok"},
        reason="optional",
    ),
    Act(
        "alerts resend", "alerts.alert_acts:resend", "operate",
        "Send messages again: dead ones, or one by its id.",
        {"messages": ["msg_0193f2a1b7c04f2e9d1ab27c4e"]},
    ),
    Act(
        "alerts contact", "alerts.alert_acts:contact", "operate",
        "Give a customer messages about its own thresholds and locks.",
        {"id": "5f0c9a2e", "for": "caller", "name": "api_key:acme", "way": "email", "to": "it@acme.example"},
    ),
    Act(
        "alerts remove", "alerts.alert_acts:remove", "operate", "Remove a contact of a customer.",
        {"id": "5f0c9a2e", "for": "caller", "name": "api_key:acme", "way": "email", "to": "it@acme.example"},
    ),
)  # fmt: skip

ACTS: tuple[Act | List, ...] = (
    *LOCKS, *POLICIES, *CALLERS, *ALERTS, *GATES, *SOURCES, *JOBS, *EVENTS,
)  # fmt: skip
