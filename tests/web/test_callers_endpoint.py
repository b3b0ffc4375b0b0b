"""`GET /v1/callers/me` over a real database and a real server: what an application passes on to a caller."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from analyzer.callers.caller_changes import OverrideRequest, add_override, set_callers
from analyzer.callers.caller_standing import caller_standing
from analyzer.config.settings import Settings
from analyzer.faces.api import callers_endpoint
from analyzer.faces.api.callers_endpoint import MAX_AGE_S, CallerReads
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from analyzer.faces.wiring import web_application
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.caller_limits import Profile, Subject
from analyzer.judging.locks.locks_by_hand import Effect, LockTarget, set_locks
from analyzer.kernel.by import By
from analyzer.kernel.database.clock import instant
from analyzer.kernel.errors import StoreAway
from analyzer.kernel.tokens import create
from analyzer.plan.meters import Meter
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import LoadShare, Quota, RollingQuota, Surge
from analyzer.plan.windows import Calendar, Rolling
from analyzer.server.problems import HttpProblem
from gatekeeper.caller_view import CALLER_FIELD
from gatekeeper.model import Lock, Set
from tests.store.flushing import a_row, flush, now_s, publish
from tests.support import plain_http
from tests.support.waiting import wait_until

ACME, BOB, EVE = "api_key:acme", "api_key:bob", "api_key:eve"
DAY = Calendar("month")  # a test must not fail at midnight
POLICIES = [
    Quota("daily", 50, DAY),
    Quota("daily/candidate", 20, DAY, mode="shadow"),
    Quota("noticed", 10, DAY, action="notify", notify=(500,)),
    Quota("tagged", 5, DAY, action="tag"),
    RollingQuota("rolling", 1_000, Rolling(7_200)),
    Quota("export", 30, DAY, per="caller+resource"),
    Quota("traffic", 2 << 30, DAY, meter="volume", unit="bytes"),
    Quota("of-tenant", 400, DAY, per="tenant"),
    Surge("flood", 500, Rolling(60), mode="shadow"),
    LoadShare("neighbour", 400_000, 50, Rolling(60), 0, 200_000, per="caller+resource"),
]
PLAN = make_plan([], [Meter("volume", "bytes")], POLICIES)
SHOWN = ["daily", "export", "rolling", "traffic"]
BY_HAND = By("ops-team-alice", "Call us.")  # the reason is what a refused client reads


@pytest.fixture
def counted(engine: sa.Engine) -> None:
    """60 requests of acme, of which 20 for one resource, and 25 of bob."""
    store = SqlStore(engine, "here")
    store.activate(PLAN)
    at_s = now_s(engine)
    rows = [a_row(60, at_s), a_row(25, at_s, BOB), a_row(20, at_s, resource="/a")]
    flush(store, PLAN, rows)


@pytest.fixture
def url(settings: Settings, engine: sa.Engine, counted: None) -> Iterator[str]:
    with web_application(settings, engine, Health(Metrics("1"), lambda: 0.0), dict) as address:
        assert address is not None
        yield f"http://127.0.0.1:{address[1]}/v1/callers/me"


def ask(url: str, caller: str = ACME, **headers: str) -> httpx2.Response:
    named = {CALLER_FIELD: quote(caller, safe=":")}
    return plain_http.get(url, headers=named | {k.replace("_", "-"): v for k, v in headers.items()})


def limits(answer: httpx2.Response) -> dict[str, dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    return {limit["policy"]: limit for limit in answer.json()["limits"]}


def test_a_caller_learns_what_it_has_used_and_what_remains(url: str, engine: sa.Engine) -> None:
    answer = ask(url, BOB)
    assert answer.headers["content-type"] == "application/json"
    assert list(limits(answer)) == SHOWN
    daily = limits(answer)["daily"]
    assert (daily["used"], daily["limit"], daily["remaining"]) == (25, 50, 25)
    assert (daily["meter"], daily["unit"], daily["exempt"]) == ("requests", None, False)
    assert daily["detail"] == "50 requests per month (UTC), 25 counted"
    assert daily["resets"] > answer.json()["now"]
    assert 27 * 86_400 < daily["window_s"] < 32 * 86_400
    assert limits(answer)["rolling"]["window_s"] == 7_200
    assert limits(answer)["rolling"]["resets"] is None
    assert limits(answer)["traffic"]["unit"] == "bytes"
    assert (answer.json()["locked"], answer.json()["locks"]) == (False, [])
    # The numbers are those of `gatelock explain`.
    used = {use.policy.name: use.used for use in caller_standing(engine, BOB).uses}
    assert {name: limit["used"] for name, limit in limits(answer).items()}.items() <= used.items()


def test_a_locked_caller_learns_by_which_policy_until_when_and_how_it_ends(url: str) -> None:
    answer = ask(url)
    assert answer.json()["locked"] is True
    [lock] = answer.json()["locks"]
    assert (lock["policy"], lock["scope"], lock["status"]) == ("daily", "caller", 429)
    assert lock["detail"] == "50 requests per month (UTC), 60 counted"
    assert lock["began"] <= answer.json()["now"] < lock["until"]
    assert lock["unlock"].startswith(f"The lock ends by itself at {lock['until']}.")
    assert limits(answer)["daily"]["remaining"] == 0
    assert (limits(answer)["export"]["resource"], limits(answer)["export"]["used"]) == ("/a", 20)


def test_a_caller_learns_nothing_of_others_of_operators_or_of_policies_in_shadow(
    url: str, engine: sa.Engine
) -> None:
    tag = Effect(action="tag")
    set_locks(engine, [LockTarget("everyone", "")], 3_600_000, tag, BY_HAND._replace(why="watched"), str)
    set_locks(engine, [LockTarget("caller", BOB)], 3_600_000, Effect(), BY_HAND, str)
    answer = ask(url, BOB)
    assert [lock["detail"] for lock in answer.json()["locks"]] == ["Call us."]
    for hidden in (
        "alice",
        "watched",
        "acme",
        "candidate",
        "shadow",
        "noticed",
        "tagged",
        "neighbour",
        "bob",
    ):
        assert hidden not in answer.text.lower(), hidden


def test_a_caller_of_a_tenant_sees_what_remains_for_the_tenant(url: str, engine: sa.Engine) -> None:
    set_callers(engine, {EVE: Profile(tenant="globex")}, "operator", "", str)
    found = limits(ask(url, EVE))["of-tenant"]
    assert (found["scope"], found["limit"], found["used"]) == ("tenant", 400, 0)
    assert "globex" not in ask(url, EVE).text


def test_an_override_and_an_exemption_are_in_the_answer(url: str, engine: sa.Engine) -> None:
    more = OverrideRequest("limit", Subject("caller", BOB), "daily", 80)
    add_override(engine, more, "operator", "", str)
    assert limits(ask(url, BOB))["daily"]["remaining"] == 55
    add_override(engine, OverrideRequest("exempt", Subject("caller", EVE), ""), "operator", "", str)
    daily = limits(ask(url, EVE))["daily"]
    assert (daily["exempt"], daily["limit"], daily["remaining"], daily["reached"]) == (True, None, None, None)
    assert daily["detail"] == "no limit, 0 counted"


def test_while_locks_are_suspended_none_is_shown(url: str, engine: sa.Engine) -> None:
    from analyzer.judging.locks.suspension import suspend

    suspend(engine, 60_000, "operator", "an incident", str)
    assert (ask(url).json()["locked"], ask(url).json()["locks"]) == (False, [])


class Statements:
    """The statements of one call, without their parameters."""

    def __init__(self, engine: sa.Engine) -> None:
        self.texts: list[str] = []
        self._engine = engine

    def of(self, caller: str) -> list[str]:
        self.texts = []
        sa.event.listen(self._engine, "before_cursor_execute", self._note)
        try:
            caller_standing(self._engine, caller)
        finally:
            sa.event.remove(self._engine, "before_cursor_execute", self._note)
        return self.texts

    def _note(self, _db: Any, _cursor: Any, text: str, *_: Any) -> None:
        self.texts.append(text)


def test_a_caller_that_was_never_seen_has_its_limits_and_costs_the_same(url: str, engine: sa.Engine) -> None:
    answer = ask(url, EVE)
    assert list(limits(answer)) == SHOWN
    assert {limit["used"] for limit in limits(answer).values()} == {0}
    assert answer.json()["locked"] is False
    assert list(answer.json()) == list(ask(url, BOB).json())
    assert list(limits(answer)["daily"]) == list(limits(ask(url, BOB))["daily"])
    statements = Statements(engine)
    assert statements.of(EVE) == statements.of(BOB)
    assert len(statements.texts) > 5


def test_an_answer_may_be_kept_for_moments_by_its_client_alone(url: str) -> None:
    first = ask(url, EVE)
    assert first.headers["cache-control"] == f"private, max-age={MAX_AGE_S}"
    assert CALLER_FIELD in first.headers["vary"]
    again = ask(url, EVE, if_none_match=f'"other", {first.headers["etag"]}')
    assert (again.status_code, again.content) == (304, b"")
    assert ask(url, BOB, if_none_match=first.headers["etag"]).status_code == 200


@pytest.mark.parametrize(
    "names", [[], ["acme"], ["unnamed:"], [":acme"], ["api_key:a%00b"], ["api_key:%ff"], [ACME, BOB]]
)
def test_a_request_must_name_exactly_one_caller(url: str, names: list[str]) -> None:
    """With two, one may be the client's, whose headers the application has forwarded."""
    answer = plain_http.get(url, headers=[(CALLER_FIELD, name) for name in names])
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert CALLER_FIELD in answer.json()["detail"]


