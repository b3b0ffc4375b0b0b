"""An installation with eight days of a past and traffic of the present, to look at its pages.

`python -m tests.support.filled_installation FOLDER` fills it once and serves it until it is ended; the token
for acts is in its file `token`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

from analyzer.demo.past_traffic import NEIGHBOUR, PastTraffic
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.tokens import create
from gatekeeper import Gate
from tests.support.plain_http import Client

PORT = 8931
ADDRESS = f"http://127.0.0.1:{PORT}"
PER_SECOND = 8
CONFIG = """
[database]
url = "sqlite:///{folder}/gatelock.db"

[analyzer]
http = "127.0.0.1:{port}"

[billing]
zones = ["Europe/Berlin"]

[[sources]]
name = "shop"
file = "{folder}/access.log"
format = "json"
start = "earliest"
caller = ["api_key", "user", "address"]
count_if = {{ status = {{ not = ["401", "403"] }} }}
deny_if = {{ gate = "denied" }}
groupings = ["caller+resource", "resource", "tenant", "address", "address/24", "address6/56"]

[sources.fields]
time = {{ path = "ts", unit = "s" }}
api_key = "api_key"
user = "user"
address = {{ path = "ip", prefix6 = 64 }}
resource = {{ path = "path", routes = ["/v1/items/{{id}}", "/v1/search", "/v1/export", "/v1/orders", "/login"], else = "other" }}
status = "status"
bytes = {{ path = "bytes", kind = "bytes" }}
duration = {{ path = "took", unit = "s" }}
tenant = "org"
gate = "gate"

[[meters]]
name = "busy"
sum = "duration"
[[meters]]
name = "errors"
count = true
where = {{ status = "500-599" }}
[[meters]]
name = "traffic"
sum = "bytes"

[[policies]]
name = "daily"
kind = "quota"
meter = "requests"
per = "caller"
limit = 2_200
window = {{ per = "day", zone = "Europe/Berlin" }}
notify = [0.5, 0.8, 1.0]

[[policies]]
name = "monthly-traffic"
kind = "quota"
meter = "traffic"
per = "caller"
limit = "900 MB"
window = {{ per = "month", zone = "Europe/Berlin" }}

[[policies]]
name = "busy-time"
kind = "quota"
meter = "busy"
per = "caller"
limit = "20m"
window = {{ per = "day", zone = "Europe/Berlin" }}
mode = "shadow"

[[policies]]
name = "neighbour"
kind = "share"
meter = "busy"
per = "caller"
of = "resource"
limit = 0.5
floor = "1s/s"
hold = "60s"
release = 0.3
window = {{ rolling = "5m" }}
action = {{ slow = "5/s" }}

[[policies]]
name = "flood"
kind = "surge"
meter = "requests"
per = "address/24"
limit = 300
window = {{ rolling = "60s" }}
lock_for = ["10m", "1h", "24h"]
"""  # noqa: E501 - routes are one line of TOML


def fill(folder: Path) -> None:
    """Writes the configuration and the log of the past."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gatelock.toml").write_text(CONFIG.format(folder=folder, port=PORT))
    with (folder / "access.log").open("wb") as log:
        for line in PastTraffic(int(time.time()) // 60 * 60 + 60, 8.0, 60).records():
            log.write(line + b"\n")


def act(token: str) -> None:
    """Does what an operator would have done."""
    headers = {"authorization": f"Bearer {token}"}
    acts: list[tuple[str, dict[str, object]]] = [
        ("callers/limit", {"caller": "api_key:web-acme", "policy": "daily", "amount": "5000", "for": "7d"}),
        ("callers/limit", {"caller": "api_key:web-acme", "policy": "daily", "amount": "+500", "for": "2d"}),
        ("callers/allow", {"caller": "api_key:ci-acme", "for": "30d"}),
        ("locks/lock", {"caller": "api_key:sync-hooli", "for": "4h"}),
        ("locks/lock", {"tenant": "soylent", "for": "1h", "action": "tag"}),
    ]
    with Client(base_url=ADDRESS, timeout=60, headers=headers) as client:
        for path, body in acts:
            answer = client.post(f"/v1/{path}", json={**body, "reason": "INC-311, agreed with the customer"})
            print(path, answer.status_code, answer.text[:100])


def append_traffic(folder: Path, token: str) -> None:
    """Appends traffic of the present, refused where a gate refuses, until it is ended."""
    random, callers = Random(1), PastTraffic(0).callers()
    neighbour = next(caller for caller in callers if caller.api_key == NEIGHBOUR)
    weights = [caller.weight for caller in callers]
    weights.append(sum(weights))
    gate = Gate(ADDRESS, token=token, name="shop")
    with gate, (folder / "access.log").open("ab", buffering=0) as log:
        while True:
            lines = []
            for _ in range(PER_SECOND):
                caller = random.choices([*callers, neighbour], weights)[0]
                is_neighbour = caller is neighbour
                route = "/v1/export" if is_neighbour else f"/v1/items/{random.randint(1, 99)}"
                name = f"api_key:{caller.api_key}"
                allowed = gate.check(name, tenant=caller.tenant, resource=route).allowed
                took_s = random.lognormvariate(-3, 0.5) * (20 if is_neighbour and allowed else 1)
                fields = {
                    "ts": round(time.time(), 3), "api_key": caller.api_key, "ip": caller.address,
                    "org": caller.tenant,
                    "path": route, "status": 200 if allowed else 429, "bytes": 4_000 if allowed else 300,
                    "took": round(took_s, 6),
                    "gate": "" if allowed else "denied",
                }  # fmt: skip
                lines.append(json.dumps(fields).encode() + b"\n")
            log.write(b"".join(lines))
            time.sleep(1)


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(sys.argv[1]).absolute()
    if not (folder / "gatelock.toml").exists():
        fill(folder)
    program = Path(sys.executable).parent / "gatelock"
    with (folder / "run.log").open("w") as output:
        command = [program, "run", "--config", folder / "gatelock.toml"]
        analyzer = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        with Client(base_url=ADDRESS, timeout=60) as client:
            while not (folder / "token").exists():
                time.sleep(5)
                if client.get("/readyz").status_code == 200:
                    engine = open_engine(f"sqlite:///{folder}/gatelock.db", busy_ms=60_000)
                    token = create(engine, "ops", "admin", None, "test", "to look at pages")
                    (folder / "token").write_text(token)
                    time.sleep(5)
                    act(token)
        append_traffic(folder, (folder / "token").read_text())
    finally:
        analyzer.terminate()
        analyzer.wait()


if __name__ == "__main__":
    main()
