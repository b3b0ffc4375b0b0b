"""The callback for LiteLLM and the log of the OpenAI SDK, without LiteLLM and the SDK."""

from __future__ import annotations

import asyncio
import doctest
import importlib.util
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fastapi import HTTPException

from gatekeeper import Gate, Lock
from gatekeeper.sources.fixed import FixedSource

DEPLOY = Path(__file__).parents[2] / "deploy" / "llm"


def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, DEPLOY / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The callback, with a stand-in for the class of LiteLLM that it extends."""
    monkeypatch.setitem(sys.modules, "litellm", ModuleType("litellm"))
    monkeypatch.setitem(sys.modules, "litellm.integrations", ModuleType("litellm.integrations"))
    logger = ModuleType("litellm.integrations.custom_logger")
    monkeypatch.setattr(logger, "CustomLogger", object, raising=False)
    monkeypatch.setitem(sys.modules, "litellm.integrations.custom_logger", logger)
    return module("gatelock_litellm")


def lock(scope: str, key: str) -> Lock:
    now = datetime.now(UTC)
    return Lock(scope, key, "tokens-per-day", now, now + timedelta(hours=1), detail="too much")


@pytest.mark.parametrize(
    ("key", "team", "model", "is_refused"),
    [
        ("acme", "north", "large", True),
        ("shop", "south", "large", True),
        ("shop", "north", "gpt/4", True),
        ("shop", "north", "large", False),
        ("shop", None, None, False),
        (None, None, "large", False),
    ],
)
def test_a_call_is_refused_by_a_lock_on_its_key_its_team_or_its_model(
    litellm: Any, tmp_path: Path, key: str | None, team: str | None, model: str | None, is_refused: bool
) -> None:
    locks = [lock("caller", "api_key:acme"), lock("tenant", "south"), lock("resource", "gpt/4")]
    with Gate(FixedSource(*locks)) as gate:
        gate.ready(5)
        callback = litellm.Gatelock(tmp_path / "requests.log", gate)
        identity = SimpleNamespace(api_key=key, team_id=team)
        call = callback.async_pre_call_hook(identity, None, {"model": model}, "acompletion")
        if not is_refused:
            assert asyncio.run(call) is None
            return
        with pytest.raises(HTTPException) as raised:
            asyncio.run(call)
    assert (raised.value.status_code, raised.value.detail) == (429, {"error": "too much"})
    headers = raised.value.headers or {}
    assert headers["gatelock"] == 'denied;policy="tokens-per-day"'
    assert 3500 < int(headers["retry-after"]) <= 3600
    asyncio.run(
        callback.async_log_failure_event({"standard_logging_object": {}, "exception": raised.value}, *"abc")
    )
    assert json.loads((tmp_path / "requests.log").read_text())["gate"] == 'denied;policy="tokens-per-day"'


def test_without_a_gate_calls_are_logged_and_none_is_refused(litellm: Any, tmp_path: Path) -> None:
    callback = litellm.Gatelock(tmp_path / "requests.log", None)
    assert asyncio.run(callback.async_pre_call_hook(None, None, {}, "acompletion")) is None
    payload = {"status": "success", "messages": ["secret"], "response_cost": 1.5e-05, "metadata": None}
    asyncio.run(callback.async_log_success_event({"standard_logging_object": payload}, *"abc"))
    line = (tmp_path / "requests.log").read_text()
    assert '"response_cost": 1.5e-05' in line
    assert "secret" not in line


def test_lines_wait_while_the_file_cannot_be_written(litellm: Any, tmp_path: Path) -> None:
    log = tmp_path / "folder" / "requests.log"
    callback = litellm.Gatelock(log, None)
    kwargs = {"standard_logging_object": {"status": "success"}}
    asyncio.run(callback.async_log_success_event(kwargs, *"abc"))
    log.parent.mkdir()
    asyncio.run(callback.async_log_success_event(kwargs, *"abc"))
    assert len(log.read_text().splitlines()) == 2


def test_the_tokens_of_each_answer_of_openai_are_read() -> None:
    results = doctest.testmod(module("gatelock_openai"))
    assert results.attempted
    assert not results.failed
