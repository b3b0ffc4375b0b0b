"""`[billing.live]`: an analyzer's job pushes the usage of the open day, and commands hand over the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.billing.days.day_rows import add_day
from analyzer.kernel.database.engine import writing
from tests.support.billing_server import KEY, BillingServer, billing_server

Gatelock = Callable[..., Any]
YESTERDAY = datetime.now(UTC).replace(hour=12, minute=0) - timedelta(days=1)
DATE = f"{YESTERDAY:%Y-%m-%d}"
CONFIGURATION = """
[billing]
grace = 0
recount = "never"
groupings = ["caller", "caller+model"]
events = { requests = "api_requests" }
[billing.live]
to = "URL"
format = "lago"
token_file = "lago.key"
by = "caller+model"
[[sources]]
name = "web"
file = "requests.jsonl"
[sources.fields]
time = { path = "t", unit = "s" }
api_key = "key"
model = "model"
[[groupings]]
name = "model"
field = "model"
"""
BY_MODEL = ("--by", "caller+model")


@pytest.fixture
def server() -> Iterator[BillingServer]:
    with billing_server("lago") as server:
        yield server


@pytest.fixture
def configuration(server: BillingServer, tmp_path: Path) -> str:
    (tmp_path / "lago.key").write_text(f"{KEY}\n")
    return CONFIGURATION.replace("URL", server.url)


def counted(gatelock: Gatelock, *models: str) -> None:
    fields = {"t": int(YESTERDAY.timestamp()), "key": "acme"}
    name = f"{len(models)}.jsonl"
    Path(name).write_text("".join(f"{json.dumps(fields | {'model': model})}\n" for model in models))
    done = gatelock("upkeep", "import", name, "--source", "web")
    assert done.exit_code == 0, done.output


def test_the_job_pushes_and_the_hand_over_sends_the_rest(
    gatelock: Gatelock, engine: sa.Engine, server: BillingServer
) -> None:
    to = ("--to", server.url, "--format", "lago", "--token-file", "lago.key")
    asked = ("--from", server.url, "--format", "lago", "--token-file", "lago.key", "--json")
    counted(gatelock, "large", "large", "small")
    with writing(engine) as db:
        add_day(db, "UTC", int(YESTERDAY.timestamp()))
    ran = gatelock("upkeep", "jobs", "run", "push-live-usage")
    assert ran.exit_code == 0, ran.output
    assert sorted((event.value, event.more["model"]) for event in server.events.values()) == [
        (1, "small"),
        (2, "large"),
    ]
    assert all(event.more["provisional"] for event in server.events.values())
    listed = gatelock("billing", "days", "list", "--json")
    [day] = map(json.loads, listed.stdout.splitlines())
    assert [(one["kind"], one["amount"], one["complete"]) for one in day["deliveries"]] == [
        ("live", 3, False)
    ]
    open_day = gatelock("billing", "report", "reconcile", "day", DATE, *asked)
    assert (open_day.exit_code, json.loads(open_day.stdout)["at_service"]) == (0, 3), open_day.output
    counted(gatelock, "large", "other", "other", "other")
    assert gatelock("billing", "days", "close", DATE, "--reason", "r", "--yes").exit_code == 0
    refused = gatelock("billing", "report", "send", "day", DATE, *to)
    assert (refused.exit_code, "was pushed by caller+model: write --by caller+model" in refused.stderr) == (
        1,
        True,
    )
    dry = gatelock("billing", "report", "send", "day", DATE, *to, *BY_MODEL, "--dry-run")
    assert "requests: 1 event to send, 3 in all" in dry.stdout, "besides the last increments"
    sent = gatelock("billing", "report", "send", "day", DATE, *to, *BY_MODEL)
    assert (sent.exit_code, "3 events acknowledged, 7 in all" in sent.stdout) == (0, True), sent.output
    assert server.totals() == {"api_requests": 7}
    whole = gatelock("billing", "report", "reconcile", "day", DATE, *asked)
    assert (whole.exit_code, json.loads(whole.stdout)["acknowledged"]) == (0, 7), whole.output
    days = map(json.loads, gatelock("billing", "days", "list", "--json").stdout.splitlines())
    deliveries = [one for day in days for one in day["deliveries"]]
    assert [(one["kind"], one["amount"], one["complete"], one["difference"]) for one in deliveries] == [
        ("live", 4, True, ""),
        ("frozen", 7, True, ""),
    ]
    audited = gatelock("billing", "audit", "--day", DATE)
    assert audited.exit_code == 0, audited.output
