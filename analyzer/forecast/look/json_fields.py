"""Recognises the fields of JSON documents by their names, and by whether the counter reads their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple

from analyzer.counting.records.columns import ColumnIndex, NumberColumn, TimeColumn
from analyzer.forecast.look.route_suggestions import suggest_routes
from analyzer.plan.mapping import NO_ZONE, FieldPath, NumberField, SourceMapping, TimeField, TimeUnit
from gatekeeper.identity import MISSING, PREFIX6, TrustedProxies, client_address

MAJORITY = 0.5
DEPTH_MAX = 4  # of objects within a JSON document
KEYS_SHOWN = 20

# Names of fields in logs, preferred ones first; either a whole path, or its last key. Upper case, underscores
# and hyphens make no difference: `client_ip` is also `clientIp`. Those of nginx, Caddy, Traefik, Envoy, our
# request log, the Elastic Common Schema, Cloudflare, API Gateway, and usual ones. A peer comes before what
# its headers say: a client writes these.
NAMES: Mapping[str, tuple[str, ...]] = {
    "time": (
        *("startutc", "start_utc", "ts", "@timestamp", "timestamp", "time_iso8601", "time", "start_time"),
        *("time_local", "startlocal", "datetime", "date", "event_time", "msec", "time_unix"),
        *("edgestarttimestamp", "requesttimeepoch", "request_time"),
    ),
    "api_key": ("api_key", "apikey", "x_api_key", "request_x_api_key", "key_id", "client_id", "consumer"),
    "user": ("user", "user_id", "user.id", "user.name", "username", "remote_user", "clientusername", "sub"),
    "address": (
        *("client_ip", "clienthost", "address", "remote_addr", "remote_ip", "client_addr", "ip", "client"),
        *("ip_address", "remote_address", "client_address", "source_ip", "src_ip", "realip", "x_real_ip"),
        *("downstream_remote_address_without_port", "downstream_remote_address", "peer_address"),
        *("x_forwarded_for", "http_x_forwarded_for", "host_ip"),
    ),
    "tenant": (
        *("tenant", "tenant_id", "org", "org_id", "organization", "organisation", "account", "account_id"),
        *("customer", "customer_id", "workspace"),
    ),
    "resource": (
        *("request.uri", "path", "requestpath", "request_path", "request_uri", "uri", "url", "endpoint"),
        *("route", "resource", "x_envoy_original_path", "x_envoy_origin_path", "clientrequesturi"),
        "clientrequestpath",
    ),
    "method": (*("method", "requestmethod", "request_method", "http_method", "verb", "clientrequestmethod"),),
    "status": (
        *("downstreamstatus", "status", "status_code", "response_code", "http_status", "code"),
        "edgeresponsestatus",
    ),
    "bytes": (
        *("downstreamcontentsize", "bytes", "size", "bytes_sent", "body_bytes_sent", "response_size"),
        *("response_bytes", "content_length", "bytes_out", "edgeresponsebytes", "response_length"),
    ),
    "gate": ("gate", "downstream_gatelock", "gatelock"),
}
CALLERS = ("api_key", "user", "address")
REQUEST_FIELDS = frozenset({"resource", "method", "status"})  # what only a log of requests has
UNITS: Mapping[TimeUnit, range] = {  # by digits
    "s": range(9, 11), "ms": range(12, 14), "us": range(15, 17), "ns": range(18, 20)
}  # fmt: skip
PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "fc00::/7", "::1/128")

Table = dict[str, Any]
FieldValues = Mapping[FieldPath, Sequence[object]]


class JsonSource(NamedTuple):
    """A source as [[sources]] has it, and a sentence on another field that has addresses."""

    source: Table
    elsewhere: str


def json_source(documents: Sequence[Mapping[str, object]]) -> JsonSource:
    """Returns how documents are read; without a time or without callers where none is recognised."""
    columns = _columns(documents)
    matches = {name: _path_to(name, columns, len(documents)) for name in NAMES}
    paths = {name: path for name, path in matches.items() if path is not None}
    callers = [name for name in CALLERS if name in paths]
    source: Table = {"format": "json", "caller": callers}
    if "gate" in paths:
        source["deny_if"] = {"gate": "denied"}
    if "status" in paths and set(callers) - {"address"}:
        source["count_if"] = {"status": {"not": ["401", "403"]}}
    source["fields"] = {name: _entry(name, path, columns[path]) for name, path in paths.items()}
    return JsonSource(source, _elsewhere(columns, paths.get("address")))


def keys_in(documents: Sequence[Mapping[str, object]]) -> str:
    """Returns the first keys of documents in alphabetical order, for display."""
    return ", ".join(sorted(".".join(path) for path in _columns(documents))[:KEYS_SHOWN])


def program(documents: Sequence[Mapping[str, object]]) -> str:
    """Returns " of" and which program writes such documents, for display; "" if that is not known."""
    keys = {".".join(path) for path in _columns(documents)}
    return next((f" of {name}" for name, signature in PROGRAMS.items() if signature <= keys), "")


def proxies_in(values: Sequence[object]) -> list[str]:
    """Returns the private networks whose addresses stand behind others in lists of addresses.

    >>> proxies_in(["192.0.2.7, 10.0.0.1", "10.0.0.7", "-"])
    ['10.0.0.0/8']
    """
    lists = {value for value in values if isinstance(value, str) and "," in value}
    trusted: list[str] = []
    for text in lists:
        *_, hops = text.partition(",")
        for _ in hops.split(","):
            address = client_address(text, trusted=TrustedProxies(trusted))
            network = None if address is None else _private_network(address)
            if network is None or network in trusted:
                break
            trusted.append(network)
    return [network for network in PRIVATE if network in trusted]


def _private_network(address: str) -> str | None:
    return next((network for network in PRIVATE if ip_address(address) in ip_network(network)), None)


def _columns(documents: Sequence[Mapping[str, object]]) -> FieldValues:
    columns: dict[FieldPath, list[object]] = {}
    for document in documents:
        for path, value in _leaves(document):
            columns.setdefault(path, []).append(value)
    return columns


def _leaves(document: Mapping[str, object], above: FieldPath = ()) -> Iterator[tuple[FieldPath, object]]:
    for key, value in document.items():
        path = (*above, key)
        if isinstance(value, Mapping):
            if len(path) < DEPTH_MAX:
                yield from _leaves(value, path)
        elif key and value is not None:
            yield path, value


def _entry(name: str, path: FieldPath, values: Sequence[object]) -> str | list[str] | Table:
    """Returns a field as [sources.fields] has it."""
    shown = list(path) if any("." in key for key in path) else ".".join(path)
    match name:
        case "time":
            zone = {} if all(map(_has_offset, values)) else {"zone": "UTC"}
            return {"path": shown, "unit": _likely_unit(values), **zone}
        case "address":
            proxies = proxies_in(values)
            return {"path": shown, "prefix6": PREFIX6} | ({"trusted_proxies": proxies} if proxies else {})
        case "resource" if routes := suggest_routes(map(str, values)):
            return {"path": shown, "routes": routes}
        case "bytes":
            return {"path": shown, "kind": "bytes"}
        case _:
            return shown


def _path_to(name: str, columns: FieldValues, documents: int) -> FieldPath | None:
    """Returns the path of a field; None if no path of its names has values that can be read."""
    return next(
        (path for path in _paths_named(name, columns) if _is_readable(name, columns[path], documents)), None
    )


def _paths_named(name: str, columns: FieldValues) -> Iterator[FieldPath]:
    plain = {path: _plain(".".join(path)) for path in columns}
    for alias in map(_plain, NAMES[name]):
        matching = [path for path, text in plain.items() if alias in (text, text.rpartition(".")[2])]
        yield from sorted(matching, key=lambda path: (len(path), path))


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _elsewhere(columns: FieldValues, address: FieldPath | None) -> str:
    """Returns a sentence on a field of addresses besides `address`; "" where there is none."""
    for path in _paths_named("address", columns):
        if path != address and _is_readable("address", columns[path], 0):
            return f"{'.'.join(path)} looks like addresses, too: name it in [sources.fields] as the address"
    return ""


def _is_readable(name: str, values: Sequence[object], documents: int) -> bool:
    """Whether the counter reads these values, but for a few that are missing or odd."""
    present = [value for value in values if value not in ("", "-")]
    if not present:
        return False
    match name:
        case "time":
            return len(present) >= documents * MAJORITY and bool(_likely_unit(present))
        case "bytes":  # one that the counter does not read rejects its record
            return None not in _as_numbers(values)
        case "status":
            return all(map(VALID[name], present))
        case "api_key" | "user" | "tenant":
            return _are_texts(present) and any(map(VALID[name], present))
        case _:
            return _are_texts(present) and sum(map(VALID[name], present)) >= len(present) * MAJORITY


def _are_texts(values: Sequence[object]) -> bool:
    return all(isinstance(value, (str, int)) for value in values)


def _as_numbers(values: Sequence[object]) -> Sequence[object]:
    """Returns values as the counter reads a number of bytes; None for one that it rejects."""
    field = NumberField(("bytes",))
    index = ColumnIndex()
    return NumberColumn(SourceMapping(fields={"bytes": field}), "bytes", index).read([list(values)])


def _is_name(value: object) -> bool:
    """Whether a value can name a key or a user: not hyphens alone, nor an address, as in `ip/1.1.1.1`."""
    if not isinstance(value, str) or value in MISSING or not value.strip("-"):
        return False
    return client_address(value.rpartition("/")[2]) is None


VALID: Mapping[str, Callable[[Any], bool]] = {
    "api_key": _is_name,
    "user": _is_name,
    "address": lambda value: isinstance(value, str) and client_address(value) is not None,
    "tenant": lambda value: _is_name(value) or type(value) is int,
    "resource": lambda value: isinstance(value, str) and value.startswith("/"),
    "method": _is_name,
    "status": lambda value: type(value) in (int, str) and str(value).isdecimal() and len(str(value)) == 3,
    "gate": lambda value: isinstance(value, str),
}


def _likely_unit(values: Sequence[object]) -> TimeUnit | None:
    """Returns the unit of most of these times; None if it is none that can be read."""
    units = [_unit(value) for value in values]
    likely = max(set(units), key=units.count)
    return likely if units.count(likely) >= len(units) * MAJORITY else None


def _unit(value: object) -> TimeUnit | None:
    """Returns the unit by which the counter reads a time; None if by none."""
    digits = _digits(value)
    likely: list[TimeUnit] = [unit for unit, lengths in UNITS.items() if digits in lengths]
    if isinstance(value, str) and not digits:
        likely += ["rfc3339", "clf"]
    for unit in likely:
        if _is_time(value, TimeField(("time",), unit, "UTC" if unit == "rfc3339" else NO_ZONE)):
            return unit
    return None


def _is_time(value: object, field: TimeField) -> bool:
    return None not in TimeColumn(field, ColumnIndex()).read([[value]], [None])


def _has_offset(value: object) -> bool:
    """Whether a time is one without a zone being named for it; another value needs none either."""
    return not _is_time(value, TimeField(("time",), "rfc3339", "UTC")) or _is_time(
        value, TimeField(("time",), "rfc3339")
    )


def _digits(value: object) -> int:
    """Returns how many digits a number has in front of its point, also one in quotes; 0 for other values."""
    text = value.decode() if isinstance(value, bytes) else str(value) if type(value) in (int, str) else ""
    whole, _, places = text.partition(".")
    is_number = whole.isascii() and whole.isdecimal() and (not places or places.isdecimal())
    return len(whole) if is_number else 0


PROGRAMS: Mapping[str, set[str]] = {
    "Traefik": {"ClientHost", "DownstreamStatus"},
    "Caddy": {"request.remote_ip", "request.uri", "size"},
    "Envoy": {"response_code", "response_flags"},
    "nginx": {"remote_addr", "body_bytes_sent"},
}
