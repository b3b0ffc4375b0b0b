"""Combined lines, as servers write them for usual and for hostile requests."""

from __future__ import annotations

import time

import pytest

from analyzer.core.counting.meters import Meter
from analyzer.core.records.combined_format import PARTS, CombinedFormat
from analyzer.core.records.mapping import AddressField, ResourceField, SourceMapping
from tests.support.counting import counted, reasons, totals

AGENT = '"https://a.example/" "Mozilla/5.0 (X11)"'
USUAL = '192.0.2.1 - ann [10/Oct/2000:13:55:36 -0700] "GET /v1/items/7?x=1 HTTP/1.1" 200 2326'


def parts(line: str) -> dict[str, object] | None:
    columns, refused = CombinedFormat([(name,) for name in PARTS]).read([line.encode()])
    return None if refused else {name: column[0] for name, column in zip(PARTS, columns, strict=True)}


def test_a_line_has_its_parts() -> None:
    assert parts(f"{USUAL} {AGENT}") == {
        "address": "192.0.2.1",
        "user": "ann",
        "time": "10/Oct/2000:13:55:36 -0700",
        "method": "GET",
        "path": "/v1/items/7?x=1",
        "protocol": "HTTP/1.1",
        "status": 200,
        "bytes": 2326,
        "referer": "https://a.example/",
        "agent": "Mozilla/5.0 (X11)",
    }


def test_a_value_that_the_server_did_not_know_is_missing() -> None:
    found = parts('192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "-" 408 - "-" "-"')
    assert found is not None
    assert {name for name, value in found.items() if value is not None} == {"address", "time", "status"}


@pytest.mark.parametrize(
    "more", ["", "\r", f" {AGENT}", f' {AGENT} "192.0.2.9" 0.004', ' "-" "cut off in the mid']
)
def test_more_fields_may_follow_the_size(more: str) -> None:
    found = parts(USUAL + more)
    assert found is not None
    assert (found["user"], found["status"], found["bytes"]) == ("ann", 200, 2326)


@pytest.mark.parametrize(
    ("request_line", "path"),
    [
        ("GET / HTTP/2.0", "/"),
        ("OPTIONS * HTTP/1.0", "*"),
        ("GET /nine", "/nine"),
        (r"GET /a\"b HTTP/1.1", r"/a\"b"),
        (r"GET /a\\ HTTP/1.1", r"/a\\"),
        ("GET http://a.example/x HTTP/1.1", "http://a.example/x"),
        (r"\x16\x03\x01\x02", None),
        ("", None),
        ("get / HTTP/1.1", None),
        ("GET /a b HTTP/1.1", None),
        ("GET / HTTP/1.1 x", None),
        ("GET / FTP/1.1", None),
    ],
)
def test_an_invalid_request_line_has_no_path_and_is_counted(request_line: str, path: str | None) -> None:
    line = f'192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "{request_line}" 400 0'
    found = parts(line)
    assert found is not None
    assert found["path"] == path
    assert not counted(SourceMapping(format="combined"), line.encode(), kafka_ms=None).rejected


@pytest.mark.parametrize(
    "line",
    [
        "",
        "-",
        "192.0.2.1",
        USUAL.replace(" 2326", ""),
        USUAL.replace(" 2326", " many"),
        USUAL.replace(" 200", " 20"),
        USUAL.replace('"GET', "GET"),
        USUAL.replace(' HTTP/1.1"', r" HTTP/1.1\""),
        USUAL.replace("[10", "10"),
        USUAL.replace("-0700]", "-0700"),
        USUAL.replace("[10/Oct/2000:13:55:36 -0700]", "[]"),
        " " + USUAL,
        USUAL.replace(" - ", " "),
    ],
)
def test_an_invalid_line_is_rejected(line: str) -> None:
    assert reasons(counted(SourceMapping(format="combined"), line.encode(), kafka_ms=None)) == ["bad-line"]


def test_an_invalid_time_rejects_the_line() -> None:
    line = USUAL.replace("10/Oct", "32/Oct").encode()
    assert reasons(counted(SourceMapping(format="combined"), line, kafka_ms=None)) == ["bad-time"]


def test_a_mapping_without_fields_has_the_parts_of_the_line() -> None:
    lines = [USUAL, USUAL.replace(" ann ", " - "), USUAL.replace(" ann ", " ann lee ")]
    found = counted(
        SourceMapping(format="combined", caller=("user", "address")),
        *(line.encode() for line in lines),
        kafka_ms=None,
        groupings=["caller", "resource"],
        meters=[Meter("volume", "bytes")],
    )
    volume = {(row.grouping, row.key): row.value for row in found.rows if row.meter == "volume"}
    assert volume == {
        ("caller", "user:ann"): 2326,
        ("caller", "user:ann lee"): 2326,
        ("caller", "address:192.0.2.1"): 2326,
        ("resource", "other"): 3 * 2326,
    }


def test_configured_fields_are_read_from_the_parts_of_the_line() -> None:
    mapping = SourceMapping(
        format="combined",
        caller=("address",),
        fields={
            "address": AddressField(("address",), prefix6=64),
            "resource": ResourceField(("path",), ("/v1/items/{id}",)),
            "tenant": AddressField(("elsewhere",)),
        },
    )
    line = USUAL.replace("192.0.2.1", "2001:db8::7").encode()
    found = counted(mapping, line, groupings=["caller+resource"], kafka_ms=971_211_336_000)
    assert totals(found) == {("address:2001:db8::/64", "/v1/items/{id}", "requests"): (1, 0)}


@pytest.mark.parametrize(
    "line",
    [
        "a " * 500_000,
        "a - - [x] " + '"' + "\\" * 1_000_000,
        "a - - [x] " + '"\\"' * 300_000,
        "a - " + " [x] " * 200_000,
        "a - " + 'b [x] "c" ' * 100_000,
        'a - - [x] "" 200 1' + ' "b"' * 250_000,
        'a - - [x] "' + "GET " * 250_000 + '" 200 1',
        "[" * 1_000_000,
        'a - - [x] "" 200 ' + "1" * 1_000_000,
    ],
    ids=lambda line: line[:20],
)
def test_a_hostile_line_takes_time_in_proportion_to_its_length(line: str) -> None:
    """A megabyte takes milliseconds; quadratic time would be hours."""
    began = time.process_time()
    parts(line)
    assert time.process_time() - began < 5
