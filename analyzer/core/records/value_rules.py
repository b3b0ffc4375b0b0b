"""What a single value must be: a name, a text, a condition. An answer of None: it cannot be read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from analyzer.core.records.formats import RawValue
from analyzer.core.records.mapping import AddressField, Field, NumberField, ResourceField
from analyzer.core.records.route_matcher import RouteMatcher
from gatekeeper.identity import address_of, is_name, typed

ValueRule = Callable[[Any], Any]

REMEMBERED_MAX = 50_000  # values per rule; then it begins anew
REMEMBERED_BYTES_MAX = 400  # what is larger is judged each time: a log may be full of it
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
RANGE_DIGITS_MAX = 19

# Kinds of values of which none of one kind is equal to any of another; True, as a key, would be 1.
PLAIN: frozenset[type] = frozenset({str, int, type(None)})


class MemoizedRule(dict[Any, Any]):
    """A rule that is asked once for each value."""

    def __init__(self, rule: ValueRule, kinds: frozenset[type] = PLAIN) -> None:
        """Only values of `kinds` are remembered."""
        super().__init__()
        self.rule = rule
        self._kinds = kinds

    def __missing__(self, raw: RawValue) -> Any:
        found = self.rule(raw)
        if sys.getsizeof(raw) <= REMEMBERED_BYTES_MAX:
            if len(self) >= REMEMBERED_MAX:
                self.clear()
            self[raw] = found
        return found

    def answers(self, column: Sequence[RawValue]) -> list[Any]:
        if self._kinds.issuperset(map(type, column)):
            return list(map(self.__getitem__, column))
        return [self.rule(raw) for raw in column]


class RouteRule:
    """The rule of a resource. Nothing is remembered: most paths are never seen again."""

    def __init__(self, field: ResourceField) -> None:
        self._routes = RouteMatcher(field.routes, field.other)

    def rule(self, raw: RawValue) -> str | None:
        if raw is None:
            return ""
        return self.answers([raw])[0] if type(raw) is str else None

    def answers(self, column: Sequence[RawValue]) -> list[Any]:
        if {str}.issuperset(map(type, column)):
            return self._routes.of_each(column)  # type: ignore[arg-type]  # all are text
        return [self.rule(raw) for raw in column]


def caller_rule(kind: str, field: Field, bytes_max: int) -> MemoizedRule:
    """A caller's typed name; "" when this field is missing. A number is no name, so that 1 and "1" never
    meet. Raises ValueError for a field that cannot hold a name."""
    if isinstance(field, ResourceField | NumberField):
        raise ValueError(f"{kind} is a {type(field).__name__}: it cannot say who called")  # noqa: TRY004 - a wrong mapping
    prefix6 = field.prefix6 if isinstance(field, AddressField) else None

    def name(raw: RawValue) -> str | None:
        if raw is None or raw == "":
            return ""
        if type(raw) is not str:
            return None
        known = raw if prefix6 is None else address_of(raw, prefix6)
        return typed(kind, known) if known is not None and is_name(known, bytes_max) else None

    return MemoizedRule(name)


def text_rule(field: Field, bytes_max: int) -> MemoizedRule | RouteRule:
    """The text of a field that is counted by; missing is ""."""
    if isinstance(field, ResourceField):
        return RouteRule(field)
    prefix6 = field.prefix6 if isinstance(field, AddressField) else None

    def text(raw: RawValue) -> str | None:
        plain = text_of(raw)
        if plain == "" or plain is None:
            return plain
        if prefix6 is not None:
            return address_of(plain, prefix6)
        return plain if is_name(plain, bytes_max) else None

    return MemoizedRule(text)


def condition_rule(field: Field, wanted: Sequence[str]) -> MemoizedRule:
    """Whether a field's text is one of `wanted`, or goes on with its parameters (RFC 9651, as the header of a
    refusal: denied;policy="daily"), or is a whole number in one of its ranges ("500-599")."""
    texts = frozenset(wanted)
    parted = (each.partition("-") for each in wanted)
    ranges = [
        range(int(low), int(high) + 1) for low, _, high in parted if _is_digits(low) and _is_digits(high)
    ]
    # Addresses and resources are compared as they are counted by; any other text as it is, however long.
    as_counted = isinstance(field, AddressField | ResourceField)
    counted_by = text_rule(field, 0).rule if as_counted else text_of

    def holds(raw: RawValue) -> bool | None:
        plain = counted_by(raw)
        if plain is None:
            return None
        if plain in texts or (not as_counted and plain.partition(";")[0] in texts):
            return True
        return _is_digits(plain) and any(int(plain) in numbers for numbers in ranges)

    return MemoizedRule(holds)


def time_rule(ms_of: Callable[[str], int | None]) -> ValueRule:
    """The milliseconds of a time that is written as text."""
    return lambda raw: ms_of(raw) if type(raw) is str else None


def text_of(raw: RawValue) -> str | None:
    """Strings, whole numbers of 64 bits, and booleans as text; missing is "". None for anything else."""
    if raw is None:
        return ""
    if type(raw) is str:
        return raw
    if type(raw) is bool:
        return "true" if raw else "false"
    return str(raw) if type(raw) is int and INT64_MIN <= raw <= INT64_MAX else None


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= RANGE_DIGITS_MAX
