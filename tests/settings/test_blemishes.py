"""Faults that mislead less: each names its real place and a cure that works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from analyzer.config.diagnostics.faults import ConfigFault, ConfigInvalid
from analyzer.config.settings import Settings, load
from analyzer.config.values import ConditionValues
from analyzer.faces.cli.verbs.check import remarks

Read = Callable[[str], Settings]

SOURCE = """
    [[sources]]
    topic = "calls"
    authenticated = true
    [sources.fields]
    user   = "user"
    status = "status"
"""
ADDRESS = '    address = "ip"\n'
POLICY = '\n    [[policies]]\n    name = "p"\n    limit = 10\n'


def faults(read: Read, text: str) -> tuple[ConfigFault, ...]:
    with pytest.raises(ConfigInvalid) as raised:
        read(text)
    return raised.value.faults


def test_a_class_of_status_is_not_compared_as_text(read: Read) -> None:
    meter = '\n    [[meters]]\n    name = "errors"\n    count = true\n    where = { status = "5xx" }\n'
    (fault,) = faults(read, SOURCE + meter)
    assert fault.cure == 'write a range of numbers: "500-599"'
    assert read(SOURCE + meter.replace("5xx", "500-599")).meters[0].where == {
        "status": ConditionValues(("500-599",))
    }


def test_a_fault_in_a_variable_is_not_blamed_on_the_file(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATELOCK_POLICIES", '[{"name": "x", "window": {"per": "day"}}]')
    (fault,) = faults(read, SOURCE + POLICY + '    window = { per = "day" }\n')
    assert (fault.file, fault.line) == ("environment GATELOCK_POLICIES", None)
    assert fault.where == '[[policies]] "x", limit'


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        ('window = "24h"', "a window that begins with each request is not available"),
        (
            'window = { per = "second" }',
            "let a limiter in the application, such as SlidingLog, bound seconds",
        ),
        ('window = { per = "day" }\n    shadow = true', 'write mode = "shadow", which judges the policy'),
        ('window = { per = "day" }\n    enabled = false', 'write mode = "shadow"'),
    ],
)
def test_the_cure_says_what_there_is_instead(read: Read, line: str, cure: str) -> None:
    (fault,) = faults(read, f"{SOURCE}{POLICY}    {line}\n")
    assert cure in fault.cure


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "gatelock.toml").write_bytes(b"\xef\xbb\xbf[analyzer]\nname = 'here'\n")
    assert load(tmp_path / "gatelock.toml").analyzer.name == "here"


def test_a_number_as_topic_is_one_fault(read: Read) -> None:
    (fault,) = faults(read, SOURCE.replace('"calls"', "5"))
    assert "topic: must be printable text, not 5" in f"{fault.where.partition(', ')[2]}: {fault.what}"


def test_a_denial_that_is_known_by_its_status_is_remarked(read: Read) -> None:
    by_status = (SOURCE + ADDRESS).replace(
        'topic = "calls"', 'topic = "calls"\n    deny_if = { status = 429 }'
    )
    window = '    window = { per = "day" }\n'
    (first,) = remarks(read(by_status + POLICY + window))
    assert "deny_if takes every response with the status 429 for a denial of a gate" in first
    _, second = remarks(read(f"{by_status}{POLICY}{window}    status = 403\n"))
    assert second == "calls: deny_if has no 403: what p denies is counted as usage"
    assert list(remarks(read(SOURCE + ADDRESS + POLICY + window))) == []


def test_a_source_whose_records_may_have_no_caller_is_remarked(read: Read) -> None:
    optional = SOURCE + '    api_key = "key"\n'
    (remark,) = remarks(read(optional))
    assert remark.startswith("calls: all records without api_key and user count under one caller, unnamed:; ")
    assert 'address = "address" in [sources.fields]' in remark
    assert list(remarks(read(optional + ADDRESS))) == []
