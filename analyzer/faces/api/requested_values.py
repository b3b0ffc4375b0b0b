"""Parameters of requests: read from a query or a body, and refused with the name of the parameter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from analyzer.acting.parameters import Fault, Param, Parameter, ValueKind, read_values
from analyzer.kernel.logs import printable
from analyzer.server.problems import HttpProblem


def parameter(
    name: str, kind: ValueKind, about: str, example: Any, default: Any = None, *, required: bool = False
) -> Parameter:
    """Returns a parameter of an endpoint that is written by hand."""
    return Parameter(name, name, Param(kind, about, example), default, required)


def of_query(fields: Sequence[Parameter], pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Returns the values of a query. Raises HttpProblem for one that is wrong, unknown or given twice."""
    texts = dict(pairs)
    if len(texts) < len(pairs):
        raise HttpProblem(HTTPStatus.BAD_REQUEST, "A parameter is given twice.")
    return _read(fields, texts, is_text=True)


def of_body(fields: Sequence[Parameter], body: bytes) -> dict[str, Any]:
    """Returns the values of a JSON object. Raises HttpProblem for one that is wrong or unknown."""
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HttpProblem(HTTPStatus.BAD_REQUEST, "The body must be JSON.") from error
    if not isinstance(values, dict):
        raise HttpProblem(HTTPStatus.BAD_REQUEST, "The body must be a JSON object.")
    return _read(fields, values, is_text=False)


def _read(fields: Sequence[Parameter], values: dict[str, Any], *, is_text: bool) -> dict[str, Any]:
    try:
        return read_values(fields, values, is_text=is_text)
    except Fault as fault:
        separator = " " if fault.why.startswith(("is ", "has ")) else ": "
        sentence = f"`{fault.name}`{separator}{fault.why}.".replace("..", ".")
        status = HTTPStatus.UNPROCESSABLE_ENTITY if fault.is_permitted else HTTPStatus.BAD_REQUEST
        raise HttpProblem(status, printable(sentence)) from fault
