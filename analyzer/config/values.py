"""The kinds of value that a configuration holds, each read in one place, each fault with its cure."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Annotated, NoReturn
from zoneinfo import ZoneInfo, available_timezones

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

SHOWN_MAX = 60  # characters of a faulty value that a message repeats
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # goes into a header and a file name as it is
DURATION = re.compile(r"(\d+(?:\.\d+)?) *(ms|s|m|h|d)")
HOUR_S, DAY_S = 3600, 86_400
UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": HOUR_S, "d": DAY_S}
RANGE = re.compile(r"(\d+)-(\d+)")


def refuse(what: str, cure: str) -> NoReturn:
    """Say of the value that is being read what is wrong with it, and what to do."""
    # As context, not as template: the words may hold braces.
    raise PydanticCustomError("refused", "{what}", {"what": what, "cure": cure})


def quoted(value: object) -> str:
    """`value` as a message may repeat it: one line, bounded, nothing that moves a terminal's cursor."""
    text = json.dumps(value, default=str)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."


def either(names: Iterable[str]) -> str:
    """The names as a person would list them: "a", "b" or "c"."""
    *most, last = [quoted(name) for name in names]
    return f"{', '.join(most)} or {last}" if most else last


def meant(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` is probably a slip of."""
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower().replace("-", "_"), by_lower, n=1, cutoff=0.7)
    return by_lower[close[0]] if close else None


def one_of(*known: str, later: tuple[str, ...] = ()) -> BeforeValidator:
    """One of a few words; those of `later` are words of this project that this version cannot do yet."""

    def read(value: object) -> object:
        if value in known:
            return value
        if isinstance(value, dict) or value in later:
            refuse(f"{quoted(value)} is not available in this version", f"use {either(known)}")
        slip = meant(value, known) if isinstance(value, str) else None
        refuse(
            f"{quoted(value)} is not {either(known)}",
            f"did you mean {quoted(slip)}?" if slip else f"use {either(known)}",
        )

    return BeforeValidator(read)


def seconds(at_least: float, at_most: float) -> BeforeValidator:
    """A stretch of time in seconds: 0.1, "0.1s", "250ms", "10m", "2h", "7d"."""

    def read(value: object) -> float:
        match value:
            case bool():
                found = None
            case int() | float():
                found = float(value)
            case str() if (parts := DURATION.fullmatch(value.strip())) is not None:
                found = float(parts[1]) * UNITS_S[parts[2]]
            case str() if re.fullmatch(r"\d+(\.\d+)?", value.strip()):  # from the environment
                found = float(value)
            case _:
                found = None
        if found is None or not math.isfinite(found):
            refuse(
                f"{quoted(value)} is no duration",
                'write a number of seconds, or "250ms", "10s", "5m", "2h", "7d"',
            )
        if not at_least <= found <= at_most:
            refuse(
                f"{quoted(value)} is out of bounds",
                f"choose between {in_words(at_least)} and {in_words(at_most)}",
            )
        return found

    return BeforeValidator(read)


def in_words(stretch_s: float) -> str:
    """A duration in the largest unit that keeps it a short number.

    >>> in_words(0.1), in_words(900), in_words(172800)
    ('100ms', '15m', '2d')
    """
    for unit in ("d", "h", "m", "s"):
        if stretch_s >= UNITS_S[unit] and stretch_s % UNITS_S[unit] == 0:
            return f"{stretch_s / UNITS_S[unit]:g}{unit}"
    return f"{stretch_s * 1000:g}ms"


def _whole(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?\d(_?\d)*", value.strip()):  # from the environment
        value = int(value)
    if isinstance(value, dict):
        refuse("limits by plan are not available in this version", "give one whole number: limit = 100_000")
    if isinstance(value, bool) or not isinstance(value, int):
        refuse(
            f"{quoted(value)} is no whole number", "write digits, with _ between them if you like: 100_000"
        )
    return value


def whole(at_least: int, at_most: int) -> BeforeValidator:
    def read(value: object) -> int:
        found = _whole(value)
        if not at_least <= found <= at_most:
            refuse(f"{quoted(value)} is out of bounds", f"choose between {at_least} and {at_most}")
        return found

    return BeforeValidator(read)


def _amount(value: object) -> Decimal:
    """A number that is not negative, exact as it was written."""
    try:
        found = Decimal(str(value))
    except InvalidOperation:
        found = Decimal("NaN")
    if isinstance(value, bool) or not found.is_finite() or found < 0:
        refuse(f"{quoted(value)} is no amount", "write a number from 0 up")
    return found


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        refuse(f"{quoted(value)} is no text", 'write printable text between quotation marks, not ""')
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        refuse(f"{quoted(value)} is no name", "use up to 64 letters, digits, points, hyphens and underscores")
    return value


def _names(value: object) -> tuple[str, ...]:
    each = [value] if isinstance(value, str) else value
    if not isinstance(each, (list, tuple)) or not each:
        refuse(f"{quoted(value)} is no list of names", 'write ["one", "two"]')
    return tuple(dict.fromkeys(_text(name) for name in each))


def _routes(value: object) -> tuple[str, ...]:
    found = _names(value)
    for route in found:
        if not route.startswith("/") or "?" in route or "#" in route:
            refuse(f"{quoted(route)} is the route of no path", 'write "/v1/items/{id}", without a query')
    return found


def _path(value: object) -> tuple[str, ...]:
    parts = value.split(".") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not parts or not all(isinstance(p, str) and p for p in parts):
        refuse(
            f"{quoted(value)} is no path",
            'dots part its keys: "http.api_key"; a key that has a dot goes in a list: ["http", "api.key"]',
        )
    return tuple(parts)


def _wanted(value: object) -> tuple[str, ...]:
    """The values that a condition accepts, as text; several in a list, "500-599" for a range."""
    if isinstance(value, (list, tuple)) and value:
        return tuple(dict.fromkeys(text for each in value for text in _wanted(each)))
    match value:
        case bool():
            return ("true" if value else "false",)
        case int():
            return (str(value),)
        case str() if value:
            span = RANGE.fullmatch(value)
            if span is not None and int(span[1]) > int(span[2]):
                refuse(f"{quoted(value)} is an empty range", "write the smaller number first")
            return (value,)
    refuse(
        f"{quoted(value)} cannot be compared with", 'write "text", 429, true, "500-599", or a list of these'
    )


def _zone(value: object) -> str:
    # No such zone; a name that leaves the zones' own folder; a folder in there.
    with suppress(KeyError, ValueError, OSError):
        if isinstance(value, str):
            return ZoneInfo(value).key
    if value == "caller":
        refuse(
            "each caller's own zone is not available in this version",
            'name one zone, or leave it out for "UTC"',
        )
    slip = meant(value, available_timezones()) if isinstance(value, str) else None
    cure = f"did you mean {quoted(slip)}?" if slip else 'write it as in "Europe/Berlin" or "UTC"'
    refuse(f"{quoted(value)} is no time zone", cure)


def _listen(value: object) -> str:
    """HOST:PORT to listen on, or "off"."""
    if value == "off":
        return value
    host, _, port = str(value).rpartition(":")
    if not isinstance(value, str) or not host or not port.isdecimal() or int(port) > 65_535:
        refuse(
            f"{quoted(value)} is no address to listen on", 'write "127.0.0.1:8321", "[::1]:8321", or "off"'
        )
    return value


Text = Annotated[str, BeforeValidator(_text)]
Name = Annotated[str, BeforeValidator(_name)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
RouteList = Annotated[tuple[str, ...], BeforeValidator(_routes)]
FieldPathText = Annotated[tuple[str, ...], BeforeValidator(_path)]
ConditionValues = Annotated[tuple[str, ...], BeforeValidator(_wanted)]
Zone = Annotated[str, BeforeValidator(_zone)]
Amount = Annotated[Decimal, BeforeValidator(_amount)]
Listen = Annotated[str, BeforeValidator(_listen)]
