"""The request log in whole processes: unmodified frameworks, and servers that are stopped."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.child import free_port

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

UVICORN = """
from gatekeeper import Gate
from gatekeeper.adapters.asgi import Guard
from gatekeeper.requestlog.asgi import RequestLog
from gatekeeper.sources.fixed import FixedSource

async def shop(scope, receive, send):
    if scope["type"] == "lifespan":
        {lifespan}
    await send({{"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]}})
    await send({{"type": "http.response.body", "body": b"ok"}})

app = RequestLog(Guard(shop, Gate(FixedSource())), to="requests.log")
"""


GUNICORN = """
from pathlib import Path
from gatekeeper import Gate
from gatekeeper.adapters.wsgi import Guard
from gatekeeper.requestlog.wsgi import RequestLog
from gatekeeper.sources.fixed import FixedSource

def shop(environ, start):
    start("200 OK", [("connection", "close")])
    return [b"ok"]

gate = Gate(FixedSource())
application = RequestLog(Guard(shop, gate), to=Path("requests.log"))
"""


def logged(folder: Path, server: Sequence[str], requests: int) -> list[dict[str, Any]]:
    """Returns the log of a server that is stopped right after the last of `requests` requests."""
    port = free_port()
    with (folder / "output").open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", *(word.format(port=port) for word in server)],
            cwd=folder, env=ENVIRONMENT, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        deadline_s = time.monotonic() + 60
        while requests:
            assert time.monotonic() < deadline_s, (folder / "output").read_text()
            line = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            try:
                line.request("GET", "/items", headers={"x-api-key": "acme"})
                assert line.getresponse().read() == b"ok"
                requests -= 1
            except ConnectionError:
                time.sleep(0.05)
            finally:
                line.close()
    finally:
        child.terminate()
        child.wait(30)
    return [json.loads(line) for line in (folder / "requests.log").read_text().splitlines()]


@pytest.mark.parametrize(("lifespan", "workers"), [("return", 1), ("raise ValueError('only HTTP')", 2)])
def test_uvicorn_writes_every_record_when_it_is_stopped(tmp_path: Path, lifespan: str, workers: int) -> None:
    """Uvicorn ends by the signal, so that no exit hook runs."""
    (tmp_path / "application.py").write_text(UVICORN.format(lifespan=lifespan))
    records = logged(tmp_path, ["uvicorn", "--port={port}", f"--workers={workers}", "application:app"], 40)
    assert len({record["id"] for record in records}) == len(records) == 40


@pytest.mark.parametrize("preload", [True, False], ids=["preload", "no preload"])
def test_workers_of_gunicorn_write_one_file_and_lose_no_record_when_they_are_stopped(
    tmp_path: Path, preload: bool
) -> None:
    (tmp_path / "application.py").write_text(GUNICORN)
    # A worker that has just been forked still has the master's signal handlers and may miss SIGTERM; gunicorn
    # kills it after the time-out. It has served no request then.
    options = ["--workers=3", "--no-control-socket", "--graceful-timeout=10"]
    server = ["gunicorn", "--bind=127.0.0.1:{port}", *options]
    records = logged(tmp_path, [*server, *(["--preload"] if preload else []), "application"], 60)
    assert len({record["id"] for record in records}) == len(records) == 60
    assert {record["gate"] for record in records} == {"allowed"}


DJANGO = """
import asyncio, json, sys
import django
from django.conf import settings
from django.http import HttpResponse
from django.urls import path
from gatekeeper import Gate
from gatekeeper.sources.fixed import FixedSource
from tests.support.feed import a_lock
from tests.support.requestlog import MemorySink

gate = Gate(FixedSource(a_lock("api_key:locked", ends_in=10**9)))
settings.configure(
    ROOT_URLCONF="__main__", ALLOWED_HOSTS=["*"], SECRET_KEY="x", USE_TZ=True,
    MIDDLEWARE=["gatekeeper.adapters.django.GuardMiddleware"], GATELOCK={"gate": gate},
)
django.setup()
gate.ready(10)

def one(request, item):
    notes = request.environ["gatelock.request_log"] if hasattr(request, "environ") else \\
        request.scope["state"]["request_log"]
    notes.add(tokens=item)
    return HttpResponse("ok")

urlpatterns = [path("v1/items/<int:item>/", one)]
sink = MemorySink()

def call_wsgi(key):
    from django.core.wsgi import get_wsgi_application
    from wsgiref.util import setup_testing_defaults
    from gatekeeper.requestlog.wsgi import RequestLog
    log = RequestLog(get_wsgi_application(), to=sink)
    environ = {"SCRIPT_NAME": "", "PATH_INFO": "/v1/items/7/", "REMOTE_ADDR": "192.0.2.7"}
    environ["HTTP_X_API_KEY"] = key
    setup_testing_defaults(environ)
    body = log(environ, lambda *given: None)
    b"".join(body)
    body.close()
    log.flush()

def call_asgi(key):
    from django.core.asgi import get_asgi_application
    from gatekeeper.requestlog.asgi import RequestLog
    log = RequestLog(get_asgi_application(), to=sink)
    headers = [(b"host", b"shop"), (b"x-api-key", key.encode())]
    scope = {"type": "http", "method": "GET", "path": "/v1/items/7/", "query_string": b"", "headers": headers,
             "client": ("192.0.2.7", 1), "server": ("shop", 80), "root_path": "", "scheme": "http"}
    given = [{"type": "http.request", "body": b""}]
    async def receive():
        return given.pop() if given else await asyncio.Event().wait()
    async def send(message): ...
    asyncio.run(log(scope, receive, send))
    log.flush()

for key in ("acme", "locked"):
    {"wsgi": call_wsgi, "asgi": call_asgi}[sys.argv[1]](key)
gate.close()
print(json.dumps(sink.records()))
"""


@pytest.mark.parametrize("how", ["wsgi", "asgi"])
def test_djangos_guard_notes_caller_and_route_for_the_log(how: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", DJANGO, how], env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    found: list[dict[str, Any]] = json.loads(ran.stdout)
    wanted = {"address": "192.0.2.7", "path": "/v1/items/7/", "resource": "/v1/items/{item}/"}
    for record, key, gate in zip(found, ("acme", "locked"), ("allowed", "denied"), strict=True):
        assert {name: record[name] for name in wanted} == wanted
        assert (record["caller"], record["gate"]) == ({"api_key": key}, gate)
    assert (found[0]["more"], found[0]["status"], found[1]["status"]) == ({"tokens": 7}, 200, 429)


def test_fastapis_guard_notes_caller_and_route_for_the_log() -> None:
    """The route is also known for denied requests."""
    import asyncio

    from fastapi import Depends, FastAPI

    from gatekeeper import Gate
    from gatekeeper.adapters.fastapi import Guard
    from gatekeeper.requestlog.asgi import RequestLog
    from gatekeeper.sources.fixed import FixedSource
    from tests.support.feed import a_lock
    from tests.support.requestlog import MemorySink

    with Gate(FixedSource(a_lock("api_key:locked", ends_in=10**9))) as gate:
        assert gate.ready(10)
        guard = Guard(gate)
        api = FastAPI(dependencies=[Depends(guard)])
        guard.install(api)

        @api.get("/v1/items/{item}")
        def one(item: int) -> int:
            return item

        sink = MemorySink()
        log = RequestLog(api, to=sink)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b""}

        async def send(message: dict[str, Any]) -> None: ...

        for key in (b"acme", b"locked"):
            scope = {"type": "http", "method": "GET", "path": "/v1/items/7", "query_string": b""}
            scope |= {"headers": [(b"x-api-key", key)], "client": ("192.0.2.7", 1), "root_path": ""}
            asyncio.run(log(scope, receive, send))
        log.close()
    allowed, denied = sink.records()
    assert (allowed["gate"], allowed["resource"]) == ("allowed", "/v1/items/{item}")
    assert (denied["gate"], denied["resource"]) == ("denied", "/v1/items/{item}")
    assert denied["policy"] == "daily"
