"""Parameters of requests: one description of each, by which values are checked and documented."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

from analyzer.kernel.logs import printable
from analyzer.kernel.time_expressions import second_of
from analyzer.server.problems import HttpProblem

TEXT_MAX = 512  # characters: the longest name of a caller has 256 bytes behind its kind
CALLER = r"^[a-z][a-z0-9_]*:[\s\S]+$"
TIME = (
    r"^(today|yesterday|[0-9]{1,6} *[smhd]|20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
    r"(T([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?Z)?)$"
)
LENGTH = r"^[1-9][0-9]{0,3}[smhd]$"


class Wrong(ValueError):
    """A value that a parameter may not have."""


class Unprintable(ValueError):
    """A text that the schema permits, and no name has."""


class ValueKind(Protocol):
    """The values that a parameter may have."""

    def schema(self) -> dict[str, Any]:
        """Returns them as JSON Schema."""

    def read(self, text: str) -> Any:
        """Returns the value of a text in a query. Raises ValueError with a sentence."""

    def check(self, value: Any) -> Any:
        """Returns the value of a JSON value in a body. Raises ValueError with a sentence."""


class OfText(NamedTuple):
    """A text, which a pattern may restrict."""

    pattern: str = ""
    form: str = "a text"

    def schema(self) -> dict[str, Any]:
        pattern = {"pattern": self.pattern} if self.pattern else {}
        return {"type": "string", "minLength": 1, "maxLength": TEXT_MAX, **pattern}

    def read(self, text: str) -> Any:
        if not 0 < len(text) <= TEXT_MAX or (self.pattern and not re.fullmatch(self.pattern, text)):
            raise ValueError(f"must be {self.form} of at most {TEXT_MAX} characters")
        if text != printable(text):
            raise Unprintable("has characters that cannot be printed")
        return text

    def check(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise Wrong(f"must be {self.form}")
        return self.read(value)


class OfTime(NamedTuple):
    """A time, as commands take it; its value is in seconds since 1970."""

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": TIME}

    def read(self, text: str) -> Any:
        return second_of(text, datetime.now(UTC))

    def check(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise Wrong("must be a time, such as 2026-11-20T14:00:00Z or 2h")
        return self.read(value)


class OfWhole(NamedTuple):
    """A whole number, both bounds included."""

    least: int
    most: int

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

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.words)}

    def read(self, text: str) -> Any:
        return self.check(text)

    def check(self, value: Any) -> Any:
        if value not in self.words or not isinstance(value, str):
            raise ValueError(f"must be one of {', '.join(self.words)}")
        return value


class YesOrNo(NamedTuple):
    """A truth value."""

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


class Parameter(NamedTuple):
    """One parameter of a request.

    Attributes:
        name: Its name in the query or the body.
        kind: The values that it may have.
        about: Its sentence in the documentation, with the unit.
        example: A value, as JSON has it.
        default: Its value when it is left out.
        required: Whether it may not be left out.
    """

    name: str
    kind: ValueKind
    about: str
    example: Any
    default: Any = None
    required: bool = False


def of_query(parameters: Sequence[Parameter], given: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Returns the values of a query. Raises HttpProblem for one that is wrong, unknown or given twice."""
    texts = dict(given)
    if len(texts) < len(given):
        raise _wrong("A parameter is given twice.")
    return _values(parameters, texts, is_text=True)


def of_body(parameters: Sequence[Parameter], body: bytes) -> dict[str, Any]:
    """Returns the values of a JSON object. Raises HttpProblem for one that is wrong or unknown."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _wrong("The body must be JSON.") from error
    if not isinstance(given, dict):
        raise _wrong("The body must be a JSON object.")
    return _values(parameters, given, is_text=False)


def _values(parameters: Sequence[Parameter], given: Mapping[str, Any], *, is_text: bool) -> dict[str, Any]:
    known = {one.name: one for one in parameters}
    for name in given:
        if name not in known:
            names = ", ".join(known) or "none"
            raise _wrong(printable(f"`{name[:TEXT_MAX]}` is not a parameter; there are: {names}."))
    found = {}
    for name, one in known.items():
        if name not in given:
            if one.required:
                raise _wrong(f"`{name}` is missing: {one.about}")
            found[name] = one.default
            continue
        try:
            found[name] = one.kind.read(given[name]) if is_text else one.kind.check(given[name])
        except Unprintable as error:
            raise HttpProblem(HTTPStatus.UNPROCESSABLE_ENTITY, f"`{name}`: {error}.") from error
        except (ValueError, OverflowError) as error:
            raise _wrong(printable(f"`{name}`: {error}.".replace("..", "."))) from error
    return found


def _wrong(detail: str) -> HttpProblem:
    return HttpProblem(HTTPStatus.BAD_REQUEST, detail)