@given(st.text(min_size=1, max_size=60))
def test_any_name_arrives_as_it_is(text: str) -> None:
    """Also with percent signs, commas and letters that no header can hold."""
    from gatekeeper.caller_view import is_caller

    caller = f"user:{text}"
    if not is_caller(caller):
        return
    scope = {"type": "http", "headers": [(CALLER_FIELD.encode(), quote(caller, safe=":").encode())]}
    assert callers_endpoint._caller(callers_endpoint.Request(scope)) == caller


def test_a_token_for_locks_is_not_enough(url: str, engine: sa.Engine) -> None:
    tokens = {scope: create(engine, scope, scope, None, "op", "") for scope in ("read", "callers", "operate")}
    bearing = {scope: {"authorization": f"Bearer {token}"} for scope, token in tokens.items()}
    wait_until(lambda: ask(url).status_code == 401)
    refused = ask(url, ACME, **bearing["read"])
    assert refused.status_code == 403
    assert refused.headers["www-authenticate"].endswith('scope="callers"')
    assert ask(url, ACME, **bearing["callers"]).status_code == 200
    assert ask(url, ACME, **bearing["operate"]).status_code == 200
    locks = url.replace("callers/me", "locks")
    assert plain_http.get(locks, headers=bearing["callers"]).status_code == 200


