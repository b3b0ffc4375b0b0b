"""Alerts at a real Alertmanager: shown while a lock or a signal lasts, and over when it ends."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from analyzer.alerts.alert_messages import AlertMessage
from analyzer.alerts.channels.http_channel import HttpChannel
from analyzer.alerts.channels.incidents import AlertmanagerAlerts
from analyzer.alerts.guarded_http import AlertUrl, GuardedPost
from tests.alerts.test_channels import HOSTILE, event
from tests.support import plain_http
from tests.support.servers.child import Child, accepts, free_port
from tests.support.waiting import wait_until

PROGRAM = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
pytestmark = [
    pytest.mark.deep("a server that is not everywhere"),
    pytest.mark.skipif(PROGRAM is None, reason="Debian's prometheus-alertmanager is not there"),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("alertmanager")
    (folder / "config.yml").write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    port = free_port()
    options = [f"--config.file={folder}/config.yml", f"--storage.path={folder}", "--cluster.listen-address="]
    listen = f"--web.listen-address=127.0.0.1:{port}"
    child = Child([str(PROGRAM), *options, listen], folder, parent_death_signal=signal.SIGKILL)
    child.start(lambda: accepts(port) and plain_http.get(f"http://127.0.0.1:{port}/-/ready").is_success)
    yield f"http://127.0.0.1:{port}"
    child.kill()


def shown(url: str) -> dict[str, dict[str, Any]]:
    """Returns the alerts in force, by what they are about."""
    alerts = plain_http.get(f"{url}/api/v2/alerts").json()
    return {alert["labels"]["about"]: alert for alert in alerts}


def test_a_lock_and_a_signal_are_alerts_until_they_end(address: str) -> None:
    url = AlertUrl.parse(f"{address}/api/v2/alerts", ["127.0.0.1"])
    post = GuardedPost([ip_network("127.0.0.0/8")])
    channel = HttpChannel("alertmanager", url, AlertmanagerAlerts("gatelock"), post, lists_all=True)
    now = datetime.now(UTC)
    now_ms = int(now.timestamp() * 1000)
    until = (now + timedelta(hours=1)).isoformat()

    def send(*events: Any) -> None:
        result = channel.send(AlertMessage("msg_1", events, len(events), now_ms), now_ms)
        assert result.is_accepted, result.text

    locks = [
        event(name, at_ms=now_ms)._replace(details={"scope": "caller", "until": until}) for name in HOSTILE
    ]
    lag = event("lag", kind="signal.began", at_ms=now_ms, policy="", details={"subject": "access-log[1]"})
    send(*locks, lag)
    wait_until(lambda: len(shown(address)) == len(HOSTILE) + 1, 10.0)
    assert shown(address)["lag"]["labels"]["subject"] == "access-log[1]"
    ended = [one._replace(kind="lock.cleared", at_ms=now_ms + 1) for one in locks]
    send(*ended, lag._replace(kind="signal.ended", at_ms=now_ms + 1))
    wait_until(lambda: shown(address) == {}, 10.0)
