"""Formats of logs that are recognised and not read, and what to do about each.

A log of another format is refused with the number of a line, its format, and the way to one that is read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from analyzer.plan.format_decoder import text_of_bytes

SAMPLE_CHARS = 160  # of a line that was not read, for display
LINES_LOOKED_AT = 20

OF_NGINX = "`gatelock init --from nginx` writes a log format for nginx"
OF_CADDY = "`gatelock init --from caddy` writes a JSON log for Caddy"
OF_ENVOY = "`gatelock init --from envoy` writes a JSON log for Envoy"
OTHERWISE = (
    "have the server write the combined format or JSON lines; `gatelock init --help` lists the programs for "
    "which it writes the log format"
)
CONVERT = "turn it into JSON lines with a time and an address, for example by Vector or Fluent Bit"
ACCESS_LOG = "name the access log instead"


class UnreadFormat(NamedTuple):
    """A format by the begin of its lines, and what to do instead."""

    name: str
    line: re.Pattern[bytes]
    cure: str


CLF_DAY = rb"\[\d\d/[A-Z][a-z]{2}/\d{4}:"
UNREAD_FORMATS = tuple(
    UnreadFormat(name, re.compile(line), cure)
    for name, line, cure in (
        ("CloudFront's standard log", rb"#Fields: date time x-edge|(?:[^\t]*\t){20}", CONVERT),
        ("IIS (W3C extended)", rb"#(?:Software|Version|Date|Fields): ", CONVERT),
        (
            "an AWS load balancer's log",
            rb"(?:https?|h2|grpcs|wss?|tls) \d{4}-\d\d-\d\dT[0-9:.]+Z \S+ \S+:",
            CONVERT,
        ),
        ("Amazon S3's server log", rb"[0-9a-f]{64} \S+ " + CLF_DAY, CONVERT),
        (
            "HAProxy's log",
            rb"(?:.*haproxy(?:\[\d+\])?: )?\S+:\d+ " + CLF_DAY + rb"[0-9:.]+\] \S+ \S+ [0-9/+-]+ ",
            "set `log-format` of HAProxy to JSON, or to a combined line with %ci, %trl, %r, %ST and %B",
        ),
        (
            "Squid's native log",
            rb"\d{9,10}\.\d{3} +\d+ \S+ [A-Z_]+/",
            "write `logformat combined` in squid.conf",
        ),
        ("Nginx Proxy Manager's log", CLF_DAY + rb".*\[Client \S+\]", OF_NGINX),
        ("Envoy's text log", rb'\[\d{4}-\d\d-\d\dT[0-9:.]+Z\] "[A-Z]+ \S+ \S+" ', OF_ENVOY),
        ("Caddy's console log", rb"\d{4}/\d\d/\d\d [0-9:.]+\t[A-Z]+\thttp", OF_CADDY),
        (
            "uvicorn's access log",
            rb'(?:INFO: +)?\S+:\d+ - "[A-Z]+ \S+ HTTP/[0-9.]+" \d{3}',
            "it has no times: add RequestLog of the gatekeeper to the application",
        ),
        ("nginx's error log", rb"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d \[[a-z]+\] ", ACCESS_LOG),
        ("Apache's error log", rb"\[[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d [0-9:.]+ \d{4}\] \[", ACCESS_LOG),
        (
            "logfmt",
            rb'(?:[A-Za-z_][A-Za-z0-9_.]*=(?:"[^"]*"|\S*)(?: |$)){3}',
            "have the program write JSON lines",
        ),
    )
)


def refusal(lines: Sequence[bytes]) -> str:
    """Returns why lines of no known format cannot be read: the line, its format if that is known, the cure.

    >>> refusal([b"#Software: Microsoft Internet Information Services 10.0"])[:58]
    'line 1 looks like IIS (W3C extended), which is not read: t'
    """
    if any(b"\0" in line for line in lines):
        return "is binary, not a log of lines"
    for number, line in enumerate(lines[:LINES_LOOKED_AT], 1):
        for format_ in UNREAD_FORMATS:
            if format_.line.match(line):
                return f"line {number} looks like {format_.name}, which is not read: {format_.cure}"
    first = text_of_bytes(lines[0])[:SAMPLE_CHARS] if lines else ""
    return f"has no format that is known (combined, common, or JSON lines): {OTHERWISE}; line 1 is: {first}"
