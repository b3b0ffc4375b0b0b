"""A parser of combined lines, character by character."""

from __future__ import annotations

from typing import Any

from tests.oracle.counter.refused import Refused
from tests.oracle.counter.slow_json import DIGITS, Digits

CAPITALS = set("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
HEX = set("0123456789abcdefABCDEF")


def parse_combined(line: str) -> dict[str, Any]:
    """Returns the parts of a line by name; None for "-". Raises Refused."""
    found = Line(line.rstrip("\r\n")).parts()
    return {name: None if value == "-" else value for name, value in found.items()}


class Line:
    """A line and the position up to which it is read."""

    def __init__(self, line: str) -> None:
        self.line, self.at = line, 0

    def peek(self) -> str:
        return self.line[self.at : self.at + 1]

    def until(self, stops: str) -> str:
        begin = self.at
        while self.at < len(self.line) and self.peek() not in stops:
            self.at += 1
        if self.at == begin:
            raise Refused("bad-line")
        return self.line[begin : self.at]

    def expect(self, token: str) -> None:
        if not self.line.startswith(token, self.at):
            raise Refused("bad-line")
        self.at += len(token)

    def quoted(self) -> str:
        self.expect('"')
        begin = self.at
        while self.peek() != '"':
            self.at += 2 if self.peek() == "\\" else 1
            if self.at >= len(self.line):
                raise Refused("bad-line")
        self.at += 1
        return self.line[begin : self.at - 1]

    def skip_referer_and_agent(self) -> str:
        """Skips both quoted texts, or nothing where two of them do not follow.

        Returns the quoted text behind them, "-" where there is none.
        """
        begin = self.at
        try:
            for _ in range(2):
                self.expect(" ")
                self.quoted()
        except Refused:
            self.at = begin
            return "-"
        begin = self.at
        try:
            self.expect(" ")
            forwarded = self.quoted()
            if self.at < len(self.line):
                self.expect(" ")
                self.at -= 1
        except Refused:
            self.at = begin
            return "-"
        return forwarded

    def user_and_time(self) -> tuple[str, str]:
        """Reads up to the quote of the request: the time is in the last brackets, the user before them."""
        if self.line.startswith('"" ', self.at):
            self.at += 3
            user = '""'
        else:
            user = ""
        begin = self.at
        while self.peek() != '"':
            self.at += 2 if self.peek() == "\\" else 1
            if self.at >= len(self.line):
                raise Refused("bad-line")
        text = self.line[begin : self.at]
        if not text.endswith("] ") or "[" not in text:
            raise Refused("bad-line")
        open_at = max(at for at, char in enumerate(text) if char == "[")
        time, before = text[open_at + 1 : -2], text[:open_at]
        if not time or "]" in time:
            raise Refused("bad-line")
        if user == '""':
            if before:
                raise Refused("bad-line")
            return "-", time
        if before[-1:] != " ":
            raise Refused("bad-line")
        user = before[:-1]
        return ("-" if all(word in {"", "-"} for word in user.split(" ")) else user), time

    def vhost(self) -> str:
        """Reads the host in front of an address, perhaps with its port; "-" where it is not there."""
        first, _, rest = self.line.partition(" ")
        host, _, port = first.rpartition(":")
        has_port = is_host(host) and 1 <= len(port) <= 5 and set(port) <= DIGITS
        if not has_port and not is_host(first):
            return "-"
        second, blank, behind = rest.partition(" ")
        like_address = set(second) <= HEX | set(".:") and set(second) & set(".:")
        if not has_port:
            numbers = second.split(".")
            is_four = len(numbers) == 4 and all(1 <= len(one) <= 3 and set(one) <= DIGITS for one in numbers)
            is_six = second.count(":") > 1 and "." not in second.partition(":")[0]
            like_address = like_address and (is_four or is_six)
            like_address = like_address and behind[:2] == "- " and behind[2:3] not in ("[", "")
        if not blank or not like_address:
            return "-"
        self.at = len(first) + 1
        return first

    def parts(self) -> dict[str, Any]:
        vhost = self.vhost()
        address = self.until(" ")
        self.expect(" ")
        self.until(" ")
        self.expect(" ")
        user, time = self.user_and_time()
        request = self.quoted()
        self.expect(" ")
        status = self.until(" ")
        self.expect(" ")
        size = self.until(" ")
        if not is_number(status) or not is_number(size) or (status != "-" and len(status) != 3):
            raise Refused("bad-line")
        forwarded = self.skip_referer_and_agent()
        if self.at < len(self.line):
            self.expect(" ")  # the rest of the line is not checked
        found = {
            "vhost": vhost,
            "address": address,
            "user": user,
            "time": time,
            "status": Digits(status),
            "bytes": Digits(size),
            "forwarded": forwarded,
        }
        return found | method_and_path(request)


def is_host(text: str) -> bool:
    return text != "" and (":" not in text or (text[0] == "[" and text.find("]") == len(text) - 1 > 1))


def is_number(text: str) -> bool:
    return text == "-" or set(text) <= DIGITS


def method_and_path(request: str) -> dict[str, str]:
    """Returns the method and path of a valid request line; empty for others."""
    method, *rest = request.split(" ")
    if not method or not set(method) <= CAPITALS or len(rest) not in {1, 2} or not rest[0]:
        return {}
    version = rest[1] if len(rest) == 2 else "HTTP/0"
    if not version.startswith("HTTP/") or not version[5:] or not set(version[5:]) <= DIGITS | {"."}:
        return {}
    return {"method": method, "path": rest[0]}
