"""The made-up past: in the order of time, equal for equal seeds, with a neighbour and a flood at its end."""

from __future__ import annotations

import json
from collections import Counter

from analyzer.demo.past_traffic import FLOOD_NETWORK, NEIGHBOUR, PastTraffic

UNTIL_S = 1_795_000_020


def test_a_past_is_in_order_and_ends_with_a_neighbour_and_a_flood() -> None:
    past = PastTraffic(UNTIL_S, days=0.1, per_minute=20)
    lines = list(past.records())
    assert lines == list(past.records())
    records = [json.loads(line) for line in lines]
    times = [record["ts"] for record in records]
    assert times == sorted(times)
    assert UNTIL_S - 60 <= times[-1] + 60 <= UNTIL_S + 60
    exports = Counter(record.get("api_key") for record in records if record["path"] == "/v1/export")
    assert exports.most_common(1)[0][0] == NEIGHBOUR
    flood = [record for record in records if record["ip"].startswith(FLOOD_NETWORK)]
    assert len(flood) > 100
    assert {record["status"] for record in flood} == {401}
