"""Caller names of adapters equal those in the log, and clients cannot forge addresses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gatekeeper import identity
from gatekeeper.adapters import asgi, caller_extraction, django, wsgi
from gatekeeper.adapters.admission_control import RequestIdentity
from gatekeeper.adapters.caller_extraction import asked_caller, first
from gatekeeper.gate import Gate
from gatekeeper.identity import UNNAMED, NameDigest, TrustedProxies, address_of
from gatekeeper.model import Lock
from gatekeeper.requestlog.log_record import LogEntry, encode_line
from gatekeeper.sources.fixed import FixedSource
from tests.support.requestlog import count_lines
from tests.support.vectors import DIGESTS, VECTORS, DigestVector, Vector

ROOT = Path(__file__).parents[3]

BY_HEADER = [
    vector
    for vector in VECTORS
    for kind, text in vector.names.items()
    if len(vector.names) == 1 and text and kind in ("api_key", "user", "address")
    if kind != "address" or vector.prefix6 == 64  # an address in a header is cut as logs cut it by default
]
LOGGED = [
    vector
    for vector in VECTORS
    if vector.caller and not vector.caller.startswith("account:")
    # The source that is shipped cuts IPv6 to its first 64 bits.
    if not re.match("address:.*:", vector.caller) or vector.prefix6 == 64
]


@pytest.mark.parametrize("vector", BY_HEADER, ids=str)
def test_a_header_gives_the_name_that_the_log_has(vector: Vector) -> None:
    """Read as UTF-8, as proxies log it; half of a surrogate pair is not a name."""
    ((kind, text),) = vector.names.items()
    value = (text or "").encode("utf-8", "surrogatepass")
    wanted = "" if vector.caller == UNNAMED else vector.caller
    scope = {"headers": [(b"x-caller", value)]}
    assert asgi.header("x-caller", kind)(scope) == wanted
    assert wsgi.header("x-caller", kind)({"HTTP_X_CALLER": value.decode("latin-1")}) == wanted


FALLING_BACK = [vector for vector in VECTORS if len(vector.names) > 1 and "account" not in vector.names]


@pytest.mark.parametrize("vector", FALLING_BACK, ids=str)
def test_the_first_name_that_is_present_is_checked_and_counted(vector: Vector) -> None:
    headers = {f"x-{kind}".replace("_", "-"): text for kind, text in vector.names.items() if text}
    peer = headers.pop("x-address", None) or ""
    scope = {
        "headers": [(name.encode(), text.encode("utf-8", "surrogatepass")) for name, text in headers.items()],
        "client": (peer, 1),
    }
    environ = {
        f"HTTP_{name.upper().replace('-', '_')}": text.encode("utf-8", "surrogatepass").decode("latin-1")
        for name, text in headers.items()
    }
    for adapter, request in ((asgi, scope), (wsgi, environ | {"REMOTE_ADDR": peer})):
        by = {
            "api_key": adapter.header("x-api-key"),
            "user": adapter.header("x-user", kind="user"),
            "address": adapter.address(prefix6=vector.prefix6),
        }
        caller = first(*(by[kind] for kind in vector.names))(request)
        assert asked_caller(caller, address="") == vector.caller


@pytest.mark.parametrize("vector", DIGESTS, ids=str)
def test_a_header_with_a_digest_gives_the_name_that_the_log_has(vector: DigestVector) -> None:
    digest = NameDigest(vector.secret.encode())
    value, wanted = vector.text.encode(), f"api_key:{vector.digest}"
    assert asgi.header("x-key", digest=digest)({"headers": [(b"x-key", value)]}) == wanted
    assert wsgi.header("x-key", digest=digest)({"HTTP_X_KEY": value.decode("latin-1")}) == wanted
    request: Any = SimpleNamespace(headers={"x-key": value.decode("latin-1")})
    assert django.header("x-key", digest=digest)(request) == wanted
    for unusable in (b"", b"-", b"a\x85\x00", b"\xff", b"x" * 257):
        assert asgi.header("x-key", digest=digest)({"headers": [(b"x-key", unusable)]}) == ""


def test_a_digest_needs_a_secret_that_it_never_shows() -> None:
    assert "secret file" not in repr(NameDigest("kept in a secret file"))
    with pytest.raises(ValueError, match="at least 16 bytes, got 5"):
        NameDigest("short")
    for adapter in (asgi, wsgi, django):
        with pytest.raises(ValueError, match="an address is not secret"):
            adapter.header("x-ip", kind="address", digest=NameDigest("kept in a secret file"))


def test_a_header_in_another_encoding_counts_as_absent() -> None:
    """A log that contained it could not be read."""
    assert asgi.header("x-api-key")({"headers": [(b"x-api-key", b"caf\xe9")]}) == ""
    assert wsgi.header("x-api-key")({"HTTP_X_API_KEY": "caf\xe9"}) == ""


@pytest.mark.parametrize("vector", LOGGED, ids=str)
def test_the_request_log_is_counted_under_the_name_that_the_guard_checked(
    vector: Vector, tmp_path: Path
) -> None:
    """The guard has "" for a request without a usable name, and no address behind a Unix socket."""
    identity = RequestIdentity(vector.caller, address="198.51.100.1")
    if vector.caller == UNNAMED:
        identity = RequestIdentity()
    entry = LogEntry(1, 1, 200, 0, "GET", "/", identity)
    found = count_lines(ROOT / "deploy" / "requestlog.toml", encode_line(entry, "1").text)
    assert [(row.key, row.value) for row in found.rows if row.meter == "requests"] == [(vector.caller, 1)]
    assert found.rejected == []


def test_requests_without_any_name_are_counted_and_refused_under_one_fixed_caller() -> None:
    """Behind a Unix socket a request without a key has neither caller nor address."""
    lines = b"".join(
        encode_line(LogEntry(n, 1, 200, 0, "GET", "/", RequestIdentity()), str(n)).text for n in range(1_500)
    )
    found = count_lines(ROOT / "deploy" / "requestlog.toml", lines)
    assert {row.key: row.value for row in found.rows if row.meter == "requests"} == {UNNAMED: 1_500}
    now = datetime.now(UTC)
    lock = Lock("caller", UNNAMED, "daily", began=now, until=now + timedelta(hours=1))
    gate = Gate(FixedSource(lock))
    gate.ready(1)
    assert asgi_status(gate, client=None) == 429
    assert asgi_status(gate, client=("192.0.2.1", 1)) == 200
    assert wsgi_status(gate, {}) == 429
    assert wsgi_status(gate, {"REMOTE_ADDR": "192.0.2.1"}) == 200
    gate.close()


def asgi_status(gate: Gate, client: tuple[str, int] | None) -> int:
    statuses: list[int] = []

    async def app(_scope: asgi.Scope, _receive: asgi.Receive, send: asgi.Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: asgi.Message) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    async def receive() -> asgi.Message:
        return {"type": "http.request"}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": client}
    asyncio.run(asgi.Guard(app, gate)(scope, receive, send))
    return statuses[0]


def wsgi_status(gate: Gate, names: dict[str, str]) -> int:
    statuses: list[int] = []

    def start_response(status: str, *_: object) -> Callable[[bytes], object]:
        statuses.append(int(status[:3]))
        return lambda _body: None

    def app(_environ: wsgi.Environ, start: wsgi.StartResponse) -> list[bytes]:
        start("200 OK", [])
        return []

    wsgi.Guard(app, gate)({"REQUEST_METHOD": "GET", "PATH_INFO": "/", **names}, start_response)
    return statuses[0]


# -- behind proxies ------------------------------------------------------------------------------

TRUSTED = ("10.0.0.0/8", "2001:db8:1::/48")
PROXIES = TrustedProxies(TRUSTED)


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", ["10.9.9.9"], "192.0.2.1"),
        ("192.0.2.1", ["127.0.0.1, 10.0.0.1"], "192.0.2.1"),
        ("10.0.0.1", ["192.0.2.1"], "192.0.2.1"),
        ("10.0.0.1", ["6.6.6.6, 192.0.2.1"], "192.0.2.1"),
        ("10.0.0.1", ["6.6.6.6", "192.0.2.1, 10.0.0.2"], "192.0.2.1"),
        ("10.0.0.1", ["6.6.6.6,192.0.2.1", "10.0.0.3", "10.0.0.2"], "192.0.2.1"),
        ("10.0.0.1", ["10.6.6.6, 192.0.2.1"], "192.0.2.1"),
        ("10.0.0.1", ["  192.0.2.1\t,10.0.0.2 "], "192.0.2.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("::ffff:10.0.0.1", ["::ffff:192.0.2.1"], "192.0.2.1"),
        ("2001:db8:1::5", ["2001:DB8:2::0009"], "2001:db8:2::9"),
        ("10.0.0.1", ["2001:db8:2::9, 2001:db8:1:0::1"], "2001:db8:2::9"),
        # Ports, which some load balancers write.
        ("10.0.0.1", ["192.0.2.1:4711"], "192.0.2.1"),
        ("10.0.0.1", ["6.6.6.6, 192.0.2.1:4711, 10.0.0.2:80"], "192.0.2.1"),
        ("10.0.0.1", ["[2001:db8:2::9]:4711"], "2001:db8:2::9"),
        ("10.0.0.1", ["[2001:db8:2::9]"], "2001:db8:2::9"),
        ("10.0.0.1", ["[::ffff:192.0.2.1]:1"], "192.0.2.1"),
        # Unknown to a proxy means unknown: entries left of it may be forged.
        ("10.0.0.1", ["6.6.6.6, unknown"], ""),
        ("10.0.0.1", ["6.6.6.6, "], ""),
        ("10.0.0.1", [""], ""),
        ("10.0.0.1", ["6.6.6.6, _hidden"], ""),
        ("10.0.0.1", ["6.6.6.6, localhost"], ""),
        ("10.0.0.1", ["6.6.6.6, [192.0.2.1"], ""),
        ("10.0.0.1", ["6.6.6.6, 192.0.2.1:port"], ""),
        ("10.0.0.1", ["6.6.6.6, 192.0.2.1:123456"], ""),
        ("10.0.0.1", ["6.6.6.6, 192.0.2.1:4711:1"], ""),
        ("10.0.0.1", ["6.6.6.6, [2001:db8:2::9]x"], ""),
        ("10.0.0.1", ['6.6.6.6, "192.0.2.1"'], ""),
        ("10.0.0.1", ["6.6.6.6, for=192.0.2.1"], ""),
        ("10.0.0.1", ["6.6.6.6; 192.0.2.1"], ""),
        ("10.0.0.1", ["6.6.6.6, 192.0.2.1%eth0"], ""),
        ("10.0.0.1", ["6.6.6.6, 10.1"], ""),
        # No address at the other end: a Unix socket, which is not trusted here.
        ("", ["192.0.2.1"], ""),
        ("/run/app.sock", ["192.0.2.1"], ""),
        ("not an address", ["192.0.2.1"], ""),
        ("10.0.0.1:80", ["192.0.2.1"], "192.0.2.1"),
    ],
)
def test_an_address_comes_from_the_peer_or_from_right_to_left_through_trusted_proxies(
    peer: str, forwarded: list[str], client: str
) -> None:
    assert PROXIES.client(peer, forwarded) == client


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("", ["6.6.6.6, 192.0.2.1"], "192.0.2.1"),
        ("/run/app.sock", ["192.0.2.1, 10.0.0.2"], "192.0.2.1"),
        ("", ["unknown"], ""),
        ("", ["192.0.2.1, unix:"], ""),
        ("", [], ""),
        ("192.0.2.9", ["6.6.6.6"], "192.0.2.9"),
    ],
)
def test_a_proxy_behind_a_unix_socket_is_trusted_by_name(
    peer: str, forwarded: list[str], client: str
) -> None:
    assert TrustedProxies(["unix", "10.0.0.0/8"]).client(peer, forwarded) == client


@pytest.mark.parametrize("trusted", ["10.0.0.0/8", "unix"])
def test_one_string_instead_of_several_proxies_is_an_error(trusted: str) -> None:
    """Otherwise its letters would be read as proxies."""
    with pytest.raises(TypeError, match="expected a list of addresses and networks"):
        TrustedProxies(trusted)


@pytest.mark.parametrize("trusted", ["10.0.0.1/8", "10.0.0.0/33", "proxy.example", "*", "", "10.0.0.0-10.9"])
def test_an_invalid_network_is_an_error(trusted: str) -> None:
    with pytest.raises(ValueError, match=r"does not appear|has host bits"):
        TrustedProxies([trusted])


FORGED = [
    ("Forwarded", "for=6.6.6.6"),
    ("Forwarded", 'for="[2001:db8:cafe::17]:4711"'),
    ("X-Real-IP", "6.6.6.6"),
    ("X-Client-IP", "6.6.6.6"),
    ("CF-Connecting-IP", "6.6.6.6"),
    ("True-Client-IP", "6.6.6.6"),
    ("X-Forwarded", "6.6.6.6"),
    ("X_Forwarded_For", "6.6.6.6"),
]


@pytest.mark.parametrize(("name", "value"), FORGED)
@pytest.mark.parametrize("peer", ["192.0.2.9", "10.0.0.1"])
def test_no_other_header_is_trusted(peer: str, name: str, value: str) -> None:
    scope = {"client": (peer, 1), "headers": [(name.lower().encode(), value.encode())]}
    assert asgi.behind(TRUSTED)(scope) == peer
    if (
        "_" not in name
    ):  # WSGI cannot distinguish it from X-Forwarded-For: servers drop names with underscores
        environ = {"REMOTE_ADDR": peer, f"HTTP_{name.upper().replace('-', '_')}": value}
        assert wsgi.behind(TRUSTED)(environ) == peer


def test_without_trusted_proxies_no_header_is_trusted() -> None:
    scope = {"client": ("192.0.2.9", 1), "headers": [(b"x-forwarded-for", b"6.6.6.6")]}
    assert asgi.peer(scope) == asgi.behind([])(scope) == "192.0.2.9"
    environ = {"REMOTE_ADDR": "192.0.2.9", "HTTP_X_FORWARDED_FOR": "6.6.6.6"}
    assert wsgi.peer(environ) == "192.0.2.9"


def slow_client(peer: str, forwarded: Sequence[str]) -> str:
    """Returns the client's address by a slow algorithm that reads the chain from the left."""
    chain = [hop.strip(" \t") for hop in ",".join(forwarded).split(",")] if forwarded else []
    spellings = [*map(without_port, chain), peer]
    is_trusted = [
        (known := address_of(text)) is not None
        and any(ip_address(known) in ip_network(network) for network in TRUSTED)
        for text in spellings
    ]
    # Entries that an unbroken chain of trusted proxies vouches for.
    vouched = [at for at in range(len(spellings)) if all(is_trusted[at + 1 :])]
    return address_of(spellings[vouched[0]]) or ""


