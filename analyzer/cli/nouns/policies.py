"""`gatelock policies`: the policies in force, and putting a configuration in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.cli.exit_codes import FOUND, reporting_errors
from analyzer.cli.judged_changes import JudgedChanges
from analyzer.cli.options import ConfigOption, JsonOption, load_settings, open_database
from analyzer.cli.output import say

if TYPE_CHECKING:
    from analyzer.core.judging.policies import Policy

app = typer.Typer(help="Policies in force, and the configuration they come from.", no_args_is_help=True)


@app.command("list")
def list_(context: typer.Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show the policies in force.

    Lists in what this configuration differs from them. Exit code 1 if it is not the one in force.

    Example: gatelock policies list
    """
    with reporting_errors():
        settings = load_settings(context, config)
        with open_database(context, config) as engine:
            from analyzer.cli.output import json_lines, table
            from analyzer.core.judging.kinds import kind_of
            from analyzer.core.judging.plan_differences import differences
            from analyzer.core.judging.proposals import applied
            from analyzer.store.transaction.analyzers import plan_in_force

            plan = plan_in_force(engine)
            policies = () if plan is None else plan.policies
            described = [(policy, kind_of(policy).describe(policy)) for policy in policies]
            if json:
                json_lines(_fields(policy, what) for policy, what in described)
            else:
                rows = [[policy.name, policy.kind, what] for policy, what in described]
                table(["policy", "kind", "what"], rows, "no policy is in force: no caller is locked")
            if plan is None or not settings.sources:
                return
            if lines := differences(plan, applied(plan, settings.plan(), prune=False)):
                say("this configuration is not in force:", err=True)
                for line in lines:
                    say(f"  {line}", err=True)
                raise typer.Exit(FOUND)


@app.command("apply")
def apply(
    context: typer.Context,
    config: ConfigOption = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove what is in force and not in this configuration.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the difference and change nothing.")
    ] = False,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Kept with your name; see `gatelock events list`.")
    ] = "",
    json: JsonOption = False,
) -> None:
    """Put the configuration in force now, for all analyzers.

    An analyzer does this itself when its file was edited since its last start. What is in force and missing
    in this configuration stays, because machines may read different files; --prune removes it.

    Example: gatelock policies apply --config /etc/gatelock/gatelock.toml
    """
    with reporting_errors():
        settings = load_settings(context, config)
        with open_database(context, config) as engine:
            from analyzer.cli.operator import operator_name
            from analyzer.store.transaction.analyzers import apply_file

            done = apply_file(
                engine, settings.plan(), operator_name(), reason, is_pruned=prune, is_shown_only=dry_run
            )
        for name in done.behind:
            say(f"{name} runs an earlier version and cannot read this plan: upgrade it", err=True)
        if json:
            from analyzer.cli.output import json_lines

            is_changed = bool(done.differences) and not dry_run
            fields = {"plan": done.version, "differences": list(done.differences), "changed": is_changed}
            json_lines([fields | JudgedChanges(done.judged).fields])
            return
        for line in done.differences:
            say(line)
        if not done.differences:
            say(f"nothing to change: this configuration is in force (plan {done.version})")
        elif dry_run:
            say("nothing was changed; without --dry-run, these differences come in force")
        else:
            say(f"in force as plan {done.version}{JudgedChanges(done.judged).addition}")


def _fields(policy: Policy, what: str) -> dict[str, str]:
    return {
        "name": policy.name,
        "kind": policy.kind,
        "per": policy.per,
        "meter": policy.meter,
        "what": what,
    }
