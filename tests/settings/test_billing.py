"""`[billing]` in a configuration: names of events, groupings that are only counted, and faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from analyzer.config.diagnostics.faults import ConfigInvalid
from analyzer.config.settings import Settings

Read = Callable[[str], Settings]

SOURCE = """
    [[sources]]
    topic = "access-log"
    authenticated = true
    [sources.fields]
    user = "user"
    plan = "plan"
    time = { path = "ts", unit = "ms" }
    [[meters]]
    name = "errors"
    count = true
"""


def faults(read: Read, text: str) -> list[str]:
    with pytest.raises(ConfigInvalid) as raised:
        read(text)
    return [f"{fault.where}: {fault.what}; {fault.cure}" for fault in raised.value.faults]


def test_events_have_names_and_customers_a_file(read: Read) -> None:
    given = '[billing]\nevents = { requests = "api_requests", errors = "e" }\ncustomers_file = "c.csv"\n'
    billing = read(given + SOURCE).billing
    assert billing.events == {"requests": "api_requests", "errors": "e"}
    assert billing.customers_file == Path("c.csv")


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (
            'events = { error = "e" }',
            '[billing] events.error: "error" is not a meter; did you mean "errors"?',
        ),
        (
            'events = { errors = "two words" }',
            '[billing] events.errors: must be the name of an event, not "two words"; '
            "write 1 to 100 letters, digits or signs",
        ),
    ],
)
def test_names_of_events_are_checked(read: Read, given: str, fault: str) -> None:
    assert faults(read, f"[billing]\n{given}\n{SOURCE}") == [fault]


def test_days_are_closed_by_the_plan_of_records_and_no_policy_limits_it(read: Read) -> None:
    plan = read(f'[billing]\ngroupings = ["caller", "plan"]\n{SOURCE}').plan()
    assert "plan" in plan.groupings
    policy = '[[policies]]\nname = "daily"\nlimit = 5\nper = "plan+resource"\nwindow = { per = "day" }\n'
    [fault] = faults(read, SOURCE + policy)
    assert fault.startswith(
        '[[policies]] "daily", per: "plan+resource" cannot be limited, because no gate knows'
    )
