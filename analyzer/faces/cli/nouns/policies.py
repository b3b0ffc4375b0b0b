"""`gatelock policies`: the policies in force, what they have done, and putting others in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.faces.answers.foreseen_acts import Foreseen
from analyzer.faces.cli.confirmation import YesOption, is_confirmed
from analyzer.faces.cli.exit_codes import FOUND, reporting_errors
from analyzer.faces.cli.options import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    ReasonOption,
    SinceOption,
    load_settings,
    open_database,
    parse_time,
    require_name,
    require_reason,
    second_at,
)
from analyzer.faces.cli.output import say
from analyzer.judging.judged_changes import JudgedChanges

if TYPE_CHECKING:
    from collections.abc import Mapping

    from analyzer.flush.analyzers import AppliedPlan
    from analyzer.plan.policies import Policy

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
            from analyzer.faces.cli.output import json_lines, table
            from analyzer.judging.kinds import kind_of
            from analyzer.judging.policy_answers import listed_policies
            from analyzer.judging.sql.braked_policies import brake_texts
            from analyzer.judging.sql.plans import plan_in_force
            from analyzer.plan.plan_differences import differences
            from analyzer.plan.proposals import applied

            plan = plan_in_force(engine)
            policies = () if plan is None else plan.policies
            brakes = brake_texts(engine)
            described = [(policy, kind_of(policy).describe(policy)) for policy in policies]
            if json:
                json_lines(listed_policies(engine))
            else:
                rows = [[policy.name, policy.kind, _mode(policy, brakes), what] for policy, what in described]
                table(["policy", "kind", "mode", "what"], rows, "no policy is in force: no caller is locked")
            if plan is None or not settings.sources:
                return
            if lines := differences(plan, applied(plan, settings.plan(), prune=False)):
                say("this configuration is not in force:", err=True)
                for line in lines:
                    say(f"  {line}", err=True)
                raise typer.Exit(FOUND)


@app.command()
def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The policy, as `policies list` names it.")],
    since: SinceOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show what a policy does, and what it and its candidate have done.

    Lists the locks of the last seven days, or since a time: how many, of how many series, how many are in
    force, and what came while they lasted. In shadow that would have been refused; of enforced locks it came
    before the gates knew. Exit code 2 if no such policy is in force.

    Example: gatelock policies show daily --since 30d
    """
    begin = parse_time(since or "7d")
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.faces.cli.output import json_lines, table
        from analyzer.judging.brakes import describe_brake
        from analyzer.judging.kinds import kind_of
        from analyzer.judging.locks.lock_outcomes import lock_outcomes, policy_outcomes
        from analyzer.judging.policy_answers import shown_policies
        from analyzer.judging.sql.braked_policies import brake_texts
        from analyzer.judging.sql.plans import plan_in_force
        from analyzer.kernel.time_texts import format_second
        from analyzer.plan.meter_units import amount_text
        from analyzer.plan.plan import Plan
        from analyzer.plan.policies import CANDIDATE, SHADOW

        plan, since_s = plan_in_force(engine) or Plan(), second_at(engine, begin)
        require_name("NAME", name, {policy.name for policy in plan.policies})
        shown = [policy for at in (name, name + CANDIDATE) if (policy := plan.policy(at)) is not None]
        if json:
            json_lines(shown_policies(engine, shown, since_s))
            return
        outcomes = policy_outcomes(lock_outcomes(engine, since_s * 1000, [policy.name for policy in shown]))
        brakes = brake_texts(engine)
        for policy in shown:
            say(kind_of(policy).describe(policy))
            if not policy.is_shadow:
                say(f"  {describe_brake(policy)}")
            if policy.name in brakes:
                say(f"  at this time: {brakes[policy.name]}; `gatelock events list` has the reason")
        units = {policy.name: policy.meter_unit for policy in shown}
        rows = [
            [
                one.policy,
                "would have locked" if one.action == SHADOW else f"locked ({one.action})",
                one.locks,
                one.series,
                one.in_force,
                amount_text(one.used, units[one.policy]),
            ]
            for one in outcomes
        ]
        columns = ["policy", "does", "locks", "series", "in force", "came meanwhile"]
        table(columns, rows, f"it has set no lock since {format_second(since_s)}", numbers=1)


