"""docs/llm.md as it is written: from raw records of LiteLLM to refused calls, and each command."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from analyzer.callers.caller_changes import set_callers
from analyzer.faces.cli.verbs.init import TEMPLATES, Origin, configuration
from analyzer.judging.caller_limits import Profile
from analyzer.judging.locks.lock_feed import new_mark
from gatekeeper import Gate, Lock
from gatekeeper.model import Decision
from gatekeeper.sources.fixed import FixedSource
from tests.scenarios.conftest import OpenWorld
from tests.support.command_line import run_command
from tests.support.whole_loop import World

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "llm.md").read_text()
SAMPLE = ROOT / "tests" / "data" / "llm" / "litellm.log"
POLICIES = "".join(re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
CALL = json.loads(SAMPLE.read_text().splitlines()[0])
PLANLESS, PRO = (letter * 64 for letter in "ab")  # hashes of keys


def recipe() -> str:
    """Returns what `init` writes, with the page's policies in place of those of `init`."""
    source = configuration(TEMPLATES[Origin.LITELLM].source, topic="access-log")
    written, _, _ = source.partition("\n[[policies]]")
    stated = '# plan           = "metadata.user_api_key_auth_metadata.plan"'
    assert stated in written
    return written.replace(stated, stated.removeprefix("# ")) + "\n" + POLICIES


def call(world: World, key: str, tokens: int, cost: float = 0.0, **changes: Any) -> None:
    """Writes a record of LiteLLM: its first sample, at the present time and with other tokens."""
    now_s = world.clock.wall_ns() / 1e9
    stated = {"user_api_key_hash": key, "user_api_key_auth_metadata": {}} | changes
    numbers = {"total_tokens": tokens, "prompt_tokens": tokens, "response_cost": cost, "endTime": now_s}
    record = CALL | numbers | {"metadata": CALL["metadata"] | stated}
    world.log.append(json.dumps(record).encode(), world.clock.wall_ns() // 1_000_000)


def decided(world: World, key: str, tenant: str = "") -> Decision:
    """Lets a second pass; returns the decision on the next call."""
    world.pass_s(1)
    return world.gate.check(f"api_key:{key}", tenant=tenant, resource="large")


def admitted(world: World, key: str) -> int:
    """Returns how many of twenty calls of one moment are admitted."""
    return sum(world.gate.check(f"api_key:{key}").allowed for _ in range(20))


def test_a_key_is_slowed_at_its_tokens_of_a_day_and_refused_a_fifth_later(open_world: OpenWorld) -> None:
    world = open_world(recipe())
    call(world, PLANLESS, 9_999)
    assert decided(world, PLANLESS).allowed
    call(world, PLANLESS, 1)
    world.pass_s(1)
    assert admitted(world, PLANLESS) == 6, "a bucket of six a minute"
    slowed = world.gate.check(f"api_key:{PLANLESS}")
    assert (slowed.policy, slowed.status) == ("key-tokens", 429)
    call(world, PLANLESS, 1_999)
    assert decided(world, PLANLESS).policy == "key-tokens"
    call(world, PLANLESS, 401)
    refused = decided(world, PLANLESS)
    assert (refused.allowed, refused.policy) == (False, "key-tokens-end")
    [sentence] = re.findall(r"^    (10,000 tokens per day.*)$", PAGE, re.MULTILINE)
    assert refused.detail == sentence
    assert refused.until is not None
    assert refused.until.isoformat() == "2026-11-21T23:00:00+00:00", "the day ends in Berlin"


def test_a_plan_that_records_state_has_a_separate_limit(open_world: OpenWorld) -> None:
    world = open_world(recipe())
    plan: Mapping[str, Any] = {"user_api_key_auth_metadata": {"plan": "pro"}}
    call(world, PRO, 1, **plan)
    world.pass_s(4)
    call(world, PRO, 999_998, **plan)
    assert decided(world, PRO).allowed
    call(world, PRO, 1, **plan)
    world.pass_s(1)
    assert admitted(world, PRO) == 6


def test_a_team_is_refused_at_its_tokens_of_a_month_by_all_its_keys(open_world: OpenWorld) -> None:
    world = open_world(recipe())
    set_callers(world.engine, {"tenant:north": Profile("business")}, "ann", "sold", new_mark)
    for number in range(10):
        call(world, f"{number:064}", 500_000, user_api_key_team_id="south")
        call(world, f"{number + 10:064}", 500_000, user_api_key_team_id="north")
    refused = decided(world, "c" * 64, tenant="south")
    assert (refused.allowed, refused.policy) == (False, "team-tokens")
    assert refused.detail == "5,000,000 tokens per month (Europe/Berlin), 5,000,000 counted"
    assert decided(world, "c" * 64, tenant="north").allowed, "it has bought more"


def test_the_cost_of_a_month_is_in_shadow_and_exact(open_world: OpenWorld) -> None:
    world = open_world(recipe())
    for _ in range(10):
        call(world, PLANLESS, 1, cost=49.9999999)
    call(world, PLANLESS, 1, cost=9e-07)
    world.pass_s(2)
    shadow = "SELECT count(*) FROM locks WHERE policy = 'team-cost'"
    with world.engine.connect() as connection:
        assert connection.exec_driver_sql(shadow).scalar() == 0, "499.9999999 of 500 dollars"
    call(world, PLANLESS, 1, cost=1e-07)
    assert decided(world, PLANLESS, tenant="north").allowed
    with world.engine.connect() as connection:
        assert connection.exec_driver_sql(shadow).scalar() == 1


@pytest.mark.anyio
async def test_a_guard_around_an_empty_application_answers_envoy() -> None:
    [snippet] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    now = datetime.now(UTC)
    locks = [
        Lock(scope, key, "key-tokens-end", now, now + timedelta(hours=1))
        for scope, key in (("caller", "api_key:acme"), ("tenant", "south"))
    ]
    with Gate(FixedSource(*locks)) as gate:
        gate.ready(5)
        names: dict[str, Any] = {"gate": gate}
        exec(re.sub(r"^gate = .*\n", "", snippet, flags=re.MULTILINE), names)  # noqa: S102 - a page of ours
        transport = httpx2.ASGITransport(app=names["app"])
        async with httpx2.AsyncClient(transport=transport, base_url="http://gate.example") as client:
            answers = [
                await client.post("/v1/chat/completions", headers={"x-client-id": key, "x-team-id": team})
                for key, team in (("shop", "north"), ("acme", "north"), ("shop", "south"))
            ]
    assert [answer.status_code for answer in answers] == [200, 429, 429]
    assert int(answers[1].headers["retry-after"]) > 3500


def test_every_command_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(SAMPLE, "requests.log")
    commands = re.findall(r"^    (gatelock .+?)(?: +#.*)?$", PAGE, re.MULTILINE)
    assert len(commands) == 11
    for command in commands:
        result = run_command(shlex.split(command)[1:])
        assert result.exit_code == 0, f"{command}\n{result.output}"
        if "init" in command:
            written = Path("gatelock.toml").read_text().partition("\n[[policies]]")[0]
            Path("gatelock.toml").write_text(written + "\n" + POLICIES)
            imported = run_command(["upkeep", "import", "requests.log", "--source", "requests.log"])
            assert imported.exit_code == 0, imported.output


def test_the_page_is_short() -> None:
    assert len(PAGE.split()) <= 1200
