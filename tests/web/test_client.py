"""`gatekeeper.client`: generated, typed, standard library; and its care with requests and tokens."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.config.settings import Settings
from analyzer.faces.api.client_source import client_source, method_name
from analyzer.faces.api.endpoint_table import ENDPOINTS
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from analyzer.faces.wiring import web_application
from analyzer.kernel.tokens import create
from gatekeeper.client import ApiClient, ApiConnection, ApiError, ConfirmationNeeded, ServerAway
from tests.house.reading import ROOT


def test_the_client_has_what_the_table_of_endpoints_has() -> None:
    assert (ROOT / "gatekeeper/client/api_client.py").read_text() == client_source(), "run: make client"
    assert {method_name(endpoint) for endpoint in ENDPOINTS} <= set(dir(ApiClient))
    assert len({method_name(endpoint) for endpoint in ENDPOINTS}) == len(ENDPOINTS)


def test_the_client_needs_the_standard_library_alone() -> None:
    code = "import sys, gatekeeper.client; print({'sqlalchemy', 'msgspec', 'analyzer'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "set()\n", done.stderr


@pytest.fixture
def client(settings: Settings, engine: sa.Engine) -> Iterator[ApiClient]:
    token = create(engine, "ops", "admin", None, "ann", "tests")
    with (
        web_application(settings, engine, Health(Metrics("1"), lambda: 0.0), dict) as address,
        ApiClient(f"http://127.0.0.1:{address[1] if address else 0}", token) as client,
    ):
        yield client


@pytest.mark.parametrize("database", ["sqlite"])
def test_each_endpoint_is_called_by_its_method(client: ApiClient) -> None:
    for endpoint in ENDPOINTS:
        values = {
            f"{field.name}_"
            if field.name in ("for", "from", "id", "all")
            else field.name: field.param.example
            for field in endpoint.all_parameters
            if field.required
        }
        assert status_of(getattr(client, method_name(endpoint)), values) in (200, 404, 409, 422), (
            endpoint.path
        )


def status_of(call: Any, values: dict[str, Any]) -> int:
    try:
        answer = call(**values)
        if not isinstance(answer, dict):
            list(answer)  # a list is read when it is iterated
    except ApiError as error:
        return error.status
    return 200


@pytest.mark.parametrize("database", ["sqlite"])
def test_acts_and_lists_go_there_and_back(client: ApiClient) -> None:
    done = client.locks_lock(address="203.0.113.0/24", for_="2h", reason="INC-311")
    assert done["locks"][0]["key"] == "203.0.113.0/24"
    for number in range(12):
        client.locks_lock(caller=f"user:u{number}", for_="2h", reason="INC-311")
    assert len([*client.rows("/v1/locks/list", {"limit": 5})]) == 13
    with pytest.raises(ApiError, match="write a length") as refused:
        client.locks_lock(caller="user:ann", for_="soon", reason="INC-311")
    assert refused.value.status in (400, 422)
    with pytest.raises(ConfirmationNeeded):
        client.callers_forget(caller="user:u1", reason="asked")
    assert client.policies_check(policies="[[policies]]\n")["faults"]


class Liar(BaseHTTPRequestHandler):
    """A server that answers as its path says."""

    asked: list[tuple[str, str, str | None]]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.asked.append((self.command, self.path, self.headers.get("authorization")))  # type: ignore[attr-defined]
        number = len(self.server.asked)  # type: ignore[attr-defined]
        body = b'{"a": 1}'
        match self.path.partition("?")[0]:
            case "/redirect":
                self.send_response(302)
                self.send_header("location", "/elsewhere")
            case "/busy" if number == 1:
                self.send_response(503)
                self.send_header("retry-after", "0")
            case "/closes":
                self.close_connection = True
                return
            case "/text":
                self.send_response(200)
                body = b"<html>"
            case "/endless":
                self.send_response(200)
                self.send_header("content-length", str(1 << 40))
                self.end_headers()
                for _ in range(400):
                    self.wfile.write(b"x" * (64 << 10))
                return
            case _:
                self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the name that the base class calls

    def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002 - its name


@pytest.fixture
def liar() -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    server.asked = []  # type: ignore[attr-defined]
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_redirect_is_not_followed_and_the_token_goes_to_the_server_alone(liar: Any) -> None:
    with ApiConnection(f"http://127.0.0.1:{liar.server_port}", "gatelock_x") as connection:
        with pytest.raises(ApiError, match="302"):
            connection.read("/redirect", {})
        assert connection.read("/busy2", {"wanted": True, "left_out": None}) == {"a": 1}
    assert [(path, token) for _, path, token in liar.asked] == [
        ("/redirect", "Bearer gatelock_x"), ("/busy2?wanted=true", "Bearer gatelock_x")
    ]  # fmt: skip


def test_a_busy_server_is_asked_again_for_what_reads_and_an_act_is_sent_once(liar: Any) -> None:
    with ApiConnection(f"http://127.0.0.1:{liar.server_port}") as connection:
        assert connection.read("/busy", {}) == {"a": 1}
        liar.asked.clear()
        with pytest.raises(ApiError, match="503"):
            connection.act("/busy", {})
        liar.asked.clear()
        with pytest.raises(ServerAway):
            connection.act("/closes", {})
    assert len(liar.asked) == 1


def test_answers_are_bounded_and_unusable_ones_are_refused(liar: Any) -> None:
    with ApiConnection(f"http://127.0.0.1:{liar.server_port}") as connection:
        with pytest.raises(ApiError, match="<html>"):
            connection.read("/text", {})
        with pytest.raises(ServerAway, match="more than"):
            connection.read("/endless", {})


def test_a_token_is_read_from_a_file_or_the_environment_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("a secret of two lines\nx")
    with pytest.raises(ValueError, match="one word in ASCII") as refused:
        ApiConnection("https://gatelock.example", file)
    assert "secret" not in str(refused.value)
    monkeypatch.setenv("GATELOCK_TOKEN_FILE", str(tmp_path / "missing"))
    with pytest.raises(ValueError, match="No such file"):
        ApiConnection("https://gatelock.example")
    assert "gatelock_x" not in repr(ApiConnection("https://gatelock.example", "gatelock_x"))
