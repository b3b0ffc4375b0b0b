"""`gatelock notices`: thresholds of policies that were reached."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.faces.cli.exit_codes import FOUND, reporting_errors
from analyzer.faces.cli.options import (
    ConfigOption,
    JsonOption,
    SinceOption,
    counted_caller,
    open_database,
    parse_time,
    second_at,
)
from analyzer.faces.cli.output import say

if TYPE_CHECKING:
    from analyzer.judging.sql.raised_notices import RaisedNotice

app = typer.Typer(no_args_is_help=True)


@app.callback()
def notices() -> None:  # with a callback, typer does not take the one command for the group
    """Thresholds of policies that were reached."""


@app.command("list")
def list_(
    context: typer.Context,
    config: ConfigOption = None,
    json: JsonOption = False,
    since: SinceOption = None,
    caller: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this caller, with its kind in front: api_key:acme."),
    ] = None,
) -> None:
    """Show the notices, the latest first.

    Lists for each notice its time, the series, the policy, the threshold and what was counted when it was
    reached. A threshold is reached once per series and window; in a rolling window again when the sum was
    below it. JSON has an id, which is the same for the same
    threshold, series and window also after the database was restored from a backup.

    Example: gatelock notices list --since 7d --caller api_key:acme
    """
    begin = parse_time(since)
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.callers.counted_names import never_counted
        from analyzer.faces.cli.output import json_lines, table
        from analyzer.judging.earned_notices import percent
        from analyzer.judging.sql.raised_notices import raised_notices

        key = None if caller is None else counted_caller(context, config, engine, caller)
        notices = raised_notices(engine, second_at(engine, begin) * 1000, key)
        first = next(notices, None)
        found = iter(()) if first is None else chain([first], notices)
        if first is None and key is not None and (absence := never_counted(engine, key)) is not None:
            say(f"no threshold was reached, and {absence}", err=True)
            raise typer.Exit(FOUND)
        if json:
            json_lines(map(json_of, found))
            return
        names = ["at", "scope", "key", "resource", "policy", "threshold", "detail"]
        rows = (
            (
                *(fields["at"], fields["scope"], fields["key"], fields["resource"], fields["policy"]),
                percent(raised.notice.at.threshold),
                fields["detail"],
            )
            for raised in found
            for fields in [json_of(raised)]
        )
        table(names, rows, "no threshold was reached")


def json_of(raised: RaisedNotice) -> dict[str, object]:
    """Returns a notice as `--json` prints it."""
    from datetime import UTC, datetime

    from analyzer.judging.earned_notices import LASTS_S
    from gatekeeper.feed.feed_json import time_text

    notice = raised.notice
    window = [
        None if at_s == LASTS_S else time_text(datetime.fromtimestamp(at_s, UTC))
        for at_s in (notice.at.window_s, notice.until_s)
    ]
    return {
        "id": notice.at.id,
        "at": time_text(raised.at),
        "scope": notice.scope,
        "key": notice.at.key,
        "resource": notice.at.resource,
        "policy": notice.at.policy,
        "threshold": notice.at.threshold / 1_000,
        "used": notice.used,
        "limit": notice.limit,
        "from": window[0],
        "until": window[1],
        "detail": notice.detail,
    }
