"""LiteLLM's proxy as it is on the index, with our callback: logged, counted, refused.

The environment is made by `make litellm`. The provider of the models is tests/llm/provider.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.command_line import run_command
from tests.support.servers.child import accepts, free_port
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
BIN = ROOT / ".cache" / "litellm" / "bin"
SAMPLES = ROOT / "tests" / "data" / "llm"
START_S = 240  # LiteLLM imports for half a minute, on an idle core

pytestmark = [
    pytest.mark.deep("starts LiteLLM: a minute"),
    pytest.mark.skipif(
        not (BIN.parent / ".ready").exists(), reason="needs LiteLLM in its environment: make litellm"
    ),
]

POLICIES = """
[[policies]]
name   = "tokens-per-day"
meter  = "tokens"
limit  = 2_000
window = { per = "day" }

[[policies]]
name   = "team-tokens-per-month"
meter  = "tokens"
per    = "tenant"
limit  = 5_000
window = { per = "month" }
"""


@contextmanager
def running(command: list[str], folder: Path, port: int, **environment: str) -> Iterator[None]:
    """Runs a server until the end of the block, which begins when it accepts connections."""
    log = folder / f"{Path(command[0]).name}.out"
    with log.open("ab") as output:
        child = subprocess.Popen(
            command, cwd=folder, env=os.environ | environment, stdout=output, stderr=output
        )
    try:
        wait_until(
            lambda: accepts(port) or child.poll() is not None, START_S, lambda: log.read_text()[-3000:]
        )
        assert child.poll() is None, log.read_text()[-3000:]
        yield
    finally:
        child.terminate()
        child.wait(60)


@contextmanager
def provider(folder: Path) -> Iterator[str]:
    port = free_port()
    command = [str(BIN / "uvicorn"), "--app-dir", str(HERE), "provider:app", "--port", str(port)]
    with running(command, folder, port):
        yield f"http://127.0.0.1:{port}/v1"


class Proxy:
    """A client of LiteLLM, which adds up the tokens of the answers that it got from the provider."""

    def __init__(self, address: str) -> None:
        self.client = httpx2.Client(base_url=address, timeout=60)
        self.tokens: dict[str, int] = {}

    def ask(self, path: str, key: str, **body: Any) -> httpx2.Response:
        answer = self.client.post(f"/v1/{path}", json=body, headers={"Authorization": f"Bearer sk-{key}"})
        read_all = [int(number) for number in re.findall(r'"total_tokens": ?(\d+)', answer.text)]
        if answer.status_code == 200 and read_all:
            self.tokens[key] = self.tokens.get(key, 0) + read_all[-1]
        return answer

    def chat(self, key: str, model: str, prompt: str, **options: Any) -> httpx2.Response:
        message = {"role": "user", "content": prompt}
        return self.ask("chat/completions", key, model=model, messages=[message], **options)


def first_calls(proxy: Proxy) -> list[int]:
    """Makes the calls of the sample; returns their status."""
    with_usage = {"stream": True, "stream_options": {"include_usage": True}}
    first = proxy.chat("acme", "large", "1200 1000 300 128")
    before = dict(proxy.tokens)
    answers = [first, proxy.chat("acme", "large", "1200 1000 300 128")]  # from the cache
    proxy.tokens = before
    message = {"role": "user", "content": "5 0 6 0"}
    answers += [
        proxy.chat("acme", "small", "10 0 20 0", **with_usage),
        proxy.chat("acme", "small", "7 0 3 0", user="end-7"),
        proxy.ask("embeddings", "acme", model="embed", input="hello"),
        proxy.ask("responses", "shop", model="large", input="36 16 87 64"),
        proxy.ask("messages", "shop", model="large", max_tokens=9, messages=[message]),
        proxy.chat("shop", "large", "fail"),
        proxy.chat("shop", "none", "1 0 1 0"),
    ]
    proxy.tokens["shop"] += 11  # Anthropic's API states no total
    return [answer.status_code for answer in answers]


def test_litellm_logs_what_was_used_and_refuses_keys_and_teams_at_their_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    http, port = free_port(), free_port()
    monkeypatch.setenv("GATELOCK_ANALYZER__HTTP", f"127.0.0.1:{http}")
    written = run_command(["init", "--from", "litellm", "--file", "requests.log"])
    assert written.exit_code == 0, written.output
    configuration = (tmp_path / "gatelock.toml").read_text().partition("\n[[policies]]")[0]
    (tmp_path / "gatelock.toml").write_text(configuration + POLICIES)
    for name in ("litellm_auth.py", "litellm_config.yaml"):
        shutil.copyfile(HERE / name, tmp_path / name)
    (tmp_path / "requests.log").touch()
    analyzer = [sys.executable, "-m", "analyzer.faces.cli", "run"]
    litellm = [str(BIN / "litellm"), "--config", "litellm_config.yaml", "--port", str(port)]
    with (
        provider(tmp_path) as models,
        running(analyzer, tmp_path, http),
        running(
            litellm,
            tmp_path,
            port,
            GATELOCK_GATE=f"http://127.0.0.1:{http}",
            GATELOCK_LOG="requests.log",
            PROVIDER=models,
            LITELLM_LOCAL_MODEL_COST_MAP="True",
        ),
    ):
        proxy = Proxy(f"http://127.0.0.1:{port}")
        assert first_calls(proxy) == [200] * 7 + [503, 400]
        refusals = [
            refused(proxy, "acme", "500 0 0 0", "tokens-per-day"),
            refused(proxy, "till", "6000 0 0 0", "tokens-per-day"),
        ]
        assert proxy.chat("shop", "large", "2 0 0 0").status_code == 200
        assert proxy.chat("none", "large", "9 0 9 0").status_code == 401
        wait_until(lambda: usage("caller").get("unnamed:"), 60)
        assert_counted(proxy)
    assert "2,000 tokens per day (UTC)" in refusals[0].json()["error"]["message"]
    assert int(refusals[0].headers["retry-after"]) <= 86_400
    assert 'team-tokens-per-month"' in refusals[1].headers["ratelimit"]
    assert_sample("litellm.log", chosen_lines(), ("id", "litellm_call_id", "startTime", "endTime"))


def chosen_lines() -> list[str]:
    """Returns the log's first calls, a denied one, and the one with an unknown key."""
    lines = Path("requests.log").read_text().splitlines()
    denied = next(line for line in lines if '"till"' in line and "denied" in line)
    return [*lines[:9], denied, lines[-1]]


