"""`/livez`, `/readyz`, `/metrics`: the application that the API grows in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from analyzer.config.secrets import masked
from analyzer.errors import AnalyzerError
from analyzer.health import Health
from analyzer.metrics import Measurements
from analyzer.store.reports.status import InstallationStatus
from analyzer.web.single_flight import SingleFlight
from gatekeeper.feed.feed_json import time_text


@dataclass(frozen=True, slots=True)
class AppState:
    """What the application looks at."""

    health: Health
    problems: Callable[[], Mapping[str, str]]  # of the sources: any thread may ask
    glance: Callable[[], InstallationStatus]  # at the database; may take long, may raise StoreAway
    head: str  # the version of the tables that this program needs


def create_app(watched: AppState) -> FastAPI:
    app = FastAPI(title="Gatelock", openapi_url=None)
    asking = SingleFlight(watched.glance)
    health = watched.health

    @app.get("/livez")
    async def livez() -> Response:
        """200 as long as the loop turns; otherwise whoever started us should do so again."""
        answer = {"live": health.is_alive, "since_turn_s": health.since_loop_s}
        return JSONResponse(answer, 200 if health.is_alive else 503)

    @app.get("/readyz")
    async def readyz() -> Response:
        """200 when records can be counted; otherwise everything that is in the way, by name."""
        glance, problems = await _look(watched, asking)
        partitions = sorted(str(part) for part in health.current_lags)
        answer = {"ready": not problems, "problems": problems, "partitions": partitions}
        if glance is not None and glance.suspended_until is not None:
            answer["suspended_until"] = time_text(glance.suspended_until)  # chosen by a person, so no problem
        return JSONResponse(answer, 503 if problems else 200)

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        glance, problems = await _look(watched, asking)
        reading = Measurements(
            lags=health.current_lags,
            gaps=health.gaps,
            since_flush_s=health.since_flush_s,
            since_loop_s=health.since_loop_s,
            problems=problems.keys(),
            active_locks=None if glance is None else glance.active_locks,
            feed_version=None if glance is None else glance.feed_version,
            suspended=None if glance is None else glance.suspended_until is not None,
        )
        content, content_type = health.metrics.exposition(reading, request.headers.get("accept", ""))
        return Response(content, headers={"content-type": content_type})

    return app


async def _look(
    watched: AppState, asking: SingleFlight[InstallationStatus]
) -> tuple[InstallationStatus | None, dict[str, str]]:
    """How the database stands, None when it does not say; and everything that is wrong, by name."""
    health = watched.health
    problems = {**watched.problems(), **health.problems}
    glance = None
    try:
        glance = await asking.get()
    except (AnalyzerError, TimeoutError) as away:
        problems.setdefault("database", str(away))
    else:
        if glance.revision != watched.head:
            have = glance.revision or "none"
            problems["schema"] = (
                f"tables are at {have}, this program needs {watched.head}: run `gatelock db upgrade`"
            )
    return glance, {name: masked(why) for name, why in problems.items()}
