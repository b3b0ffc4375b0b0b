"""Operations besides the commands: the lock feed, events, gates, the view of a caller, health, metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


AN_OBJECT = {"type": "object"}
PROBE: dict[str, Any] = {"security": []}  # without a token


def other_operations(problem: Any) -> dict[str, dict[str, Any]]:
    """Returns the operations by path and method; `problem` makes the response of a refusal."""
    refused = {code: problem(text) for code, text in REFUSED.items()}
    wrong = {"400": problem("A parameter is wrong.")}
    return {
        "/v1/locks": {"get": _lock_feed(wrong | refused)},
        "/v1/events": {"get": _events(refused)},
        "/v1/gates/{instance}": {
            "put": _gate_report(wrong | refused | {"413": problem("The body is too long.")})
        },
        "/v1/callers/me": {"get": _view_of_a_caller(wrong | refused)},
        **_probes(),
    }


def _lock_feed(refused: Mapping[str, Any]) -> dict[str, Any]:
    example = {"version": 12, "mark": "9f3c", "now": "2026-11-20T21:14:04Z", "snapshot": False, "changes": []}
    answer = _answer("The changes, or a snapshot.", "application/json", AN_OBJECT, example)
    return _operation(
        "get_locks",
        "The lock feed: changes since a version, or all locks. A gate keeps `version` and `mark` of an "
        "answer and sends them with its next request. Scope: `read`.",
        "feed",
        {**answer, **NOT_MODIFIED, **refused},
        parameters=[
            _query("since", {"type": "integer", "minimum": 0}, "The version that the client has.", 11),
            _query("mark", TEXT | {"maxLength": 64}, "Its mark.", "77aa"),
            _query("wait", {"type": "number", "minimum": 0}, "Seconds to wait for a change: at most 60.", 5),
            ENTITY_TAG,
        ],
    )


def _events(refused: Mapping[str, Any]) -> dict[str, Any]:
    example = 'event: audit\ndata: {"newest": 7}\n\n'
    return _operation(
        "get_events",
        "Server-sent events that say what has changed. `locks` (version, active locks by policy), `signals` "
        "(what is wrong) and `audit` (the newest entry): each once at the beginning, and whenever its data "
        "changes. Without names of callers. Scope: `view`.",
        "events",
        {**_answer("A stream without an end.", "text/event-stream", TEXT, example), **refused},
    )


def _gate_report(refused: Mapping[str, Any]) -> dict[str, Any]:
    instance = {
        "name": "instance", "in": "path", "required": True, "schema": TEXT, "description": "The gate.",
        "example": "web-3:812:3e221d79",
    }  # fmt: skip
    return _operation(
        "put_gates_instance",
        "The status of a gate, as `gatekeeper` reports it. The document names the instance of the path. A "
        "name of a command, such as `list`, is refused. Scope: `read`.",
        "gates",
        {"204": {"description": "Accepted."}, **refused},
        parameters=[instance],
        requestBody={"required": True, "content": {"application/json": {"schema": AN_OBJECT}}},
    )


def _view_of_a_caller(refused: Mapping[str, Any]) -> dict[str, Any]:
    example = {"caller": "api_key:acme", "policies": [], "locks": []}
    answer = _answer("What the caller may know of itself.", "application/json", AN_OBJECT, example)
    name = {
        "name": "Gatelock-Caller", "in": "header", "required": True,
        "schema": TEXT | {"pattern": NAMED.replace("[\\s\\S]", "[!-~]")},
        "description": "The caller with its kind, percent-encoded.", "example": "api_key:acme",
    }  # fmt: skip
    return _operation(
        "get_callers_me",
        "The use, the limits and the locks of one caller, for its application. Scope: `callers`.",
        "callers",
        {**answer, **NOT_MODIFIED, **refused},
        parameters=[name, ENTITY_TAG],
    )


def _probes() -> dict[str, dict[str, Any]]:
    ready = {"ready": True, "problems": {}, "partitions": ["access-log[0]"]}
    rows: Sequence[tuple[str, str, dict[str, Any]]] = (
        (
            "/livez", "Whether the loop of this process works. Otherwise restart the process.",
            _answer("It works.", "application/json", AN_OBJECT, {"live": True, "since_loop_s": 0.1})
            | {"503": {"description": "It hangs."}},
        ),
        (
            "/readyz", "Whether records can be counted; problems by name. Their texts need the scope `read`.",
            _answer("They can.", "application/json", AN_OBJECT, ready)
            | {"503": {"description": "They cannot, as `problems` says."}},
        ),
        (
            "/metrics", "Metrics of this process and the installation. Paths of files need the scope `read`.",
            _answer("Text of Prometheus or OpenMetrics.", "text/plain", TEXT, "gatelock_feed_version 12\n"),
        ),
        (
            "/v1/openapi.json", "This document.",
            _answer("The document.", "application/json", AN_OBJECT, {"openapi": "3.1.0"}),
        ),
    )  # fmt: skip
    return {
        path: {
            "get": _operation(
                f"get_{path.rpartition('/')[2].replace('.', '_')}", about, "health", answers, **PROBE
            )
        }
        for path, about, answers in rows
    }