def test_while_the_database_is_away_the_answer_is_a_503(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise StoreAway("it is not there")

    monkeypatch.setattr("analyzer.faces.wiring.caller_standing", away)
    answer = ask(url)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "it is not there" not in answer.text


def test_few_callers_are_read_at_a_time_each_of_them_once() -> None:
    release, reading, ended = threading.Semaphore(0), [], []

    def read(caller: str) -> Mapping[str, Any]:
        reading.append(caller)
        assert len(reading) - len(ended) <= callers_endpoint.READS_MAX
        assert release.acquire(timeout=20)
        ended.append(caller)
        return {"of": caller}

    async def story() -> None:
        reads = CallerReads(read)
        names = [f"user:{n}" for n in range(callers_endpoint.READS_MAX + 2)]
        waiting = [asyncio.ensure_future(reads.get(name)) for name in names for _ in range(3)]
        await asyncio.to_thread(wait_until, lambda: len(reading) >= callers_endpoint.READS_MAX)
        assert reading == names[: callers_endpoint.READS_MAX]
        for _ in names:
            release.release()
        assert [one["of"] for one in await asyncio.gather(*waiting)] == [n for n in names for _ in range(3)]
        assert sorted(reading) == names

    asyncio.run(story())


def test_beyond_a_number_of_waiting_callers_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers_endpoint, "WAITING_MAX", 3)
    release = threading.Event()

    async def story() -> None:
        reads = CallerReads(lambda caller: {"of": caller} if release.wait(20) else {})
        waiting = [asyncio.ensure_future(reads.get(f"user:{n}")) for n in range(3)]
        await asyncio.to_thread(wait_until, lambda: len(reads._running) == 3)
        with pytest.raises(HttpProblem, match="Too many"):
            await reads.get("user:9")
        release.set()
        assert len(await asyncio.gather(*waiting)) == 3
        assert await reads.get("user:9") == {"of": "user:9"}

    asyncio.run(story())


def test_a_lock_that_slows_is_shown_with_its_rate(url: str, engine: sa.Engine) -> None:
    from gatekeeper.model import Rate

    now = instant(now_s(engine) * 1000)
    lock = Lock("caller", EVE, "slowed", now, now + timedelta(hours=1), action="slow", slow=Rate(10, 1.0))
    with SqlStore(engine, "here").transaction() as tx:
        publish(tx, [Set(lock)])
    answer = ask(url, EVE).json()
    assert (answer["locked"], answer["locks"][0]["slow"]) == (False, {"limit": 10, "period": 1.0})
