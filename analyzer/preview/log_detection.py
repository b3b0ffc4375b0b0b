"""Recognises the format of a log and its fields, by a sample of its lines.

The result is a table as `[[sources]]` of a configuration has it. A field of a JSON log is taken only if the
counter can read the values that the sample has there, so that a wrong guess does not reject records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from analyzer.core.records import strict_json
from analyzer.core.records.combined_format import match_lines
from analyzer.core.records.decimals import scaled
from analyzer.core.records.format_decoder import text_of_bytes
from analyzer.core.records.mapping import FieldPath
from analyzer.core.records.timestamps import clf_ms, rfc3339_ms
from analyzer.preview.route_suggestions import suggest_routes
from gatekeeper.identity import MISSING, PREFIX6, address_of

SAMPLE_LINES = 5_000
READABLE_SHARE = 0.5  # of the sample, in the format that is recognised
DEPTH_MAX = 4  # of objects within a JSON document
KEYS_SHOWN = 20

# Names of fields in logs, preferred ones first; either a whole path, or its last key. Upper case, underscores
# and hyphens make no difference: `client_ip` is also `clientIp`. Those of nginx, Caddy, Traefik, Envoy, our
# request log, the Elastic Common Schema, and usual ones.
NAMES: Mapping[str, tuple[str, ...]] = {
    "time": (
        *("startutc", "start_utc", "ts", "@timestamp", "timestamp", "time_iso8601", "time", "start_time"),
        *("time_local", "startlocal", "datetime", "date", "event_time", "msec", "time_unix"),
    ),
    "api_key": ("api_key", "apikey", "x_api_key", "request_x_api_key", "key_id", "client_id", "consumer"),
    "user": ("user", "user_id", "user.id", "user.name", "username", "remote_user", "clientusername", "sub"),
    "address": (
        *("client_ip", "clienthost", "address", "remote_addr", "remote_ip", "client_addr", "ip", "client"),
        *("ip_address", "remote_address", "client_address", "source_ip", "src_ip", "realip", "x_real_ip"),
        *("x_forwarded_for", "host_ip"),
        "downstream_remote_address_without_port",
    ),
    "tenant": (
        *("tenant", "tenant_id", "org", "org_id", "organization", "organisation", "account", "account_id"),
        *("customer", "customer_id", "workspace"),
    ),
    "resource": (
        *("request.uri", "path", "requestpath", "request_path", "request_uri", "uri", "url", "endpoint"),
        *("route", "resource", "x_envoy_original_path"),
    ),
    "method": ("method", "requestmethod", "request_method", "http_method", "verb"),
    "status": ("downstreamstatus", "status", "status_code", "response_code", "http_status", "code"),
    "bytes": (
        *("downstreamcontentsize", "bytes", "size", "bytes_sent", "body_bytes_sent", "response_size"),
        *("response_bytes", "content_length", "bytes_out"),
    ),
    "gate": ("gate", "downstream_gatelock", "gatelock"),
}
CALLERS = ("api_key", "user", "address")
UNITS = {"s": range(9, 11), "ms": range(12, 14), "us": range(15, 17), "ns": range(18, 20)}  # by digits

Table = dict[str, Any]


class DetectedLog(NamedTuple):
    """A log whose format is known, and what is read from it."""

    name: str  # for display
    source: Table  # as in [[sources]], without its file
    fields: frozenset[str]  # that it has, of the keys of `NAMES`
    problem: str = ""  # why it cannot be counted


def detect(lines: Sequence[bytes]) -> DetectedLog | None:
    """Returns the format of these lines (a few thousand are enough); None if it is none that is known."""
    documents = [document for line in lines if (document := _document(line)) is not None]
    if len(documents) > len(lines) * READABLE_SHARE:
        return _json_log(documents)
    parts, unread = match_lines(lines) if lines else ({}, {})
    if len(lines) - len(unread) > len(lines) * READABLE_SHARE:
        rows = [index for index in range(len(lines)) if index not in unread]
        return _combined_log({name: [column[row] for row in rows] for name, column in parts.items()})
    return None


def _combined_log(parts: Mapping[str, Sequence[str | None]]) -> DetectedLog:
    name = "combined" if any(parts["referer"]) else "common"
    if any(parts["vhost"]):
        name = "vhost_combined"
    addresses = [text for text in parts["address"] if text]
    requests = [request.split(" ") for request in parts[""] if request]
    routes = suggest_routes(words[1] for words in requests if len(words) > 1)
    source: Table = {
        "format": "vhost_combined" if name == "vhost_combined" else "combined",
        "caller": ["address"],
        "fields": {
            "address": {"path": "address", "prefix6": PREFIX6},
            "resource": {"path": "path", "routes": routes},
        },
    }
    are_hosts = sum(address_of(text, PREFIX6) is None for text in addresses) > len(addresses) / 2
    if are_hosts:  # a server that looks names up
        source["caller"] = ["host"]
        source["fields"]["host"] = "address"
    fields = {"time", "resource", "method", "status", "bytes"} | (set() if are_hosts else {"address"})
    return DetectedLog(name, source, frozenset(fields))


def _document(line: bytes) -> Mapping[str, object] | None:
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        return strict_json.read(text_of_bytes(line))
    except strict_json.NotJsonError:
        return None


def _json_log(documents: Sequence[Mapping[str, object]]) -> DetectedLog:
    columns: dict[FieldPath, list[object]] = {}
    for document in documents:
        for path, value in _leaves(document):
            columns.setdefault(path, []).append(value)
    found = {name: _found(name, columns, len(documents)) for name in NAMES}
    paths = {name: path for name, path in found.items() if path is not None}
    callers = [name for name in CALLERS if name in paths]
    source: Table = {"format": "json", "caller": callers}
    if "gate" in paths:
        source["deny_if"] = {"gate": "denied"}
    if "status" in paths and set(callers) - {"address"}:
        source["count_if"] = {"status": {"not": ["401", "403"]}}
    source["fields"] = {name: _entry(name, path, columns[path]) for name, path in paths.items()}
    keys = ", ".join(sorted(".".join(path) for path in columns)[:KEYS_SHOWN])
    problem = ""
    if "time" not in paths:
        problem = f"no field looks like the time of a request; there are {keys}"
    elif not callers:
        problem = f"no field looks like a caller (a key, a user or an address); there are {keys}"
    return DetectedLog(f"JSON lines{_program(columns)}", source, frozenset(paths), problem)


def _entry(name: str, path: FieldPath, values: Sequence[object]) -> str | list[str] | Table:
    """Returns a field as [sources.fields] has it."""
    shown = list(path) if any("." in key for key in path) else ".".join(path)
    match name:
        case "time":
            return {"path": shown, "unit": _unit_of(values)}
        case "address":
            return {"path": shown, "prefix6": PREFIX6}
        case "resource":
            return {"path": shown, "routes": suggest_routes(map(str, values))}
        case "bytes":
            return {"path": shown, "kind": "bytes"}
        case _:
            return shown


def _leaves(document: Mapping[str, object], above: FieldPath = ()) -> Iterator[tuple[FieldPath, object]]:
    for key, value in document.items():
        path = (*above, key)
        if isinstance(value, Mapping):
            if len(path) < DEPTH_MAX:
                yield from _leaves(value, path)
        elif key and value is not None:
            yield path, value


def _found(name: str, columns: Mapping[FieldPath, Sequence[object]], documents: int) -> FieldPath | None:
    """Returns the path of a field; None if no path of its names has values that can be read."""
    plain = {path: _plain(".".join(path)) for path in columns}
    for wanted in map(_plain, NAMES[name]):
        matching = [path for path, text in plain.items() if wanted in (text, text.rpartition(".")[2])]
        for path in sorted(matching, key=lambda path: (len(path), path)):
            if _is_readable(name, columns[path], documents):
                return path
    return None


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _is_readable(name: str, values: Sequence[object], documents: int) -> bool:
    if name == "time":
        return len(values) > documents * READABLE_SHARE and bool(_unit_of(values))
    is_valid = VALID[name]
    if name in ("status", "bytes"):  # a value of another type rejects its record
        return all(map(is_valid, values))
    return all(isinstance(value, (str, int)) for value in values) and (
        sum(map(is_valid, values)) > len(values) * READABLE_SHARE
        if name not in ("api_key", "user", "tenant")
        else any(map(is_valid, values))
    )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value not in MISSING


def _is_path(value: object) -> bool:
    return isinstance(value, str) and value.startswith("/")


VALID: Mapping[str, Callable[[Any], bool]] = {
    "api_key": _is_name,
    "user": _is_name,
    "address": lambda value: isinstance(value, str) and address_of(value, PREFIX6) is not None,
    "tenant": lambda value: _is_name(value) or type(value) is int,
    "resource": _is_path,
    "method": _is_name,
    "status": lambda value: type(value) in (int, str) and str(value).isdecimal() and len(str(value)) == 3,
    "bytes": lambda value: type(value) is int and value >= 0,
    "gate": lambda value: isinstance(value, str),
}


def _unit_of(values: Sequence[object]) -> str:
    """Returns the unit of most of these times; "" if it is none that can be read."""
    units = [_unit(value) for value in values]
    likely = max(set(units), key=units.count)
    return likely if units.count(likely) > len(units) * READABLE_SHARE else ""


def _unit(value: object) -> str:
    if isinstance(value, str):
        if rfc3339_ms(value) is not None:
            return "rfc3339"
        return "clf" if clf_ms(value) is not None else ""
    whole = scaled(value, 0) if isinstance(value, (int, bytes)) else None
    digits = 0 if whole is None else len(str(whole))
    return next((unit for unit, lengths in UNITS.items() if digits in lengths), "")


def _program(columns: Mapping[FieldPath, object]) -> str:
    """Returns which program writes such documents, for display; "" if that is not known."""
    keys = {".".join(path) for path in columns}
    for program, signature in PROGRAMS.items():
        if signature <= keys:
            return f" of {program}"
    return ""


PROGRAMS: Mapping[str, set[str]] = {
    "Traefik": {"ClientHost", "DownstreamStatus"},
    "Caddy": {"request.remote_ip", "request.uri", "size"},
    "Envoy": {"response_code", "response_flags"},
    "nginx": {"remote_addr", "body_bytes_sent"},
}
