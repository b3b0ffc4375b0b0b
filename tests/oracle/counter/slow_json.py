"""A JSON parser by RFC 8259, strict and slow: character by character."""

from __future__ import annotations

from typing import Any

from tests.oracle.counter.refused import Refused

DIGITS = set("0123456789")
HEX = DIGITS | set("abcdefABCDEF")
SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/"}


class Digits(str):
    """The characters of a number."""

    __slots__ = ()


def parse_json(text: str) -> dict[str, Any]:
    """Returns the object in `text`; the last of equal keys wins. Raises Refused."""
    return Text(text).document()


class Text:
    """A JSON text and the position up to which it is read."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def peek(self, size: int = 1) -> str:
        return self.text[self.at : self.at + size]

    def skip_blanks(self) -> None:
        while self.peek() in {" ", "\t", "\n", "\r"}:
            self.at += 1

    def take(self, token: str) -> bool:
        if self.peek(len(token)) != token:
            return False
        self.at += len(token)
        return True

    def expect(self, token: str) -> None:
        if not self.take(token):
            raise Refused("bad-json")

    def document(self) -> dict[str, Any]:
        """Reads an object with all that it contains.

        Open objects and arrays are in a list, because they may be nested deeper than Python's calls.
        """
        self.skip_blanks()
        self.expect("{")
        top: dict[str, Any] = {}
        stack: list[Any] = [top]
        needs_comma = False  # before the next value
        while stack:
            inside = stack[-1]
            self.skip_blanks()
            if self.take("}" if isinstance(inside, dict) else "]"):
                stack.pop()
                needs_comma = True
                continue
            if needs_comma:
                self.expect(",")
            key = self.key() if isinstance(inside, dict) else None
            self.skip_blanks()
            value: Any = self.container()
            needs_comma = value is None
            if value is None:
                value = self.scalar()
            else:
                stack.append(value)
            if isinstance(inside, dict):
                inside[key] = value
            else:
                inside.append(value)
        self.skip_blanks()
        if self.peek():
            raise Refused("bad-json")
        return top

    def container(self) -> dict[str, Any] | list[Any] | None:
        return {} if self.take("{") else [] if self.take("[") else None

    def key(self) -> str:
        self.skip_blanks()
        found = self.string()
        self.skip_blanks()
        self.expect(":")
        return found

    def scalar(self) -> Any:
        if self.peek() == '"':
            return self.string()
        for word, value in (("true", True), ("false", False), ("null", None)):
            if self.take(word):
                return value
        return self.number()

    def string(self) -> str:
        self.expect('"')
        units: list[str] = []
        high = False  # whether the last unit was an escape, and so may begin a pair
        while not self.take('"'):
            char = self.peek()
            if char == "" or char < " ":
                raise Refused("bad-json")
            self.at += 1
            was_escape = self.peek() == "u"
            unit = self.escaped() if char == "\\" else char
            # Two escapes in a row may be a pair; a byte that is not UTF-8 is half of one, and never pairs.
            is_low = char == "\\" and was_escape and 0xDC00 <= ord(unit) < 0xE000
            if is_low and units and high and 0xD800 <= ord(units[-1]) < 0xDC00:
                unit = (units.pop() + unit).encode("utf-16", "surrogatepass").decode("utf-16")
            high = char == "\\" and was_escape
            units.append(unit)
        return "".join(units)

    def escaped(self) -> str:
        if self.take("u"):
            digits = self.peek(4)
            if len(digits) < 4 or not set(digits) <= HEX:
                raise Refused("bad-json")
            self.at += 4
            return chr(int(digits, 16))
        if self.peek() not in SHORT:
            raise Refused("bad-json")
        self.at += 1
        return SHORT[self.text[self.at - 1]]

    def number(self) -> Digits:
        begin = self.at
        self.take("-")
        whole = self.digits()
        if whole != "0" and whole.startswith("0"):
            raise Refused("bad-json")
        if self.take("."):
            self.digits()
        if self.take("e") or self.take("E"):
            _ = self.take("+") or self.take("-")
            self.digits()
        return Digits(self.text[begin : self.at])

    def digits(self) -> str:
        begin = self.at
        while self.peek() in DIGITS:
            self.at += 1
        if self.at == begin:
            raise Refused("bad-json")
        return self.text[begin : self.at]
