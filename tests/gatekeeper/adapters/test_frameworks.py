"""Every adapter inside its real framework, under a real server, asked by a real HTTP client.

Workers share their limiters through a Redis, so that what is counted is known whoever answers.
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


def test_a_locked_caller_is_refused_with_the_reason_and_others_are_served(running: Shop) -> None:
    refused = running.get("/plain/items/7", "acme")
    assert refused.status_code == 429
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["cache-control"] == "no-store"
    assert refused.headers["gatelock"] == 'denied;policy="daily"'
    assert 3000 < int(refused.headers["retry-after"]) <= 3600
    assert int(refused.headers["content-length"]) == len(refused.content)
    problem = refused.json()
    assert problem["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
    assert problem["violated-policies"] == ["daily", "monthly"]
    assert (problem["status"], problem["detail"]) == (429, "100,000 requests per day, 100,214 counted")
    assert "until" in problem
    served = running.get("/plain/items/7", new_key())
    assert (served.status_code, served.json()["remaining"]) == (200, 19)
    assert "retry-after" not in served.headers
    assert "gatelock" not in served.headers


@pytest.mark.parametrize(
    ("key", "status", "problem"),
    [
        ("slowed", 503, "temporary-reduced-capacity"),
        ("banned", 403, "abnormal-usage-detected"),
    ],
)
def test_the_policy_says_the_status(running: Shop, key: str, status: int, problem: str) -> None:
    refused = running.get("/plain/items/7", key)
    assert (refused.status_code, refused.json()["status"]) == (status, status)
    assert refused.json()["type"].endswith(f"#{problem}")


def test_the_decision_is_in_the_requests_state_with_its_tags(running: Shop) -> None:
    answer = running.get("/plain/items/7", "tagged").json()
    assert (answer["tags"], answer["shadow"]) == (["daily"], False)
    assert answer["remaining"] < 20


def test_a_tenant_an_address_and_a_resource_are_asked_for(running: Shop) -> None:
    assert running.get("/plain/items/7", new_key(), x_tenant="globex").status_code == 429
    assert running.get("/plain/items/7", new_key(), x_tenant="initech").status_code == 200
    assert running.get("/open/items/7", "narrow").status_code == 429
    assert running.get("/open/dear", "narrow").status_code == 200
    with httpx2.HTTPTransport(local_address="127.9.3.4") as there:
        assert httpx2.Client(transport=there).get(f"{running.url}/plain/items/7").status_code == 429


def test_an_address_is_taken_from_a_header_only_as_far_as_proxies_are_trusted(running: Shop) -> None:
    def asked(setup: str, forwarded: str) -> int:
        return running.get(f"/{setup}/items/7", new_key(), x_forwarded_for=forwarded).status_code

    assert asked("proxied", "203.0.113.9") == 429
    assert asked("proxied", "6.6.6.6, 203.0.113.9") == 429
    assert asked("proxied", "203.0.113.9, 6.6.6.6") == 200
    assert asked("proxied", "nonsense") == 200


def test_without_trust_a_header_names_no_address(running: Shop) -> None:
    assert running.get("/plain/items/7", new_key(), x_forwarded_for="203.0.113.9").status_code == 200


def test_what_is_exempt_is_let_through_unasked(running: Shop) -> None:
    for path in ("/plain/healthz", "/plain/free/shop.css"):
        served = running.get(path, "acme")
        assert (served.status_code, served.json()) == (200, False)
        assert "ratelimit" not in served.headers
    assert running.get("/plain/free", "acme").status_code in (429, 404)


def test_in_shadow_nobody_is_refused_and_it_is_logged_who_would_be(running: Shop) -> None:
    served = running.get("/shadow/items/7", "acme")
    assert (served.status_code, served.json()["shadow"], served.json()["policy"]) == (200, True, "daily")
    key = new_key()
    answers = [running.get("/shadow/items/7", key) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert [answer.json()["shadow"] for answer in answers] == [False, False, True]
    for line in (
        "would be refused: GET api_key:acme by daily (quota-exceeded)",
        f"would be refused: GET api_key:{key} by small (limited)",
    ):
        assert running.shadows().count(line) == 1


# -- limiters ------------------------------------------------------------------------------------


def test_a_limiter_counts_in_all_workers_and_says_when_to_come_again(running: Shop) -> None:
    key = new_key()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: running.get("/plain/items/7", key), range(24)))
    assert [answer.status_code for answer in answers].count(200) == 20
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.json()["violated-policies"] == ["burst"]
    assert refused.json()["type"].endswith("#quota-exceeded")
    assert refused.headers["gatelock"] == 'denied;policy="burst"'
    served = [answer for answer in answers if answer.status_code == 200]
    assert sorted(answer.json()["remaining"] for answer in served) == list(range(20))
    workers: set[int] = set()
    with ThreadPoolExecutor(4) as pool:
        while len(workers) < (1 if running.has_loop else 2):
            answers = list(pool.map(lambda _: running.get("/open/items/7", "bob"), range(8)))
            workers |= {answer.json()["worker"] for answer in answers}


def test_who_is_locked_takes_nothing_from_a_limiter(running: Shop) -> None:
    key = new_key()
    assert {running.get("/plain/items/7", key, x_tenant="globex").status_code for _ in range(5)} == {429}
    assert running.get("/plain/items/7", key).json()["remaining"] == 19


def test_what_one_limiter_refuses_takes_nothing_from_those_before_it(running: Shop) -> None:
    key = new_key()
    assert [running.get("/two/items/7", key).status_code for _ in range(6)] == [200, 200, *[429] * 4]
    refused = running.get("/two/items/7", key)
    assert refused.json()["violated-policies"] == ["small"]


def test_a_view_has_its_own_cost(running: Shop) -> None:
    key = new_key()
    assert [running.get("/plain/dear", key).json()["remaining"] for _ in range(2)] == [10, 0]
    assert running.get("/plain/items/7", key).status_code == 429


def test_what_is_refunded_was_free(running: Shop) -> None:
    key = new_key()
    assert [running.get("/plain/kept", key).json()["remaining"] for _ in range(3)] == [19, 19, 19]
    assert {broken(running, "/plain/breaks", key) for _ in range(3)} == {500}
    assert running.get("/plain/items/7", key).json()["remaining"] == 19


def test_without_a_name_requests_are_limited_by_address(running: Shop) -> None:
    def asked(address: str) -> int:
        return int(running.get("/proxied/items/7", x_forwarded_for=address).json()["remaining"])

    here, there = (f"2001:db8:{new_key()[:4]}:{host}" for host in ("1::", "2::"))
    assert [asked(f"{here}1"), asked(f"{here}2"), asked(f"{there}1")] == [19, 18, 19]


@pytest.mark.parametrize(
    ("setup", "told"),
    [
        ("plain", {"ratelimit-policy": '"burst";q=20', "ratelimit": r'"burst";r=19;t=\d+'}),
        ("legacy", {"x-ratelimit-limit": "20", "x-ratelimit-remaining": "19", "x-ratelimit-reset": r"\d+"}),
        ("both", {"ratelimit": r'"burst";r=19;t=\d+', "x-ratelimit-remaining": "19"}),
        ("off", {}),
    ],
)
def test_responses_tell_what_is_left_in_the_way_that_was_chosen(
    running: Shop, setup: str, told: dict[str, str]
) -> None:
    key = new_key()
    served = running.get(f"/{setup}/items/7", key)
    said = {name: value for name, value in served.headers.items() if "ratelimit" in name}
    assert len(said) == {"plain": 2, "legacy": 3, "both": 5, "off": 0}[setup]
    for name, value in told.items():
        assert re.fullmatch(value, said[name]), said
    running.get(f"/{setup}/dear", key)
    refused = running.get(f"/{setup}/dear", key)
    assert refused.status_code == 429
    assert {name for name in refused.headers if "ratelimit" in name} == set(said)
    assert "retry-after" in refused.headers


def test_a_limiter_that_waits_holds_nobody_else_up(running: Shop) -> None:
    """The second waits a second for its turn. Others are served meanwhile, by loop or other worker."""
    key = new_key()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(running.get, "/queue/items/7", key) for _ in range(2)]
        while not any(each.done() for each in waiting):
            time.sleep(0.005)
        for _ in range(3):
            assert running.get("/plain/items/7", new_key()).status_code == 200
        assert not all(each.done() for each in waiting)
        assert [each.result().status_code for each in waiting] == [200, 200]


# -- what is at work -----------------------------------------------------------------------------


def test_a_stream_is_at_work_until_it_ends(running: Shop) -> None:
    key = new_key()
    with running.client.stream("GET", f"/busy/stream/{key}", headers={"x-api-key": key}) as answer:
        chunks = answer.iter_text()
        assert next(chunks) == "begun "
        assert running.get("/busy/items/7", key).json()["violated-policies"] == ["busy"]
        running.release(key)
        assert list(chunks) == ["done"]
    soon_served(running, key)
    # Its permit of the first limiter is spent; what the refused requests took of it came back.
    assert running.get("/busy/items/7", key).json()["remaining"] == 0
    assert running.get("/plain/items/7", key).json()["remaining"] == 16


def test_whoever_leaves_a_stream_or_breaks_one_is_at_work_no_longer(running: Shop) -> None:
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


def test_a_view_that_breaks_is_at_work_no_longer(running: Shop) -> None:
    key = new_key()
    assert {broken(running, "/busy/breaks", key) for _ in range(3)} == {500}
    assert running.get("/busy/items/7", key).status_code == 200
    assert running.get("/plain/items/7", key).json()["remaining"] == 18


def broken(running: Shop, path: str, key: str) -> int:
    """On a connection of its own: uvicorn resets one whose application has failed."""
    return running.get(path, key, connection="close").status_code


def soon_served(running: Shop, key: str) -> None:
    """The server ends a response a moment after its last byte."""
    for _ in range(400):
        if running.get("/busy/items/7", key).status_code == 200:
            return
        time.sleep(0.01)
    raise AssertionError("its permit never came back")


# -- WebSockets ----------------------------------------------------------------------------------

with_websockets = pytest.mark.parametrize("running", ["asgi", "fastapi"], indirect=True)


def opened(running: Shop, setup: str, key: str) -> ClientConnection:
    url = f"ws://127.0.0.1:{running.port}/{setup}/items/7"
    return connect(url, additional_headers={"x-api-key": key}, proxy=None)


@with_websockets
def test_the_handshake_of_a_locked_caller_is_refused_and_says_why(running: Shop) -> None:
    with pytest.raises(InvalidStatus) as refused, opened(running, "plain", "acme"):
        pass
    answer = refused.value.response
    assert (answer.status_code, answer.headers["gatelock"]) == (429, 'denied;policy="daily"')
    assert answer.headers["content-type"] == "application/problem+json"
    assert 3000 < int(answer.headers["retry-after"]) <= 3600
    assert json.loads(answer.body)["violated-policies"] == ["daily", "monthly"]


@with_websockets
def test_a_websocket_is_asked_about_once_and_is_at_work_until_it_closes(running: Shop) -> None:
    key = new_key()
    with opened(running, "busy", key) as line:
        assert json.loads(line.recv())["remaining"] == 0
        for _ in range(5):
            line.send("hello")
        assert line.response is not None
        assert line.response.headers["ratelimit"].startswith('"busy";r=0')
        with pytest.raises(InvalidStatus) as refused, opened(running, "busy", key):
            pass
        assert json.loads(refused.value.response.body)["violated-policies"] == ["busy"]
    soon_served(running, key)
    assert running.get("/plain/items/7", key).json()["remaining"] == 17


# -- hostile and odd requests --------------------------------------------------------------------


def test_a_refused_head_request_has_headers_and_no_body(running: Shop) -> None:
    refused = running.ask("HEAD", "/plain/items/7", "acme")
    assert (refused.status_code, refused.content) == (429, b"")
    assert refused.headers["gatelock"] == 'denied;policy="daily"'
    served = running.ask("HEAD", "/plain/items/7", new_key())
    assert (served.status_code, served.content) == (200, b"")
    assert "ratelimit" in served.headers


def test_the_body_of_a_refused_request_does_not_get_in_the_way(running: Shop) -> None:
    """Neither of the answer, nor of the next request on the same connection."""
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
    ids=["no utf-8", "5,000 bytes", "a control character", "two", "latin-1", "with its kind", "empty"],
)
def test_odd_names_are_served_and_are_not_somebody_elses(running: Shop, value: bytes) -> None:
    answer = raw(running, b"GET /open/items/7 HTTP/1.1", b"x-api-key: " + value)
    assert status_of(answer) == 200


def test_a_policys_name_cannot_write_headers(running: Shop) -> None:
    refused = running.get("/plain/items/7", "odd")
    assert refused.headers["gatelock"] == 'denied;policy="a \\"policy\\"??set-cookie: x=1 ?"'
    assert "set-cookie" not in refused.headers
    assert refused.json()["violated-policies"] == ['a "policy"\r\nset-cookie: x=1 é']


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
def test_no_spelling_of_an_exempt_path_leads_to_what_is_guarded(running: Shop, path: str) -> None:
    answer = raw(running, f"GET /open/{path} HTTP/1.1".encode(), b"x-api-key: acme")
    assert b'"remaining"' not in answer
    assert status_of(answer) in (200, 400, 404, 429)


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def raw(running: Shop, line: bytes, *headers: bytes) -> bytes:
    """The answer to bytes that a proper client would not send."""
    head = b"\r\n".join([line, b"host: shop.example", b"connection: close", *headers, b"", b""])
    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as line_:
        line_.sendall(head)
        answer = b""
        while chunk := line_.recv(65536):
            answer += chunk
    return answer
