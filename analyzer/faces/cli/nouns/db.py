"""`gatelock db`: the version of the database's tables."""

from __future__ import annotations

import typer

from analyzer.faces.cli.exit_codes import FOUND, reporting_errors
from analyzer.faces.cli.options import ConfigOption, JsonOption, load_settings
from analyzer.faces.cli.output import outcome, say

app = typer.Typer(help="The version of the database's tables.", no_args_is_help=True)


@app.command()
def upgrade(context: typer.Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Upgrade the tables to this program's version.

    Creates them in an empty database. Changes nothing if they have this version.

    Example: gatelock db upgrade
    """
    with reporting_errors():
        settings = load_settings(context, config)
        from analyzer.kernel.database import migrate, revisions

        before = revisions.current(settings.database.address)
        migrate.upgrade(settings.database.address)
        now = revisions.current(settings.database.address)
        what = (
            f"were already at version {now}"
            if before == now
            else f"are at version {now} (from {before or 'none'})"
        )
        fields = {"database": settings.database.shown, "current": now, "before": before}
        outcome(f"{settings.database.shown}: the tables {what}", fields, as_json=json)


@app.command()
def check(context: typer.Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Compare the tables with those that this program needs.

    Finds missing and changed columns, too. Exit code 1 if anything differs.

    Example: gatelock db check
    """
    with reporting_errors():
        settings = load_settings(context, config)
        from analyzer.faces.cli.output import json_lines
        from analyzer.kernel.database import engine, migrate, revisions

        engine.require_file(settings.database.address)
        revision, head = revisions.current(settings.database.address), revisions.head()
        differences = migrate.check(settings.database.address)
        if json:
            json_lines([{"current": revision, "head": head, "differences": differences}])
        else:
            tables = f"the tables are at version {revision} of {head}" if revision else "there are no tables"
            say(f"{settings.database.shown}: {tables}")
            say("\n".join(differences) if differences else "nothing differs")
        if revision != head or differences:
            raise typer.Exit(FOUND)


@app.command()
def current(context: typer.Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Print the version of the tables.

    Example: gatelock db current
    """
    with reporting_errors():
        settings = load_settings(context, config)
        from analyzer.faces.cli.output import json_lines
        from analyzer.kernel.database import engine, revisions

        engine.require_file(settings.database.address)
        found = revisions.current(settings.database.address)
        if json:
            json_lines([{"current": found, "head": revisions.head()}])
        else:
            say(found or "none")
