"""docs/requestlog.md: its snippets run, its lists are complete."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gatekeeper import Gate
from gatekeeper.adapters.admission_control import RequestIdentity
from gatekeeper.model import Decision
from gatekeeper.requestlog import asgi, wsgi
from gatekeeper.requestlog.confluent import ConfluentSink
from gatekeeper.requestlog.kafka import KafkaSink
from gatekeeper.requestlog.log_record import FIELDS_MAX, PATH_CHARS_MAX, TEXT_CHARS_MAX, LogEntry, encode_line
from gatekeeper.testing import locked

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "requestlog.md").read_text()
SHOWN = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(JSON,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
(TOML,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.anyio
async def test_every_snippet_runs_in_the_order_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The database does not exist, so the gate admits all callers."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(SHOWN[0], names)  # noqa: S102 - a page of this repository
    gate, app = names["gate"], names["app"]
    assert isinstance(gate, Gate)
    with locked(gate, "api_key:acme"):
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop.example") as client:
            assert (await client.get("/v1/items/7", headers={"x-api-key": "bob"})).json() == 7
            assert (await client.get("/v1/items/8", headers={"x-api-key": "acme"})).status_code == 429
    for snippet in SHOWN[1:]:
        if "print" in snippet:
            names["app"] = app
            assert app.flush()
        exec(snippet, names)  # noqa: S102 - a page of this repository
    gate.close()
    assert capsys.readouterr().out == "2 0 0 True\n"
    bob, acme = map(json.loads, (tmp_path / "requests.log").read_text().splitlines())
    assert (bob["more"], bob["gate"], bob["resource"]) == ({"tokens": 812}, "allowed", "/v1/items/{item}")
    assert (acme["gate"], acme["policy"]) == ("denied", "test")
    assert "resource" not in acme  # denied before the framework matches its route


def test_the_record_that_is_shown_has_every_field_in_its_order_and_each_is_described() -> None:
    shown = json.loads(JSON)
    identity = RequestIdentity(
        "api_key:acme", address="192.0.2.7", tenant="north", resource="/v1/items/{item}"
    )
    entry = LogEntry(1_795_276_800_310_803_999, 811_271, 429, 300, "GET", "/v1/items/8", identity)
    entry = entry._replace(fields={"tokens": 812}, decision=Decision(False, policy="daily"))
    assert list(shown.items()) == list(json.loads(encode_line(entry, shown["id"]).text).items())
    described = re.findall(
        r"^\| ((?:`\w+`(?:, )?)+) \|", PAGE.partition("### Through Kafka")[0], re.MULTILINE
    )
    assert {name for row in described for name in re.findall(r"\w+", row)} == set(shown) - {"method"}


def test_the_page_describes_the_bounds() -> None:
    assert f"at most {PATH_CHARS_MAX:,} characters" in PAGE
    assert f"at most {FIELDS_MAX} fields, text of at most {TEXT_CHARS_MAX} characters" in PAGE


def test_the_added_fields_fit_into_the_source_that_is_shipped(tmp_path: Path) -> None:
    from analyzer.config.settings import load

    more = tomllib.loads(TOML)["sources"]["fields"]
    shipped = (ROOT / "deploy" / "requestlog.toml").read_text()
    shipped = re.sub(r"(?m)^resource .*\n", "", shipped)
    lines = TOML.partition("[sources.fields]\n")[2]
    (tmp_path / "gatelock.toml").write_text(
        f'{shipped}{lines}\n[[meters]]\nname = "tokens"\nsum = "tokens"\n'
    )
    (mapping,) = load(tmp_path / "gatelock.toml").mappings().values()
    assert set(more) <= set(mapping.fields)
    assert mapping.fields["tokens"].path == ("more", "tokens")


@pytest.mark.parametrize("documented", [asgi.RequestLog, wsgi.RequestLog, KafkaSink, ConfluentSink])
def test_every_setting_is_listed(documented: type) -> None:
    table = PAGE.rpartition(f"`{documented.__name__}(")[2].partition("\n\n")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE))
    parameters = dict(inspect.signature(documented).parameters)
    for positional in ("app", "bootstrap_servers", "topic"):
        parameters.pop(positional, None)
    assert list(rows) == list(parameters)
    for name, parameter in parameters.items():
        if isinstance(parameter.default, int):
            assert rows[name] == f"{parameter.default:,}"


def test_every_file_for_a_proxy_is_listed() -> None:
    listed = set(re.findall(r"deploy/proxies/([\w.]+)\)", PAGE))
    assert listed == {path.name for path in (ROOT / "deploy" / "proxies").iterdir()}
