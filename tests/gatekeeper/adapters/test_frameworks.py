"""Every adapter inside its real framework, under a real server, called by a real HTTP client.

Workers share their limiters through a Redis, so that the counts do not depend on the worker that responds.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.gatekeeper.adapters.running_shop import SHOPS, Shop, new_key, shop
from tests.support import plain_http
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.servers.redis import Redis


@pytest.fixture(scope="module", params=SHOPS)
def running(
    request: pytest.FixtureRequest, redis_server: Redis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    folder: Path = tmp_path_factory.mktemp("shop")
    with shop(request.param, folder, redis_server.url) as found:
        yield found


# -- the gate ------------------------------------------------------------------------------------


def test_a_locked_caller_is_denied_with_the_reason_and_others_are_served(running: Shop) -> None:
    denied = running.get("/plain/items/7", "acme")
    assert denied.status_code == 429
    assert denied.headers["content-type"] == "application/problem+json"
    assert denied.headers["cache-control"] == "no-store"
    assert denied.headers["gatelock"] == 'denied;policy="daily"'
    assert 3000 < int(denied.headers["retry-after"]) <= 3600
    assert int(denied.headers["content-length"]) == len(denied.content)
    problem = denied.json()
    assert problem["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
    assert problem["violated-policies"] == ["daily", "monthly"]
    assert (problem["status"], problem["detail"]) == (429, "100,000 requests per day, 100,214 counted")
    assert "until" in problem
    served = running.get("/plain/items/7", new_key())
    assert (served.status_code, served.json()["remaining"]) == (200, 19)
    assert "retry-after" not in served.headers
    assert "gatelock" not in served.headers


@pytest.mark.parametrize("setup", ["open", "plain", "busy"])
@pytest.mark.parametrize("path", ["items/7", "healthz", "free/x", "refunded"])
def test_a_verdict_in_the_applications_own_response_is_removed(running: Shop, setup: str, path: str) -> None:
    """Each shop's application answers with the header of a denial, as if it passed on another response."""
    served = running.get(f"/{setup}/{path}", new_key())
    assert served.status_code in (200, 404)
    assert "gatelock" not in served.headers


def test_a_refused_client_learns_only_of_policies_that_refuse_it(running: Shop) -> None:
    """A tag is between the policy and the application."""
    denied = running.get("/plain/items/7", "suspected")
    assert (denied.status_code, denied.json()["violated-policies"]) == (429, ["daily"])
    shown = denied.text + str(denied.headers)
    assert "suspected-fraud" not in shown
    assert "internal" not in shown


@pytest.mark.parametrize(
    ("key", "status", "problem"),
    [
        ("slowed", 503, "temporary-reduced-capacity"),
        ("banned", 403, "abnormal-usage-detected"),
    ],
)
def test_the_lock_decides_the_status(running: Shop, key: str, status: int, problem: str) -> None:
    denied = running.get("/plain/items/7", key)
    assert (denied.status_code, denied.json()["status"]) == (status, status)
    assert denied.json()["type"].endswith(f"#{problem}")


def test_the_decision_is_in_the_requests_state_with_its_tags(running: Shop) -> None:
    answer = running.get("/plain/items/7", "tagged").json()
    assert (answer["tags"], answer["shadow"]) == (["daily"], False)
    assert answer["remaining"] < 20


def test_tenant_address_and_resource_are_checked(running: Shop) -> None:
    assert running.get("/plain/items/7", new_key(), x_tenant="globex").status_code == 429
    assert running.get("/plain/items/7", new_key(), x_tenant="initech").status_code == 200
    assert running.get("/open/items/7", "narrow").status_code == 429
    assert running.get("/open/expensive", "narrow").status_code == 200
    with httpx2.HTTPTransport(local_address="127.9.3.4") as there:
        assert httpx2.Client(transport=there).get(f"{running.url}/plain/items/7").status_code == 429


def test_an_address_in_a_header_counts_only_if_trusted_proxies_wrote_it(running: Shop) -> None:
    def status(setup: str, forwarded: str) -> int:
        return running.get(f"/{setup}/items/7", new_key(), x_forwarded_for=forwarded).status_code

    assert status("proxied", "203.0.113.9") == 429
    assert status("proxied", "6.6.6.6, 203.0.113.9") == 429
    assert status("proxied", "203.0.113.9, 6.6.6.6") == 200
    assert status("proxied", "nonsense") == 200


