"""Parts of a configuration that tests and benchmarks of a whole analyzer write alike."""

from __future__ import annotations


def source(topic: str, **settings: int) -> str:
    """A source of JSON objects: the caller's key in `key`, milliseconds in `ts`."""
    more = "".join(f"{name} = {value}\n" for name, value in settings.items())
    return f"""
[[sources]]
topic = "{topic}"
{more}[sources.fields]
time = {{ path = "ts", unit = "ms" }}
api_key = "key"
"""


def daily(limit: int) -> str:
    """A policy: so many requests of each caller a day."""
    return f"""
[[policies]]
name = "daily"
limit = {limit}
window = {{ per = "day" }}
"""
