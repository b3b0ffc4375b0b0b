"""`gatelock explain`: why a caller is locked, or not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from click import Context
from click.exceptions import Exit

from analyzer.callers.explained_caller import explained_caller
from analyzer.faces.cli.described_options import Argument, Option
from analyzer.faces.cli.exit_codes import FOUND, reporting_errors, usage_error
from analyzer.faces.cli.options import (
    ConfigOption,
    JsonOption,
    SinceOption,
    counted_caller,
    load_settings,
    open_database,
    parse_time,
    second_at,
)
from analyzer.faces.cli.output import json_lines, say, show
from analyzer.faces.cli.server_calls import ServerOption, TokenFileOption, asking, parts_of
from analyzer.faces.explanation import explanation, nearest_locks, overshoot_sentences, past_locks

HISTORY = "40d"


def explain(
    context: Context,
    caller: Annotated[
        str, Argument(metavar="CALLER", help="A name as it is counted: api_key:acme, or acme.")
    ],
    at: Annotated[
        str | None,
        Option(
            "--at",
            metavar="TIME",
            help="Only the locks in force then, here in that minute: 2026-12-01T14:03Z.",
        ),
    ] = None,
    since: SinceOption = None,
    server: ServerOption = None,
    token_file: TokenFileOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Say why a caller is locked, or why not.

    Shows the locks on it, on its tenant, its address and its networks, and on everyone; each policy with what
    it has used, its limit, and when it reaches that at the pace of the window so far; its resources of the
    last day; and its locks of the last 40 days, those in shadow among them, with
    what was admitted beyond the limit meanwhile. Without its kind, acme is api_key:acme where only that one
    was counted. Exit code 1 if nothing was ever counted for the caller, and nothing else is known of it.

    Example: gatelock explain api_key:acme --at 2026-11-22T14:03Z
    """
    moment, begin = parse_time(at), parse_time(since or HISTORY)
    if server is not None:
        if at is not None:
            raise usage_error("--at is answered beside the database: leave out --server")
        _ask(server, token_file, caller, since or HISTORY, as_json=json)
        return
    with reporting_errors(), open_database(context, config) as engine:
        then = None if moment is None else moment.stretch(engine)
        name = counted_caller(context, config, engine, caller)
        explained = explained_caller(engine, name, second_at(engine, begin), then)
        history, past, absence = explained.history, explained.past, explained.absence
        if json:
            json_lines([explained.as_object()])
        if absence is not None:
            say(str(absence), err=True)
            if explained.is_unknown:
                raise Exit(FOUND)
        if json:
            return
        flush_every = load_settings(context, config).analyzer.flush_every
        if then is None:
            show(explanation(engine, explained, flush_every))
            return
        show(past_locks(past, f"at {at}"))
        if not past:
            show(nearest_locks(history, *then))
        show(overshoot_sentences(engine, past, flush_every))


def _ask(server: str, token_file: Path | None, caller: str, since: str, *, as_json: bool) -> None:
    """Prints what a server says of a caller. Exits with 1 if nothing is known of it."""
    with asking(server, token_file) as connection:
        answer = connection.read("/v1/explain", {"caller": caller, "since": since, "texts": True})
    texts = answer.pop("texts")
    if as_json:
        json_lines([answer])
    if texts["absence"] is not None:
        say(texts["absence"], err=True)
    if texts["is_unknown"]:
        raise Exit(FOUND)
    if not as_json:
        show(parts_of(texts["parts"]))