def test_without_trusted_proxies_a_header_has_no_effect(running: Shop) -> None:
    assert running.get("/plain/items/7", new_key(), x_forwarded_for="203.0.113.9").status_code == 200


def test_exempt_paths_pass_without_a_check(running: Shop) -> None:
    for path in ("/plain/healthz", "/plain/free/shop.css"):
        served = running.get(path, "acme")
        assert (served.status_code, served.json()) == (200, False)
        assert "ratelimit" not in served.headers
    assert running.get("/plain/free", "acme").status_code in (429, 404)


def test_in_shadow_mode_no_request_is_denied_and_those_that_would_be_are_logged(running: Shop) -> None:
    served = running.get("/shadow/items/7", "acme")
    assert (served.status_code, served.json()["shadow"], served.json()["policy"]) == (200, True, "daily")
    key = new_key()
    answers = [running.get("/shadow/items/7", key) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert [answer.json()["shadow"] for answer in answers] == [False, False, True]
    for line in (
        "would be denied: GET api_key:acme by daily (quota-exceeded)",
        f"would be denied: GET api_key:{key} by small (limited)",
    ):
        assert running.shadows().count(line) == 1


# -- limiters ------------------------------------------------------------------------------------


def test_a_limiter_counts_across_workers_and_sends_the_wait(running: Shop) -> None:
    key = new_key()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: running.get("/plain/items/7", key), range(24)))
    assert [answer.status_code for answer in answers].count(200) == 20
    denied = next(answer for answer in answers if answer.status_code == 429)
    assert 1 <= int(denied.headers["retry-after"]) <= 60
    assert denied.json()["violated-policies"] == ["burst"]
    assert denied.json()["type"].endswith("#quota-exceeded")
    assert denied.headers["gatelock"] == 'limited;policy="burst"'
    served = [answer for answer in answers if answer.status_code == 200]
    assert sorted(answer.json()["remaining"] for answer in served) == list(range(20))
    workers: set[int] = set()
    with ThreadPoolExecutor(4) as pool:
        while len(workers) < (1 if running.has_loop else 2):
            answers = list(pool.map(lambda _: running.get("/open/items/7", "bob"), range(8)))
            workers |= {answer.json()["worker"] for answer in answers}


def test_a_locked_caller_takes_nothing_from_a_limiter(running: Shop) -> None:
    key = new_key()
    assert {running.get("/plain/items/7", key, x_tenant="globex").status_code for _ in range(5)} == {429}
    assert running.get("/plain/items/7", key).json()["remaining"] == 19


def test_a_request_that_one_limiter_denies_takes_nothing_from_earlier_ones(running: Shop) -> None:
    key = new_key()
    assert [running.get("/two/items/7", key).status_code for _ in range(6)] == [200, 200, *[429] * 4]
    denied = running.get("/two/items/7", key)
    assert denied.json()["violated-policies"] == ["small"]


def test_views_may_have_different_costs(running: Shop) -> None:
    key = new_key()
    assert [running.get("/plain/expensive", key).json()["remaining"] for _ in range(2)] == [10, 0]
    assert running.get("/plain/items/7", key).status_code == 429


def test_refunded_requests_take_no_permits(running: Shop) -> None:
    key = new_key()
    assert [running.get("/plain/refunded", key).json()["remaining"] for _ in range(3)] == [19, 19, 19]
    assert {broken(running, "/plain/breaks", key) for _ in range(3)} == {500}
    assert running.get("/plain/items/7", key).json()["remaining"] == 19


def test_requests_without_a_caller_are_limited_by_address(running: Shop) -> None:
    def remaining(address: str) -> int:
        return int(running.get("/proxied/items/7", x_forwarded_for=address).json()["remaining"])

    here, there = (f"2001:db8:{new_key()[:4]}:{host}" for host in ("1::", "2::"))
    assert [remaining(f"{here}1"), remaining(f"{here}2"), remaining(f"{there}1")] == [19, 18, 19]