def assert_sample(name: str, lines: list[str], changing: tuple[str, ...]) -> None:
    """Compares a log with the sample that other tests read, but for what changes in each run.

    With GATELOCK_WRITE_SAMPLES=1 it writes the sample.
    """
    sample = SAMPLES / name
    if os.environ.get("GATELOCK_WRITE_SAMPLES"):
        sample.write_text("".join(line + "\n" for line in lines))
    unchanging = dict.fromkeys(changing)
    logged, stored = (
        [json.loads(line) | unchanging for line in log] for log in (lines, sample.read_text().splitlines())
    )
    assert logged == stored


def refused(proxy: Proxy, key: str, prompt: str, policy: str) -> httpx2.Response:
    """Asks until the key is refused, by a lock of this policy."""
    answers: list[httpx2.Response] = []

    def is_refused() -> bool:
        answers.append(proxy.chat(key, "large", prompt, cache={"no-cache": True}))
        return answers[-1].status_code == 429

    wait_until(is_refused, 60, lambda: [answer.status_code for answer in answers], every_s=0.5)
    assert policy in answers[-1].headers["gatelock"] + answers[-1].headers["ratelimit"]
    return answers[-1]


def usage(grouping: str) -> dict[str, dict[str, int]]:
    rows = run_command(["usage", "--by", grouping, "--json"]).stdout.splitlines()
    sums: dict[str, dict[str, int]] = {}
    for row in map(json.loads, rows):
        meters = sums.setdefault(row[grouping], {"denied": 0})
        meters[row["meter"]] = row["value"]
        meters["denied"] += row["denied"]
    return sums


def assert_counted(proxy: Proxy) -> None:
    """Compares the counts with the tokens that the client received."""
    logged = [json.loads(line) for line in Path("requests.log").read_text().splitlines()]
    names = {
        record["metadata"]["user_api_key_alias"]: record["metadata"]["user_api_key_hash"] for record in logged
    }
    callers = usage("caller")
    counted = {key: callers[f"api_key:{names[key]}"] for key in proxy.tokens}
    assert {key: sums["tokens"] for key, sums in counted.items()} == proxy.tokens
    assert [bool(counted[key]["denied"]) for key in ("acme", "shop", "till")] == [True, False, True]
    assert usage("tenant")["south"]["tokens"] == proxy.tokens["till"]


def test_the_openai_sdk_answers_have_the_tokens_that_are_logged(tmp_path: Path) -> None:
    with provider(tmp_path) as models:
        subprocess.run(
            [BIN / "python", HERE / "openai_answers.py", models, "requests.log"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT / "deploy" / "llm")},
            timeout=300,
            check=True,
        )
    assert_sample("openai-sdk-log.log", (tmp_path / "requests.log").read_text().splitlines(), ("ts",))
