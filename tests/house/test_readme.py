"""Every command and every snippet of the README runs, unchanged."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.kafka_log import produce

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LOG = ROOT / "tests" / "data" / "apache_combined_10k.log.gz"
GATELOCK = Path(sys.executable).with_name("gatelock")


def blocks(kind: str) -> list[str]:
    """Returns the blocks in fences of this kind, in order."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for named, text in fenced if named == kind]


def commands(block: str) -> list[list[str]]:
    """Returns the `gatelock` commands of a block, without comments."""
    lines = (line.partition("#")[0].split() for line in block.splitlines())
    return [line[1:] for line in lines if line and line[0] == "gatelock"]


def gatelock(folder: Path, *arguments: str) -> str:
    ran = subprocess.run([GATELOCK, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, f"gatelock {' '.join(arguments)}: {ran.stdout}{ran.stderr}"
    return ran.stdout


def test_the_three_lines_of_python_guard_an_application() -> None:
    (snippet,) = blocks("python")
    assert len(snippet.split("\n\n")[-1].splitlines()) == 4, "an application and three lines"
    names: dict[str, object] = {}
    exec(snippet, names)  # noqa: S102 - it is what the README tells people to run
    assert type(names["app"]).__name__ == "Guard"


def test_an_existing_log_is_counted_in_two_commands(tmp_path: Path) -> None:
    with gzip.open(LOG) as packed, (tmp_path / "access.log").open("wb") as plain:
        shutil.copyfileobj(packed, plain)
    (tmp_path / "gatelock.toml").write_text(blocks("toml")[0])
    (first,) = [block for block in blocks("") if "gatelock upkeep import" in block]
    outputs = [gatelock(tmp_path, *command) for command in commands(first)]
    assert "address:" in outputs[-1]


def test_the_sample_of_a_look_is_what_it_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "access.log").write_bytes(gzip.decompress(LOG.read_bytes()))
    (block,) = [block for block in blocks("") if "gatelock look" in block]
    (shown,) = blocks("text")
    ((_, *arguments),) = commands(block)
    printed = gatelock(tmp_path, "look", *arguments)
    assert [line.rstrip() for line in printed.splitlines()] == shown.splitlines()


@pytest.mark.slow
def test_the_commands_of_an_installation_succeed(
    tmp_path: Path, real_kafka: object, postgres: object
) -> None:
    configuration = blocks("toml")[1]
    assert "postgresql+psycopg://localhost/gatelock" in configuration
    configuration = configuration.replace("postgresql+psycopg://localhost/gatelock", postgres.new_database())
    configuration = configuration.replace("localhost:9092", real_kafka.bootstrap)
    topic = real_kafka.create_topic()
    (tmp_path / "gatelock.toml").write_text(configuration.replace("access-log", topic))
    produce(real_kafka, topic, [json.dumps({"ts": int(time.time()) - 1, "api_key": "acme"}).encode()])
    (shell,) = [block for block in blocks("") if "gatelock run" in block]
    others = [command for command in commands(shell) if command != ["run"]]
    running = subprocess.Popen(
        [GATELOCK, "run"],
        cwd=tmp_path,
        env={**os.environ, "GATELOCK_ANALYZER__HTTP": "127.0.0.1:0"},  # the default port may be in use here
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        time.sleep(4)
        for command in others:
            gatelock(tmp_path, *command)
        assert running.poll() is None
    finally:
        running.terminate()
        _, errors = running.communicate(timeout=15)
    assert running.returncode == 0, errors
