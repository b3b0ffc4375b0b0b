"""`gatelock upkeep db`: the version of the database's tables."""

from __future__ import annotations

from click import Context
from click.exceptions import Exit

from analyzer.faces.cli.exit_codes import FOUND, reporting_errors
from analyzer.faces.cli.options import ConfigOption, JsonOption, load_settings
from analyzer.faces.cli.output import json_lines, outcome, say
from analyzer.kernel.database import engine, migrate, revisions


def upgrade(context: Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Upgrade the tables to this program's version.

    Creates them in an empty database. Changes nothing if they have this version. Refuses tables that an
    unreleased version has made, and says how to create the database again.

    Example: gatelock upkeep db upgrade
    """
    with reporting_errors():
        settings = load_settings(context, config)

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


def check(context: Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Compare the tables with those that this program needs.

    Prints a sentence for each difference, with what to do: tables, columns and indexes that are missing,
    changed or not needed. Exit code 1 if anything differs.

    Example: gatelock upkeep db upgrade --check
    """
    with reporting_errors():
        settings = load_settings(context, config)

        engine.require_file(settings.database.address)
        revision, head = revisions.current(settings.database.address), revisions.head()
        problem = revisions.schema_problem(revision, settings.database.address)
        differences = [str(problem)] if problem else migrate.check(settings.database.address)
        if json:
            json_lines([{"current": revision, "head": head, "differences": differences}])
        else:
            for sentence in differences or [f"the tables are at version {head}, and nothing differs"]:
                say(f"{settings.database.shown}: {sentence}")
        if differences:
            raise Exit(FOUND)
