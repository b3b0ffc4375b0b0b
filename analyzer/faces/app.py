"""The application with `/livez`, `/readyz` and `/metrics`, to which the endpoints of gates are added."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from analyzer.alerts.message_rows import MessageCounts
from analyzer.faces.authentication import Authenticator
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import without_path
from analyzer.faces.signals.signal_kinds import Signal
from analyzer.faces.signals.signal_table import signal_fields
from analyzer.faces.signals.status import InstallationStatus
from analyzer.gates.fleet_summary import FleetSummary
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.model import Gap, Partition
from analyzer.kernel.secrets import masked
from analyzer.server.single_flight import SingleFlight

UNMET_KEPT_S = 60.0  # counting them reads the requests of up to a hundred callers
SIGNALS_KEPT_S = 2.0
FLEET_KEPT_S = 15.0  # reads the reports of up to 2,000 gates
T = TypeVar("T")
HIDDEN = "details are in the log, and here for a request with a token"


@dataclass(frozen=True, slots=True)
class AppState:
    """Everything that the application reports on."""

    health: Health
    source_problems: Callable[[], Mapping[str, str]]  # may be called by any thread
    read_status: Callable[[], InstallationStatus]  # from the database: may block, may raise StoreAway
    count_unmet_locks: Callable[[], int | None]  # likewise; None: not known
    read_fleet: Callable[[], FleetSummary]  # likewise
    read_signals: Callable[[], Sequence[Signal]]  # likewise
    count_alerts: Callable[[], MessageCounts]  # likewise
    schema_problem: Callable[[str | None], object]  # a sentence about the version of the tables; None: fits
    authenticator: Authenticator  # who may read the locks may also read details of problems


def create_app(state: AppState) -> FastAPI:
    """Returns an application with the endpoints of health and metrics."""
    app = FastAPI(title="Gatelock", openapi_url=None, redirect_slashes=False)
    status_reader = SingleFlight(state.read_status)
    signal_reader: SingleFlight[Sequence[Signal] | None] = SingleFlight(state.read_signals, SIGNALS_KEPT_S)
    health = state.health

    @app.get("/livez")
    async def livez() -> Response:
        """200 while the loop works; otherwise 503, and the supervisor should restart the process."""
        body = {"live": health.is_alive, "since_loop_s": health.since_loop_s}
        return JSONResponse(body, 200 if health.is_alive else 503)

    @app.get("/readyz")
    async def readyz(request: Request) -> Response:
        """200 while records can be counted; otherwise 503 with the problems of this process, by name.

        `signals` has what is wrong with the installation; see `gatelock doctor`.

        Only a request that may read the locks gets sentences, which may quote records, paths and drivers.
        """
        # At once: a probe does not wait twice for a database that hangs.
        (_, problems), signals, has_details = await asyncio.gather(
            _status_and_problems(state, status_reader),
            _unless_away(signal_reader),
            state.authenticator.allows("read", request),
        )
        partitions = sorted(str(part) for part in health.current_lags)
        if not has_details:
            problems = without_details(problems, health.gaps)
            partitions = sorted(map(without_path, partitions))
        body = {"ready": not problems, "problems": problems, "partitions": partitions}
        # Not problems of this process: a balancer would take all of them out for a token that expires.
        body["signals"] = [signal_fields(signal, has_details=has_details) for signal in signals or ()]
        return JSONResponse(body, 503 if problems else 200)

    _add_metrics(app, state, status_reader, signal_reader)
    return app


def _add_metrics(
    app: FastAPI,
    state: AppState,
    status_reader: SingleFlight[InstallationStatus],
    signal_reader: SingleFlight[Sequence[Signal] | None],
) -> None:
    unmet_counter = SingleFlight(state.count_unmet_locks, UNMET_KEPT_S)
    fleet_reader: SingleFlight[FleetSummary | None] = SingleFlight(state.read_fleet, FLEET_KEPT_S)
    alerts_reader: SingleFlight[MessageCounts | None] = SingleFlight(state.count_alerts, FLEET_KEPT_S)
    health = state.health

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Returns all metrics; paths of files only for a request that may read the locks."""
        (status, problems), signals, unmet_locks, fleet, alerts, has_details = await asyncio.gather(
            _status_and_problems(state, status_reader),
            _unless_away(signal_reader),
            _unless_away(unmet_counter),
            _unless_away(fleet_reader),
            _unless_away(alerts_reader),
            state.authenticator.allows("read", request),
        )
        measurements = health.measurements(
            problems,
            status,
            () if signals is None else signals,
            unmet_locks,
            fleet,
            alerts,
            has_paths=has_details,
        )
        content, content_type = health.metrics.exposition(measurements, request.headers.get("accept", ""))
        return Response(content, headers={"content-type": content_type})


def without_details(problems: Mapping[str, str], gaps: Mapping[Partition, Gap]) -> dict[str, str]:
    """Returns the problems without what only operators may read: by name, and of a gap its kind and offset.

    Of the path of a file the name remains.
    """
    hidden = {without_path(name): HIDDEN for name in problems}
    for part, gap in gaps.items():
        for name in (str(part), part.topic):
            if name in problems:
                place = "" if gap.position is None else f" at offset {gap.position}"
                hidden[without_path(name)] = f"stopped{place}: {gap.kind}"
    return hidden


async def _unless_away(reader: SingleFlight[T]) -> T | None:
    """Returns what is read; None while the database is away, which the status tells."""
    try:
        return await reader.get()
    except (AnalyzerError, TimeoutError):
        return None


async def _status_and_problems(
    state: AppState, status_reader: SingleFlight[InstallationStatus]
) -> tuple[InstallationStatus | None, dict[str, str]]:
    """Returns the status in the database, None if it cannot be read, and every problem, by name."""
    problems = {**state.source_problems(), **state.health.problems}
    status = None
    try:
        status = await status_reader.get()
    except (AnalyzerError, TimeoutError) as error:
        problems.setdefault("database", str(error))
    else:
        if problem := state.schema_problem(status.revision):
            problems["schema"] = str(problem)
    return status, {name: masked(problem) for name, problem in problems.items()}
