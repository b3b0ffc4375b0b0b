"""`gatelock db`: the database's tables."""

from __future__ import annotations

import typer

from analyzer.cli.exit_codes import FOUND, reporting_errors
from analyzer.cli.options import ConfigOption, JsonOption, must_exist, settings_of

app = typer.Typer(help="The database's tables.", no_args_is_help=True)


@app.command()
def upgrade(context: typer.Context, config: ConfigOption = None) -> None:
    """Bring the tables to this program's version. Again changes nothing."""
    with reporting_errors():
        settings = settings_of(context, config)
        from analyzer.store.database import migrate, revisions

        before = revisions.current(settings.database.address)
        migrate.upgrade(settings.database.address)
        now = revisions.current(settings.database.address)
        what = (
            f"were already at version {now}"
            if before == now
            else f"are at version {now} (from {before or 'none'})"
        )
        typer.echo(f"{settings.database.shown}: the tables {what}")


@app.command()
def check(context: typer.Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Find what differs from the tables that this program needs.

    Exit code 1 when something does.
    """
    with reporting_errors():
        settings = settings_of(context, config)
        must_exist(settings)
        from analyzer.cli.output import json_lines
        from analyzer.store.database import migrate, revisions

        have, need = revisions.current(settings.database.address), revisions.head()
        differences = migrate.check(settings.database.address)
        if json:
            json_lines([{"current": have, "head": need, "differences": differences}])
        else:
            typer.echo(f"{settings.database.shown}: the tables are at version {have or 'none'} of {need}")
            typer.echo("\n".join(differences) if differences else "nothing differs")
        if have != need or differences:
            raise typer.Exit(FOUND)


@app.command()
def current(context: typer.Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Say of which version the tables are."""
    with reporting_errors():
        settings = settings_of(context, config)
        must_exist(settings)
        from analyzer.cli.output import json_lines
        from analyzer.store.database import revisions

        have = revisions.current(settings.database.address)
        if json:
            json_lines([{"current": have, "head": revisions.head()}])
        else:
            typer.echo(have or "none")
