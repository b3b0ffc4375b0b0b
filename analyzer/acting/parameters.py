"""Parameters of acts: how a text or a JSON value of each is read, and how it is described."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

from analyzer.config.values import DAY_S, DURATION, UNITS_S
from analyzer.kernel.logs import printable
from analyzer.kernel.time_expressions import CURE, parse_second

TEXT_MAX = 512  # characters: the longest name of a caller has 256 bytes behind its kind
NAMED = r"^[a-z][a-z0-9_]*:[\s\S]+$"
TIME = (  # also day 31 of a short month, which is refused later
    r"^(today|yesterday|[0-9]{1,9} *[smhd]|(19[7-9][0-9]|2[0-9]{3})-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"([T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6})?)?"
    r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))?)$"
)
LENGTH = r"^[0-9]{1,9}(\.[0-9]{1,9})? *(ms|s|m|h|d)$"
TIME_FORMS = "2026-11-20 (UTC), 2026-11-20T14:00:00Z, today, yesterday, or an age: 30m, 2h, 7d"


class Wrong(ValueError):
    """A JSON value of another type than the parameter has."""


class Impossible(ValueError):
    """A value that the schema permits, and that cannot be meant."""


class ValueKind(Protocol):
    """The values that a parameter may have."""

    @property
    def metavar(self) -> str:
        """The word for a value in the usage of a command."""

    def schema(self) -> dict[str, Any]:
        """Returns them as JSON Schema."""

    def read(self, text: str) -> Any:
        """Returns the value of a text. Raises ValueError with a sentence."""

    def check(self, value: Any) -> Any:
        """Returns the value of a JSON value. Raises ValueError with a sentence."""


class OfText(NamedTuple):
    """A text, which a pattern may restrict; `form` is its name in a sentence."""

    pattern: str = ""
    form: str = "a text"
    metavar: str = "TEXT"

    def schema(self) -> dict[str, Any]:
        pattern = {"pattern": self.pattern} if self.pattern else {}
        return {"type": "string", "minLength": 1, "maxLength": TEXT_MAX, **pattern}

    def read(self, text: str) -> Any:
        if not 0 < len(text) <= TEXT_MAX or (self.pattern and not re.fullmatch(self.pattern, text)):
            raise ValueError(f"must be {self.form} of at most {TEXT_MAX} characters")
        if text != printable(text):
            raise Impossible("has characters that cannot be printed")
        return text

    def check(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise Wrong(f"must be {self.form}")
        return self.read(value)


class OfLines(NamedTuple):
    """A text of lines."""

    characters_max: int
    metavar: str = "TEXT"

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, "maxLength": self.characters_max}

    def read(self, text: str) -> Any:
        if not 0 < len(text) <= self.characters_max:
            raise ValueError(f"must be a text of at most {self.characters_max:,} characters")
        return text

    def check(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise Wrong("must be a text")
        return self.read(value)


class Caller(NamedTuple):
    """A caller, with its kind in front unless `may_be_short`: a command finds the kind of a counted one."""

    may_be_short: bool = False
    metavar: str = "CALLER"

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, "maxLength": TEXT_MAX, "pattern": NAMED}

    def read(self, text: str) -> Any:
        pattern = "" if self.may_be_short else NAMED
        return OfText(pattern, "a caller with its kind, api_key:acme").read(text)

    def check(self, value: Any) -> Any:
        return OfText(NAMED, "a caller with its kind, api_key:acme").check(value)


class Time(NamedTuple):
    """A time. Its value is its text: which time `today` or `2h` is, the clock of the database says."""

    metavar: str = "TIME"

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": TIME}

    def read(self, text: str) -> Any:
        is_permitted = re.fullmatch(TIME, text) is not None
        try:
            parse_second(text, datetime.now(UTC))
        except ValueError as error:
            raise (Impossible if is_permitted else ValueError)(str(error)) from error
        if not is_permitted:
            raise ValueError(printable(f"{text!r} is not a time: {CURE}"))
        return text

    def check(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise Wrong("must be a time, such as 2026-11-20T14:00:00Z or 2h")
        return self.read(value)


class Length(NamedTuple):
    """A length of time; its value is in milliseconds. `word` is one that stands for 0."""

    days_max: int
    word: str = ""
    metavar: str = "LENGTH"

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^{self.word}$|{LENGTH}" if self.word else LENGTH}

    def read(self, text: str) -> Any:
        if self.word and text == self.word:
            return 0
        parts = DURATION.fullmatch(text) if re.fullmatch(LENGTH, text) else None
        length_ms = 0 if parts is None else round(float(parts[1]) * UNITS_S[parts[2]] * 1000)
        if not 0 < length_ms <= self.days_max * DAY_S * 1000:
            word = f", or {self.word}" if self.word else ""
            most = f"at most {self.days_max:,}d{word}"
            raise Impossible(f"{text}: write a length such as 30m, 12h or 7d; {most}")
        return length_ms

    def check(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise Wrong("must be a length, such as 30m, 2h or 7d")
        return self.read(value)


class Whole(NamedTuple):
    """A whole number, both bounds included."""

    least: int
    most: int
    metavar: str = "NUMBER"

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}

    def read(self, text: str) -> Any:
        if not re.fullmatch(r"-?[0-9]{1,19}", text):
            raise ValueError("must be a whole number")
        return self.check(int(text))

    def check(self, value: Any) -> Any:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not self.least <= value <= self.most:
            raise ValueError(f"must be a whole number from {self.least:,} to {self.most:,}")
        return value


class OneOf(NamedTuple):
    """A word of a list."""

    words: Sequence[str]

    @property
    def metavar(self) -> str:
        return "|".join(self.words)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.words)}

    def read(self, text: str) -> Any:
        return self.check(text)

    def check(self, value: Any) -> Any:
        if value not in self.words or not isinstance(value, str):
            raise ValueError(f"must be one of {', '.join(self.words)}")
        return value


class Switch(NamedTuple):
    """A truth value: an option without a value, a parameter `true` or `false`."""

    metavar: str = ""

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}

    def read(self, text: str) -> Any:
        if text not in ("true", "false"):
            raise ValueError("must be true or false")
        return text == "true"

    def check(self, value: Any) -> Any:
        if not isinstance(value, bool):
            raise Wrong("must be true or false")
        return value


class AddressRange(NamedTuple):
    """An address or a range; its value is the range."""

    metavar: str = "CIDR"

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, "maxLength": TEXT_MAX}

    def read(self, text: str) -> Any:
        try:
            return ip_network(text)
        except ValueError as error:
            raise Impossible(
                printable(f"{text}: write 192.0.2.7, 203.0.113.0/24 or 2001:db8::/32")
            ) from error

    def check(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise Wrong("must be an address or a range")
        return self.read(value)


class SeriesFile(NamedTuple):
    """A file of many series, which only a command takes: it has no schema."""

    metavar: str = "FILE.csv"

    def schema(self) -> dict[str, Any]:
        return {}

    def read(self, text: str) -> Any:
        return Path(text)

    def check(self, value: Any) -> Any:
        raise Wrong(f"files are read by commands, not {value!r}")


class Param:
    """Describes a parameter in an annotation: `Annotated[str, Param(OfText(), "Its name.", "daily")]`.

    Instances are compared by identity, because `X | None` hashes what an annotation holds.

    Attributes:
        kind: The values that it may have.
        about: Its sentence in the help and in the documentation, with the unit.
        example: A value, as JSON has it.
    """

    __slots__ = ("about", "example", "kind")

    def __init__(self, kind: ValueKind, about: str, example: Any) -> None:
        self.kind = kind
        self.about = about
        self.example = example


class Parameter(NamedTuple):
    """A parameter of an act, as every face sees it.

    Attributes:
        name: Its name in a query or a body; an option has hyphens instead of underscores.
        keyword: Its name in the function.
        param: What describes it.
        default: Its value when it is left out.
        required: Whether it may not be left out.
        positional: Whether a command takes it without the name of an option.
    """

    name: str
    keyword: str
    param: Param
    default: Any = None
    required: bool = False
    positional: bool = False

    @property
    def option(self) -> str:
        """The name of its option."""
        return f"--{self.name.replace('_', '-')}"


class Fault(Exception):  # an answer, raised where arguments are read or an act is begun
    """A wrong argument: the name of its parameter, "" for several together, and what is wrong.

    `is_permitted` says that the schema permits it.
    """

    def __init__(self, name: str, why: str, *, is_permitted: bool = False) -> None:
        super().__init__(why)
        self.name = name
        self.why = why
        self.is_permitted = is_permitted


def read_values(fields: Sequence[Parameter], values: Mapping[str, Any], *, is_text: bool) -> dict[str, Any]:
    """Returns arguments of the act's function, from texts or from JSON values by the names of parameters.

    Raises Fault for a value that is wrong, missing or of no parameter.
    """
    by_name = {field.name: field for field in fields}
    for name in values:
        if name not in by_name:
            names = ", ".join(by_name) or "none"
            raise Fault(name[:TEXT_MAX], f"is not a parameter; there are: {names}")
    arguments = {}
    for name, field in by_name.items():
        if name not in values:
            if field.required:
                raise Fault(name, f"is missing: {field.param.about}")
            arguments[field.keyword] = field.default
            continue
        kind = field.param.kind
        try:
            arguments[field.keyword] = kind.read(values[name]) if is_text else kind.check(values[name])
        except (ValueError, OverflowError) as error:
            raise Fault(name, str(error), is_permitted=isinstance(error, Impossible)) from error
    return arguments


def network_scope(network: IPv4Network | IPv6Network) -> tuple[str, str]:
    """Returns scope and key of a range, which of one address is the scope `address`."""
    if network.prefixlen == network.max_prefixlen:
        return "address", str(network.network_address)
    return "range", str(network)


CallerName = Annotated[str, Param(Caller(), "The caller, with its kind in front.", "api_key:acme")]
PolicyName = Annotated[str, Param(OfText(metavar="NAME"), "The policy.", "daily")]
Since = Annotated[str, Param(Time(), f"Begin, inclusive: {TIME_FORMS}.", "7d")]
All = Annotated[bool, Param(Switch(), "Also those that have ended.", True)]
