"""Formats and fields that are recognised, and the routes that are suggested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analyzer.config.tables.sources import SourceTable
from analyzer.counting.records.reader import Projection, RecordReader
from analyzer.forecast.look.log_detection import DetectedLog, detect
from analyzer.forecast.look.route_suggestions import suggest_routes
from analyzer.kernel.model import RecordColumns
from analyzer.plan.groupings import parse_grouping
from tests.house.reading import ROOT

REQUEST = '"GET /v1/items/7?q=1 HTTP/1.1" 200 5'
TIME = "[10/Oct/2025:13:55:36 +0000]"
PROXIES = sorted((ROOT / "tests" / "data" / "proxies").iterdir())


def found(*lines: str | dict[str, Any]) -> DetectedLog:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    detected = detect([text.encode() for text in texts])
    assert detected is not None
    return detected


def callers_of(detected: DetectedLog, lines: list[bytes]) -> list[str]:
    """The callers that the counter reads by the detected source."""
    mapping = SourceTable.model_validate({"file": "x", **detected.source}).mapping(frozenset(), None)
    reader = RecordReader(mapping, Projection(parse_grouping("caller").dimensions, (), ()))
    columns = RecordColumns(list(range(len(lines))), [None] * len(lines), list(lines), 0)
    requests, reasons, _ = reader.read(columns)
    assert reasons == {}
    return requests.dimensions[0]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (f'192.0.2.7 - - {TIME} {REQUEST} "-" "curl"', "combined"),
        (f"192.0.2.7 - - {TIME} {REQUEST}", "common"),
        (f'shop.example:443 192.0.2.7 - - {TIME} {REQUEST} "-" "curl"', "vhost_combined"),
    ],
)
def test_formats_of_lines_are_recognised(line: str, name: str) -> None:
    detected = found(line, line)
    assert detected.name == name
    assert detected.source["fields"]["resource"]["routes"] == ["/v1/items/{id}"]
    assert callers_of(detected, [line.encode()]) == ["address:192.0.2.7"]


def test_host_names_in_place_of_addresses_are_callers() -> None:
    line = f'proxy7.example.net - - {TIME} {REQUEST} "-" "curl"'
    detected = found(line)
    assert callers_of(detected, [line.encode()]) == ["host:proxy7.example.net"]
    assert "address" not in detected.fields


@pytest.mark.parametrize("path", PROXIES, ids=lambda path: path.stem)
def test_logs_of_proxies_are_read_as_their_templates_read_them(path: Path) -> None:
    lines = path.read_bytes().splitlines()
    detected = detect(lines)
    assert detected is not None
    assert callers_of(detected, lines) == ["api_key:acme", "api_key:acme", "address:192.0.2.7"]
    assert detected.source["deny_if"] == {"gate": "denied"}
    fields = detected.source["fields"]
    template = (ROOT / "deploy" / "proxies" / f"{path.stem}.toml").read_text()
    for name in ("time", "status", "bytes", "method", "api_key", "address", "gate"):
        where = fields[name]["path"] if isinstance(fields[name], dict) else fields[name]
        assert f'"{where}"' in template, name


@pytest.mark.parametrize(
    ("time", "unit"),
    [
        (1_763_596_800, "s"),
        (1_763_596_800.25, "s"),
        (1_763_596_800_250, "ms"),
        (1_763_596_800_250_000, "us"),
        (1_763_596_800_250_000_000, "ns"),
        ("2025-11-20T00:00:00Z", "rfc3339"),
        ("10/Oct/2025:13:55:36 +0000", "clf"),
    ],
)
def test_units_of_times_are_recognised(time: float | str, unit: str) -> None:
    detected = found({"@timestamp": time, "remote_addr": "192.0.2.7"})
    assert detected.source["fields"]["time"] == {"path": ["@timestamp"][0], "unit": unit}


def test_a_field_whose_values_the_counter_cannot_read_is_not_taken() -> None:
    """A size without digits would reject each record, and a word is not an address."""
    line = {"ts": 1_763_596_800, "client_ip": "edge, unknown", "remote_ip": "192.0.2.8", "bytes": "many"}
    detected = found(line)
    assert "bytes" not in detected.fields
    assert detected.source["fields"]["address"]["path"] == "remote_ip"


def test_keys_with_points_are_paths_of_one_key() -> None:
    detected = found({"ts": 1_763_596_800, "http.client_ip": "192.0.2.7", "a": {"user.id": "ann"}})
    assert detected.source["fields"]["address"]["path"] == ["http.client_ip"]


@pytest.mark.parametrize(
    "line",
    [
        {
            "time": 1_763_596_800_250,
            "req": {"method": "GET", "url": "/a/1", "remoteAddress": "::ffff:192.0.2.7"},
            "res": {"statusCode": 200},
        },
        {
            "startTime": "2025-11-20T00:00:00Z",
            "clientIp": "192.0.2.7",
            "requestPath": "/a/1",
            "status-code": 200,
        },
        {
            "@timestamp": "2025-11-20T00:00:00Z",
            "source": {"ip": "192.0.2.7"},
            "url": {"path": "/a/1"},
            "http": {"response": {"status_code": 200}},
            "user": {"name": "ann"},
        },
    ],
    ids=["pino", "camel case", "Elastic Common Schema"],
)
def test_spellings_of_other_programs_are_recognised(line: dict[str, Any]) -> None:
    assert found(line).fields >= {"time", "address", "resource", "status"}
    assert ("user" in found(line).fields) == ("user" in line)


def test_names_that_a_client_may_invent_count_only_if_the_login_succeeded() -> None:
    detected = found({"ts": 1_763_596_800, "user": "ann", "ip": "192.0.2.7", "status": 200})
    assert detected.source["caller"] == ["user", "address"]
    assert detected.source["count_if"] == {"status": {"not": ["401", "403"]}}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            {"level": "info", "user": "ann"},
            "no field looks like the time of a request; there are level, user",
        ),
        ({"ts": 1_763_596_800, "size": 3}, "no field looks like a caller"),
    ],
)
def test_a_json_log_that_is_not_of_requests_names_what_is_missing(line: dict[str, Any], problem: str) -> None:
    assert problem in found(line).problem


@pytest.mark.parametrize(
    "lines", [["hello", "world"], ["\x00\x01"], ["[1, 2]"], ["<34>Oct 11 22:14 su: failed"]]
)
def test_other_lines_have_no_known_format(lines: list[str]) -> None:
    assert detect([line.encode() for line in lines]) is None


def test_a_few_wrong_lines_do_not_hide_the_format() -> None:
    good = f'192.0.2.7 - - {TIME} {REQUEST} "-" "curl"'
    assert found(*["garbage"] * 3, *[good] * 4).name == "combined"


def test_rare_segments_become_placeholders_and_frequent_ones_stay() -> None:
    paths = ["/v1/search"] * 300 + [f"/v1/users/{name}x/posts" for name in "abcdefghijklmnopqrs"]
    assert suggest_routes(paths) == ["/v1/search", "/v1/users/{name}/posts"]


def test_routes_are_valid_in_a_configuration() -> None:
    paths = [
        "/a?b=1",
        "/a//b",
        "/%2e%2e/etc",
        "//evil",
        '/x"y',
        "*",
        "",
        "/é/1",
        "/v1/items/0b5bd7b4-31cc-4a3f-8c3e",
    ]
    fields = {"resource": {"path": "path", "routes": suggest_routes(paths)}}
    table = SourceTable.model_validate({"file": "x", "format": "combined", "fields": fields})
    assert table.fields.resource is not None
    assert "/a" in table.fields.resource.routes
