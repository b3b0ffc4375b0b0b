"""The command line `gatelock`: verbs act on the installation, nouns manage one kind of thing.

Each command imports what it needs when it is called, so that help and completion are fast.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from typer.core import TyperGroup
except ImportError as missing:
    sys.exit(f"gatelock: {missing.name} is not installed; pip install 'gatelock[analyzer]'")

from analyzer.faces.cli.exit_codes import report_bug
from analyzer.faces.cli.nouns import (
    callers,
    days,
    db,
    events,
    exempt,
    gaps,
    gates,
    locks,
    notices,
    overrides,
    policies,
    rejects,
    replays,
    scheduled,
    sources,
    tokens,
)
from analyzer.faces.cli.options import CONFIG_HELP
from analyzer.faces.cli.output import say
from analyzer.faces.cli.verbs import (
    audit,
    check,
    demo,
    doctor,
    explain,
    import_,
    init,
    log_preview,
    report,
    run,
    serve,
    simulate,
    usage,
)


class Commands(TyperGroup):
    """The commands, with errors of arguments in plain words: typer's begin with the name of a class."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


app = typer.Typer(
    name="gatelock",
    cls=Commands,
    help="Counts the requests of every caller exactly, and locks callers that exceed their limit.",
    epilog="Exit codes: 0 success, 1 problem found, 2 wrong usage, 3 not reachable, 4 an error in gatelock.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help takes a third of the time
    pretty_exceptions_enable=False,  # they print local variables, which may be secrets
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        say(f"gatelock {version('gatelock')}")
        raise typer.Exit


@app.callback()
def gatelock(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help=CONFIG_HELP)] = None,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    context.obj = config


app.command("look")(log_preview.look)
app.command("init")(init.init)
app.command("run")(run.run)
app.command("serve")(serve.serve)
app.command("check")(check.check)
app.command("doctor")(doctor.doctor)
app.command("explain")(explain.explain)
app.command("usage")(usage.usage)
app.command("simulate")(simulate.simulate)
app.command("audit")(audit.audit)
app.command("import")(import_.import_)
app.command("demo")(demo.demo)
app.add_typer(report.app, name="report")
app.add_typer(locks.app, name="locks")
app.add_typer(notices.app, name="notices")
app.add_typer(policies.app, name="policies")
app.add_typer(callers.app, name="callers")
app.add_typer(days.app, name="days")
app.add_typer(overrides.app, name="overrides")
app.add_typer(exempt.app, name="exempt")
app.add_typer(gates.app, name="gates")
app.add_typer(sources.app, name="sources")
app.add_typer(events.app, name="events")
app.add_typer(gaps.app, name="gaps")
app.add_typer(scheduled.app, name="jobs")
app.add_typer(replays.app, name="replay")
app.add_typer(rejects.app, name="rejects")
app.add_typer(tokens.app, name="tokens")
app.add_typer(db.app, name="db")


def main() -> None:
    """Runs the command in `sys.argv`. No error reaches the terminal as a traceback."""
    try:
        app(prog_name="gatelock")
    except Exception as error:  # noqa: BLE001 - the last place that can turn it into a sentence
        sys.exit(report_bug(error))
