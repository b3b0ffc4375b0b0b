"""Cures of faults: the next check accepts the text that one of them names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import pytest

from analyzer.config.diagnostics.faults import ConfigFault, ConfigInvalid
from analyzer.config.settings import Settings
from analyzer.faces.cli.verbs.check import remarks

Read = Callable[[str], Settings]

SOURCE = """
[[sources]]
name = "web"
topic = "access-log"
groupings = ["caller+resource"]
authenticated = true
[sources.fields]
time = { path = "ts", unit = "s" }
api_key = "key"
address = "ip"
status = "status"
resource = "path"
"""
POLICY = SOURCE + '[[policies]]\nname = "p"\n'
DAILY = 'limit = 500\nwindow = { per = "day" }\n'
SHARE = 'kind = "share"\nof = "resource"\nlimit = 0.5\nfloor = "5/s"\n'


def fault_of(read: Read, text: str) -> ConfigFault:
    with pytest.raises(ConfigInvalid) as caught:
        read(text)
    [fault] = caught.value.faults
    return fault


class Broken(NamedTuple):
    """A text with one fault, and what of it the cure takes the place of; "" for a line that is missing."""

    text: str
    wrong: str = ""


BROKEN = {
    "share without a window": Broken(POLICY + SHARE),
    "surge without a window": Broken(POLICY + 'kind = "surge"\nlimit = 500\n'),
    "quota without a window": Broken(POLICY + "limit = 500\n"),
    "abbreviated zone": Broken(POLICY + 'limit = 5\nwindow = { per = "day", zone = "CEST" }\n', '"CEST"'),
    "city as a zone": Broken(POLICY + 'limit = 5\nwindow = { per = "day", zone = "berlin" }\n', '"berlin"'),
    "zone in small letters": Broken(POLICY + 'limit = 5\nwindow = { per = "day", zone = "utc" }\n', '"utc"'),
    "misspelt default": Broken(
        POLICY + 'limit = { free = 5, "defualt" = 9 }\nwindow = { per = "day" }\n', '"defualt"'
    ),
    "ip": Broken(POLICY + DAILY + 'per = "ip"\n', '"ip"'),
    "user": Broken(POLICY + DAILY + 'per = "user"\n', '"user"'),
    "route": Broken(POLICY + DAILY + 'per = "route"\n', '"route"'),
    "unknown grouping": Broken(POLICY + DAILY + 'per = "caller+model"\n', '"caller+model"'),
    "range of status": Broken(
        SOURCE.replace("authenticated = true", 'authenticated = true\ndeny_if = { status = "4xx" }'), '"4xx"'
    ),
}  # fmt: skip
ASKED = re.compile(r'^did you mean ("[^"]*")\?$')
WRITTEN = re.compile(r'^write (?:a range of numbers: )?([a-z_]+ = .*|"[^"]*")$')
OFFERED = re.compile(r'"[^"]*"')


@pytest.mark.parametrize("broken", BROKEN.values(), ids=list(BROKEN))
def test_a_cure_that_is_written_is_accepted(read: Read, broken: Broken) -> None:
    cure = fault_of(read, broken.text).cure
    found = ASKED.match(cure) or WRITTEN.match(cure)
    offered = [found[1]] if found else [text for text in OFFERED.findall(cure) if not text.startswith('"+')]
    assert offered, cure
    for text in offered:
        mended = broken.text.replace(broken.wrong, text) if broken.wrong else f"{broken.text}{text}\n"
        assert mended != broken.text
        needs_fields = "tenant" in text
        if not needs_fields:
            read(mended)


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        ('exempt = ["api_key:acme"]', "`gatelock callers allow NAME --reason WHY`"),
        ('distinct = "user"', "it is a key of [[meters]]: move it there"),
        ('zone = "UTC"', "it is a key of [policies.window]: move it there"),
        ('groupings = ["tenant"]', "[[sources]]"),
        ('topic = "access-log"', "it is a key of [[sources]]: move it there"),
    ],
)
def test_a_key_that_lives_elsewhere_is_sent_there(read: Read, line: str, cure: str) -> None:
    assert cure in fault_of(read, POLICY + DAILY + line + "\n").cure


def test_the_plan_of_a_request_is_not_offered_to_a_policy(read: Read) -> None:
    assert '"plan"' not in fault_of(read, POLICY + DAILY + 'per = "caller+model"\n').cure
    assert '"plan"' in fault_of(read, SOURCE.replace("caller+resource", "caller+model")).cure


@pytest.mark.parametrize(
    "candidate", ["limit = 500", 'window = { per = "day" }', 'limit = 500, window = { per = "day" }']
)
def test_a_candidate_that_is_equal_to_its_policy_is_a_fault(read: Read, candidate: str) -> None:
    fault = fault_of(read, POLICY + DAILY + f"candidate = {{ {candidate} }}\n")
    assert (fault.where, fault.what) == ('[[policies]] "p", candidate', "is equal to its policy")
    read(POLICY + DAILY + f"candidate = {{ {candidate.replace('500', '400').replace('day', 'week')} }}\n")


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (
            POLICY + 'kind = "surge"\nlimit = 5\nwindow = { rolling = "1m" }\nlock_for = ["1h", "10m"]\n',
            "lock_for falls from 1h to 10m",
        ),
        (SOURCE + '[[meters]]\nname = "x"\nsum = "status"\n', "the sum of status adds up numbers"),
        (POLICY + DAILY + 'per = "everyone"\n', "for all callers at once"),
    ],
)
def test_valid_settings_that_are_hardly_meant_have_a_remark(read: Read, text: str, remark: str) -> None:
    assert [one for one in remarks(read(text)) if remark in one]
    assert not [one for one in remarks(read(POLICY + DAILY)) if remark in one]
