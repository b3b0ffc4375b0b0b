"""Types of the values in a configuration: each validates one kind and raises its fault with the cure."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from ipaddress import ip_network
from typing import Annotated, NamedTuple, NoReturn, get_args
from zoneinfo import available_timezones

from pydantic import BeforeValidator, PlainValidator
from pydantic_core import PydanticCustomError

from analyzer.kernel.refused_values import quote, raise_fault
from analyzer.plan.expressions import PatternFault
from analyzer.plan.mapping import Condition, Not, Pattern
from analyzer.plan.patterns import PATTERN_KINDS, compile_pattern
from analyzer.plan.windows import is_zone

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # safe in an HTTP header and as a file name
DURATION = re.compile(r"(\d+(?:\.\d+)?) *(ms|s|m|h|d)")
HOUR_S, DAY_S = 3600, 86_400
UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": HOUR_S, "d": DAY_S}
UNBOUNDED = 1 << 31  # from here on, the upper bound of a number only protects its column
RANGE = re.compile(r"(\d+)-(\d+)")


# Words of others for what a pattern is called here.
PATTERN_SYNONYMS = {
    "regex": "match", "regexp": "match", "re": "match", "pattern": "match", "matches": "match",
    "like": "glob", "wildcard": "glob", "path": "glob", "globs": "glob",
    "starts_with": "prefix", "startswith": "prefix", "begins_with": "prefix",
}  # fmt: skip
PATTERNS_MAX = 100  # in one condition
PATTERN_EXAMPLES: dict[str, str] = {
    "glob": '{ glob = "/v1/*" }',
    "prefix": '{ prefix = "/internal/" }',
    "match": '{ match = "union.+select" }',
}


class ConditionValues(NamedTuple):
    """Values and patterns of which a field must have one, or, with `is_not`, none."""

    values: tuple[str | Pattern, ...]
    is_not: bool = False

    def condition(self, field: str) -> Condition:
        return Condition(field, Not(self.values) if self.is_not else self.values)


def raise_unavailable(problem: str, cure: str) -> NoReturn:
    """Reports a value that a later version will accept; further faults of its table would mean nothing."""
    raise PydanticCustomError("unavailable", "{what}", {"what": problem, "cure": cure})


def alternatives(names: Iterable[str]) -> str:
    """The names in quotation marks as a list in a sentence.

    >>> alternatives(["a", "b", "c"])
    '"a", "b" or "c"'
    """
    *most, last = [quote(name) for name in names]
    return f"{', '.join(most)} or {last}" if most else last


def closest(name: str, names: Iterable[str]) -> str | None:
    """The known name that `name` is probably a misspelling of."""
    by_lower = {word.lower(): word for word in names}
    close = difflib.get_close_matches(name.lower().replace("-", "_"), by_lower, n=1, cutoff=0.7)
    return by_lower[close[0]] if close else None


def suggestion(name: object, names: Iterable[str], otherwise: str) -> str:
    """The cure for an unknown name: the closest known one as a question, or `otherwise`."""
    match = closest(name, names) if isinstance(name, str) else None
    return otherwise if match is None else f"did you mean {quote(match)}?"


def known_words(words: object, *, planned: tuple[str, ...] = ()) -> BeforeValidator:
    """Accepts the words of a Literal type. One in `planned` is reported as not available yet."""
    allowed: tuple[str, ...] = get_args(words)
    return BeforeValidator(lambda value: known_word(value, allowed, planned=planned))


def known_word(value: object, allowed: tuple[str, ...], *, planned: tuple[str, ...] = ()) -> object:
    """Returns `value` if it is one of the allowed words; reports a fault for any other."""
    if value not in allowed:
        otherwise = f"use {alternatives(allowed)}"
        if isinstance(value, dict) or value in planned:
            raise_unavailable(f"{quote(value)} is not available in this version", otherwise)
        cure = suggestion(value, allowed, otherwise)
        raise_fault(f"{quote(value)} is not one of the known values", cure)
    return value


def duration_between(least_s: float, most_s: float) -> BeforeValidator:
    """Accepts a duration, and gives it in seconds: 0.1, "0.1s", "250ms", "10m", "2h", "7d"."""
    return BeforeValidator(lambda value: _seconds(value, least_s, most_s))


def whole_seconds(value: object, least_s: int, most_s: int) -> int:
    """`value` as a duration in whole seconds; reports a fault for any other."""
    seconds = _seconds(value, least_s, most_s)
    if seconds != int(seconds):
        raise_fault(f"{quote(value)} is not a whole number of seconds", 'write "10s", "5m", "2h" or "7d"')
    return int(seconds)


def _seconds(value: object, least_s: float, most_s: float) -> float:
    match value:
        case bool():
            seconds = None
        case int() | float():
            seconds = float(value)
        case str() if (parts := DURATION.fullmatch(value.strip())) is not None:
            seconds = float(parts[1]) * UNITS_S[parts[2]]
        case str() if re.fullmatch(r"\d+(\.\d+)?", value.strip()):  # from the environment
            seconds = float(value)
        case _:
            seconds = None
    if seconds is None or not math.isfinite(seconds):
        raise_fault(
            f"must be a duration, not {quote(value)}",
            'write a number of seconds, or a number with its unit: "250ms", "10s", "5m", "2h", "7d"',
        )
    if not least_s <= seconds <= most_s:
        raise_fault(
            f"{quote(value)} is too {'short' if seconds < least_s else 'long'}",
            f"choose between {format_duration(least_s)} and {format_duration(most_s)}",
        )
    return seconds


def format_duration(length_s: float) -> str:
    """A duration in the largest unit that divides it.

    >>> format_duration(0.1), format_duration(900), format_duration(172800)
    ('100ms', '15m', '2d')
    """
    if not length_s:
        return "0s"
    for unit in ("d", "h", "m", "s"):
        if length_s >= UNITS_S[unit] and length_s % UNITS_S[unit] == 0:
            return f"{length_s / UNITS_S[unit]:g}{unit}"
    return f"{length_s * 1000:g}ms"


def _integer(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?\d(_?\d)*", value.strip()):  # from the environment
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise_fault(
            f"must be a whole number, not {quote(value)}", "write digits; _ may separate them: 100_000"
        )
    return value


def whole_number(value: object, least: int, most: int, shown: object = None) -> int:
    """`value` as a whole number; reports a fault outside of the bounds, in which it is shown as `shown`."""
    number = _integer(value)
    if not least <= number <= most:
        is_bounded = most < UNBOUNDED
        cure = f"choose between {least} and {most}" if is_bounded else f"choose {least} or more"
        shown_value = value if shown is None else shown
        raise_fault(f"{quote(shown_value)} is too {'small' if number < least else 'large'}", cure)
    return number


def integer_between(least: int, most: int) -> BeforeValidator:
    """Accepts a whole number within these bounds; from the environment also as text."""
    return BeforeValidator(lambda value: whole_number(value, least, most))


def _amount(value: object) -> Decimal:
    """A number that is not negative, exactly as it was written."""
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        amount = Decimal("NaN")
    if isinstance(value, bool) or not amount.is_finite() or amount < 0:
        raise_fault(
            f"must be a number, 0 or greater, not {quote(value)}", "write a number such as 0, 3 or 1.5"
        )
    return amount


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise_fault(
            f"must be printable text, not {quote(value)}", "write at least one character in quotation marks"
        )
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise_fault(
            f"{quote(value)} is not a valid name",
            "use up to 64 letters, digits, points, hyphens and underscores",
        )
    return value


def several(value: object) -> object:
    """Returns one text as a list of it."""
    return [value] if isinstance(value, str) else value


def _names(value: object) -> tuple[str, ...]:
    names = several(value)
    if not isinstance(names, (list, tuple)) or not names:
        raise_fault(f"must be a list of names, not {quote(value)}", 'write ["one", "two"]')
    return tuple(dict.fromkeys(_text(name) for name in names))


def _routes(value: object) -> tuple[str, ...]:
    routes = _names(value)
    wrong = [route for route in routes if not route.startswith("/") or "?" in route or "#" in route]
    if wrong:
        listed = ", ".join(map(quote, wrong))
        raise_fault(
            f"{listed} {'is not a route' if len(wrong) == 1 else 'are not routes'}",
            'begin a route with / and leave the query out: "/v1/items/{id}"',
        )
    return routes


def _path(value: object) -> tuple[str, ...]:
    parts = value.split(".") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not parts or not all(isinstance(p, str) and p for p in parts):
        raise_fault(
            f"{quote(value)} is not a path of keys",
            'separate keys by points: "http.api_key"; put a key that contains a point into a list: '
            '["http", "api.key"]',
        )
    return tuple(parts)


def _networks(value: object) -> tuple[str, ...]:
    """Addresses and networks, as a list or a single one."""
    entries = several(value)
    if not isinstance(entries, (list, tuple)):
        raise_fault(f"must be a list of addresses and networks, not {quote(value)}", 'write ["10.0.0.0/8"]')
    for entry in entries:
        text = _text(entry)
        try:
            ip_network(text)
        except ValueError as error:
            raise_fault(f"{quote(entry)} is not an address or a network: {error}", 'write "10.0.0.0/8"')
    return tuple(dict.fromkeys(entries))


def _condition_values(value: object) -> tuple[str | Pattern, ...]:
    """The values of a condition as text; several in a list, "500-599" for a range, a table for a pattern."""
    if isinstance(value, (list, tuple)) and value:
        return tuple(dict.fromkeys(text for item in value for text in _condition_values(item)))
    if isinstance(value, dict):
        return _patterns(value)
    if isinstance(value, bool):
        return ("true" if value else "false",)
    if isinstance(value, int):
        return (str(value),)
    if not isinstance(value, str) or not value:
        raise_fault(
            f"{quote(value)} cannot be compared with a field",
            'write "text", 429, true, "500-599", a pattern such as { glob = "/v1/*" }, a list of these, or '
            "{ not = ... } with any of them",
        )
    span = RANGE.fullmatch(value)
    if span is not None and int(span[1]) > int(span[2]):
        raise_fault(f"{quote(value)} is an empty range", "write the smaller number first")
    return (value,)


def _patterns(table: dict[object, object]) -> tuple[Pattern, ...]:
    """The patterns in { glob = "/v1/*" }, of which there may be several in a list."""
    names = tuple(PATTERN_KINDS)
    if len(table) != 1 or "not" in table:
        listed = ", ".join(str(key) for key in table) or "no key"
        cure = (
            'write one key, { not = ["401", "403"] } around all of it, { glob = "/v1/*" } or a list of such'
        )
        raise_fault(f"{{ {listed} }} is not a condition", cure)
    [(key, texts)] = table.items()
    if key not in PATTERN_KINDS:
        known = PATTERN_SYNONYMS.get(str(key).lower()) or closest(str(key), [*names, "not"])
        otherwise = f"write values, not, or a pattern: {alternatives(names)}"
        cure = f"did you mean {quote(known)}?" if known else otherwise
        raise_fault(f"{{ {key} }} is not a condition", cure)
    kind = next(name for name in PATTERN_KINDS if name == key)
    listed_texts = several(texts)
    if not isinstance(listed_texts, (list, tuple)) or not listed_texts:
        raise_fault(f"must be text, or a list, not {quote(texts)}", f"write {PATTERN_EXAMPLES[kind]}")
    patterns = []
    for text in listed_texts:
        if not isinstance(text, str):
            raise_fault(f"must be text, not {quote(text)}", f"write {PATTERN_EXAMPLES[kind]}")
        try:
            compile_pattern(Pattern(kind, text))
        except PatternFault as fault:
            raise_fault(f"{kind} {quote(text)}: {fault}", fault.cure)
        patterns.append(Pattern(kind, text))
    return tuple(patterns)


def _condition(value: object) -> ConditionValues:
    """The values of a condition, or those in { not = [...] }; the one parser of all conditions."""
    is_not = isinstance(value, dict) and list(value) == ["not"]
    written = value["not"] if isinstance(value, dict) and is_not else value
    values = tuple(dict.fromkeys(_condition_values(written)))
    if sum(isinstance(item, Pattern) for item in values) > PATTERNS_MAX:
        raise_fault(f"has more than {PATTERNS_MAX} patterns", "write fewer: a | b in one expression is one")
    return ConditionValues(values, is_not)


def time_zone(value: object) -> str:
    """Returns the name of a time zone that this machine knows."""
    if not isinstance(value, str) or not is_zone(value):
        raise_fault(f"{quote(value)} is not a time zone", zone_cure(str(value)))
    return value


def zone_cure(name: str) -> str:
    """Returns what to write instead of a name that no time zone has.

    >>> zone_cure("berlin"), zone_cure("utc")
    ('did you mean "Europe/Berlin"?', 'did you mean "UTC"?')
    """
    # A short name is not compared with other short names: CEST is not a misspelling of EST.
    zones = {zone for zone in available_timezones() if "/" in zone or zone.lower() == name.lower()}
    by_place = {zone.rpartition("/")[2].lower(): zone for zone in sorted(zones) if "/" in zone}
    place = by_place.get(name.replace(" ", "_").lower())
    if place is not None and name.upper() not in zones:
        return f"did you mean {quote(place)}?"
    return suggestion(name, zones, 'write the name of a region, such as "Europe/Berlin", or "UTC"')


def _policy_name(value: object) -> str:
    """The name of a policy, or of one of its periods: "api", "api/month"."""
    name, slash, period = str(value).partition("/") if isinstance(value, str) else (value, "", "")
    return f"{_name(name)}{slash}{_name(period) if slash else ''}"


def _listen(value: object) -> str:
    """HOST:PORT to listen on, or "off"."""
    if value == "off":
        return value
    host, _, port = str(value).rpartition(":")
    if not isinstance(value, str) or not host or not port.isdecimal() or int(port) > 65_535:
        raise_fault(
            f"must be host and port, not {quote(value)}", 'write "127.0.0.1:8321", "[::1]:8321" or "off"'
        )
    return value


Text = Annotated[str, BeforeValidator(_text)]
Name = Annotated[str, BeforeValidator(_name)]
PolicyReference = Annotated[str, BeforeValidator(_policy_name)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
Networks = Annotated[tuple[str, ...], BeforeValidator(_networks)]
RouteList = Annotated[tuple[str, ...], BeforeValidator(_routes)]
FieldPathText = Annotated[tuple[str, ...], BeforeValidator(_path)]
ConditionTable = dict[str, Annotated[ConditionValues, PlainValidator(_condition)]]  # by field; all must hold
Zone = Annotated[str, BeforeValidator(time_zone)]
Amount = Annotated[Decimal, BeforeValidator(_amount)]
Listen = Annotated[str, BeforeValidator(_listen)]