def without_port(text: str) -> str:
    if text.startswith("["):
        inside, bracket, port = text[1:].partition("]")
        is_port = port == "" or (port[:1] == ":" and port[1:].isdigit() and len(port) <= 6)
        return inside if bracket and is_port and ":" in inside else text
    host, colon, port = text.partition(":")
    return host if colon and port.isdigit() and port.isascii() and len(port) <= 5 else text


HOP = st.one_of(
    st.sampled_from(["10.0.0.1", "10.9.9.9", "2001:db8:1::7", "::ffff:10.1.1.1", "10.0.0.1:80", "[::1]:80"]),
    st.sampled_from(["192.0.2.1", "192.0.2.1:4711", "2001:db8:2::9", "[2001:db8:2::9]", "::ffff:192.0.2.1"]),
    st.sampled_from(["unknown", "", " ", "10.0.0.256", "[::1", "unix:", "x", "::", "\t10.0.0.1"]),
    st.text(st.sampled_from("0123456789.:[]abf, \t"), max_size=12),
)  # fmt: skip
HEADERS = st.lists(st.lists(HOP, min_size=1, max_size=4).map(",".join), max_size=4)


@given(peer=HOP.map(str.strip), forwarded=HEADERS)
@example(peer="10.0.0.1", forwarded=[" , 10.0.0.2"])
def test_the_address_agrees_with_the_slow_algorithm(peer: str, forwarded: list[str]) -> None:
    assert PROXIES.client(peer, forwarded) == slow_client(peer, forwarded)


@given(
    forged=HEADERS,
    proxies=st.lists(st.sampled_from(["10.0.0.1", "10.2.0.2", "2001:db8:1::3"]), min_size=1, max_size=4),
    joined=st.booleans(),
)
def test_nothing_that_a_client_writes_changes_its_address(
    forged: list[str], proxies: list[str], joined: bool
) -> None:
    """Honest proxies append the address that they see, to the same header or in another one."""
    seen = ["192.0.2.1", *proxies[:-1]]
    honest = [", ".join([*forged, *seen])] if joined else [*forged, *seen]
    assert PROXIES.client(proxies[-1], honest) == "192.0.2.1"


def test_values_too_long_for_a_name_or_an_address_are_not_cached() -> None:
    names, addresses = caller_extraction._cached_name.cache_info, identity._cached_address.cache_info
    before = names().misses, addresses().misses
    assert caller_extraction.name_from_header("api_key", b"k" * 60_000) == ""
    assert identity.peer_address("1" * 60_000) is None
    assert (names().misses, addresses().misses) == before
    assert caller_extraction.name_from_header("api_key", b"k" * 256) == "api_key:" + "k" * 256
    assert identity.peer_address("0000:0000:0000:0000:0000:ffff:192.100.200.255") == "192.100.200.255"
