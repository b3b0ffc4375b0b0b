"""The board behind the screen of `gatelock top`: reads and acts, against the database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from analyzer.acting.act import ActContext, Done, NothingFound, fields_of
from analyzer.acting.parameters import Fault, read_values
from analyzer.callers.explained_caller import explained_caller
from analyzer.config.settings import Settings
from analyzer.faces.acts import ACTS, Act, function
from analyzer.faces.cli.operator import operator_name
from analyzer.faces.cli.options import caller_as_counted
from analyzer.faces.cli.output import lines_of
from analyzer.faces.explanation import explanation
from analyzer.faces.live_callers import LiveCallers, LiveQuery, live_callers
from analyzer.kernel.by import By
from analyzer.kernel.database.clock import database_now
from analyzer.kernel.database.engine import Engine
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.secrets import masked

T = TypeVar("T")
HISTORY_S = 40 * 86_400  # of locks, as `gatelock explain` shows them


class ActRequest(NamedTuple):
    """An act on the caller in the row: its words in the table of acts, its texts by parameter, the reason."""

    words: str
    texts: Mapping[str, str]
    reason: str


class Board(Protocol):
    """Reads and acts for the screen. A call may block; it raises BoardAway for what an operator can cure.

    `look` raises what the commands raise, for which they have their sentences and exit codes.
    """

    def look(self, query: LiveQuery) -> LiveCallers:
        """Returns the callers of this moment."""
        ...

    def explain(self, caller: str, width: int) -> list[str]:
        """Returns the lines of `gatelock explain`, for a screen of this width."""
        ...

    def act(self, request: ActRequest, *, only_shown: bool) -> Sequence[str]:
        """Does an act, or only says what it would do. Returns sentences."""
        ...


class BoardAway(Exception):
    """A sentence without a point: the database is away, or the act is not possible."""


class LiveBoard:
    """A Board over the database.

        LiveBoard(engine, settings).look(LiveQuery(span="1h"))

    Args:
        engine: The database.
        settings: The configuration.
    """

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine, self._settings = engine, settings

    def look(self, query: LiveQuery) -> LiveCallers:
        """Returns the callers of this moment. Raises AnalyzerError, as a command does."""
        kinds = {kind for source in self._settings.sources for kind in source.callers}
        return live_callers(self._engine, query, kinds)

    def explain(self, caller: str, width: int) -> list[str]:
        """Returns what `gatelock explain` says, in lines. Raises BoardAway."""

        def lines() -> list[str]:
            since_s = int(database_now(self._engine).timestamp()) - HISTORY_S
            explained = explained_caller(self._engine, caller, since_s)
            parts = explanation(self._engine, explained, self._settings.analyzer.flush_every)
            return [*lines_of(parts, width)]

        return _asked(lines)

    def act(self, request: ActRequest, *, only_shown: bool) -> Sequence[str]:
        """Does an act as its command does, or only shows it. Raises BoardAway."""
        row = next(row for row in ACTS if row.words == request.words and isinstance(row, Act))
        run = function(row.run)
        fields = fields_of(run)

        def done() -> Done:
            texts = {name: text for name, text in request.texts.items() if text}
            by = By(operator_name(), request.reason, only_shown)
            counted = partial(caller_as_counted, self._engine, self._settings)
            answer: Done = run(
                ActContext(self._engine, self._settings, by, counted),
                **read_values(fields, texts, is_text=True),
            )
            return answer

        return _asked(done).sentences


def _asked(call: Callable[[], T]) -> T:
    try:
        return call()
    except Fault as fault:
        raise BoardAway(
            f"{fault.name.replace('_', '-')}: {fault.why}" if fault.name else fault.why
        ) from fault
    except NothingFound as nothing:
        raise BoardAway(str(nothing)) from nothing
    except AnalyzerError as error:
        raise BoardAway(masked(str(error))) from error
