"""Requests to addresses that customers name, and receivers that lie, redirect, hang and change their name."""

from __future__ import annotations

import http.client
import socket
from ipaddress import ip_network
from typing import Any

import pytest

from analyzer.alerts.guarded_http import AddressRefused, AlertUrl, GuardedPost, HttpAnswer
from analyzer.alerts.permitted_networks import is_permitted
from gatekeeper.sources import timed_connection
from tests.support.alert_receiver import (
    ACCEPT,
    CLOSE,
    REDIRECT,
    AlertReceiver,
    Answer,
    drip,
    endless,
    hang,
    receiving,
    say,
)

HERE = [ip_network("127.0.0.0/8")]
REFUSED = """
    0.0.0.0 10.1.2.3 100.64.0.1 127.0.0.1 127.9.9.9 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.1
    192.0.2.1 192.168.1.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 240.0.0.1 255.255.255.255
    :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 64:ff9b::10.0.0.1 64:ff9b::7f00:1
    2002:7f00:1:: 2002:a00:1:: 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:db8::1
    fc00::1 fd00::1 fe80::1 fe80::1%eth0 fec0::1 ff02::1
    64:ff9b:1::127.0.0.1
"""
PUBLIC = "1.1.1.1 8.8.8.8 93.184.216.34 2606:4700:4700::1111 ::ffff:8.8.8.8 64:ff9b::8.8.8.8 2002:808:808::"


def url_of(receiver: AlertReceiver) -> AlertUrl:
    return AlertUrl.parse(receiver.url, [receiver.host])


def post(receiver: AlertReceiver, timeout_s: float = 5.0) -> HttpAnswer:
    return GuardedPost(HERE, timeout_s=timeout_s)(url_of(receiver), b"{}", {"x-a": "b"})


@pytest.mark.parametrize("address", REFUSED.split())
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert not is_permitted(address, ())


@pytest.mark.parametrize("address", PUBLIC.split())
def test_a_public_address_is_permitted(address: str) -> None:
    assert is_permitted(address, ())


def test_a_network_that_the_configuration_names_is_permitted_in_each_spelling() -> None:
    networks = [ip_network("10.0.0.0/8"), ip_network("fd00:1::/32")]
    assert is_permitted("10.1.2.3", networks)
    assert is_permitted("::ffff:10.1.2.3", networks)
    assert is_permitted("fd00:1::7", networks)
    assert not is_permitted("127.0.0.1", networks)
    assert not is_permitted("fd00:2::7", networks)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "0x7f000001", "2130706433", "[::1]"])
def test_a_loopback_address_is_refused_in_each_spelling(host: str) -> None:
    url = AlertUrl.parse(f"https://{host}:1/x")
    with pytest.raises(AddressRefused, match="not public: name its network in allow_networks"):
        GuardedPost()(url, b"", {})


def test_a_request_arrives_whole_and_the_answer_is_read() -> None:
    with receiving(say("HTTP/1.1 202 Yes\nRetry-After: 7\nContent-Length: 10\n\nthank\nyou")) as receiver:
        answer = post(receiver)
        address = f"{receiver.host}:{receiver.port}"
    assert answer == HttpAnswer(202, "thank you", 7.0, "")
    [request] = receiver.requests
    assert (request.target, request.body) == ("/hook?key=secret", b"{}")
    assert request.headers["x-a"] == "b"
    assert request.headers["host"] == address


def test_a_redirect_is_an_answer_and_not_followed() -> None:
    with receiving(REDIRECT) as receiver:
        assert post(receiver).status == 307
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("answer", [hang, drip], ids=["hangs", "drips"])
def test_a_receiver_that_never_ends_its_answer_is_given_up_in_time(answer: Answer) -> None:
    with receiving(answer) as receiver, pytest.raises((TimeoutError, http.client.HTTPException)):
        post(receiver, timeout_s=0.4)


def test_a_body_without_an_end_is_read_up_to_a_bound() -> None:
    with receiving(endless) as receiver:
        answer = post(receiver)
    assert answer.status == 200
    assert len(answer.text) <= 200


@pytest.mark.parametrize(
    "answer",
    [
        CLOSE,
        say("not HTTP\n\n"),
        say("HTTP/1.1 200 OK\n" + "x: y\n" * 101 + "\n"),
        say("HTTP/1.1 200 OK\nx: " + "y" * 70_000 + "\n\n"),
    ],
    ids=["closes", "no HTTP", "many headers", "a long header"],
)
def test_a_receiver_that_speaks_no_http_is_an_error_of_the_client(answer: Answer) -> None:
    with receiving(answer) as receiver, pytest.raises((OSError, http.client.HTTPException)):
        post(receiver)


def test_an_answer_is_shown_on_one_line_without_control_characters() -> None:
    with receiving(say("HTTP/1.1 400 No\nContent-Length: 40\n\n\x1b[2J\u202eevil\n" + "z" * 300)) as receiver:
        text = post(receiver).text
    assert text.isprintable()
    assert "evil" in text


def test_a_name_is_resolved_once_and_the_connection_goes_to_that_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server for names that says a public address first, and 127.0.0.1 when it is asked again."""
    asked: list[str] = []
    connected: list[Any] = []

    def resolve(host: str, port: int, end_s: float) -> list[Any]:
        asked.append(host)
        address = "93.184.216.34" if len(asked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    class Socket(socket.socket):
        def connect(self, address: Any) -> None:
            connected.append(address)
            raise ConnectionRefusedError("no")

    monkeypatch.setattr(timed_connection, "_resolve", resolve)
    monkeypatch.setattr(timed_connection.socket, "socket", Socket)
    with pytest.raises(ConnectionRefusedError):
        GuardedPost()(AlertUrl.parse("https://rebinding.example/x"), b"", {})
    assert (asked, connected) == (["rebinding.example"], [("93.184.216.34", 443)])
    with pytest.raises(AddressRefused, match=r"rebinding\.example has 127\.0\.0\.1"):
        GuardedPost()(AlertUrl.parse("https://rebinding.example/x"), b"", {})
    assert len(connected) == 1, "nothing is connected to"


def test_of_several_addresses_those_that_are_permitted_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        monkeypatch.setattr(
            timed_connection,
            "_resolve",
            lambda host, port, end_s: [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
                for address in ("169.254.169.254", "10.0.0.1", receiver.host)
            ],
        )
        url = AlertUrl.parse(f"http://names.example:{receiver.port}/", ["names.example"])
        assert GuardedPost(HERE, timeout_s=2.0)(url, b"", {}).status == 200


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with receiving(ACCEPT) as receiver:
        assert post(receiver).status == 200


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("http://example.com/x", "not encrypted"),
        ("ftp://example.com/x", "must be a URL"),
        ("https:///x", "must be a URL"),
        ("https://user:pw@example.com/", "without a user"),
        ("https://example.com/#x", "without a user"),
        ("https://example.com:99999/", "port"),
        ("https://example.com/a b", "no spaces"),
        ("https://example.com/\r\nx: y", "no spaces"),
        ("https://ex\u00e4mple.com/", "beyond ASCII"),
        ("file:///etc/passwd", "must be a URL"),
    ],
)
def test_a_url_that_is_none_is_refused_without_repeating_it(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as raised:
        AlertUrl.parse(text)
    assert "pw" not in str(raised.value)


def test_path_and_query_are_not_shown() -> None:
    url = AlertUrl.parse("https://hooks.slack.com/services/T0/B0/SECRET?sig=SECRET")
    assert url.shown == "https://hooks.slack.com:443/..."
