"""Combined lines, as servers write them for usual and for hostile requests."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.counting.records.combined_format import (
    BLOCK_LINES,
    PARTS,
    CombinedFormat,
    match_lines,
    split_block,
)
from analyzer.plan.mapping import AddressField, ResourceField, SourceMapping
from analyzer.plan.meters import Meter
from gatekeeper.identity import caller_of
from tests.support.counting import counted, reasons, totals
from tests.support.depth import deeper

AGENT = '"https://a.example/" "Mozilla/5.0 (X11)"'
USUAL = '192.0.2.1 - ann [10/Oct/2000:13:55:36 -0700] "GET /v1/items/7?x=1 HTTP/1.1" 200 2326'


def parts(line: str) -> dict[str, object] | None:
    columns, refused = CombinedFormat([(name,) for name in PARTS]).read([line.encode()])
    return None if refused else {name: column[0] for name, column in zip(PARTS, columns, strict=True)}


def test_a_line_has_its_parts() -> None:
    assert parts(f"{USUAL} {AGENT}") == {
        "vhost": None,
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
        "forwarded": None,
    }


@pytest.mark.parametrize(
    ("behind", "forwarded"),
    [
        (' "192.0.2.9, 10.0.0.1"', "192.0.2.9, 10.0.0.1"),
        (' "192.0.2.9" 0.004', "192.0.2.9"),
        (' "-"', None),
        (' 0.004 "192.0.2.9"', None),
        (' "192.0.2.9"x', None),
        ("", None),
    ],
)
def test_a_quoted_text_behind_the_agent_is_the_forwarded_address(behind: str, forwarded: str | None) -> None:
    found = parts(f"{USUAL} {AGENT}{behind}")
    assert found is not None
    assert found["forwarded"] == forwarded


@pytest.mark.parametrize(
    ("front", "vhost", "address"),
    [
        ("shop.example 192.0.2.1 - - ", "shop.example", "192.0.2.1"),
        ("shop.example 2001:db8::1 - ann ", "shop.example", "2001:db8::1"),
        ("_ 192.0.2.1 - - ", "_", "192.0.2.1"),
        ("[2001:db8::5] 192.0.2.1 - - ", "[2001:db8::5]", "192.0.2.1"),
        # A client chooses the host that it asks for: it is never taken for an address.
        ("198.51.100.9 192.0.2.1 - - ", "198.51.100.9", "192.0.2.1"),
        ("192.0.2.1 a.be - ", None, "192.0.2.1"),
        ("192.0.2.1 - 192.0.2.2 ", None, "192.0.2.1"),
        ("192.0.2.1 10.0.0.1 - ", None, "192.0.2.1"),
    ],
)
def test_a_host_may_stand_in_front_without_a_port(front: str, vhost: str | None, address: str) -> None:
    found = parts(USUAL.replace("192.0.2.1 - ann ", front))
    assert found is not None
    assert (found["vhost"], found["address"]) == (vhost, address)


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


@pytest.mark.parametrize(
    ("logged", "user"),
    [
        ("ann lee", "ann lee"),
        (" ann", " ann"),
        ("ann ", "ann "),
        ("a  b", "a  b"),
        ("a [b] [c", "a [b] [c"),
        ("[1/Jan/1970:00:00:00 +0000]", "[1/Jan/1970:00:00:00 +0000]"),
        (r"a\"b", r"a\"b"),
        ("", None),
        (" ", None),
        ('""', None),
        ("- -", None),
        ("- - -", None),
    ],
)
def test_no_user_that_a_client_sends_makes_a_line_unreadable(logged: str, user: str | None) -> None:
    """Servers log the name of a failed login as it came."""
    found = parts(USUAL.replace(" ann ", f" {logged} "))
    assert found is not None
    assert (found["user"], found["time"], found["path"]) == (
        user, "10/Oct/2000:13:55:36 -0700", "/v1/items/7?x=1"
    )  # fmt: skip


@pytest.mark.parametrize("user", ["victim", "x" * 300, " a  b ", "[", "caf\xe9"])
def test_the_caller_of_a_combined_line_is_its_address_unless_the_source_asks_for_the_user(user: str) -> None:
    mapping = SourceMapping(format="combined", rejected_in_row_max=3)
    line = USUAL.replace(" ann ", f" {user} ").encode("latin-1")
    assert totals(counted(mapping, *[line] * 5, kafka_ms=None)) == {("address:192.0.2.1", "requests"): (5, 0)}


@pytest.mark.parametrize("vhost", ["shop.example:443", "shop:80", "192.0.2.80:8080", "[2001:db8::80]:443"])
@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1"])
@pytest.mark.parametrize("name", ["combined", "vhost_combined"])
def test_a_line_that_begins_with_host_and_port_is_read_by_its_address(
    name: str, vhost: str, address: str
) -> None:
    line = f"{vhost} {USUAL.replace('192.0.2.1', address).replace(' ann ', ' - ')} {AGENT}"
    assert parts(line) == (parts(line.partition(" ")[2]) or {}) | {"vhost": vhost}
    found = counted(SourceMapping(format=name, caller=("user", "address")), line.encode(), kafka_ms=None)
    assert totals(found) == {(caller_of(address=address), "requests"): (1, 0)}


@pytest.mark.parametrize("address", ["2001:db8::1", "a.example", "192.0.2.1", "::1"])
def test_an_identity_makes_no_address(address: str) -> None:
    found = parts(USUAL.replace("192.0.2.1 - ", f"{address} 198.51.100.7 "))
    assert found is not None
    assert (found["address"], found["vhost"]) == (address, None)


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
        ("resource", "/v1/items/7"): 3 * 2326,
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
        "a - " + " [" * 500_000 + 'x] "r" 200 1',
        "a - " + "] " * 500_000 + '"r" 200 1',
        "a:1 1.2 - " + '"" ' * 300_000,
        'a - - [x] "" 200 ' + "1" * 1_000_000,
    ],
    ids=lambda line: line[:20],
)
def test_a_hostile_line_takes_time_in_proportion_to_its_length(line: str) -> None:
    """A megabyte takes milliseconds; quadratic time would be hours."""
    began = time.process_time()
    parts(line)
    assert time.process_time() - began < 5


ORDINARY = [f"{USUAL} {AGENT}", '192.0.2.7 - - [10/Oct/2000:13:55:37 -0700] "-" 408 - "-" "-"']
ODD = [
    f"{USUAL} {AGENT}x",
    f"{USUAL} {AGENT} x",
    f"{USUAL} {AGENT}\r",
    f'{USUAL} "a"x"b"',
    f'{USUAL} "a" "b"x"c"',
    f'{USUAL} "a" "b"',
    f'{USUAL} "a" "b" "c" "d"',
    f"shop.example {USUAL}",
    r'192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "GET /" 200 7 "a\" "b" "c"',
    '192.0.2.1 - ann lee [10/Oct/2000:13:55:36 -0700] "GET /" 200 7 "a" "b"',
    '192.0.2.1 -  [10/Oct/2000:13:55:36 -0700] "GET /" 200 7 "a" "b"',
    '192.0.2.1 - - [10/Oct/2000:13:55:36 +0000] "GET /" 200 7 "a" "b"',
    '192.0.2.1 - - [10/Oct/2000] -0700] "GET /" 200 7 "a" "b"',
    '192.0.2.1 - - [10/Oct/2000 07]00] "GET /" 200 7 "a" "b"',
    '192.0.2.1 - - 10/Oct/2000:13:55:36 -0700] "GET /" 200 7 "a" "b"',
    '192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "GET /" 2000 7 "a" "b"',
    '192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "GET /" 200  "a" "b"',
    '192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "GET /" 200 7  "a" "b"',
    '192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "GET /" 200 7² "a" "b"',
    '192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "GET /" 200 1-2 "a" "b"',
    '192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "GET /"x 200 7 "a" "b"',
    '192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "GET /" 200 7 x"a" "b"',
    '192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "GET /\u00e9" 200 - "" "b\n c"',
    '192.0.2.1 - - [[10/Oct/2000:13:55:36 -0700] "GET /" 200 7 "a" "b"',
    '192.0.2.1 - [u [10/Oct/2000:13:55:36 -0700] "GET /" 200 7 "a" "b"',
    'shop:80 192.0.2.1 - [10/Oct/2000:13:55:36 -0700] "GET /" 200 7 "a" "b"',
    'shop:80 192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "GET /" 200 7 "a" "b"',
    # Two lines in one value, and the rest of the second in another.
    '1 - - [t -0700] "r" 200 5 "a" "b"\n 2 - - [t -0700] "r" 200 5 "a',
    'b" "c"',
]


def assert_split_as_matched(lines: list[bytes]) -> None:
    found = split_block(lines)
    parts, unreadable = match_lines(lines)
    if found is not None:
        assert not unreadable
        assert parts.pop("vhost") == (None,) * len(lines)
        if "forwarded" not in found:
            assert parts.pop("forwarded") == (None,) * len(lines)
        assert {name: list(column) for name, column in found.items()} == {
            name: list(column) for name, column in parts.items()
        }


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_line_is_read_alike_alone_and_among_ordinary_ones(odd: str) -> None:
    for lines in ([odd], [odd, ORDINARY[0]], [ORDINARY[0], odd], [ORDINARY[0], odd, ORDINARY[0]], [odd, odd]):
        assert_split_as_matched([line.encode() for line in lines])
        assert_split_as_matched([(line + ' "192.0.2.9"').encode() for line in lines])


@st.composite
def changed_lines(draw: st.DrawFn) -> bytes:
    """A line in which a few parts, separators included, are replaced."""
    found = re.split(r'([ "\[\]])', draw(st.sampled_from(ORDINARY + ODD)))
    for _ in range(draw(st.integers(0, 2))):
        found[draw(st.integers(0, len(found) - 1))] = draw(st.text(alphabet=' "\\\n\r[]-7aé²', max_size=4))
    return "".join(found).encode()


@given(st.lists(changed_lines(), min_size=1, max_size=3))
@settings(max_examples=deeper(100))
def test_a_block_is_split_only_as_the_expression_would_match_it(lines: list[bytes]) -> None:
    assert_split_as_matched(lines)


def test_a_value_of_several_lines_is_not_split() -> None:
    lines = [odd.encode() for odd in ODD[-2:]]
    assert split_block(lines) is None
    assert match_lines(lines)[1] == {0: "bad-line", 1: "bad-line"}


@pytest.mark.parametrize(
    ("end", "is_read"), [("", True), (" x", True), ("x", False), ('"', False), (' "x', True)]
)
def test_a_blank_separates_the_agent_from_what_follows(end: str, is_read: bool) -> None:
    line = f'192.0.2.1 - - [20/Nov/2026:22:13:20 +0000] "GET / HTTP/1.1" 200 0 "-" "curl"{end}'
    assert match_lines([line.encode()])[1] == ({} if is_read else {0: "bad-line"})


@pytest.mark.parametrize("more", ["", ' "192.0.2.9"'])
def test_ordinary_lines_are_split(more: str) -> None:
    assert split_block([(line + more).encode() for line in ORDINARY * 3]) is not None


def test_lines_around_an_odd_one_keep_their_places() -> None:
    lines = [*ORDINARY * BLOCK_LINES, "nonsense", *ORDINARY]
    columns, refused = CombinedFormat([("user",), ("bytes",)]).read([line.encode() for line in lines])
    assert refused == {2 * BLOCK_LINES: "bad-line"}
    assert columns == [["ann", None] * BLOCK_LINES + [None, "ann", None],
                       [2326, None] * BLOCK_LINES + [None, 2326, None]]  # fmt: skip
