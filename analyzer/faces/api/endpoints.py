"""Endpoints: rows of the table by which requests are permitted, checked, answered and documented."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from analyzer.acting.foreseen import Foreseen, NotConfirmed
from analyzer.acting.parameters import OfText, Parameter, Switch, Whole
from analyzer.config.settings import Settings
from analyzer.faces.api.pages import ROWS, ROWS_MAX, PagePlace, PlacedRow
from analyzer.faces.api.requested_values import parameter
from analyzer.kernel.database.clock import database_now
from analyzer.kernel.database.engine import Engine
from analyzer.kernel.time_expressions import parse_second
from analyzer.kernel.tokens import TokenScope

CURSOR = parameter("cursor", OfText(), "The `next` of the page before.", "WzE3NjM2MTYwMDBd")
LIMIT = parameter("limit", Whole(1, ROWS_MAX), "Rows of the page.", ROWS, ROWS)
REASON = parameter(
    "reason", OfText(r"^[^\x00-\x1f\x7f]*[^\x00-\x20\x7f][^\x00-\x1f\x7f]*$", "a reason"),
    "Why; kept in the audit log with the name of the token.", "INC-311", required=True,
)  # fmt: skip


CONFIRMED = parameter(
    "confirmed", Switch(), "Do what cannot be undone, after an answer with 409 has said what it is.", True,
    False,
)  # fmt: skip


TEXTS = parameter(
    "texts", Switch(), "Add what a command prints, for commands that ask a server; may change.", True,
    False,
)  # fmt: skip


class NotPossible(Exception):  # an answer, raised where a request cannot be done
    """An impossible request: a name that does not exist, an amount in another unit."""


class NotThere(Exception):  # likewise
    """A request for a thing that does not exist."""


class ApiContext(NamedTuple):
    """The database and the settings that endpoints read and change."""

    engine: Engine  # whose slow readers have a time-out
    settings: Settings

    def second(self, text: str | None) -> int:
        """Returns a time in seconds since 1970, by the database's clock; 0 for None."""
        return 0 if text is None else parse_second(text, database_now(self.engine))


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request.

    Attributes:
        values: The value of each parameter.
        who: The name for the audit log.
        after: The place behind which a page begins.
        notes: Receives the sentences about a list, if `texts` is asked for.
    """

    values: Mapping[str, Any]
    who: str = ""
    after: PagePlace | None = None
    notes: list[dict[str, object]] = field(default_factory=list)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


class Endpoint(NamedTuple):
    """One method of one path.

    Attributes:
        method: GET for what reads, POST for what acts, or reads by a long text.
        path: The words of the command, `/v1/locks/list` for `gatelock locks list`.
        scope: The least scope of a token that may ask.
        about: A sentence for its description.
        answer: Returns the object, or the rows of a list by their places.
        example: An answer, or a row of the list.
        parameters: Those of the query, or of the body.
        place: What the places of the list look like; None: not a list.
        foresee: Of an act that may be impossible to undo: returns what it will do. The request has to be
            confirmed then.
        has_body_to_read: Whether a POST changes nothing.
    """

    method: str
    path: str
    scope: TokenScope
    about: str
    answer: Callable[[ApiContext, ApiRequest], Mapping[str, object] | Iterable[PlacedRow]]
    example: Mapping[str, Any]
    parameters: tuple[Parameter, ...] = ()
    place: PagePlace | None = None
    foresee: Callable[[ApiContext, ApiRequest], Foreseen] | None = None
    has_body_to_read: bool = False

    def ask(self, context: ApiContext, request: ApiRequest) -> Mapping[str, object] | Iterable[PlacedRow]:
        """Returns the answer. Raises NotConfirmed for an act that has to be confirmed and is not."""
        if self.foresee is not None and not request["confirmed"] and not request.values.get("dry_run"):
            foreseen = self.foresee(context, request)
            if foreseen.is_asked:
                raise NotConfirmed(foreseen)
        return self.answer(context, request)

    @property
    def acts(self) -> bool:
        return self.has_body and not self.has_body_to_read

    @property
    def has_body(self) -> bool:
        return self.method == "POST"

    @property
    def all_parameters(self) -> tuple[Parameter, ...]:
        """The parameters, with those of pages or the reason of an act."""
        if self.acts:
            return (*self.parameters, *([CONFIRMED] if self.foresee else []), REASON)
        return self.parameters if self.place is None else (*self.parameters, LIMIT, CURSOR)
