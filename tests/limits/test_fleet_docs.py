"""Examples in docs/limiters-fleet.md run, on a real Redis."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
import redis
import redis.asyncio

from tests.support.servers.redis import NativeRedis

PAGE = (Path(__file__).parents[2] / "docs" / "limiters-fleet.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # a page does not close what it opens
def test_an_example_of_the_page_runs(block: str, own_redis: NativeRedis, monkeypatch: pytest.MonkeyPatch):
    for module, kind in ((redis, redis.Redis), (redis.asyncio, redis.asyncio.Redis)):
        monkeypatch.setattr(kind, "__init__", functools.partialmethod(kind.__init__, port=own_redis.port))
        assert module.Redis is kind
    exec(compile(block, "docs/limiters-fleet.md", "exec"), {})  # noqa: S102 - that is the test


def test_the_table_of_failures_lists_every_value_of_on_error():
    assert set(re.findall(r'^\| `"(\w+)"`', PAGE, re.MULTILINE)) == {"allow", "deny", "local"}
