"""The board behind the screen of `gatelock top --server`: reads and acts over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from analyzer.faces.acts import ACTS, path_of
from analyzer.faces.cli.output import lines_of
from analyzer.faces.cli.server_calls import parts_of
from analyzer.faces.live_callers import LiveCallers, LiveQuery, live_from
from analyzer.faces.tui.live_board import ActRequest, BoardAway
from gatekeeper.client import ApiConnection, ApiError, ServerAway

T = TypeVar("T")


class ServerBoard:
    """A Board over a server.

        ServerBoard(ApiConnection("https://gatelock.example:8321")).look(LiveQuery(span="1h"))

    Args:
        connection: The connection, which the threads of the screen use in turns.
    """

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection

    def look(self, query: LiveQuery) -> LiveCallers:
        """Returns the callers of this moment. Raises ApiError, ServerAway."""
        values = {**query._asdict(), "text": query.text or None}
        return live_from(self._connection.read("/v1/usage/live", values))

    def explain(self, caller: str, width: int) -> list[str]:
        """Returns what `gatelock explain` says, in lines. Raises BoardAway."""
        values = {"caller": caller, "since": "40d", "texts": True}
        answer = _asked(lambda: self._connection.read("/v1/explain", values))
        return [*lines_of(parts_of(answer["texts"]["parts"]), width)]

    def act(self, request: ActRequest, *, only_shown: bool) -> Sequence[str]:
        """Does an act as its command does, or only shows it. Raises BoardAway."""
        row = next(row for row in ACTS if row.words == request.words)
        values = {name: text for name, text in request.texts.items() if text}
        shown = {"reason": request.reason, "dry_run": only_shown, "texts": True}
        answer = _asked(lambda: self._connection.act(path_of(row), {**values, **shown}))
        sentences: Sequence[str] = answer["texts"]["sentences"]
        return sentences


def _asked(call: Callable[[], T]) -> T:
    try:
        return call()
    except (ApiError, ServerAway) as error:
        raise BoardAway(str(error).removesuffix(".")) from error
