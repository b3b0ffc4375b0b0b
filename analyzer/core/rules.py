"""What a single value must be: a name, a text, a condition. Each rule judges a value once and remembers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from analyzer.core.mapping import AddressField, Field, ResourceField
from analyzer.core.routes import Routes
from gatekeeper.identity import address_of, is_name, typed

REMEMBERED_MAX = 50_000  # values per rule; then it begins anew
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

Name = Callable[[Any], str | None]  # the text to count by; None: it cannot be one
Condition = Callable[[Any], bool | None]  # whether it holds; None: this is no text


def name_for(kind: str, prefix6: int | None, bytes_max: int) -> Name:
    """The typed name of a caller. A number is none, so that 1 and "1" never meet."""

    def name(raw: str) -> str | None:
        if prefix6 is None:
            return typed(kind, raw) if is_name(raw, bytes_max) else None
        known = address_of(raw, prefix6)
        return None if known is None else typed(kind, known)

    return _remembering(lambda raw: name(raw) if type(raw) is str else None)


def text_for(field: Field, bytes_max: int) -> Name:
    """The text of a field that is counted by; missing is ""."""
    if isinstance(field, ResourceField):
        routes = Routes(field.routes, field.other)
        return _remembering(lambda raw: "" if raw is None else routes.of(raw) if type(raw) is str else None)
    if isinstance(field, AddressField):
        prefix6 = field.prefix6
        return _remembering(
            lambda raw: (
                "" if raw is None or raw == "" else address_of(raw, prefix6) if type(raw) is str else None
            )
        )

    def text(raw: Any) -> str | None:
        plain = text_of(raw)
        return plain if plain == "" or (plain is not None and is_name(plain, bytes_max)) else None

    return _remembering(text)


def condition_for(wanted: Sequence[str]) -> Condition:
    """Whether a value's text is one of `wanted`, or a whole number in one of its ranges ("500-599")."""
    texts = frozenset(wanted)
    parted = (each.partition("-") for each in wanted)
    ranges = [(int(low), int(high)) for low, _, high in parted if _digits(low, high)]

    def holds(raw: Any) -> bool | None:
        plain = text_of(raw)
        if plain is None:
            return None
        number = int(plain) if plain.isdecimal() and plain.isascii() and len(plain) < 20 else None
        return plain in texts or (number is not None and any(low <= number <= high for low, high in ranges))

    return _remembering(holds)


def text_of(raw: Any) -> str | None:
    """Strings, whole numbers of 64 bits, and booleans as text; missing is "". None for anything else."""
    if raw is None:
        return ""
    if type(raw) is str:
        return raw
    if type(raw) is bool:
        return "true" if raw else "false"
    return str(raw) if type(raw) is int and INT64_MIN <= raw <= INT64_MAX else None


def _digits(low: str, high: str) -> bool:
    return low.isascii() and high.isascii() and low.isdecimal() and high.isdecimal()


def _remembering(rule: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same rule, asked once for each string or whole number: as a key, 1.0 and True would be 1."""
    known: dict[Any, Any] = {}

    def ask(raw: Any) -> Any:
        if type(raw) is not str and type(raw) is not int:
            return rule(raw)
        try:
            return known[raw]
        except KeyError:
            if len(known) >= REMEMBERED_MAX:
                known.clear()
            found = known[raw] = rule(raw)
            return found

    return ask
