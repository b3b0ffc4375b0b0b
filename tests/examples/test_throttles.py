"""docs/examples with a shared throttle, against a service that counts, and with a manual clock."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType

import pytest

from gatekeeper.limits import PriorityScheduler, SlidingLog
from gatekeeper.testing import ManualClock, run
from tests.limits.oracles import worst_in_any

Example = Callable[[str], ModuleType]
SECOND_NS = 1_000_000_000


class Service(ThreadingHTTPServer):
    """Allows ten requests in any second, and refuses the eleventh."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ServiceHandler)
        self.log = SlidingLog(limit=10, period=1)
        self.arrived: list[int] = []
        self.refused = 0


class ServiceHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Service

    def do_GET(self) -> None:
        self.server.arrived.append(time.monotonic_ns())
        allowed = self.server.log.allow()
        self.server.refused += not allowed
        self.send_response(200 if allowed else 429)
        body = self.path.encode()
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def url_of(service: Service) -> str:
    return f"http://127.0.0.1:{service.server_port}"


def test_the_service_refuses_clients_without_a_throttle(service: Service, example: Example):
    """Otherwise the tests below would prove nothing."""
    several_clients = example("several_clients")
    several_clients.throttle = SlidingLog(limit=1000, period=1)  # as if there were none
    with pytest.raises(Exception, match="429"):
        several_clients.fetch_all(url_of(service), range(20))
    assert service.refused


def test_threads_with_several_clients_keep_the_limit_of_the_service(service: Service, example: Example):
    results = example("several_clients").fetch_all(url_of(service), range(20))
    assert results == [f"/items/{item}" for item in range(20)]
    assert service.refused == 0
    assert worst_in_any(service.arrived, SECOND_NS) >= 8, "most of the limit is used"


def test_tasks_with_several_clients_keep_the_limit_of_the_service(service: Service, example: Example):
    results = asyncio.run(example("several_clients_asyncio").fetch_all(url_of(service), range(20)))
    assert results == [f"/items/{item}" for item in range(20)]
    assert service.refused == 0
    assert worst_in_any(service.arrived, SECOND_NS) >= 8


def test_requests_leave_evenly_on_a_manual_clock(example: Example, manual_clock: ManualClock, fresh_limiters):
    throttle = example("several_clients_asyncio").throttle
    fresh_limiters(throttle)
    left: list[float] = []

    async def one() -> None:
        async with throttle.guard():
            left.append(manual_clock.uptime_s())

    async def story() -> None:
        await asyncio.gather(*(one() for _ in range(100)))

    run(story(), manual_clock)
    assert left == pytest.approx([0.12 * n for n in range(100)], abs=1e-6)


def test_users_do_not_wait_for_a_job_and_the_job_is_done(example: Example):
    """With 100 per second, so that the test takes a second."""
    background_job = example("background_job")
    background_job.throttle = PriorityScheduler(limit=100, period=1, priorities=2, age_after=60)
    called: list[str] = []
    called_at: list[int] = []

    def call(text: str) -> str:
        called_at.append(time.monotonic_ns())
        called.append(text)
        return text.upper()

    documents = [f"document {n}" for n in range(40)]
    indexed = background_job.reindex(call, documents)
    results = [background_job.answer_user(call, f"question {n}") for n in range(20)]
    assert results == [f"QUESTION {n}" for n in range(20)]
    assert not indexed[-1].done(), "users have priority over the job"
    assert [future.result(5) for future in indexed] == [document.upper() for document in documents]
    assert len(called) == 60
    assert worst_in_any(called_at, SECOND_NS // 10) <= 12, "the throughput is shared"
    background_job.throttle.close(5)