@app.command()
def diff(context: typer.Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show in what this configuration differs from the plan in force.

    Changes nothing. Exit code 1 if it differs.

    Example: gatelock policies diff --config new.toml
    """
    with reporting_errors():
        settings = load_settings(context, config)
        with open_database(context, config) as engine:
            from analyzer.faces.cli.output import json_lines
            from analyzer.judging.sql.plans import plan_in_force
            from analyzer.plan.plan import Plan
            from analyzer.plan.plan_differences import differences
            from analyzer.plan.proposals import applied

            plan = plan_in_force(engine) or Plan()
            lines = differences(plan, applied(plan, settings.plan(), prune=False))
        if json:
            json_lines([{"differences": lines}])
        else:
            for line in lines or ["this configuration is in force"]:
                say(line)
        if lines:
            raise typer.Exit(FOUND)


@app.command()
def promote(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The policy, as `policies list` names it.")],
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    reason: ReasonOption = "",
    json: JsonOption = False,
) -> None:
    """Enforce a policy that is in shadow, or its candidate.

    The change holds for all analyzers, at once. It does not change the configuration file: the command prints
    what to write there. Exit code 1 if the policy has no candidate and is enforced already, 2 if no such
    policy is in force.

    Example: gatelock policies promote flood --reason "only crawlers in a week"
    """
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.faces.cli.operator import operator_name
        from analyzer.faces.cli.output import json_lines, plural
        from analyzer.faces.signals.status import shadow_locks
        from analyzer.flush.analyzers import promote_policy
        from analyzer.judging.sql.plans import plan_in_force
        from analyzer.plan.plan import Plan
        from analyzer.plan.policies import CANDIDATE
        from analyzer.plan.proposals import promoted

        plan = plan_in_force(engine) or Plan()
        require_name("NAME", name, {policy.name for policy in plan.policies if "/" not in policy.name})
        if promoted(plan, name) is None:
            say(f"{name} is enforced, and has no candidate", err=True)
            raise typer.Exit(FOUND)
        has_candidate = plan.policy(name + CANDIDATE) is not None
        waiting = shadow_locks(engine, name + CANDIDATE if has_candidate else name)
        done = promote_policy(engine, name, operator_name(), reason, is_shown_only=dry_run)
        if json:
            fields = {"plan": done.version, "differences": list(done.differences), "shadow_locks": waiting}
            json_lines([fields | {"changed": not dry_run} | JudgedChanges(done.judged).fields])
            return
        for line in done.differences:
            say(line)
        say(f"in shadow it has {plural(waiting, 'lock')} at this time")
        if dry_run:
            would = f"; {JudgedChanges(done.judged).sentence}"
            say(f"nothing was changed; without --dry-run, these differences come in force{would}")
            return
        what = "the settings of its candidate, and no candidate" if has_candidate else "no mode"
        say(f"in force as plan {done.version}{JudgedChanges(done.judged).addition}")
        say(f"write it into the configuration, too: [[policies]] {name} with {what}")


@app.command()
def release(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The policy, as `policies list` names it.")],
    reason: ReasonOption,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Enforce a policy again that its brake holds in shadow.

    Gates get the locks that it has in shadow, at once, and the brake does not put it in shadow again: from
    then on it counts as older than a day. --dry-run says how many locks that are. Exit code 1 if the brake
    does not hold the policy, 2 if no such policy is in force.

    Example: gatelock policies release daily --reason "a real flood"
    """
    why = require_reason(reason)
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.faces.cli.operator import operator_name
        from analyzer.faces.cli.output import json_lines, plural
        from analyzer.faces.signals.status import shadow_locks
        from analyzer.judging.locks.lock_feed import new_mark
        from analyzer.judging.sql.braked_policies import brake_states, release_policy
        from analyzer.judging.sql.plans import plan_in_force
        from analyzer.plan.plan import Plan

        plan = plan_in_force(engine) or Plan()
        require_name("NAME", name, {policy.name for policy in plan.policies if "/" not in policy.name})
        state = brake_states(engine).get(name)
        if state is None or state.braked_ms is None:
            say(f"the brake does not hold {name}", err=True)
            raise typer.Exit(FOUND)
        waiting = shadow_locks(engine, name)
        done = None if dry_run else release_policy(engine, name, operator_name(), why, new_mark)
        if json:
            fields = {"policy": name, "why": state.why, "shadow_locks": waiting, "changed": done is not None}
            json_lines([fields | ({} if done is None else JudgedChanges(done.judged).fields)])
            return
        say(state.why)
        if done is None:
            say(f"nothing was changed; without --dry-run, gates get {plural(waiting, 'lock')} at once")
        else:
            say(f"{name} is enforced again: {plural(done.locks, 'lock')} in shadow are in force now")


@app.command()
def history(context: typer.Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show the plans that came in force, the latest first.

    Lists for each its time, its number, who put it in force, and in what it differed from the plan before.
    `gatelock locks list --json` and the history of locks name the plan that has earned a lock.

    Example: gatelock policies history
    """
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.faces.cli.output import json_lines, table
        from analyzer.judging.policy_answers import HISTORY_COLUMNS, plan_history

        rows = plan_history(engine)
        if json:
            json_lines(dict(zip(HISTORY_COLUMNS, row, strict=True)) for row in rows)
        else:
            table(HISTORY_COLUMNS, rows, "no plan was ever put in force")


@app.command("apply")
def apply(
    context: typer.Context,
    config: ConfigOption = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove what is in force and not in this configuration.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    reason: ReasonOption = "",
    json: JsonOption = False,
) -> None:
    """Put the configuration in force now, for all analyzers.

    An analyzer does this itself when its file was edited since its last start. What is in force and missing
    in this configuration stays, because machines may read different files; --prune removes it. Asks before
    it stops enforcing a policy.

    Example: gatelock policies apply --config /etc/gatelock/gatelock.toml
    """
    with reporting_errors():
        settings = load_settings(context, config)
        with open_database(context, config) as engine:
            from analyzer.faces.cli.operator import operator_name
            from analyzer.flush.analyzers import apply_file
            from analyzer.plan.plan_differences import in_words

            def apply_now(*, is_shown_only: bool) -> AppliedPlan:
                return apply_file(
                    engine, settings.plan(), operator_name(), reason,
                    is_pruned=prune, is_shown_only=is_shown_only,
                )  # fmt: skip

            done = apply_now(is_shown_only=True)
            if not dry_run:
                foreseen = Foreseen(
                    [in_words([*done.differences]), done.stopped], is_asked=bool(done.stopped)
                )
                is_confirmed(foreseen, yes=yes, dry_run=False, as_json=json)
                done = apply_now(is_shown_only=False)
        for name in done.behind:
            say(f"{name} runs an earlier version and cannot read this plan: upgrade it", err=True)
        if json:
            from analyzer.faces.cli.output import json_lines

            is_changed = bool(done.differences) and not dry_run
            fields = {"plan": done.version, "differences": list(done.differences), "changed": is_changed}
            json_lines([fields | {"stopped": done.stopped} | JudgedChanges(done.judged).fields])
            return
        for line in [*done.differences, *([done.stopped] if done.stopped else [])]:
            say(line)
        if not done.differences:
            say(f"nothing to change: this configuration is in force (plan {done.version})")
        elif dry_run:
            say("nothing was changed; without --dry-run, these differences come in force")
        else:
            say(f"in force as plan {done.version}{JudgedChanges(done.judged).addition}")


def _mode(policy: Policy, brakes: Mapping[str, str]) -> str:
    if policy.name in brakes:
        return f"braked: {brakes[policy.name]}"
    return "shadow" if policy.is_shadow else "enforce"
