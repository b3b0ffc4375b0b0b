"""`gatelock policies`: the policies in force, what they have done, and putting others in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from click import Context
from click.exceptions import Exit

from analyzer.acting.foreseen import Foreseen
from analyzer.faces.cli.confirmation import YesOption, is_confirmed
from analyzer.faces.cli.described_options import Argument, Option
from analyzer.faces.cli.exit_codes import FOUND, reporting_errors
from analyzer.faces.cli.operator import operator_name
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
    second_at,
)
from analyzer.faces.cli.output import json_lines, say, table
from analyzer.flush.analyzers import apply_file
from analyzer.gates.gate_health import living_gates
from analyzer.gates.gate_reports import reporting_gates
from analyzer.gates.unasked_values import newly_unasked
from analyzer.judging.brakes import describe_brake
from analyzer.judging.judged_changes import JudgedChanges
from analyzer.judging.kinds import policy_kind
from analyzer.judging.locks.lock_outcomes import outcomes_by_policy
from analyzer.judging.policy_answers import shown_policies
from analyzer.judging.sql.braked_policies import brake_texts
from analyzer.judging.sql.plans import plan_in_force
from analyzer.kernel.time_texts import format_second
from analyzer.plan.meter_units import amount_text
from analyzer.plan.plan import Plan
from analyzer.plan.plan_differences import in_words
from analyzer.plan.policies import SHADOW

if TYPE_CHECKING:
    from analyzer.flush.analyzers import AppliedPlan


def show(
    context: Context,
    name: Annotated[str, Argument(metavar="NAME", help="The policy, as `policies list` names it.")],
    since: SinceOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Shows what the policy does, and what it and its candidate have done: the locks of the last seven
    days, or since a time, of how many series, how many are in force, and what came while they lasted. In
    shadow that would have been refused; of enforced locks it came before the gates knew. Exit code 2 if no
    such policy is in force.
    """
    begin = parse_time(since or "7d")
    with reporting_errors(), open_database(context, config) as engine:
        plan, since_s = plan_in_force(engine) or Plan(), second_at(engine, begin)
        require_name("NAME", name, plan.policy_names)
        shown = plan.family(name)
        if json:
            json_lines(shown_policies(engine, shown, since_s))
            return
        outcomes = outcomes_by_policy(engine, since_s * 1000, [policy.name for policy in shown])
        brakes = brake_texts(engine)
        for policy in shown:
            say(policy_kind(policy).describe(policy))
            if not policy.is_shadow:
                say(f"  {describe_brake(policy)}")
            if policy.name in brakes:
                say(f"  at this time: {brakes[policy.name]}; `gatelock upkeep events list` has the reason")
        units = {policy.name: policy.meter_unit for policy in shown}
        rows = [
            [
                outcome.policy,
                "would have locked" if outcome.action == SHADOW else f"locked ({outcome.action})",
                outcome.locks,
                outcome.series,
                outcome.in_force,
                amount_text(outcome.used, units[outcome.policy]),
            ]
            for outcome in outcomes
        ]
        columns = ["policy", "does", "locks", "series", "in force", "came meanwhile"]
        table(columns, rows, f"it has set no lock since {format_second(since_s)}", numbers=1)


def apply(
    context: Context,
    config: ConfigOption = None,
    prune: Annotated[
        bool, Option("--prune", help="Remove what is in force and not in this configuration.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    reason: ReasonOption = "",
    json: JsonOption = False,
) -> None:
    """Put the configuration in force now, for all analyzers.

    An analyzer does this itself when its file was edited since its last start. What is in force and missing
    in this configuration stays, because machines may read different files; --prune removes it. Asks before
    it stops enforcing a policy. Refuses to enforce one by a named value that a living gate does not take,
    with exit code 1. With --dry-run, exit code 1 if this configuration is not in force.

    Example: gatelock policies apply --config /etc/gatelock/gatelock.toml
    """
    with reporting_errors():
        settings = load_settings(context, config)
        with open_database(context, config) as engine:
            unasked = newly_unasked(
                plan_in_force(engine), settings.plan(), living_gates(reporting_gates(engine))
            )
            if unasked:
                say("\n".join(policy.text for policy in unasked), err=True)
                raise Exit(FOUND)

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
            is_changed = bool(done.differences) and not dry_run
            fields = {"plan": done.version, "differences": list(done.differences), "changed": is_changed}
            json_lines([fields | {"stopped": done.stopped} | JudgedChanges(done.judged).fields])
            _end(done, dry_run=dry_run)
            return
        for line in [*done.differences, *([done.stopped] if done.stopped else [])]:
            say(line)
        if not done.differences:
            say(f"nothing to change: this configuration is in force (plan {done.version})")
        elif dry_run:
            say("nothing was changed; without --dry-run, these differences come in force")
        else:
            say(f"in force as plan {done.version}{JudgedChanges(done.judged).addition}")
        _end(done, dry_run=dry_run)


def _end(done: AppliedPlan, *, dry_run: bool) -> None:
    """Exits with 1 where a plan is only compared, and differs."""
    if dry_run and done.differences:
        raise Exit(FOUND)
