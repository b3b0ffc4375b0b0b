"""Logs of language models: what `gatelock init --from` writes counts each record as it is.

tests/data/README.md says where the records are from. What they hold was added up by hand.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from analyzer.faces.cli.verbs.init import Origin

LINES = Path(__file__).parents[1] / "data" / "llm"
Gatelock = Callable[..., Any]
METERS = ("tokens", "input-tokens", "output-tokens", "cached-tokens", "reasoning-tokens", "cost")


class Sum(NamedTuple):
    """Sums of one key in a log; `cost` in billionths of a dollar."""

    requests: int
    denied: int = 0
    tokens: int = 0
    read: int = 0
    written: int = 0
    cached: int = 0
    reasoning: int = 0
    cost: int = 0


class Truth(NamedTuple):
    callers: dict[str, Sum]
    tenants: dict[str, Sum]
    models: dict[tuple[str, str], Sum]  # of callers that a provider answered


ACME = "api_key:5f8eee912cd7c0ccb238560e8a22e7f78909e6dac18288188f7f4ea35112700d"  # SHA-256 of sk-acme
SHOP = "api_key:ff00b8a0588afff9bff364ce4dfafca733c0d27237bbfec5e5b2619323fae489"
TILL = "api_key:b6457667fb5a57700e4b52adbf33e665bdefba27fc742deecaf061372e9a4452"

# A call that LiteLLM answered from its cache is a request without tokens; one that failed, or that had a
# wrong key, is a request of its address. The embedding of five tokens costs 100 billionths.
LITELLM = Truth(
    callers={
        ACME: Sum(5, 0, 1545, 1222, 323, 1000, 128, 4_750_000 + 13_500 + 2_850 + 100),
        SHOP: Sum(2, 0, 134, 41, 93, 16, 64, 940_000 + 72_500),
        TILL: Sum(0, 1),
        "address:127.0.0.1": Sum(2),
        "unnamed:": Sum(1),
    },
    tenants={
        "north": Sum(9, 0, 1679, 1263, 416, 1016, 192, 5_778_950),
        "south": Sum(0, 1),
        "": Sum(1),
    },
    models={
        (ACME, "large"): Sum(2, 0, 1500, 1200, 300, 1000, 128, 4_750_000),
        (ACME, "small"): Sum(2, 0, 40, 17, 23, 0, 0, 16_350),
        (ACME, "embed"): Sum(1, 0, 5, 5, 0, 0, 0, 100),
        (SHOP, "large"): Sum(2, 0, 134, 41, 93, 16, 64, 1_012_500),
    },
)
# A stream that the client left has no usage.
ENVOY = Truth(
    callers={
        "api_key:acme": Sum(3, 1, 1_050_100, 1_049_776, 324, 1000, 128, 2_627_680_000),
        "api_key:shop": Sum(2, 0, 30, 10, 20),
        "address:192.0.2.7": Sum(1),
    },
    tenants={
        "north": Sum(3, 1, 1_050_100, 1_049_776, 324, 1000, 128, 2_627_680_000),
        "south": Sum(2, 0, 30, 10, 20),
        "": Sum(1),
    },
    models={
        ("api_key:acme", "gpt-4o"): Sum(3, 1, 1_050_100, 1_049_776, 324, 1000, 128, 2_627_680_000),
        ("api_key:shop", "gpt-4o-mini"): Sum(1, 0, 30, 10, 20),
    },
)
# The first record has no details of its tokens, as Kong 3.9 writes it.
KONG = Truth(
    callers={
        "user:acme": Sum(2, 1, 3000, 2400, 600, 1000, 128, 12_000_000),
        "user:shop": Sum(3, 0, 30, 10, 20, 0, 0, 13_500),
        "address:192.0.2.7": Sum(1),
    },
    tenants={
        "north": Sum(2, 1, 3000, 2400, 600, 1000, 128, 12_000_000),
        "south": Sum(3, 0, 30, 10, 20, 0, 0, 13_500),
        "": Sum(1),
    },
    models={
        ("user:acme", "gpt-4o"): Sum(2, 0, 3000, 2400, 600, 1000, 128, 12_000_000),
        ("user:shop", "gpt-4o-mini"): Sum(2, 0, 30, 10, 20, 0, 0, 13_500),
    },
)
OPENAI = Truth(
    callers={
        "api_key:acme": Sum(3, 1, 1530, 1210, 320, 1000, 128, 4_750_000 + 225_000),
        "api_key:shop": Sum(3, 0, 139, 46, 93, 16, 64, 940_000 + 72_500 + 100),
    },
    tenants={
        "north": Sum(4, 1, 1653, 1246, 407, 1016, 192, 5_915_000),
        "south": Sum(2, 0, 16, 10, 6, 0, 0, 72_600),
    },
    models={
        ("api_key:acme", "gpt-4o"): Sum(2, 0, 1530, 1210, 320, 1000, 128, 4_975_000),
        ("api_key:shop", "gpt-4o"): Sum(2, 0, 134, 41, 93, 16, 64, 1_012_500),
        ("api_key:shop", "text-embedding-3-small"): Sum(1, 0, 5, 5, 0, 0, 0, 100),
    },
)
TRUTHS = {
    Origin.LITELLM: LITELLM,
    Origin.ENVOY_AI_GATEWAY: ENVOY,
    Origin.KONG_AI: KONG,
    Origin.OPENAI_SDK_LOG: OPENAI,
}


def counted(gatelock: Gatelock, grouping: str, *names: str) -> dict[Any, Sum]:
    """Returns what is counted, by the columns `names`."""
    sums: dict[Any, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for line in gatelock("usage", "--by", grouping, "--json").stdout.splitlines():
        row = json.loads(line)
        values = sums[row[names[0]] if len(names) == 1 else tuple(row[name] for name in names)]
        values[row["meter"]] += row["value"]
        if row["meter"] == "requests":
            values["denied"] += row["denied"]
    columns = ("requests", "denied", *METERS)
    return {key: Sum(*(values[name] for name in columns)) for key, values in sums.items()}


@pytest.mark.parametrize("origin", TRUTHS)
def test_tokens_and_cost_are_counted_by_key_team_and_model(
    gatelock: Gatelock, tmp_path: Path, origin: Origin
) -> None:
    shutil.copyfile(LINES / f"{origin}.log", tmp_path / "requests.log")
    assert gatelock("init", "--from", origin, "--file", "requests.log").exit_code == 0
    imported = gatelock("upkeep", "import", "requests.log", "--source", "requests.log", "--json")
    assert imported.exit_code == 0, imported.output
    outcome = json.loads(imported.stdout)
    assert outcome["counted"] == len((tmp_path / "requests.log").read_text().splitlines())
    truth = TRUTHS[origin]
    assert counted(gatelock, "caller", "caller") == truth.callers
    assert counted(gatelock, "tenant", "tenant") == truth.tenants
    models = counted(gatelock, "caller+resource", "caller", "resource")
    assert {key: models.get(key) for key in truth.models} == truth.models
    assert sum(model.tokens for model in models.values()) == sum(
        caller.tokens for caller in truth.callers.values()
    )


def test_no_log_has_a_prompt_an_answer_or_a_key() -> None:
    secrets = ("sk-", "1200 1000 300 128", "hello", "Bearer")
    assert not [word for file in LINES.iterdir() for word in secrets if word in file.read_text()]
