"""`gatelock init`: what it writes has no fault, and reads the log that it is for."""

from __future__ import annotations

import json
import re
import time
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from analyzer.faces.cli.verbs.init import TEMPLATES, Origin, shipped
from gatekeeper.adapters import asgi

ROOT = Path(__file__).parents[2]
PROXY_LINES = ROOT / "tests" / "data" / "proxies"
MODEL_LINES = ROOT / "tests" / "data" / "llm"
OF_MODELS = {origin for origin, template in TEMPLATES.items() if template.source.startswith("llm/")}
Gatelock = Callable[..., Any]


def sample(origin: Origin) -> str:
    """A log as this origin writes it: at least one request that can be counted."""
    now = time.time()
    clf = datetime.now(UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
    match origin:
        case Origin.REQUESTLOG:
            page = (ROOT / "docs" / "requestlog.md").read_text()
            return json.dumps(json.loads(re.findall(r"```json\n(.+?)```", page, re.DOTALL)[0])) + "\n"
        case Origin.NGINX:
            line = {"ts": round(now, 3), "api_key": "acme", "address": "192.0.2.7", "path": "/v1/items/8"}
            line |= {"method": "GET", "status": "200", "bytes": 5, "duration": 0.002, "gate": ""}
            return json.dumps(line) + "\n"
        case Origin.COMBINED:
            return f'192.0.2.7 - ann [{clf}] "GET /v1/search HTTP/1.1" 200 5 "-" "curl"\n'
        case Origin.VHOST:
            return f'shop.example:443 192.0.2.7 - ann [{clf}] "GET /v1/search HTTP/1.1" 200 5 "-" "curl"\n'
        case Origin.JSON_FILE:
            return json.dumps({"ts": now, "address": "192.0.2.7", "path": "/v1/search", "status": 200}) + "\n"
        case _:
            folder = MODEL_LINES if origin in OF_MODELS else PROXY_LINES
            return (folder / f"{origin}.log").read_text()


@pytest.mark.parametrize("origin", list(Origin))
def test_the_written_configuration_has_no_fault_and_reads_its_log(
    gatelock: Gatelock, tmp_path: Path, origin: Origin
) -> None:
    log = tmp_path / "requests.log"
    log.write_text(sample(origin))
    result = gatelock("init", "--from", origin, "--file", str(log))
    assert result.exit_code == 0, result.output
    assert "gatelock.toml: written" in result.stdout
    checked = gatelock("check")
    assert checked.exit_code == 0, checked.output
    is_of_models = origin in OF_MODELS
    limit = "tokens-per-day: at most 1,000,000 tokens" if is_of_models else "daily: at most 100,000 requests"
    assert f"policy      {limit}" in checked.stdout
    imported = gatelock("upkeep", "import", str(log), "--source", "requests.log", "--json")
    assert imported.exit_code == 0, imported.output
    assert json.loads(imported.stdout)["counted"] == len(log.read_text().splitlines())


@pytest.mark.parametrize("has_routes", [True, False])
@pytest.mark.parametrize("origin", [origin for origin in Origin if origin not in OF_MODELS])
def test_a_guard_asks_for_the_resources_that_are_counted(
    gatelock: Gatelock, tmp_path: Path, origin: Origin, has_routes: bool
) -> None:
    """With the routes that the file has, and without them. Models count as the record names them."""
    log, configuration = tmp_path / "requests.log", tmp_path / "gatelock.toml"
    log.write_text(sample(origin))
    assert gatelock("init", "--from", origin, "--file", str(log)).exit_code == 0
    text = configuration.read_text()
    shown = re.findall(r"^resource *= {.*, routes = (\[[^]]*\])", text, re.MULTILINE)
    patterns = json.loads(shown[0]) if has_routes and shown else []
    if not has_routes:
        text = re.sub(r", routes = \[[^]]*\]", "", text)
    groupings = 'groupings = ["resource"]\n\n[sources.fields]'
    configuration.write_text(text.replace("[sources.fields]", groupings, 1))
    imported = gatelock("upkeep", "import", str(log), "--source", "requests.log")
    assert imported.exit_code == 0, imported.output
    rows = [json.loads(line) for line in gatelock("usage", "--by", "resource", "--json").output.splitlines()]
    if origin is Origin.REQUESTLOG:
        wanted = {json.loads(line)["resource"] for line in log.read_text().splitlines()}
    else:
        paths = re.findall(r"/(?:v1/[a-z0-9/]+|favicon\.ico)", log.read_text())
        ask = asgi.routes(patterns)
        wanted = {ask({"path": path}) for path in paths}
    assert {row["resource"] for row in rows} - {""} == wanted


@pytest.mark.parametrize("origin", list(Origin))
def test_the_log_format_of_a_program_is_written_too(
    gatelock: Gatelock, tmp_path: Path, origin: Origin
) -> None:
    result = gatelock("init", "--from", origin, "--topic", "requests")
    program = TEMPLATES[origin].program
    written = {path.name for path in tmp_path.iterdir()}
    if program is None:
        assert written == {"gatelock.toml"}
    else:
        name = TEMPLATES[origin].written_as
        assert written == {"gatelock.toml", name}
        assert (tmp_path / name).read_text() == (ROOT / "deploy" / program).read_text()
        assert f"{name}: {TEMPLATES[origin].place}" in result.stdout
    assert 'topic   = "requests"' in re.sub(r" += ", "   = ", (tmp_path / "gatelock.toml").read_text())


def test_nothing_is_overwritten(gatelock: Gatelock, tmp_path: Path) -> None:
    (tmp_path / "gatelock-nginx.conf").write_text("mine")
    result = gatelock("init", "--from", "nginx")
    assert result.exit_code == 2
    assert "gatelock-nginx.conf: exists, and is not overwritten" in result.stderr
    assert not (tmp_path / "gatelock.toml").exists()
    assert (tmp_path / "gatelock-nginx.conf").read_text() == "mine"


def test_nothing_is_written_through_a_link(gatelock: Gatelock, tmp_path: Path) -> None:
    (tmp_path / "gatelock.toml").symlink_to(tmp_path / "elsewhere")
    result = gatelock("init", "--from", "combined")
    assert result.exit_code == 2
    assert "gatelock.toml: File exists" in result.stderr
    assert not (tmp_path / "elsewhere").exists()


def test_a_name_that_breaks_the_file_is_refused(gatelock: Gatelock, tmp_path: Path) -> None:
    for name in ('a"b', "a\nb", "a\\b"):
        assert gatelock("init", "--from", "combined", "--file", name).exit_code == 2
    assert gatelock("init", "--from", "combined", "--file", "a", "--topic", "b").exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_the_wheel_carries_deploy_and_reads_it_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert (
        project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]["deploy"] == "analyzer/_deploy"
    )
    (tmp_path / "_deploy").mkdir()
    (tmp_path / "_deploy" / "combined.toml").write_text("of the wheel")
    monkeypatch.setattr("analyzer.faces.cli.verbs.init.PACKAGE", tmp_path)
    assert shipped("combined.toml") == "of the wheel"


def test_every_source_in_deploy_is_offered() -> None:
    """The folder is the only place of these files: the wheel carries it as it is."""
    offered = {
        name
        for template in TEMPLATES.values()
        for name in (template.source, template.program, template.policies)
        if name
    }
    others = {"begin.toml", "gatelock.toml", "gatelock.service"}
    found = {
        str(path.relative_to(ROOT / "deploy")) for path in (ROOT / "deploy").rglob("*") if path.is_file()
    }
    elsewhere = {
        name for name in found if name.startswith(("grafana/", "prometheus/", "container/", "postgresql/"))
    }
    assert found - others - elsewhere == offered
    assert all(shipped(name) for name in offered)


def test_the_written_files_are_json(gatelock: Gatelock) -> None:
    result = gatelock("init", "--from", "nginx", "--file", "requests.log", "--json")
    assert json.loads(result.stdout) == {"files": ["gatelock.toml", "gatelock-nginx.conf"]}