@pytest.mark.parametrize(
    ("setup", "wanted"),
    [
        ("plain", {"ratelimit-policy": '"burst";q=20', "ratelimit": r'"burst";r=19;t=\d+'}),
        ("legacy", {"x-ratelimit-limit": "20", "x-ratelimit-remaining": "19", "x-ratelimit-reset": r"\d+"}),
        ("both", {"ratelimit": r'"burst";r=19;t=\d+', "x-ratelimit-remaining": "19"}),
        ("off", {}),
    ],
)
def test_responses_have_the_chosen_headers_about_limits(
    running: Shop, setup: str, wanted: dict[str, str]
) -> None:
    key = new_key()
    served = running.get(f"/{setup}/items/7", key)
    sent = {name: value for name, value in served.headers.items() if "ratelimit" in name}
    assert len(sent) == {"plain": 2, "legacy": 3, "both": 5, "off": 0}[setup]
    for name, value in wanted.items():
        assert re.fullmatch(value, sent[name]), sent
    running.get(f"/{setup}/expensive", key)
    denied = running.get(f"/{setup}/expensive", key)
    assert denied.status_code == 429
    assert {name for name in denied.headers if "ratelimit" in name} == set(sent)
    assert "retry-after" in denied.headers


def test_a_waiting_request_does_not_delay_others(running: Shop) -> None:
    """The second request waits one second. Meanwhile the event loop or the other worker serves others."""
    key = new_key()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(running.get, "/queue/items/7", key) for _ in range(2)]
        while not any(future.done() for future in waiting):
            time.sleep(0.005)
        for _ in range(3):
            assert running.get("/plain/items/7", new_key()).status_code == 200
        assert not all(future.done() for future in waiting)
        assert [future.result().status_code for future in waiting] == [200, 200]


# -- requests in flight -----------------------------------------------------------------------------


def test_a_stream_is_in_flight_until_it_ends(running: Shop) -> None:
    key = new_key()
    with running.client.stream("GET", f"/busy/stream/{key}", headers={"x-api-key": key}) as answer:
        chunks = answer.iter_text()
        assert next(chunks) == "begun "
        assert running.get("/busy/items/7", key).json()["violated-policies"] == ["busy"]
        running.release(key)
        assert list(chunks) == ["done"]
    soon_served(running, key)
    # Its permit of the first limiter is used; those of the denied requests were refunded.
    assert running.get("/busy/items/7", key).json()["remaining"] == 0
    assert running.get("/plain/items/7", key).json()["remaining"] == 16


def test_a_stream_whose_client_disconnects_or_that_breaks_is_no_longer_in_flight(running: Shop) -> None:
    for ending in ("left", "broken"):
        key = new_key()
        path = f"/busy/stream/{'breaks' if ending == 'broken' else key}"
        try:
            with running.client.stream("GET", path, headers={"x-api-key": key}) as answer:
                chunks = answer.iter_text()
                assert next(chunks) == "begun "
                if ending == "broken":
                    list(chunks)
        except httpx2.RemoteProtocolError:
            assert ending == "broken"
        running.release(key)  # the server notices when it writes
        soon_served(running, key)


def test_a_view_that_raises_is_no_longer_in_flight(running: Shop) -> None:
    key = new_key()
    for _ in range(3):
        wait_until(lambda: broken(running, "/busy/breaks", key) == 500)  # see soon_served
    soon_served(running, key)
    assert running.get("/plain/items/7", key).json()["remaining"] == 18


def broken(running: Shop, path: str, key: str) -> int:
    """Requests on a separate connection: uvicorn resets one whose application has failed."""
    return running.get(path, key, connection="close").status_code


def soon_served(running: Shop, key: str) -> None:
    """Waits until the permit is free: the server ends a response a moment after its last byte."""
    wait_until(lambda: running.get("/busy/items/7", key).status_code == 200)


# -- WebSockets ----------------------------------------------------------------------------------

with_websockets = pytest.mark.parametrize("running", ["asgi", "fastapi"], indirect=True)


def opened(running: Shop, setup: str, key: str) -> ClientConnection:
    url = f"ws://127.0.0.1:{running.port}/{setup}/items/7"
    return connect(url, additional_headers={"x-api-key": key}, proxy=None)


