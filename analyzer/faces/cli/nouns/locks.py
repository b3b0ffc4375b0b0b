"""`gatelock locks`: the locks in force, and the off switch of the fleet."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.faces.cli.confirmation import YesOption, is_confirmed
from analyzer.faces.cli.exit_codes import FOUND, reporting_errors
from analyzer.faces.cli.lock_options import (
    ActionOption,
    FileOption,
    OfAddressOption,
    OfCallerOption,
    OfEveryoneOption,
    OfPolicyOption,
    OfResourceOption,
    OfTenantOption,
    RateOption,
    StatusOption,
    as_counted,
    effect_of,
    series_of,
)
from analyzer.faces.cli.options import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    ReasonOption,
    counted_caller,
    load_settings,
    open_database,
    parse_length_ms,
    require_name,
    require_reason,
)
from analyzer.faces.cli.output import say

if TYPE_CHECKING:
    import sqlalchemy as sa

    from analyzer.config.settings import Settings
    from gatekeeper.model import Lock

SUSPENDED_MAX_DAYS = 30  # for longer, remove the gates from the applications
BY_HAND_MAX_DAYS = 366  # for longer, a policy
LockForOption = Annotated[
    str, typer.Option("--for", metavar="LENGTH", help="Time from now until it ends: 30m, 2h, 7d.")
]

app = typer.Typer(help="Locks in force, and the switch that opens every gate.", no_args_is_help=True)


@app.command("list")
def list_(
    context: typer.Context,
    config: ConfigOption = None,
    json: JsonOption = False,
    caller: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this caller, with its kind in front: api_key:acme."),
    ] = None,
    policy: Annotated[str | None, typer.Option(metavar="NAME", help="Only this policy.")] = None,
    shadow: Annotated[
        bool, typer.Option("--shadow", help="Locks of policies in shadow, which no gate gets.")
    ] = False,
) -> None:
    """Show the locks in force.

    Lists for each lock its begin, end, policy, action and detail; the lock that ends last comes first. While
    the locks are suspended, a line on stderr reports it; so does one for each lock that no gate has met
    although requests of its caller are still counted. Exit code 1 if --caller was never counted.

    Example: gatelock locks list --caller api_key:acme
    """
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.faces.cli.output import json_lines, table
        from analyzer.judging.locks.lock_answers import lock_fields
        from analyzer.judging.locks.stored_locks import locks_in_force
        from analyzer.judging.locks.suspension import suspended_until
        from gatekeeper.feed.feed_json import time_text

        key = caller and counted_caller(context, config, engine, caller)
        if (until := suspended_until(engine)) is not None:
            cure = "`gatelock locks resume --reason TEXT`"
            say(f"no lock is enforced until {time_text(until)}: {cure}", err=True)
        locks = locks_in_force(engine, key, policy, in_shadow=shadow)
        first = next(locks, None)
        if first is None:
            _require_known(engine, load_settings(context, config), key, policy)
        found = chain([] if first is None else [first], locks)
        if json:
            json_lines(map(lock_fields, found))
            if not shadow:
                _warn_of_unmet(engine, key, policy)
            return
        rows = (
            (
                time_text(lock.began),
                time_text(lock.until),
                lock.scope,
                lock.key,
                lock.resource,
                lock.policy,
                describe_action(lock),
                lock.detail,
            )
            for lock in found
        )
        empty = "no lock matches" if key or policy or shadow else "no lock is in force"
        table(["since", "until", "scope", "key", "resource", "policy", "does", "detail"], rows, empty)
        if not shadow:
            _warn_of_unmet(engine, key, policy)


def _warn_of_unmet(engine: sa.Engine, key: str | None, policy: str | None) -> None:
    """Writes a line on stderr for each lock that no gate has met although its caller is still counted."""
    from analyzer.faces.cli.nouns.gates import describe_unmet
    from analyzer.gates.gate_health import living_gates, met_locks
    from analyzer.gates.gate_reports import reporting_gates
    from analyzer.gates.unmet_locks import unmet_locks

    met = met_locks(living_gates(reporting_gates(engine)))
    for unmet in unmet_locks(engine, met, key=key, policy=policy):
        say(describe_unmet(unmet), err=True)


@app.command()
def suspend(
    context: typer.Context,
    for_: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="LENGTH",
            help=f"Time until the locks are enforced again: 30m, 2h, 1d; at most {SUSPENDED_MAX_DAYS}d.",
        ),
    ],
    reason: ReasonOption,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Open every gate for a time: the off switch.

    Gates follow within one poll. Requests are counted and locks are set as before, but no lock is enforced;
    limiters in the applications are not affected. Running it again replaces the end.

    Example: gatelock locks suspend --for 30m --reason INC-311
    """
    length_ms, why = parse_length_ms("--for", for_, SUSPENDED_MAX_DAYS), require_reason(reason)
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.faces.cli.operator import operator_name
        from analyzer.faces.cli.output import outcome
        from analyzer.judging.locks.lock_feed import new_mark
        from analyzer.judging.locks.suspension import suspend as suspend_locks
        from gatekeeper.feed.feed_json import time_text

        until = suspend_locks(engine, length_ms, operator_name(), why, new_mark)
        text = time_text(until)
        outcome(f"every gate is open until {text}", {"suspended_until": text}, as_json=json)


