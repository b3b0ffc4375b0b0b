"""Operations besides the commands: the lock feed, events, gates, the view of a caller, health, metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analyzer.acting.parameters import NAMED

TEXT = {"type": "string"}
ENTITY_TAG = {
    "name": "If-None-Match", "in": "header", "required": False, "schema": TEXT,
    "description": "The entity tag of the answer before; an equal one is answered with 304.",
}  # fmt: skip
REFUSED = {
    "401": "No token, or one that is not valid.",
    "403": "The scope of the token does not permit it.",
    "429": "Too many refused requests of this client. See Retry-After.",
    "503": "The database cannot be reached, or too many clients ask. See Retry-After.",
}
NOT_MODIFIED = {"304": {"description": "As the entity tag in If-None-Match says."}}


def _query(name: str, schema: Mapping[str, Any], about: str, example: Any) -> dict[str, Any]:
    return {
        "name": name, "in": "query", "required": False, "description": about, "schema": dict(schema),
        "example": example,
    }  # fmt: skip


def _answer(about: str, media_type: str, schema: Mapping[str, Any], example: Any) -> dict[str, Any]:
    content = {media_type: {"schema": dict(schema), "example": example}}
    return {"200": {"description": about, "content": content}}


def _operation(name: str, about: str, tag: str, answers: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Returns an operation; its summary is the first sentence of `about`."""
    summary = about.partition(". ")[0].rstrip(".")
    return {
        "operationId": name, "summary": summary, "description": about, "tags": [tag], **fields,
        "responses": dict(answers),
    }  # fmt: skip


def other_operations(problem: Any) -> dict[str, dict[str, Any]]:
    """Returns the operations by path and method; `problem` makes the response of a refusal."""
    refused = {code: problem(text) for code, text in REFUSED.items()}
    wrong = {"400": problem("A parameter is wrong.")}
    probe: dict[str, Any] = {"security": []}
    an_object = {"type": "object"}
    lock_feed = _operation(
        "get_locks",
        "The lock feed: changes since a version, or all locks. A gate keeps `version` and `mark` of an "
        "answer and sends them with its next request. Scope: `read`. docs/feed.md has the protocol.", "feed",
        _answer("The changes, or a snapshot.", "application/json", an_object,
                {"version": 12, "mark": "9f3c", "now": "2026-11-20T21:14:04Z", "snapshot": False,
                 "changes": []}) | NOT_MODIFIED | wrong | refused,
        parameters=[
            _query("since", {"type": "integer", "minimum": 0}, "The version that the client has.", 11),
            _query("mark", TEXT | {"maxLength": 64}, "Its mark.", "77aa"),
            _query("wait", {"type": "number", "minimum": 0}, "Seconds to wait for a change: at most 60.", 5),
            ENTITY_TAG,
        ],
    )  # fmt: skip
    events = _operation(
        "get_events",
        "Server-sent events that say what has changed. `locks` (version, active locks by policy), `status` "
        "(suspension, brakes, days that differ) and `audit` (the newest entry): each once at the beginning, "
        "and whenever its data changes. Without names of callers. Scope: `view`.", "events",
        _answer("A stream without an end.", "text/event-stream", TEXT,
                'event: audit\ndata: {"newest": 7}\n\n') | refused,
    )  # fmt: skip
    report = _operation(
        "put_gates_instance",
        "The status of a gate, as `gatekeeper` reports it. The document names the instance of the path. A "
        "name of a command, such as `list`, is refused. Scope: `read`.", "gates",
        {"204": {"description": "Accepted."}} | wrong | refused
        | {"413": problem("The body is too long.")},
        parameters=[{
            "name": "instance", "in": "path", "required": True, "schema": TEXT,
            "description": "The gate.", "example": "web-3:812:3e221d79",
        }],
        requestBody={"required": True, "content": {"application/json": {"schema": an_object}}},
    )  # fmt: skip
    caller = _operation(
        "get_callers_me",
        "The use, the limits and the locks of one caller, for its application. Scope: `callers`.", "callers",
        _answer("What the caller may know of itself.", "application/json", an_object,
                {"caller": "api_key:acme", "policies": [], "locks": []}) | NOT_MODIFIED | wrong | refused,
        parameters=[
            {"name": "Gatelock-Caller", "in": "header", "required": True,
             "schema": TEXT | {"pattern": NAMED.replace("[\\s\\S]", "[!-~]")},
             "description": "The caller with its kind, percent-encoded.", "example": "api_key:acme"},
            ENTITY_TAG,
        ],
    )  # fmt: skip
    return {
        "/v1/locks": {"get": lock_feed},
        "/v1/events": {"get": events},
        "/v1/gates/{instance}": {"put": report},
        "/v1/callers/me": {"get": caller},
        "/livez": {"get": _operation(
            "get_livez", "Whether the loop of this process works. Otherwise restart the process.", "health",
            _answer("It works.", "application/json", an_object, {"live": True, "since_loop_s": 0.1})
            | {"503": {"description": "It hangs."}}, **probe,
        )},
        "/readyz": {"get": _operation(
            "get_readyz", "Whether records can be counted; all problems by name. Their texts need the scope "
            "`read`.", "health",
            _answer("They can.", "application/json", an_object,
                    {"ready": True, "problems": {}, "partitions": ["access-log[0]"]})
            | {"503": {"description": "They cannot, as `problems` says."}}, **probe,
        )},
        "/metrics": {"get": _operation(
            "get_metrics", "Metrics, as docs/metrics.md lists them. Paths of files need the scope `read`.",
            "health", _answer("Text of Prometheus or OpenMetrics.", "text/plain", TEXT,
                              "gatelock_up 1\n"), **probe,
        )},
        "/v1/openapi.json": {"get": _operation(
            "get_openapi_json", "This document.", "health",
            _answer("The document.", "application/json", an_object, {"openapi": "3.1.0"}), **probe,
        )},
    }  # fmt: skip
