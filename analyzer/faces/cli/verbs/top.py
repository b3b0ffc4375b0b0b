"""`gatelock top`: the callers of this moment."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Annotated

from click import Context

from analyzer.faces.cli.described_options import Option
from analyzer.faces.cli.exit_codes import reporting_errors, usage_error
from analyzer.faces.cli.options import ConfigOption, load_settings, open_database
from analyzer.faces.cli.output import json_lines, say, table
from analyzer.faces.cli.server_calls import ServerOption, TokenFileOption, asking
from analyzer.faces.cli.top_texts import COLUMNS, heading, texts_of
from analyzer.faces.live_callers import ROWS_MAX, SORTS, SPANS_S, LiveCallers, LiveQuery
from analyzer.faces.tui.live_board import Board, LiveBoard
from analyzer.faces.tui.server_board import ServerBoard

NO_TEXTUAL = "top needs textual: pip install 'gatelock[tui]'; or write --once"


def top(
    context: Context,
    span: Annotated[str, Option(help="The time whose requests are added up.", words=[SPANS_S])] = "1h",
    sort: Annotated[
        str,
        Option(
            words=[SORTS],
            help="By requests in the span, the rate of the last minute, denied requests, the change to the "
            "span before, the part of the nearest limit, or the name.",
        ),
    ] = "requests",
    filter_: Annotated[
        str, Option("--filter", metavar="TEXT", help="Only callers whose name contains it.")
    ] = "",
    rows: Annotated[int, Option(min=1, max=ROWS_MAX, help="So many callers.")] = 40,
    every: Annotated[float, Option(min=1, max=3600, help="Seconds between looks.")] = 5.0,
    once: Annotated[bool, Option("--once", help="Print the callers once, and end.")] = False,
    server: ServerOption = None,
    token_file: TokenFileOption = None,
    config: ConfigOption = None,
    json: Annotated[bool, Option("--json", help="Print JSON, one object; as --once.")] = False,
) -> None:
    """Show who sends how much, and lock or unlock a caller.

    Shows the callers with the most requests in the span or in the last minute: the rate of the last one to
    two minutes, requests, denied ones, the part of all, the change to the span before, the policy whose
    limit is nearest with the part that is used, and what locks the caller. The keys stand in the last line;
    `?` explains them. An act asks for a reason and shows what it will do before it does it. While the
    database is away, the last callers remain and a line says so.

    Example: gatelock top --span 15m --sort rate
    """
    query = LiveQuery(span, sort, filter_, rows)
    with reporting_errors(), ExitStack() as stack:
        board: Board
        if server is not None:
            board = ServerBoard(stack.enter_context(asking(server, token_file)))
        else:
            engine = stack.enter_context(open_database(context, config))
            board = LiveBoard(engine, load_settings(context, config))
        if once or json:
            _print(board.look(query), query, as_json=json)
            return
        if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
            raise usage_error("top needs a terminal, for its errors, too; or write --once")
        try:
            from analyzer.faces.tui.top_app import TopApp
        except ImportError as missing:
            raise usage_error(NO_TEXTUAL) from missing
        TopApp(board, query, every).run()


def _print(answer: LiveCallers, query: LiveQuery, *, as_json: bool) -> None:
    if as_json:
        json_lines([answer.as_object()])
        return
    say(heading(answer, query))
    nothing = "no caller was counted in this time" if not query.text else "nothing matches"
    table(COLUMNS, map(texts_of, answer.rows), nothing)
