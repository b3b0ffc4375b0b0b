"""Parts of a configuration, for tests and benchmarks of a whole analyzer."""

from __future__ import annotations


def source(topic: str, **settings: int) -> str:
    """Returns a source of JSON objects: the caller's key is in `key`, the time in milliseconds in `ts`."""
    more = "".join(f"{name} = {value}\n" for name, value in settings.items())
    return f"""
[[sources]]
topic = "{topic}"
{more}[sources.fields]
time = {{ path = "ts", unit = "ms" }}
api_key = "key"
"""


def daily(limit: int) -> str:
    """Returns a policy: `limit` requests of each caller per day."""
    return f"""
[[policies]]
name = "daily"
limit = {limit}
window = {{ per = "day" }}
"""
