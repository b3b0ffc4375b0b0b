"""`make bench-web`: each page and route of the API, beside the counts of a month of a million callers.

Writes 20,000,000 minutes, 5,000 locks and 60,000 ended ones to PostgreSQL, which takes ten minutes, and lets
the job `rank` make its rankings. Then asks a `gatelock serve` for everything, each span in rounds that share
no answer, and opens ten tabs for a minute. `ARGS=--keep` keeps the database in .cache for the next run, which
adds what is missing up to now; `--days 1 --rows 20 --rounds 1 --tabs-s 5` is a small one.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import httpx2
import psutil
import sqlalchemy as sa

from analyzer.counting.ranking_upkeep import RankingUpkeep
from analyzer.faces.api.endpoint_table import ENDPOINTS
from analyzer.faces.pages.page_list import PAGES
from analyzer.faces.signals.status import installation_status
from analyzer.kernel.database.revisions import head
from analyzer.kernel.kept_ages import Retention
from tests.benchmarks.percentiles import percentile
from tests.benchmarks.servers import AS_IN_PRODUCTION
from tests.benchmarks.stored_million import MillionCallers, stored_million
from tests.support.plain_http import Client
from tests.support.servers.child import free_port
from tests.support.servers.postgres import find_postgres

KEPT = Path(__file__).parents[2] / ".cache" / "bench-web"
CALLER = "api_key:acct-0000700"  # one of the busy ones, and locked
SPANS = ("1h", "6h", "24h", "7d", "30d")
WIDTHS = {"1h": "minute", "6h": "hour", "24h": "hour", "7d": "day", "30d": "day"}
ROUND_S = 11.0  # answers are shared for ten seconds
REFRESH_S = 10.0  # of a page
TABS = (
    *("/", "/?span=24h", "/?span=30d", "/callers", "/callers?span=7d", "/callers?span=30d"),
    *("/attack?span=24h", f"/caller?caller={CALLER}&span=7d", "/policies", "/health"),
)
CONFIGURATION = """
[database]
url = "{url}"
[analyzer]
http = "127.0.0.1:{port}"
[[sources]]
topic = "requests"
[sources.fields]
time = {{ path = "ts", unit = "ms" }}
api_key = "key"
"""


class Answered(NamedTuple):
    """One answer: how long it took, and the CPU seconds of both processes."""

    seconds: float
    web_s: float
    postgres_s: float
    status: int


class CpuClock:
    """CPU seconds of the web process, and of all processes of PostgreSQL."""

    def __init__(self, web: psutil.Process, db: sa.Engine) -> None:
        self._web = web
        with db.connect() as connection:
            backend = psutil.Process(connection.execute(sa.text("select pg_backend_pid()")).scalar_one())
        self._postgres = backend.parent() or backend

    def read(self) -> tuple[float, float]:
        web, server = self._web.cpu_times(), self._postgres.cpu_times()
        postgres_s = server.user + server.system + server.children_user + server.children_system
        for child in self._postgres.children(recursive=True):
            try:
                times = child.cpu_times()
            except psutil.NoSuchProcess:
                continue
            postgres_s += times.user + times.system
        return web.user + web.system, postgres_s


def routes() -> list[str]:
    """Returns the addresses of all pages and of all routes that read, with each span."""
    found = []
    for page in PAGES:
        given = {"caller": CALLER} if page.path == "/caller" else {}
        given |= {"policy": "daily"} if page.path == "/policy" else {}
        spans: Sequence[str] = SPANS if "span" in page.filters else ("",)
        found += [address(page.path, **given, span=span) for span in spans]
    known = {"caller": CALLER, "policy": "daily"}
    for endpoint in ENDPOINTS:
        if endpoint.method != "GET" or endpoint.path == "/v1/reports/list":
            continue
        required = [one.name for one in endpoint.all_parameters if one.required]
        if "from" in required:
            caller = {"caller": CALLER} if endpoint.path == "/v1/usage" else {}
            spans = ({"from": span, "to": "0s", "width": WIDTHS[span]} for span in SPANS)
            found += [address(endpoint.path, **span, **caller) for span in spans]
        else:
            found.append(address(endpoint.path, **{name: known[name] for name in required}))
    return found


def address(path: str, **values: str) -> str:
    stated = {name: value for name, value in values.items() if value}
    return f"{path}?{urlencode(stated)}" if stated else path


@contextmanager
def serving(url: str) -> Iterator[tuple[str, psutil.Process]]:
    """Runs `gatelock serve`; yields its address and its process."""
    with tempfile.TemporaryDirectory(prefix="gatelock-bench-") as folder:
        port = free_port()
        path = Path(folder) / "gatelock.toml"
        path.write_text(CONFIGURATION.format(url=url, port=port))
        command = [sys.executable, "-m", "analyzer.faces.cli", "serve", "--config", str(path)]
        with subprocess.Popen(command) as process:
            base = f"http://127.0.0.1:{port}"
            try:
                for _ in range(600):
                    try:
                        httpx2.get(f"{base}/livez", timeout=1)
                        break
                    except httpx2.TransportError:
                        time.sleep(0.1)
                yield base, psutil.Process(process.pid)
            finally:
                process.terminate()


def asked(client: httpx2.Client, clock: CpuClock, path: str) -> Answered:
    before, began_s = clock.read(), time.perf_counter()
    status = client.get(path).status_code
    seconds = time.perf_counter() - began_s
    after = clock.read()
    return Answered(seconds, after[0] - before[0], after[1] - before[1], status)


def measure_routes(base: str, clock: CpuClock, rounds: int) -> None:
    answers: dict[str, list[Answered]] = {path: [] for path in routes()}
    for _ in range(rounds):
        end_s = time.monotonic() + ROUND_S
        with Client(base_url=base, timeout=60) as client:  # the server closes one that is idle between rounds
            for path, answered in answers.items():
                answered.append(asked(client, clock, path))
        time.sleep(max(0.0, end_s - time.monotonic()))
    print(f"{'':68} p50 ms  p95 ms  CPU ms: web  PostgreSQL  not 200")
    for path, answered in answers.items():
        times = [1_000 * one.seconds for one in answered]
        wrong = [str(one.status) for one in answered if one.status != 200]
        web = 1_000 * sum(one.web_s for one in answered) / rounds
        server = 1_000 * sum(one.postgres_s for one in answered) / rounds
        print(
            f"{path[:68]:68} {percentile(times, 50):6.0f} {percentile(times, 95):7.0f} {web:12.0f} "
            f"{server:11.0f}  {' '.join(wrong)}"
        )
    everything = [one for answered in answers.values() for one in answered]
    slow = sum(percentile([one.seconds for one in answered], 95) > 0.3 for answered in answers.values())
    p95_ms = 1_000 * percentile([one.seconds for one in everything], 95)
    print(
        f"{len(answers)} addresses, p95 {p95_ms:.0f} ms; {slow} with a p95 above 300 ms; "
        f"{sum(one.status == 503 for one in everything)} answers with 503"
    )


def measure_tabs(base: str, clock: CpuClock, seconds: float) -> None:
    """Opens ten tabs, each with its events and a refresh every ten seconds."""
    ended = threading.Event()
    refused: list[int] = []

    def tab(path: str, first_s: float) -> None:
        ended.wait(first_s)
        while not ended.is_set():
            with Client(base_url=base, timeout=60) as client:
                if (status := client.get(path, headers={"hx-request": "true"}).status_code) != 200:
                    refused.append(status)
            ended.wait(REFRESH_S)

    def events() -> None:
        with Client(base_url=base, timeout=60) as client, client.stream("GET", "/events") as lines:
            for _ in lines.iter_lines():
                if ended.is_set():
                    return

    threads = [threading.Thread(target=tab, args=(path, place)) for place, path in enumerate(TABS)]
    threads += [threading.Thread(target=events, daemon=True) for _ in TABS]
    for thread in threads:
        thread.start()
    time.sleep(min(REFRESH_S, seconds))
    before = clock.read()
    time.sleep(seconds)
    web, server = (after - first for after, first in zip(clock.read(), before, strict=True))
    ended.set()
    for thread in threads[: len(TABS)]:
        thread.join()
    print(
        f"{len(TABS)} open tabs take {(web + server) / seconds:.3f} of a core: web {web / seconds:.3f}, "
        f"PostgreSQL {server / seconds:.3f}; {len(refused)} answers were not 200"
    )


def rank_all(engine: sa.Engine) -> None:
    began_s, steps = time.monotonic(), 0
    upkeep = RankingUpkeep(engine, Retention().days_s)
    while upkeep.step():
        steps += 1
    if steps:
        print(f"{steps:,} steps of the job `rank` took {time.monotonic() - began_s:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--rows", type=int, default=463, help="of a minute")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tabs-s", type=float, default=60.0)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--url", help="of a PostgreSQL database that an earlier run has filled")
    options = parser.parse_args()
    size = MillionCallers(options.days, options.rows)
    if options.url:
        measure(options.url, size, options)
        return
    with database(is_kept=options.keep) as url:
        measure(url, size, options)


def measure(url: str, size: MillionCallers, options: argparse.Namespace) -> None:
    began_s = time.monotonic()
    engine = stored_million(url, size)
    print(f"filled in {time.monotonic() - began_s:.0f} s")
    rank_all(engine)
    with serving(url) as (base, web):
        clock = CpuClock(web, engine)
        measure_routes(base, clock, options.rounds)
        measure_tabs(base, clock, options.tabs_s)
    began_s = time.perf_counter()
    installation_status(engine, head())
    print(f"the status for metrics takes {1_000 * (time.perf_counter() - began_s):.0f} ms")
    engine.dispose()


@contextmanager
def database(*, is_kept: bool) -> Iterator[str]:
    """Runs a PostgreSQL; yields the URL of its database, which the next run finds if it is kept."""
    KEPT.mkdir(parents=True, exist_ok=True, mode=0o755)
    postgres = find_postgres(KEPT, AS_IN_PRODUCTION)
    name = KEPT / "database"
    try:
        if name.exists():
            url = sa.make_url(postgres.url).set(database=name.read_text())
            yield url.render_as_string(hide_password=False)
        else:
            url = sa.make_url(postgres.new_database())
            name.write_text(str(url.database))
            yield url.render_as_string(hide_password=False)
    finally:
        postgres.close()
        if not is_kept:
            shutil.rmtree(KEPT)


if __name__ == "__main__":
    main()
