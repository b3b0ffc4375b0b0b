"""`gatelock locks`: the gates that are closed."""

from __future__ import annotations

from typing import Annotated

import typer

from analyzer.cli.ending import told
from analyzer.cli.given import Config, Json, database_of

app = typer.Typer(help="The gates that are closed.", no_args_is_help=True)


@app.callback()
def locks() -> None:
    """The gates that are closed."""


@app.command("list")
def list_(
    context: typer.Context,
    config: Config = None,
    json: Json = False,
    caller: Annotated[str | None, typer.Option(help="Only those of this one, as in api_key:acme.")] = None,
    policy: Annotated[str | None, typer.Option(help="Only those of this one.")] = None,
) -> None:
    """Show the locks in force.

    Each with its policy, its reason and its end; those that end last come first.
    """
    with told(), database_of(context, config) as engine:
        from analyzer.cli.show import json_lines, table
        from analyzer.store.glance import locks_in_force
        from gatekeeper.model import Set
        from gatekeeper.wire import change_fields, time_text

        found = locks_in_force(engine, caller, policy)
        if json:
            each = (change_fields(Set(lock)) for lock in found)
            json_lines({name: value for name, value in lock.items() if name != "op"} for lock in each)
            return
        rows = (
            (
                time_text(lock.until),
                lock.scope,
                lock.key,
                lock.resource,
                lock.policy,
                lock.status,
                lock.detail,
            )
            for lock in found
        )
        table(["until", "scope", "key", "resource", "policy", "status", "detail"], rows, "no gate is closed")