@app.command()
def resume(
    context: typer.Context, reason: ReasonOption, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """End `suspend`: the gates enforce their locks again.

    Gates follow within one poll. Exit code 1 if the locks are not suspended.

    Example: gatelock locks resume --reason "INC-311 is resolved"
    """
    why = require_reason(reason)
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.faces.cli.operator import operator_name
        from analyzer.faces.cli.output import outcome
        from analyzer.judging.locks.lock_feed import new_mark
        from analyzer.judging.locks.suspension import resume as resume_locks

        if not resume_locks(engine, operator_name(), why, new_mark):
            say("the locks are not suspended: the gates enforce them", err=True)
            raise typer.Exit(FOUND)
        outcome("the gates enforce their locks again", {"suspended_until": None}, as_json=json)


@app.command("set")
def set_(
    context: typer.Context,
    for_: LockForOption,
    reason: ReasonOption,
    caller: OfCallerOption = None,
    tenant: OfTenantOption = None,
    address: OfAddressOption = None,
    resource: OfResourceOption = None,
    everyone: OfEveryoneOption = False,
    file: FileOption = None,
    action: ActionOption = "deny",
    status: StatusOption = 429,
    rate: RateOption = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Lock a client by hand, for a time.

    The lock stands beside those of policies, which are judged as before; the reason is what a refused client
    reads. Gates follow within one poll. Running it again replaces the end.

    Example: gatelock locks set --address 203.0.113.0/24 --for 2h --reason WHY
    """
    wanted = series_of(caller, tenant, address, resource, file, everyone=everyone)
    effect, why = effect_of(action, status, rate), require_reason(reason)
    length_ms = parse_length_ms("--for", for_, BY_HAND_MAX_DAYS)
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.faces.cli.operator import operator_name
        from analyzer.judging.locks.lock_feed import new_mark
        from analyzer.judging.locks.locks_by_hand import ByHand, set_locks

        named = as_counted(wanted, load_settings(context, config), engine)
        act = ByHand(operator_name(), why, dry_run)
        locks = set_locks(engine, named, length_ms, effect, act, new_mark)
        _show_changed([(lock, "set") for lock in locks], is_shown_only=dry_run, as_json=json)


@app.command()
def extend(
    context: typer.Context,
    for_: LockForOption,
    reason: ReasonOption,
    caller: OfCallerOption = None,
    tenant: OfTenantOption = None,
    address: OfAddressOption = None,
    resource: OfResourceOption = None,
    everyone: OfEveryoneOption = False,
    file: FileOption = None,
    policy: OfPolicyOption = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Let locks last longer: until a time from now.

    A lock of a policy ends as the policy says; one that is set by hand, with the same effect, lasts on. Exit
    code 1 if there is no lock that ends before.

    Example: gatelock locks extend --caller user:ann --for 1d --reason INC-311
    """
    wanted = series_of(caller, tenant, address, resource, file, everyone=everyone)
    length_ms, why = parse_length_ms("--for", for_, BY_HAND_MAX_DAYS), require_reason(reason)
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.faces.cli.operator import operator_name
        from analyzer.judging.locks.lock_feed import new_mark
        from analyzer.judging.locks.locks_by_hand import ByHand, extend_locks

        named = as_counted(wanted, load_settings(context, config), engine)
        act = ByHand(operator_name(), why, dry_run)
        locks = extend_locks(engine, named, policy, length_ms, act, new_mark)
        if not locks:
            say("no lock ends before that", err=True)
            raise typer.Exit(FOUND)
        _show_changed([(lock, "extended") for lock in locks], is_shown_only=dry_run, as_json=json)


@app.command()
def clear(
    context: typer.Context,
    reason: ReasonOption,
    caller: OfCallerOption = None,
    tenant: OfTenantOption = None,
    address: OfAddressOption = None,
    resource: OfResourceOption = None,
    everyone: OfEveryoneOption = False,
    file: FileOption = None,
    policy: OfPolicyOption = None,
    hold_off: Annotated[
        str | None,
        typer.Option(
            "--hold-off",
            metavar="LENGTH",
            help="Not set again before: 2h, 1d; none: at once. Default: the end of the lock.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Clear locks now, and do not set them again for a time.

    Requests are counted as before. The lock is not set again until it would have ended, or for as long as
    --hold-off says, through later requests and restarts; then the caller is judged again. Asks before it
    clears more than ten. Exit code 1 without such a lock.

    Example: gatelock locks clear --caller user:ann --hold-off 1d --reason WHY
    """
    wanted = series_of(caller, tenant, address, resource, file, everyone=everyone)
    why, held_ms = require_reason(reason), None
    if hold_off is not None:
        held_ms = 0 if hold_off == "none" else parse_length_ms("--hold-off", hold_off, BY_HAND_MAX_DAYS)
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.faces.answers.foreseen_acts import cleared_locks
        from analyzer.faces.cli.operator import operator_name
        from analyzer.judging.locks.lock_feed import new_mark
        from analyzer.judging.locks.locks_by_hand import ByHand, clear_locks
        from analyzer.kernel.database.clock import instant
        from gatekeeper.feed.feed_json import time_text

        named = as_counted(wanted, load_settings(context, config), engine)
        act = ByHand(operator_name(), why, is_shown_only=True)
        cleared = clear_locks(engine, named, policy, held_ms, act, new_mark)
        if cleared and not dry_run:
            foreseen = cleared_locks([f"{one.lock.scope} {one.lock.key}" for one in cleared])
            is_confirmed(foreseen, yes=yes, dry_run=False, as_json=json)
            cleared = clear_locks(engine, named, policy, held_ms, act._replace(is_shown_only=False), new_mark)
        if not cleared:
            say("no such lock is in force", err=True)
            raise typer.Exit(FOUND)
        ends = {one.lock.at: time_text(instant(one.held_off_ms)) for one in cleared if one.held_off_ms}
        shown = [
            (one.lock, f"cleared until {ends[one.lock.at]}" if one.lock.at in ends else "cleared")
            for one in cleared
        ]
        _show_changed(shown, is_shown_only=dry_run, as_json=json)


def _show_changed(changed: list[tuple[Lock, str]], *, is_shown_only: bool, as_json: bool) -> None:
    """Prints the locks that a command has changed, or would change."""
    from analyzer.faces.cli.output import json_lines
    from analyzer.judging.locks.lock_answers import changed_fields
    from gatekeeper.feed.feed_json import time_text

    if as_json:
        json_lines(changed_fields(lock, done, is_changed=not is_shown_only) for lock, done in changed)
        return
    for lock, done in changed:
        series = " ".join(part for part in (lock.scope, lock.key, lock.resource) if part)
        say(f"{done}: {series}, {describe_action(lock)} by {lock.policy} until {time_text(lock.until)}")
    if is_shown_only:
        say("nothing was changed; without --dry-run, this is done")


def _require_known(engine: sa.Engine, settings: Settings, caller: str | None, policy: str | None) -> None:
    """Exits with 2 for a policy that does not exist, with 1 for a caller that was never counted."""
    from analyzer.callers.counted_names import never_counted
    from analyzer.judging.sql.plans import active
    from analyzer.kernel.database.engine import reading
    from analyzer.kernel.errors import SchemaBehind

    known = {policy.name for policy in settings.policies}
    with suppress(SchemaBehind, LookupError), reading(engine) as db:
        known |= {policy.name for policy in active(db)[1].policies}
    require_name("--policy", policy, known)
    if caller is not None and (absence := never_counted(engine, caller)) is not None:
        say(f"no lock is in force, and {absence}", err=True)
        raise typer.Exit(FOUND)


def describe_action(lock: Lock) -> str:
    """The lock's action with its status or rate.

    >>> from datetime import UTC, datetime
    >>> from gatekeeper.model import Lock, Rate
    >>> now = datetime.now(UTC)
    >>> describe_action(Lock("caller", "user:ann", "p", now, now))
    'deny 429'
    >>> describe_action(Lock("caller", "user:ann", "p", now, now, action="slow", slow=Rate(10, 60.0)))
    'slow 10/60s'
    """
    if lock.action == "deny":
        return f"deny {lock.status}"
    return lock.action if lock.slow is None else f"slow {lock.slow.limit:,}/{lock.slow.period:g}s"
