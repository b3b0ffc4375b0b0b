"""Recognises the format of a log, its envelopes and its fields, by a sample of its lines.

The result is a table as `[[sources]]` of a configuration has it. A reading is judged by what it yields: a
field is taken only if the counter reads the values that the sample has there, and a first word that is
neither an address nor a host name is not taken for a caller. `json_fields` recognises the fields of JSON
documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress
from typing import NamedTuple

from analyzer.counting.records import strict_json
from analyzer.counting.records.combined_format import match_lines
from analyzer.counting.records.envelopes import ENVELOPES, unwrapped
from analyzer.forecast.look.json_fields import (
    REQUEST_FIELDS,
    Table,
    json_source,
    keys_in,
    program,
    proxies_in,
)
from analyzer.forecast.look.route_suggestions import suggest_routes
from analyzer.forecast.look.unread_formats import OTHERWISE, SAMPLE_CHARS
from analyzer.plan.format_decoder import text_of_bytes
from analyzer.plan.value_rules import host_name
from gatekeeper.identity import PREFIX6, client_address

SAMPLE_LINES = 5_000
PROBED_LINES = 500  # of the sample, by which envelopes are recognised
# Of the sample, in the format that is recognised. Other lines may stand among them, and are reported.
READABLE_SHARE = 0.2
ENVELOPES_MAX = 2  # around each other
NAMED_SHARE = 0.5  # of combined lines, with an address or a host name as first word


class DetectedLog(NamedTuple):
    """A log whose format is known, and what is read from it."""

    name: str  # for display
    source: Table  # as in [[sources]], without its file
    fields: frozenset[str]  # that it has, of the keys of `json_fields.NAMES`
    problem: str = ""  # why it cannot be counted
    elsewhere: str = ""  # a sentence on another field that has addresses, if all callers are one

    @property
    def quality(self) -> int:
        """Returns how certain requests are: 2 with fields of requests, 1 without, 0 with a problem."""
        if self.problem:
            return 0
        return 2 if self.fields & REQUEST_FIELDS else 1


def detect(lines: Sequence[bytes]) -> DetectedLog | None:
    """Returns the format of these lines (a few thousand are enough); None if it is none that is known.

    Lines that are requests as they stand are read so; else what is inside of their envelopes, if that is
    more surely a request.
    """
    best = _in_envelopes(lines, ())
    if best is not None and best.quality == 2:
        return best
    for names in _envelopes(lines[:PROBED_LINES]):
        inner = _in_envelopes(lines, names)
        if inner is not None and inner.quality > (-1 if best is None else best.quality):
            best = inner
    return best


def _envelopes(lines: Sequence[bytes], outer: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the envelopes that many of the lines are in, those that are less deep first."""
    inner: dict[tuple[str, ...], list[bytes]] = {}
    for name in ENVELOPES:
        contents = list(filter(None, unwrapped(lines, [name])))
        if lines and len(contents) >= len(lines) * READABLE_SHARE:
            inner[*outer, name] = contents
    yield from inner
    if len(outer) + 1 < ENVELOPES_MAX:
        for names, contents in inner.items():
            yield from _envelopes(contents, names)


def _in_envelopes(lines: Sequence[bytes], names: tuple[str, ...]) -> DetectedLog | None:
    contents = unwrapped(lines, names) if names else lines
    answers = (detector(contents) for detector in DETECTORS)
    detected = next((log for log in answers if log is not None), None)
    if detected is None or not names:
        return detected
    source = {"format": detected.source["format"], "envelope": list(names)} | detected.source
    return detected._replace(name=f"{detected.name} in {' in '.join(reversed(names))}", source=source)


def _as_json(lines: Sequence[bytes]) -> DetectedLog | None:
    documents = [document for line in lines if (document := _document(line)) is not None]
    if not documents or len(documents) < len(lines) * READABLE_SHARE:
        return None
    guess = json_source(documents)
    paths = frozenset(guess.source["fields"])
    keys = keys_in(documents)
    problem = ""
    if "time" not in paths:
        problem = f"no field looks like the time of a request; there are {keys}"
    elif not guess.source["caller"]:
        problem = f"no field looks like a caller (a key, a user or an address); there are {keys}"
    return DetectedLog(f"JSON lines{program(documents)}", guess.source, paths, problem, guess.elsewhere)


def _document(line: bytes) -> Mapping[str, object] | None:
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        return strict_json.read(text_of_bytes(line))
    except strict_json.NotJsonError:
        return None


def _as_combined(lines: Sequence[bytes]) -> DetectedLog | None:
    parts, unread = match_lines(lines) if lines else ({}, {})
    if not lines or len(lines) - len(unread) < max(1, len(lines) * READABLE_SHARE):
        return None
    is_read = [index not in unread for index in range(len(lines))]
    return _combined_log({name: list(compress(column, is_read)) for name, column in parts.items()}, is_read)


def _combined_log(parts: Mapping[str, Sequence[str | None]], is_read: Sequence[bool]) -> DetectedLog:
    is_vhost = any(parts["vhost"])
    name = "vhost_combined" if is_vhost else "combined" if any(parts["referer"]) else "common"
    requests = [request.split(" ") for request in parts[""] if request]
    routes = suggest_routes(words[1] for words in requests if len(words) > 1)
    address: Table = {"path": "address", "prefix6": PREFIX6}
    source: Table = {
        "format": "vhost_combined" if is_vhost else "combined",
        "caller": ["address"],
        "fields": {"address": address} | ({"resource": {"path": "path", "routes": routes}} if routes else {}),
    }
    words = [text or "-" for text in parts["address"]]
    if proxies := proxies_in(words):
        address["trusted_proxies"] = proxies
    are_addresses = [client_address(word) is not None for word in words]
    are_hosts = sum(are_addresses) <= len(words) / 2  # of a server that looks names up
    problem = ""
    if are_hosts:
        source["caller"] = ["host"]
        source["fields"]["host"] = "address"
        hosts = sum(host_name(word) is not None for word in words)
        if hosts < max(1, len(words) * NAMED_SHARE):
            place = next(place for place, word in enumerate(words) if host_name(word) is None)
            line = [index for index, was_read in enumerate(is_read, 1) if was_read][place]
            problem = (
                f"line {line} begins with {words[place][:SAMPLE_CHARS]!a}, which is neither an address nor a "
                f"host name, so its caller is not known: {OTHERWISE}"
            )
    fields = {"time", "method", "status", "bytes", "resource"} | (set() if are_hosts else {"address"})
    return DetectedLog(name, source, frozenset(fields), problem, _forwarded(parts["forwarded"]))


def _forwarded(texts: Sequence[str | None]) -> str:
    """Returns a sentence on the quoted text behind the agent; "" where it has no addresses."""
    present = [text for text in texts if text and text != "-"]
    addresses = [text for text in present if client_address(text) is not None]
    if not addresses or len(addresses) < len(present) / 2:
        return ""
    trusted = "".join(f", trusted_proxies = {proxies}" for proxies in [proxies_in(addresses)] if proxies)
    return (
        'the last field looks like addresses; to count by it write address = { path = "forwarded"'
        f"{trusted.replace(chr(39), chr(34))} }} in [sources.fields]"
    )


# What recognises a format of `counting.records.formats`, in the order in which they are asked.
DETECTORS: list[Callable[[Sequence[bytes]], DetectedLog | None]] = [_as_json, _as_combined]
