"""`gatelock tokens`: who may ask over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from analyzer.cli.exit_codes import FOUND, reporting_errors, usage_error
from analyzer.cli.operator import operator_name
from analyzer.cli.options import ConfigOption, JsonOption, ReasonOption, database_of, length_given_ms

app = typer.Typer(help="Who may ask over HTTP.", no_args_is_help=True)

EXPIRES_MAX_DAYS = 100 * 366  # more is a slip of the hand

TokenName = Annotated[str, typer.Argument(help="Who will show it: one token for each application.")]


@app.command("create")
def create(
    context: typer.Context,
    name: TokenName,
    scope: Annotated[str, typer.Option(help="read: gates and monitors; operate; admin.")],
    expires: Annotated[
        str | None, typer.Option(help="How long it is good for, as in 90d; else until it is revoked.")
    ] = None,
    reason: ReasonOption = "",
    config: ConfigOption = None,
) -> None:
    """Make a token and print it, this once.

    Only a digest of it is stored.
    """
    from analyzer.config.values import NAME
    from analyzer.store.operations.tokens import SCOPES
    from analyzer.store.operations.tokens import create as make

    if not NAME.fullmatch(name):
        raise usage_error(
            f"{name!r} is no name: use up to 64 letters, digits, points, hyphens and underscores"
        )
    found = next((each for each in SCOPES if each == scope), None)
    if found is None:
        raise usage_error(f"{scope!r} is no scope: use {', '.join(SCOPES)}")
    expires_ms = None if expires is None else length_given_ms("--expires", expires, EXPIRES_MAX_DAYS)
    with reporting_errors(), database_of(context, config) as engine:
        typer.echo(make(engine, name, found, expires_ms, operator_name(), reason))


@app.command("list")
def list_(context: typer.Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show who holds a token: what it allows, since when, until when."""
    with reporting_errors(), database_of(context, config) as engine:
        from analyzer.cli.output import json_lines, table
        from analyzer.store.database.clock import instant
        from analyzer.store.operations.tokens import stored_tokens
        from gatekeeper.feed.feed_json import time_text

        held = stored_tokens(engine)
        names = ["name", "scope", "made", "until", "state"]
        rows = [
            (
                token.name,
                token.scope,
                time_text(instant(token.made_ms)),
                None if token.until_ms is None else time_text(instant(token.until_ms)),
                "good" if held.is_valid(token) else "expired",
            )
            for token in held.tokens
        ]
        if json:
            json_lines(dict(zip(names, row, strict=True)) for row in rows)
        else:
            table(names, [[cell or "" for cell in row] for row in rows], "there are no tokens")


@app.command("revoke")
def revoke(
    context: typer.Context, name: TokenName, reason: ReasonOption = "", config: ConfigOption = None
) -> None:
    """Refuse a token from now on; servers notice within two seconds."""
    from analyzer.store.operations.tokens import revoke as end

    with reporting_errors(), database_of(context, config) as engine:
        if not end(engine, name, operator_name(), reason):
            typer.echo(f"there is no token named {name}: `gatelock tokens list` names them", err=True)
            raise typer.Exit(FOUND)
        typer.echo(f"{name} is revoked")
