"""The API over a real database and a real server: lists, pages, entity tags, permissions, acts."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx2
import pytest
import sqlalchemy as sa

from analyzer.config.settings import Settings
from analyzer.faces.api.endpoint_table import ENDPOINTS
from analyzer.faces.api.endpoints import Endpoint
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from analyzer.faces.wiring import web_application
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.locks.stored_locks import locks_in_force
from analyzer.kernel.database.audit_log import entries
from analyzer.kernel.tokens import SCOPES, create
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Calendar
from tests.store.flushing import a_row, flush, now_s
from tests.support.plain_http import Client

MONTH = Calendar("month")  # a test must not fail at midnight
POLICIES = [
    Quota("daily", 50, MONTH),
    Quota("export", 900, MONTH, per="caller+resource"),
    Quota("watched", 55, MONTH, mode="shadow"),
]
PLAN = make_plan([], [], POLICIES)
SCOPE_OF = {
    "GET /v1/usage": "view",
    "GET /v1/usage/top": "view",
    "GET /v1/days/list": "view",
    "GET /v1/reports/list": "view",
    "GET /v1/locks/list": "read",
    "GET /v1/explain": "view",
    "POST /v1/locks/lock": "operate",
    "POST /v1/locks/extend": "operate",
    "POST /v1/locks/unlock": "operate",
    "GET /v1/policies/list": "read",
    "GET /v1/policies/show": "view",
    "GET /v1/callers/list": "view",
    "GET /v1/callers/show": "view",
    "GET /v1/callers/overrides": "view",
    "GET /v1/gates/list": "view",
    "GET /v1/sources/list": "view",
    "GET /v1/jobs/list": "view",
    "GET /v1/jobs/history": "view",
    "GET /v1/events/list": "operate",
    "POST /v1/callers/set": "operate",
    "POST /v1/callers/limit": "operate",
    "POST /v1/callers/end": "operate",
    "POST /v1/callers/allow": "operate",
    "POST /v1/callers/forget": "admin",
    "POST /v1/policies/enforce": "admin",
    "POST /v1/locks/suspend": "admin",
    "POST /v1/locks/resume": "admin",
    "GET /v1/locks/notices": "view",
    "POST /v1/gates/forget": "operate",
    "GET /v1/alerts/list": "view",
    "GET /v1/alerts/messages": "view",
    "POST /v1/alerts/test": "operate",
    "POST /v1/alerts/resend": "operate",
    "POST /v1/alerts/contact": "operate",
    "POST /v1/alerts/remove": "operate",
    "POST /v1/sources/retire": "operate",
    "GET /v1/usage/live": "view",
    "POST /v1/policies/check": "view",
    "POST /v1/policies/simulate": "view",
}


@pytest.fixture
def counted(engine: sa.Engine) -> None:
    """60 requests of acme, which a limit of 50 locks, and 25 of bob."""
    store = SqlStore(engine, "here")
    store.activate(PLAN)
    at_s = now_s(engine)
    flush(store, PLAN, [a_row(60, at_s), a_row(25, at_s, "api_key:bob"), a_row(20, at_s, resource="/a")])


@pytest.fixture
def client(settings: Settings, engine: sa.Engine, counted: None) -> Iterator[httpx2.Client]:
    with web_application(settings, engine, Health(Metrics("1"), lambda: 0.0), dict) as address:
        assert address is not None
        with Client(base_url=f"http://127.0.0.1:{address[1]}", timeout=20) as found:
            yield found


@pytest.fixture
def operator(client: httpx2.Client, engine: sa.Engine) -> httpx2.Client:
    """The client with a token that may do everything."""
    client.headers["authorization"] = f"Bearer {create(engine, 'ops', 'admin', None, 'ann', 'tests')}"
    return client


def requested(client: httpx2.Client, endpoint: Endpoint, **headers: str) -> httpx2.Response:
    """Sends the examples of all parameters that must be there."""
    values = {field.name: field.param.example for field in endpoint.all_parameters if field.required}
    if endpoint.has_body:
        return client.post(endpoint.path, json=values, headers=headers)
    return client.get(endpoint.path, params=values, headers=headers)


def test_the_scopes_of_the_endpoints_are_those_of_this_table() -> None:
    assert {f"{row.method} {row.path}": row.scope for row in ENDPOINTS} == SCOPE_OF


def test_each_row_is_open_to_its_scope_and_to_those_above(client: httpx2.Client, engine: sa.Engine) -> None:
    tokens = {scope: create(engine, f"for-{scope}", scope, None, "ann", "tests") for scope in SCOPES}
    answered = {}
    for row in ENDPOINTS:
        assert requested(client, row).status_code == 401
        assert requested(client, row, authorization="Bearer gatelock_x").status_code == 401
        for scope in SCOPES:
            answer = requested(client, row, authorization=f"Bearer {tokens[scope]}")
            answered[row.method, row.path, scope] = answer.status_code == 403
            if answer.is_error:
                assert answer.headers["content-type"] == "application/problem+json"
    expected = {
        (row.method, row.path, scope): SCOPES.index(scope) < SCOPES.index(row.scope)
        for row in ENDPOINTS
        for scope in SCOPES
    }
    assert answered == expected


def test_without_a_token_this_machine_reads_each_row_and_acts_by_none(
    client: httpx2.Client, engine: sa.Engine
) -> None:
    before = [event.act for event in entries(engine)]
    for row in ENDPOINTS:
        answer = requested(client, row)
        assert answer.status_code == (401 if row.acts else 200), row.path
        if row.acts:
            assert f"gatelock upkeep tokens create NAME --scope {row.scope}" in answer.json()["detail"]
            assert answer.headers["www-authenticate"] == "Bearer"
    assert [event.act for event in entries(engine)] == before


def test_each_reading_row_answers_and_has_an_entity_tag(client: httpx2.Client) -> None:
    for row in ENDPOINTS:
        if row.acts:
            continue
        answer = requested(client, row)
        assert answer.status_code == 200, answer.text
        if row.has_body:
            continue
        if row.place is not None:
            assert set(answer.json()) == {"items", "next"}
        if row.path not in (
            "/v1/sources/list",
            "/v1/gates/list",
            "/v1/explain",
            "/v1/usage/live",
        ):  # these have ages
            assert requested(client, row, **{"if-none-match": answer.headers["etag"]}).status_code == 304


def test_usage_is_what_was_counted(client: httpx2.Client) -> None:
    asked = {"from": "2h", "to": "0s"}
    items = client.get("/v1/usage", params=asked | {"meter": "requests", "width": "minute"}).json()["items"]
    found = {(row["caller"], row["resource"]): row["value"] for row in items}
    assert found[("api_key:bob", "")] == 25
    assert sum(found.values()) == 60 + 25
    routes = client.get("/v1/usage", params=asked | {"by": "caller+resource"}).json()["items"]
    assert [(row["resource"], row["value"]) for row in routes] == [("/a", 20)]
    top = client.get("/v1/usage/top", params=asked | {"top": 1}).json()["items"]
    assert [row["caller"] for row in top] == ["api_key:acme"]
    only = client.get("/v1/usage", params=asked | {"caller": "api_key:bob"}).json()["items"]
    assert {row["caller"] for row in only} == {"api_key:bob"}


def test_a_name_that_was_never_counted_is_named_with_the_nearest_one(client: httpx2.Client) -> None:
    wrong, right = {"caller": "api_key:bod"}, {"caller": "api_key:bob"}
    span = {"from": "2h", "to": "0s"}
    for path, asked in (("/v1/usage", span), ("/v1/usage/top", span), ("/v1/locks/list", {})):
        answer = client.get(path, params=asked | wrong)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
        assert answer.json()["detail"].endswith(
            "othing was ever counted for api_key:bod; did you mean api_key:bob?"
        )
        assert client.get(path, params=asked | right).status_code == 200
    found = client.get("/v1/explain", params=wrong).json()
    assert (found["counted"], found["near"]) == (False, ["api_key:bob"])
    found = client.get("/v1/explain", params=right).json()
    assert (found["counted"], found["near"]) == (True, [])


def test_pages_together_are_the_whole_list(operator: httpx2.Client, engine: sa.Engine) -> None:
    for number in range(7):
        body = {"caller": f"user:{number}", "for": "2h", "reason": "INC-311"}
        assert operator.post("/v1/locks/lock", json=body).status_code == 200
    for path, asked in (
        ("/v1/locks/list", {}),
        ("/v1/events/list", {}),
        ("/v1/usage", {"from": "2h", "to": "0s"}),
    ):
        whole = operator.get(path, params=asked).json()["items"]
        pages, cursor = [], None
        while True:
            found = operator.get(path, params=asked | {"limit": 1} | ({"cursor": cursor} if cursor else {}))
            pages += found.json()["items"]
            cursor = found.json()["next"]
            if cursor is None:
                break
        assert pages == whole
        assert len(whole) > 1


IMPOSSIBLE = [
    ("/v1/usage", {"from": "2h"}),
    ("/v1/usage", {"from": "0s", "to": "2h"}),
    ("/v1/usage", {"from": "2020-01-01", "to": "0s", "width": "minute"}),
    ("/v1/usage", {"from": "2h", "to": "0s", "meter": "none-such"}),
    ("/v1/usage", {"from": "2h", "to": "0s", "by": "tenant+nothing"}),
    ("/v1/locks/list", {"limit": "0"}),
    ("/v1/locks/list", {"limit": "1001"}),
    ("/v1/locks/list", {"cursor": "AAAA"}),
    ("/v1/locks/list", {"unknown": "1"}),
    ("/v1/explain", {"caller": "acme"}),
    ("/v1/explain", {"caller": "api_key:\x1b[2J"}),
]


def test_an_impossible_request_is_answered_with_a_problem(client: httpx2.Client) -> None:
    for path, asked in IMPOSSIBLE:
        answer = client.get(path, params=asked)
        assert answer.status_code in (400, 422), (path, asked)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"].endswith(".")


def test_an_act_is_in_the_audit_log_with_name_and_reason(client: httpx2.Client, engine: sa.Engine) -> None:
    token = create(engine, "ops", "operate", None, "ann", "tests")
    headers = {"authorization": f"Bearer {token}"}
    body = {"address": "203.0.113.0/24", "for": "2h"}
    refused = client.post("/v1/locks/lock", json=body, headers=headers)
    assert refused.status_code == 400
    assert "reason" in refused.json()["detail"]
    shown = client.post("/v1/locks/lock", json=body | {"reason": "INC-311", "dry_run": True}, headers=headers)
    assert [lock["changed"] for lock in shown.json()["locks"]] == [False]
    assert [lock.scope for lock in locks_in_force(engine)] == ["caller"]
    done = client.post("/v1/locks/lock", json=body | {"reason": "INC-311"}, headers=headers)
    assert [lock["key"] for lock in done.json()["locks"]] == ["203.0.113.0/24"]
    assert {lock.scope for lock in locks_in_force(engine)} == {"caller", "range"}
    event = next(iter(entries(engine)))
    assert (event.who, event.act, event.why) == ("token ops", "locks lock", "INC-311")
    cleared = {"caller": "api_key:acme", "reason": "a mistake"}
    assert client.post("/v1/locks/unlock", json=cleared, headers=headers).status_code == 200
    assert client.post("/v1/locks/unlock", json=cleared, headers=headers).status_code == 404
    assert {lock.scope for lock in locks_in_force(engine)} == {"range"}


FOREIGN = [
    {"origin": "https://elsewhere.example"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
]


def test_a_page_of_another_origin_changes_nothing(client: httpx2.Client, engine: sa.Engine) -> None:
    token = create(engine, "ops", "admin", None, "ann", "tests")
    body = {"everyone": True, "for": "2h", "reason": "INC-311"}
    for headers in FOREIGN:
        sent = headers | {"authorization": f"Bearer {token}"}
        assert client.post("/v1/locks/lock", json=body, headers=sent).status_code == 403
    assert [lock.scope for lock in locks_in_force(engine)] == ["caller"]


def test_a_body_must_be_short_json_of_its_type(operator: httpx2.Client) -> None:
    path, typed = "/v1/locks/lock", {"content-type": "application/json"}
    assert operator.post(path, content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    for content in (b"", b"[]", b"nonsense", b"[" * 60_000):
        assert operator.post(path, content=content, headers=typed).status_code == 400
    long = b'{"reason": "' + b"x" * 70_000 + b'"}'
    assert operator.post(path, content=long, headers=typed).status_code == 413


def test_another_limit_holds_at_once_until_it_is_ended(operator: httpx2.Client, engine: sa.Engine) -> None:
    asked = {"caller": "api_key:acme", "policy": "daily", "amount": "1_000", "reason": "INC-311"}
    added = operator.post("/v1/callers/limit", json=asked | {"for": "30d"}).json()
    assert (added["freed"], added["who"]) == (1, "token ops")
    assert list(locks_in_force(engine)) == []
    assert [row["id"] for row in operator.get("/v1/callers/overrides").json()["items"]] == [added["id"]]
    limits = operator.get("/v1/callers/show", params={"caller": "api_key:acme"}).json()["limits"]
    assert {"policy": "daily", "limit": 1_000, "stated": 50, "exempt": False} in limits
    ended = operator.post("/v1/callers/end", json={"id": added["id"], "reason": "it is over"}).json()
    assert (ended["state"], ended["locked"]) == ("ended", 1)
    again = operator.post("/v1/callers/end", json={"id": added["id"], "reason": "it is over"})
    assert again.status_code == 404
    assert operator.post("/v1/callers/limit", json=asked | {"amount": "2 GiB"}).status_code == 422


def test_facts_about_a_caller_are_set(operator: httpx2.Client, engine: sa.Engine) -> None:
    asked = {"caller": "user:ann", "plan": "pro", "reason": "contract"}
    assert operator.post("/v1/callers/set", json=asked).json()["plan"] == "pro"
    assert [row["caller"] for row in operator.get("/v1/callers/list").json()["items"]] == ["user:ann"]
    assert operator.post("/v1/callers/set", json=asked | {"zone": "Mars"}).status_code == 422
    assert next(iter(entries(engine))).act == "callers set"


def test_a_policy_in_shadow_is_promoted(operator: httpx2.Client, engine: sa.Engine) -> None:
    asked = {"policy": "watched", "reason": "only crawlers in a week"}
    shown = operator.post("/v1/policies/enforce", json=asked | {"dry_run": True}).json()
    assert (shown["shadow_locks"], shown["changed"]) == (1, False)
    assert operator.post("/v1/policies/enforce", json=asked).json()["changed"] is True
    modes = {row["name"]: row["mode"] for row in operator.get("/v1/policies/list").json()["items"]}
    assert modes["watched"] == "enforce"
    assert operator.post("/v1/policies/enforce", json=asked).status_code == 404
    assert operator.post("/v1/policies/enforce", json=asked | {"policy": "none"}).status_code == 422


def test_events_say_what_changes_without_names(operator: httpx2.Client) -> None:
    with operator.stream("GET", "/v1/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        first = [next(lines) for _ in range(9)]
        assert first[::3] == ["event: locks", "event: signals", "event: audit"]
        body = {"caller": "user:ann", "for": "2h", "reason": "INC-311"}
        assert operator.post("/v1/locks/lock", json=body).status_code == 200
        then = [next(lines) for _ in range(6)]
    assert then[::3] == ["event: locks", "event: audit"]
    assert json.loads(then[1].removeprefix("data: "))["active"] == {"daily": 1, ":manual": 1}
    assert "ann" not in "".join(first + then)


def test_reports_are_asked_for_by_each_day_of_a_month(client: httpx2.Client) -> None:
    def asked(first: str, last: str) -> httpx2.Response:
        return client.get("/v1/reports/list", params={"from": first, "to": last, "zone": "UTC"})

    assert asked("2026-10-29", "2026-10-31").json() == {"items": [], "next": None}
    refused = asked("2026-02-28", "2026-02-30")
    assert refused.status_code == 422
    assert "there is no day 2026-02-30" in refused.json()["detail"]
