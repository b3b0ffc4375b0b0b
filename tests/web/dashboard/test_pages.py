"""Pages over a real database and a real server: what they show, who may see them, what their forms do."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from html import escape, unescape

import httpx2
import pytest
import sqlalchemy as sa

from analyzer.billing.hand_over.deliveries import Delivery, delivering
from analyzer.billing.reports.usage_amounts import UsagePart
from analyzer.callers.caller_changes import set_callers
from analyzer.faces.api.endpoint_table import ENDPOINTS
from analyzer.faces.pages.page_list import PAGES
from analyzer.faces.pages.visitors import COOKIE
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.caller_limits import Profile
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.locks.locks_by_hand import Effect, LockTarget, set_locks
from analyzer.judging.locks.stored_locks import locks_in_force
from analyzer.kernel.by import By
from analyzer.kernel.database.audit_log import entries
from analyzer.kernel.database.engine import writing
from analyzer.kernel.sessions import IDLE_MS, LASTS_MS
from analyzer.kernel.tables.session_tables import sessions
from analyzer.kernel.tokens import SCOPES, TokenScope, create, revoke
from analyzer.plan.meter_units import UNLIMITED
from tests.store.days.test_day_audits import ClosedDays
from tests.store.flushing import a_row, flush, now_s, plan, quota
from tests.support.waiting import wait_until
from tests.web.dashboard.conftest import HOSTILE, PLAN

ADDRESSES = {
    "/": "view",
    "/signals": "view",
    "/callers": "view",
    "/caller?caller=api_key:acme": "view",
    "/locks": "view",
    "/policies": "view",
    "/policy?policy=daily": "view",
    "/gates": "view",
    "/neighbours": "view",
    "/attack": "view",
    "/days": "view",
    "/alerts": "operate",
    "/health": "operate",
    "/trail": "operate",
}
FORM_KEY = re.compile(r'name="form_key" value="([0-9a-f]{64})"')


def token_of(engine: sa.Engine, scope: TokenScope) -> str:
    return create(engine, f"of-{scope}", scope, None, "test", "for a test")


def sign_in(client: httpx2.Client, token: str, wanted: str = "/") -> httpx2.Response:
    return client.post("/sign-in", data={"token": token, "next": wanted})


def form_key(client: httpx2.Client, page: str = "/caller?caller=api_key:acme") -> str:
    found = FORM_KEY.search(client.get(page).text)
    assert found is not None
    return found[1]


def lock_bob(client: httpx2.Client, **changed: str) -> httpx2.Response:
    fields = {
        "form_key": form_key(client),
        "caller": "api_key:bob",
        "for": "1h",
        "reason": "INC-1",
        "back": "/",
    }
    return client.post("/acts/locks/lock", data=fields | changed)


def locked(engine: sa.Engine) -> set[str]:
    return {lock.key for lock in locks_in_force(engine)}


def test_every_page_is_in_the_table_of_this_test() -> None:
    assert {page.path: page.scope for page in PAGES} == {
        path.partition("?")[0]: scope for path, scope in ADDRESSES.items()
    }


@pytest.mark.parametrize("path", ADDRESSES)
def test_a_page_is_shown_on_this_machine_while_no_token_exists(client: httpx2.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "headers",
    [{"x-forwarded-for": "203.0.113.9"}, {"host": "evil.example"}, {"sec-fetch-site": "cross-site"}],
)
def test_a_page_is_not_shown_through_a_proxy_or_under_another_name(
    client: httpx2.Client, headers: dict[str, str]
) -> None:
    assert client.get("/", headers=headers).status_code == 403


@pytest.mark.parametrize("path", ADDRESSES)
@pytest.mark.parametrize("scope", SCOPES)
def test_a_page_is_shown_to_those_with_its_scope(
    client: httpx2.Client, engine: sa.Engine, path: str, scope: TokenScope
) -> None:
    signed_in = sign_in(client, token_of(engine, scope))
    if SCOPES.index(scope) < SCOPES.index("view"):
        assert signed_in.status_code == 403
        assert client.get(path).headers["location"].startswith("/sign-in")
        return
    assert signed_in.status_code == 303
    may = SCOPES.index(scope) >= SCOPES.index(ADDRESSES[path])
    assert client.get(path).status_code == (200 if may else 403)


def test_a_visitor_without_a_session_is_sent_to_sign_in_and_back(
    client: httpx2.Client, engine: sa.Engine
) -> None:
    token = token_of(engine, "view")
    answer = client.get("/callers?span=24h")
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=%2Fcallers%3Fspan%3D24h")
    assert sign_in(client, "gatelock_wrong").status_code == 401
    answer = sign_in(client, token, "/callers?span=24h")
    assert answer.headers["location"] == "/callers?span=24h"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert client.get("/callers?span=24h").status_code == 200


@pytest.mark.parametrize("wanted", ["//evil.example", "https://evil.example", "/\\evil.example", "evil"])
def test_sign_in_leads_to_no_other_site(client: httpx2.Client, engine: sa.Engine, wanted: str) -> None:
    assert sign_in(client, token_of(engine, "view"), wanted).headers["location"] == "/"


def test_a_page_about_a_name_that_was_never_counted_does_not_call_it_good(
    client: httpx2.Client, engine: sa.Engine
) -> None:
    sign_in(client, token_of(engine, "view"))
    page = client.get("/caller?caller=api_key:bod").text
    assert "Never seen" in page
    assert "caller=api_key%3Abob" in page
    assert "/acts/locks/lock" not in page
    assert "Not locked, but" not in client.get("/caller?caller=api_key:bob").text


def test_callers_that_may_have_nothing_and_that_have_no_limit_have_a_page(
    client: httpx2.Client, engine: sa.Engine
) -> None:
    limits = ("free", 0), ("internal", UNLIMITED)
    SqlStore(engine, "here").activate(plan(quota(50, "month", plan_limits=limits)))
    stated = {
        "api_key:acme": Profile("internal"),
        "api_key:bob": Profile("free"),
        "tenant:shop": Profile("free"),
    }
    set_callers(engine, stated, "ann", "sold", new_mark)
    page = client.get("/caller?caller=api_key:acme").text
    assert "Not locked." in page
    assert "unlimited" in page
    page = client.get("/caller?caller=api_key:bob").text
    assert "Locked by daily without an end: no requests are allowed" in page
    page = client.get("/policy?policy=daily").text
    assert ">no end</td>" in page


def test_a_policy_of_several_periods_shows_the_rule_and_the_mode_of_each(
    client: httpx2.Client, engine: sa.Engine
) -> None:
    periods = quota(50, "month", "api/month"), quota(20, "day", "api/day", mode="shadow")
    SqlStore(engine, "here").activate(plan(*periods))
    page = client.get("/policy?policy=api").text
    for name, mode, limit in (("api/month", "enforce", 50), ("api/day", "shadow", 20)):
        assert f'<dt>mode of {name}</dt><dd><span class="value">{mode}<' in page
        assert re.search(rf"{name}: [^;]*\b{limit} requests", page)
    assert client.get("/caller?caller=tenant:shop").status_code == 200


def test_days_show_what_was_handed_over_and_what_does_not_add_up(
    client: httpx2.Client, engine: sa.Engine
) -> None:
    assert "Nothing of these days was handed over" in client.get("/days").text
    part = UsagePart(ClosedDays(engine).day(0), "caller", "requests", "sum", "frozen")
    with delivering(engine, "https://billing.example/v1", "stripe", "ann", new_mark) as record:
        record.finished(part, Delivery(events=2, amount=12))
        assert "https://billing.example/v1" in (page := client.get("/days").text)
        assert "acknowledged, " not in page
        record.finished(part, Delivery(events=12, amount=1836))
    assert "1,836 in 12 events acknowledged, " in client.get("/days").text


def test_sign_out_ends_the_session_on_the_server_too(client: httpx2.Client, engine: sa.Engine) -> None:
    sign_in(client, token_of(engine, "operate"))
    cookie = client.cookies[COOKIE]
    answer = client.post("/sign-out", data={"form_key": form_key(client)})
    assert answer.headers["location"] == "/sign-in"
    client.cookies.set(COOKIE, cookie)
    assert client.get("/").status_code == 303


@pytest.mark.parametrize(("column", "age_ms"), [("seen_ms", IDLE_MS), ("begun_ms", LASTS_MS)])
def test_a_session_ends_when_it_is_idle_or_old(
    client: httpx2.Client, engine: sa.Engine, column: str, age_ms: int
) -> None:
    sign_in(client, token_of(engine, "view"))
    for part, status in ((0.9, 200), (0.2, 303)):
        with writing(engine) as db:
            db.execute(sa.update(sessions).values({column: sessions.c[column] - int(age_ms * part)}))
        # As a page that refreshes asks: that keeps no session alive.
        assert client.get("/", headers={"hx-request": "true"}).status_code == status


def test_an_act_of_an_operator_keeps_a_session_alive(client: httpx2.Client, engine: sa.Engine) -> None:
    sign_in(client, token_of(engine, "view"))
    for _ in range(3):
        with writing(engine) as db:
            db.execute(sa.update(sessions).values(seen_ms=sessions.c.seen_ms - int(IDLE_MS * 0.9)))
        assert client.get("/").status_code == 200


def test_a_session_ends_with_its_token(client: httpx2.Client, engine: sa.Engine) -> None:
    sign_in(client, token_of(engine, "view"))
    assert client.get("/").status_code == 200
    revoke(engine, "of-view", "test", "for a test")
    wait_until(lambda: client.get("/").status_code == 303, 30, lambda: "the session lasts")


def test_a_form_locks_and_unlocks_and_says_who_and_why(client: httpx2.Client, engine: sa.Engine) -> None:
    sign_in(client, token_of(engine, "operate"))
    answer = lock_bob(client)
    assert (answer.status_code, answer.headers["location"]) == (303, "/?done=%2Fv1%2Flocks%2Flock")
    assert locked(engine) == {"api_key:acme", "api_key:bob"}
    newest = next(iter(entries(engine)))
    assert (newest.who, newest.why) == ("token of-operate", "INC-1")
    fields = {"form_key": form_key(client), "caller": "api_key:bob", "reason": "sorry", "hold_off": ""}
    assert client.post("/acts/locks/unlock", data=fields).status_code == 303
    assert locked(engine) == {"api_key:acme"}


@pytest.mark.parametrize(
    "changed",
    [{"form_key": "0" * 64}, {"form_key": ""}, {"reason": ""}, {"for": "eternity"}, {"colour": "red"}],
)
def test_a_form_that_is_wrong_changes_nothing(
    client: httpx2.Client, engine: sa.Engine, changed: dict[str, str]
) -> None:
    sign_in(client, token_of(engine, "operate"))
    answer = lock_bob(client, **changed)
    assert answer.status_code in (400, 403, 422)
    assert 'role="alert"' in answer.text
    assert locked(engine) == {"api_key:acme"}


@pytest.mark.parametrize("headers", [{"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}])
def test_a_form_of_another_origin_changes_nothing(
    client: httpx2.Client, engine: sa.Engine, headers: dict[str, str]
) -> None:
    sign_in(client, token_of(engine, "operate"))
    fields = {"form_key": form_key(client), "caller": "api_key:bob", "for": "1h", "reason": "INC-1"}
    assert client.post("/acts/locks/lock", data=fields, headers=headers).status_code == 403
    assert locked(engine) == {"api_key:acme"}


def test_without_a_token_pages_have_no_forms_and_no_form_acts(
    client: httpx2.Client, engine: sa.Engine
) -> None:
    for path in ADDRESSES:
        page = client.get(path).text
        assert "/acts/" not in page
        assert "to act, sign in" in page
    key = client.get("/caller?caller=api_key:acme").text
    assert FORM_KEY.search(key) is None
    for endpoint in ENDPOINTS:
        if endpoint.acts:
            form_key = hashlib.sha256(f"form {client.cookies[COOKIE]}".encode()).hexdigest()
            answer = client.post(endpoint.path.replace("/v1/", "/acts/"), data={"form_key": form_key})
            assert answer.status_code == 401
            assert f"gatelock upkeep tokens create NAME --scope {endpoint.scope}" in answer.text
    assert locked(engine) == {"api_key:acme"}


def test_a_form_needs_the_scope_of_its_endpoint(client: httpx2.Client, engine: sa.Engine) -> None:
    sign_in(client, token_of(engine, "view"))
    page = client.get("/caller?caller=api_key:acme").text
    assert "/acts/" not in page
    answer = client.post("/acts/locks/lock", data={"form_key": form_key(client, "/"), "reason": "x"})
    assert answer.status_code == 403
    assert locked(engine) == {"api_key:acme"}


@pytest.mark.parametrize("path", ADDRESSES)
def test_each_cell_of_a_table_is_one_value(client: httpx2.Client, path: str) -> None:
    names = re.findall(r'id="table-([a-z0-9-]+)"', client.get(path).text)
    mark = "&" if "?" in path else "?"
    for name in names:
        answer = client.get(f"{path}{mark}table={name}&as=json")
        for row in answer.json()["items"]:
            assert not [cell for cell in row.values() if isinstance(cell, dict | list)], (name, row)


@pytest.mark.parametrize("path", ["/", "/callers", f"/caller?caller={HOSTILE}", "/trail"])
def test_a_hostile_name_stays_a_text_on_every_page(client: httpx2.Client, path: str) -> None:
    page = client.get(path, params=None).text
    assert "<script>alert" not in page


def test_a_table_is_there_as_csv_and_as_json(client: httpx2.Client) -> None:
    rows = list(csv.DictReader(io.StringIO(client.get("/callers?table=callers&as=csv").text)))
    assert [(row["caller"], row["value"]) for row in rows[:2]] == [
        ("api_key:acme", "60"),
        ("api_key:bob", "25"),
    ]
    found = json.loads(client.get("/callers?table=callers&as=json").text)["items"]
    assert [row["caller"] for row in found] == [row["caller"] for row in rows]


def test_times_are_shown_in_the_zone_of_the_viewer(client: httpx2.Client) -> None:
    client.cookies.set("gatelock-zone", "Asia%2FKolkata")
    page = client.get("/").text
    assert "Asia/Kolkata" in page
    client.cookies.set("gatelock-zone", "Nowhere%2FTown")
    assert client.get("/").status_code == 200


def test_an_unknown_thing_is_refused_with_a_page(client: httpx2.Client) -> None:
    assert client.get("/policy?policy=none").status_code == 404
    assert client.get("/caller").status_code == 404
    assert client.get("/download/report?day=2026-01-01&zone=UTC").status_code == 422
    assert client.get("/download/report?day=today&zone=UTC").status_code == 404


def test_the_page_of_a_caller_leads_to_its_statements(client: httpx2.Client, engine: sa.Engine) -> None:
    caller_page = client.get("/caller", params={"caller": HOSTILE}).text
    addresses = [unescape(found) for found in re.findall(r'href="(/statement[^"]*)"', caller_page)]
    assert len(addresses) == 3
    answer = client.get(addresses[0])
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "script-src" not in answer.headers["content-security-policy"]
    assert f"<h1>{escape(HOSTILE)}</h1>" in answer.text.replace("&#34;", "&quot;")
    assert "<script" not in answer.text
    [requests] = re.findall(r"<td>requests</td>.*?</tr>", answer.text, re.DOTALL)
    assert re.findall(r">\s*(\d+)\s*<", requests) == ["7", "0", "7", "0"], "used, corrected, in all, denied"


def test_statements_need_a_sign_in_and_an_existing_month(client: httpx2.Client, engine: sa.Engine) -> None:
    in_zone = "/statement?caller=user:x&zone=UTC"
    token = token_of(engine, "view")
    assert client.get(f"{in_zone}&month=2026-11").status_code == 303
    sign_in(client, token)
    for wrong in ("/statement?month=2026-11&zone=UTC", "/statement?caller=user:x&month=2026-11", in_zone):
        assert client.get(wrong).status_code == 404
    assert client.get(f"{in_zone}&month=2026-13").status_code == 422
    assert client.get(f"{in_zone}&month=2026-11").status_code == 200


def test_the_events_are_for_those_who_signed_in(client: httpx2.Client, engine: sa.Engine) -> None:
    token = token_of(engine, "view")
    assert client.get("/events").status_code == 401
    sign_in(client, token)
    with client.stream("GET", "/events") as answer:
        assert answer.status_code == 200
        assert next(answer.iter_lines()) == "event: locks"


@pytest.mark.parametrize("name", ["gatelock.css", "gatelock.js", "htmx-2.0.11.min.js", "gatelock.svg"])
def test_files_of_pages_are_served(client: httpx2.Client, name: str) -> None:
    assert client.get(f"/static/{name}").status_code == 200
    assert client.get("/static/..%2fserving_pages.py").status_code == 404


def test_a_caller_is_found_by_a_part_of_its_name_wherever_it_stands_in_the_ranking(
    client: httpx2.Client, engine: sa.Engine
) -> None:
    at_s = now_s(engine)
    store, others = SqlStore(engine, "here"), [a_row(100, at_s, f"user:n{number}") for number in range(130)]
    flush(store, PLAN, others)
    page = client.get("/callers?caller=bob").text
    assert "api_key:bob" in page
    assert "user:n1" not in page
    assert "api_key:bob" in client.get("/callers?caller=B").text, "inside a name, in any letters"
    assert "api_key:bob" not in client.get("/callers").text
    rows = client.get("/callers?table=callers&as=csv").text
    assert rows.count("user:n") == 130, "a file has all rows"
    assert "api_key:bob" in rows


def test_locks_are_paged_filtered_and_all_in_their_files(client: httpx2.Client, engine: sa.Engine) -> None:
    many = [LockTarget("caller", f"api_key:many-{number:03}") for number in range(60)]
    set_locks(engine, many, 3_600_000, Effect(), By("test", "INC-1"), new_mark)
    seen: list[str] = []
    address = "/locks"
    while address:
        page = client.get(address).text
        seen += re.findall(r"title=\"(api_key:[a-z0-9-]+)\"", page)
        following = re.search(r'href="([^"]*)#table-locks" rel="next"', page)
        address = unescape(following[1]) if following else ""
    assert sorted(seen) == sorted([lock.key for lock in locks_in_force(engine)])
    assert "51\N{EN DASH}61 of 61" in page
    assert client.get("/locks?caller=MANY-007").text.count('title="api_key:') == 1
    assert client.get("/locks?policy=:manual").text.count("by hand") >= 50
    assert "No lock is like this." in client.get("/locks?policy=none").text
    assert client.get("/locks?cursor=WzFd").status_code == 422
    rows = list(csv.DictReader(io.StringIO(client.get("/locks?table=locks&as=csv").text)))
    assert len(rows) == 61
    assert {row["policy"] for row in rows} == {"daily", ":manual"}


def test_times_in_files_have_the_offset_of_the_viewer_and_sentences_its_time(
    client: httpx2.Client, engine: sa.Engine
) -> None:
    client.cookies.set("gatelock-zone", "Asia%2FKolkata")
    rows = list(csv.DictReader(io.StringIO(client.get("/locks?table=locks&as=csv").text)))
    assert [row["until"][-6:] for row in rows] == ["+05:30"]
    page = client.get("/caller?caller=api_key:acme").text
    assert re.search(r"Locked by daily until \d{4}-\d\d-\d\d 05:30:00", page)
    assert ' IST"' in page
    assert not re.search(r"\dT\d\d:\d\d:\d\dZ[^\"]", page), "no other zone in a sentence"


@pytest.mark.parametrize(
    "query",
    ["span=90m", "from=2026-01-01T00:00&to=2026-01-03T00:00", "from=junk&to=1", "span=0m", "span=9999999d"],
)
def test_any_stretch_of_time_can_be_asked_for_and_nonsense_is_left_out(
    client: httpx2.Client, query: str
) -> None:
    assert client.get(f"/callers?{query}").status_code == 200
    assert client.get(f"/?{query}").status_code == 200


def test_a_message_about_an_act_is_of_an_act(client: httpx2.Client) -> None:
    assert "Done: locks lock." in client.get("/?done=/v1/locks/lock").text
    assert "Done:" not in client.get("/?done=a+passer+says").text