@with_websockets
def test_the_handshake_of_a_locked_caller_is_denied_with_the_reason(running: Shop) -> None:
    with pytest.raises(InvalidStatus) as denied, opened(running, "plain", "acme"):
        pass
    answer = denied.value.response
    assert (answer.status_code, answer.headers["gatelock"]) == (429, 'denied;policy="daily"')
    assert answer.headers["content-type"] == "application/problem+json"
    assert 3000 < int(answer.headers["retry-after"]) <= 3600
    assert json.loads(answer.body)["violated-policies"] == ["daily", "monthly"]


@with_websockets
def test_a_websocket_is_checked_once_and_in_flight_until_it_closes(running: Shop) -> None:
    key = new_key()
    with opened(running, "busy", key) as line:
        assert json.loads(line.recv())["remaining"] == 0
        for _ in range(5):
            line.send("hello")
        assert line.response is not None
        assert '"busy";r=0' in line.response.headers["ratelimit"]
        with pytest.raises(InvalidStatus) as denied, opened(running, "busy", key):
            pass
        assert json.loads(denied.value.response.body)["violated-policies"] == ["busy"]
    soon_served(running, key)
    assert running.get("/plain/items/7", key).json()["remaining"] == 17


# -- hostile and odd requests --------------------------------------------------------------------


def test_a_denied_head_request_has_headers_and_no_body(running: Shop) -> None:
    denied = running.ask("HEAD", "/plain/items/7", "acme")
    assert (denied.status_code, denied.content) == (429, b"")
    assert denied.headers["gatelock"] == 'denied;policy="daily"'
    served = running.ask("HEAD", "/plain/items/7", new_key())
    assert (served.status_code, served.content) == (200, b"")
    assert "ratelimit" in served.headers


def test_the_body_of_a_denied_request_disturbs_neither_the_response_nor_the_next_request(
    running: Shop,
) -> None:
    body = b"x" * 3_000_000
    for key, status in (("acme", 429), (new_key(), 200), ("acme", 429)):
        with plain_http.Client(base_url=running.url, timeout=30) as client:
            answers = [
                client.post("/plain/items/7", headers={"x-api-key": key}, content=body) for _ in range(2)
            ]
        assert [answer.status_code for answer in answers] == [status, status]
        if status == 200:
            assert answers[1].json()["length"] == len(body)


@pytest.mark.parametrize(
    "value",
    [b"\xff\xfe\x80", b"x" * 5000, b"acme\x85", b"acme,bob", "é".encode("latin-1"), b"api_key:acme", b""],
    ids=["no utf-8", "5,000 bytes", "a control character", "two", "latin-1", "with a kind", "empty"],
)
def test_odd_names_are_served_and_match_no_lock(running: Shop, value: bytes) -> None:
    answer = raw(running, b"GET /open/items/7 HTTP/1.1", b"x-api-key: " + value)
    assert status_of(answer) == 200


def test_a_policys_name_cannot_write_headers(running: Shop) -> None:
    denied = running.get("/plain/items/7", "odd")
    assert denied.headers["gatelock"] == 'denied;policy="a \\"policy\\"??set-cookie: x=1 ?"'
    assert "set-cookie" not in denied.headers
    assert denied.json()["violated-policies"] == ['a "policy"\r\nset-cookie: x=1 é']


@pytest.mark.parametrize(
    "path",
    [
        "healthz%00",
        "healthz/../items/7",
        "free/../items/7",
        "free/%2e%2e/items/7",
        "free%2f..%2fitems%2f7",
    ],
)
def test_no_spelling_of_an_exempt_path_reaches_a_guarded_view(running: Shop, path: str) -> None:
    answer = raw(running, f"GET /open/{path} HTTP/1.1".encode(), b"x-api-key: acme")
    assert b'"remaining"' not in answer
    assert status_of(answer) in (200, 400, 404, 429)


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def raw(running: Shop, line: bytes, *headers: bytes) -> bytes:
    """Returns the response to bytes that a regular client would not send."""
    head = b"\r\n".join([line, b"host: shop.example", b"connection: close", *headers, b"", b""])
    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as line_:
        line_.sendall(head)
        answer = b""
        while chunk := line_.recv(65536):
            answer += chunk
    return answer
