"""`[billing.live]`: what could not be made exact, or would be read on the way, is a fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from analyzer.config.diagnostics.faults import ConfigInvalid
from analyzer.config.settings import Settings

Read = Callable[[str], Settings]
LIVE = '[billing.live]\nto = "https://api.getlago.com"\nformat = "lago"\n'
ZONES = '[billing]\nzones = ["UTC", "Europe/Berlin"]\n'


@pytest.mark.parametrize(
    ("text", "where", "what", "cure"),
    [
        (LIVE + 'by = "tenant"', "by", 'days are not closed by "tenant"', 'add "tenant" to groupings'),
        (ZONES + LIVE, "zone", "must be a zone that days are closed in", "UTC"),
        (LIVE + 'zone = "Europe/Berlin"', "zone", "must be a zone that days are closed in", "UTC"),
        ("[billing]\nzones = []\n" + LIVE, "zone", "must be a zone", "there is none"),
        (LIVE.replace("https", "http"), "to", "is not encrypted", "write https"),
        (LIVE.replace("https://", ""), "to", "expected https://host:port", "write to ="),
        (LIVE + 'every = "10s"', "every", "", "1m"),
        (LIVE.replace('"lago"', '"zuora"'), "format", "", "lago"),
    ],
)
def test_live_usage_that_cannot_be_pushed_is_a_fault(
    read: Read, text: str, where: str, what: str, cure: str
) -> None:
    with pytest.raises(ConfigInvalid) as raised:
        read(text)
    [fault] = raised.value.faults
    assert fault.where.endswith(where)
    assert what in fault.what
    assert cure in f"{fault.what} {fault.cure}"


def test_live_usage_has_the_zone_of_billing(read: Read) -> None:
    live = read(LIVE + 'every = "5m"').billing.live
    assert live is not None
    assert (live.every, live.by, live.zone) == (300.0, "caller", None)
