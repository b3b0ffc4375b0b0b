"""docs/gatekeeper.md: what it shows runs, what it lists is all there is."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import httpx2
import pytest

from gatekeeper import Gate, wire
from gatekeeper.adapters.asgi import Guard
from gatekeeper.testing import locked

PAGE = (Path(__file__).parents[2] / "docs" / "gatekeeper.md").read_text()
SHOWN = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
JSON = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)


def test_every_snippet_runs_in_the_order_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """Its database is nowhere, which is no reason to refuse anybody."""
    names: dict[str, object] = {}
    for number, snippet in enumerate(SHOWN):
        exec(compile(snippet, f"docs/gatekeeper.md, snippet {number}", "exec"), names)  # noqa: S102  # our own page
        if "clock.advance" not in snippet:
            before = names["gate"]
    assert isinstance(before, Gate)
    before.close()
    assert capsys.readouterr().out == "False inf 0 0.0 0.0 {}\n"


@pytest.mark.anyio
async def test_the_first_snippet_guards_an_application() -> None:
    names: dict[str, object] = {}
    exec(SHOWN[0], names)  # noqa: S102  # our own page
    gate, app = names["gate"], names["app"]
    assert isinstance(gate, Gate)
    with locked(gate, "api_key:acme"):
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop.example") as client:
            assert (await client.get("/items", headers={"x-api-key": "bob"})).json() == {
                "left_this_second": 19
            }
            refused = await client.get("/items", headers={"x-api-key": "acme"})
    assert refused.status_code == 429
    shown = re.search(r"```\nHTTP/1.1 429.*?```", PAGE, re.DOTALL)
    assert shown
    headers = re.findall(r"^([a-z-]+): ", shown[0], re.MULTILINE)
    assert set(headers) == set(refused.headers) - {"content-length"}
    assert re.findall(r'"([a-z-]+)":', shown[0]) == list(refused.json())


def test_the_file_that_is_shown_can_be_read() -> None:
    update = wire.load(JSON[0])
    assert (update.unknown, len(update.changes)) == ((), 1)


@pytest.mark.parametrize(("shown", "taken"), [("Gate", Gate), ("Guard", Guard)])
def test_every_setting_is_listed_with_its_default(shown: str, taken: type) -> None:
    table = PAGE.partition(f"`{shown}(")[2].partition("\n\n")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE))
    parameters = dict(inspect.signature(taken).parameters)
    for positional in ("app", "gate"):
        parameters.pop(positional, None)
    assert list(rows) == list(parameters)
    for name, parameter in parameters.items():
        if isinstance(parameter.default, str | float | bool):
            assert rows[name].strip("`") == repr(parameter.default).replace("'", '"'), name
