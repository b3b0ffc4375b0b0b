"""Ids of events in a configuration: the mapping that they become, faults, and a remark."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from analyzer.config.diagnostics.faults import ConfigInvalid
from analyzer.config.settings import Settings
from analyzer.faces.cli.verbs.check import remarks
from analyzer.plan.mapping import EventIdRule, TextField
from analyzer.plan.meters import DUPLICATES
from analyzer.plan.plan import plan_from

Read = Callable[[str], Settings]

SOURCE = """
    [[sources]]
    topic   = "access-log"
    caller  = "user"
    authenticated = true
    id      = "request"
    [sources.fields]
    user     = "user"
    address  = "ip"
    request  = "request.id"
    size     = { path = "size", kind = "whole" }
    time     = { path = "ts", unit = "ms" }
"""
WITHOUT = SOURCE.replace('id      = "request"\n', "")


def faults(read: Read, text: str) -> list[str]:
    with pytest.raises(ConfigInvalid) as raised:
        read(text)
    return [f"{fault.where}: {fault.what}" for fault in raised.value.faults]


def test_an_id_is_part_of_the_mapping_and_of_the_plan(read: Read) -> None:
    settings = read(SOURCE)
    mapping = settings.mappings()["access-log"]
    assert mapping.event_ids == EventIdRule("request", 3_600_000, 2_000_000)
    assert mapping.fields["request"] == TextField(("request", "id"))
    assert settings.plan().bucket_meters[-1] == DUPLICATES
    assert plan_from(settings.plan().to_json()) == settings.plan()
    assert read(WITHOUT).plan().parts != settings.plan().parts
    assert DUPLICATES not in read(WITHOUT).plan().bucket_meters


def test_the_horizon_and_the_number_of_ids_are_set(read: Read) -> None:
    given = SOURCE.replace('id      = "request"', 'id = "request"\nid_horizon = "24h"\nids_max = 5_000')
    assert read(given).mappings()["access-log"].event_ids == EventIdRule("request", 86_400_000, 5_000)


@pytest.mark.parametrize("name", ["size", "time", "address"])
def test_an_id_that_is_not_a_text_is_a_fault(read: Read, name: str) -> None:
    assert faults(read, SOURCE.replace('id      = "request"', f'id = "{name}"')) == [
        f'[[sources]] "access-log", id: "{name}" is not a text'
    ]


def test_an_unknown_field_and_settings_without_an_id_are_faults(read: Read) -> None:
    [unknown] = faults(read, SOURCE.replace('id      = "request"', 'id = "reqest"'))
    assert unknown == '[[sources]] "access-log", id: no field is named "reqest"'
    [unused] = faults(read, WITHOUT.replace("[sources.fields]", "ids_max = 5_000\n[sources.fields]"))
    assert unused == '[[sources]] "access-log", ids_max: has no effect without an id'


@pytest.mark.parametrize("path", ["headers.x-request-id", "request_X-Request-Id", "X_CORRELATION_ID"])
def test_a_header_that_clients_send_is_remarked(read: Read, path: str) -> None:
    assert list(remarks(read(SOURCE))) == []
    [remark] = remarks(read(SOURCE.replace('"request.id"', f'"{path}"')))
    assert remark.startswith("access-log: the id is a header that a client may send")
