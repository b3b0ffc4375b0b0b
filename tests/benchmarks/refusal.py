"""Seconds from the record that reaches a limit to the first refusal, at default settings.

Of a quota and a surge by caller, and of a surge by network, which no single address causes.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Sequence

from analyzer.kernel.database.migrate import upgrade
from gatekeeper import Gate
from tests.benchmarks.analyzers import running, watched
from tests.benchmarks.percentiles import percentiles
from tests.benchmarks.producers import producing
from tests.benchmarks.servers import Servers

LIMIT = 10
CONFIGURATION = """
[database]
url = "{database}"
[kafka]
bootstrap_servers = "{kafka}"
[analyzer]
http = "off"
[[sources]]
topic = "{topic}"
[sources.fields]
time = {{ path = "ts", unit = "ms" }}
api_key = "key"
address = {{ path = "ip", prefix6 = 64 }}
[[policies]]
name = "limit"
limit = {limit}
{policy}
"""
QUOTA = 'window = { per = "day" }'
SURGE = 'kind = "surge"\nwindow = { rolling = "60s" }'
POLICIES = {
    "quota by caller": QUOTA,
    "surge by caller": SURGE,
    "surge by address/24": f'{SURGE}\nper = "address/24"',
}


def run(servers: Servers, names: Sequence[str] = tuple(POLICIES), locks: int = 200) -> None:
    for name in names:
        _run(servers, name, locks)


def _run(servers: Servers, policy: str, locks: int, every_s: float = 0.137) -> None:
    database, topic = servers.postgres.new_database(), servers.kafka.create_topic(partitions=4)
    config = servers.folder / "refusal.toml"
    config.write_text(
        CONFIGURATION.format(
            database=database,
            kafka=servers.kafka.bootstrap,
            topic=topic,
            limit=LIMIT,
            policy=POLICIES[policy],
        )
    )
    upgrade(database)  # so that a gate finds its tables
    with running(config), watched(database) as store:
        store.wait_for_positions(60)
        _measure(servers, topic, database, 1, 0.0, key="warm", patience_s=60)
        waits_s = _measure(servers, topic, database, locks, every_s)
    print(f"limit reached to first refusal, s, {policy}, {locks} locks, flush every 0.1 s, poll every 0.4 s")
    print(f"  {percentiles(waits_s, 50, 90, 99)}")


def _measure(
    servers: Servers,
    topic: str,
    database: str,
    locks: int,
    every_s: float,
    key: str = "caller",
    patience_s: float = 20,
) -> list[float]:
    reached_s: dict[int, float] = {}
    waits_s: list[float] = []
    with producing(servers) as producer, Gate(database) as gate:
        gate.ready(20)
        began_s = time.monotonic()
        until_s = began_s + locks * every_s + patience_s
        while len(waits_s) < locks:
            now_s = time.monotonic()
            assert now_s < until_s, f"{len(waits_s)} of {locks} locked"
            number = len(reached_s) + len(waits_s)
            if number < locks and now_s - began_s >= every_s * number:
                for n in range(LIMIT):
                    record = {
                        "ts": int(time.time() * 1000),
                        "key": f"{key}-{number}",
                        "ip": _address(key, number, n),
                    }
                    producer.produce(topic, json.dumps(record))
                producer.poll(0)
                reached_s[number] = time.monotonic()
            refused = [
                one
                for one in reached_s
                if not gate.check(f"api_key:{key}-{one}", address=_address(key, one, 250))
            ]
            waits_s += [time.monotonic() - reached_s.pop(one) for one in refused]
            time.sleep(0.002)
    return waits_s


def _address(key: str, number: int, host: int) -> str:
    """Returns an address of the network of a caller."""
    return f"{10 + zlib.crc32(key.encode()) % 100}.{number // 256}.{number % 256}.{host}"
