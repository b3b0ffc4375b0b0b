"""Contexts and answers of acts, without anything of a command, a request or a page."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

from analyzer.acting.parameters import Fault, Param, Parameter
from analyzer.config.settings import Settings
from analyzer.config.values import suggestion
from analyzer.kernel.by import By
from analyzer.kernel.database.clock import database_now
from analyzer.kernel.database.engine import Engine
from analyzer.kernel.logs import printable
from analyzer.kernel.time_expressions import parse_second

RowPlace = tuple[int | str, ...]  # rises along a list


class NothingFound(Exception):  # an answer, raised where there is nothing to read or to act on
    """There is no such thing: a sentence without a point."""


class ActContext(NamedTuple):
    """The database, the configuration and the operator, for an act.

    Attributes:
        engine: The database.
        settings: The configuration of this process.
        by: Who acts, why, and whether it is only shown; empty for acts that read.
        counted: Returns the name that a caller is counted by. Raises Fault.
        after: Of a list: the place behind which it begins, for one that can begin there; None: at its begin.
    """

    engine: Engine
    settings: Settings
    by: By
    counted: Callable[[str], str]
    after: RowPlace | None = None

    @property
    def only_shown(self) -> ActContext:
        """The context for an act that only shows its changes."""
        return self._replace(by=self.by._replace(is_shown_only=True))

    def require_name(self, name: str, text: str | None, names: Collection[str]) -> None:
        """Raises Fault if nothing is named `text`: a list without rows would read as good news."""
        if text is not None and text not in names:
            otherwise = f"use one of {', '.join(sorted(names))}" if names else "there is none yet"
            raise Fault(name, printable(f"{text}: no such name; {suggestion(text, names, otherwise)}"))

    def second(self, name: str, text: str | None) -> int | None:
        """Returns a time of the parameter `name` in seconds since 1970, by the database's clock.

        None for None. Raises Fault, StoreAway.
        """
        if text is None:
            return None
        try:
            return parse_second(text, database_now(self.engine))
        except ValueError as error:
            raise Fault(name, str(error)) from error


class Done(NamedTuple):
    """The changes that an act made, or would make.

    Attributes:
        fields: For programs, an object for each thing that has changed.
        sentences: The same for people.
        name: The name of the list in the answer over HTTP; "": the answer is the one object.
        is_found: Whether something is wrong, so that a command ends with exit code 1.
    """

    fields: Sequence[Mapping[str, Any]]
    sentences: Sequence[str]
    name: str = ""
    is_found: bool = False


class ListRow(NamedTuple):
    """A row of a list.

    Attributes:
        place: Its place in the order of the list.
        fields: For programs.
        cells: For people, by the names of columns, where they differ from the fields; None: it is
            left out of the table.
        is_wrong: Whether it is a reason for exit code 1.
    """

    place: RowPlace
    fields: Mapping[str, Any]
    cells: Mapping[str, Any] | None = {}
    is_wrong: bool = False


class Note(NamedTuple):
    """A sentence about a list, for people alone.

    Attributes:
        sentence: Without a point.
        is_wrong: Whether it is a reason for exit code 1.
        is_answer: Whether a command writes it below its table, and not on standard error.
    """

    sentence: str
    is_wrong: bool = False
    is_answer: bool = False


Listing = Iterator[ListRow | Note]


@cache
def fields_of(run: Callable[..., Any]) -> tuple[Parameter, ...]:
    """Returns the parameters of an act's function, without its context, in their order.

    Raises TypeError for one that nothing describes.
    """
    hints = get_type_hints(run, include_extras=True)
    fields = []
    for keyword, parameter in [*inspect.signature(run).parameters.items()][1:]:
        param = _param(hints[keyword])
        if param is None:
            raise TypeError(f"{run.__name__}: nothing describes the parameter {keyword}")
        is_required = parameter.default is parameter.empty
        default = None if is_required else parameter.default
        is_positional = parameter.kind is not parameter.KEYWORD_ONLY
        fields.append(Parameter(keyword.rstrip("_"), keyword, param, default, is_required, is_positional))
    return tuple(fields)


def _param(hint: Any) -> Param | None:
    """Returns what describes the values of an annotation, which may be optional."""
    for part in (hint, *get_args(hint)):
        if part is not NoneType and hasattr(part, "__metadata__"):
            return next((mark for mark in part.__metadata__ if isinstance(mark, Param)), None)
    return None
