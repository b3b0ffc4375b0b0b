"""`gatelock locks`: the locks in force, and the off switch of the fleet."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.cli.exit_codes import FOUND, reporting_errors
from analyzer.cli.options import (
    ConfigOption,
    JsonOption,
    ReasonOption,
    load_settings,
    open_database,
    parse_length_ms,
    require_kind,
    require_name,
    require_reason,
)
from analyzer.cli.output import say

if TYPE_CHECKING:
    import sqlalchemy as sa

    from analyzer.config.settings import Settings
    from gatekeeper.model import Lock

SUSPENDED_MAX_DAYS = 30  # for longer, remove the gates from the applications

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
) -> None:
    """Show the locks in force.

    Lists for each lock its begin, end, policy, action and detail; the lock that ends last comes first. While
    the locks are suspended, a line on stderr reports it; so does one for each lock that no gate has met
    although requests of its caller are still counted. Exit code 1 if --caller was never counted.

    Example: gatelock locks list --caller api_key:acme
    """
    key = require_kind(caller)
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.cli.output import json_lines, table
        from analyzer.store.reports.status import locks_in_force, suspended_until
        from gatekeeper.feed.feed_json import change_fields, time_text
        from gatekeeper.model import Set

        if (until := suspended_until(engine)) is not None:
            say(f"no lock is enforced until {time_text(until)}: `gatelock locks resume`", err=True)
        locks = locks_in_force(engine, key, policy)
        first = next(locks, None)
        if first is None:
            _require_known(engine, load_settings(context, config), key, policy)
        found = chain([] if first is None else [first], locks)
        if json:
            objects = (change_fields(Set(lock)) for lock in found)
            json_lines({name: value for name, value in fields.items() if name != "op"} for fields in objects)
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
        empty = "no lock matches" if key or policy else "no lock is in force"
        table(["since", "until", "scope", "key", "resource", "policy", "does", "detail"], rows, empty)
        _warn_of_unmet(engine, key, policy)


def _warn_of_unmet(engine: sa.Engine, key: str | None, policy: str | None) -> None:
    """Writes a line on stderr for each lock that no gate has met although its caller is still counted."""
    from analyzer.cli.nouns.gates import describe_unmet
    from analyzer.core.fleet.gate_health import living_gates, met_locks
    from analyzer.store.reports.gate_reports import reporting_gates
    from analyzer.store.reports.unmet_locks import unmet_locks

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
        from analyzer.cli.operator import operator_name
        from analyzer.cli.output import outcome
        from analyzer.store.operations.suspension import suspend as suspend_locks
        from analyzer.store.transaction.lock_feed import new_mark
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
        from analyzer.cli.operator import operator_name
        from analyzer.cli.output import outcome
        from analyzer.store.operations.suspension import resume as resume_locks
        from analyzer.store.transaction.lock_feed import new_mark

        if not resume_locks(engine, operator_name(), why, new_mark):
            say("the locks are not suspended: the gates enforce them", err=True)
            raise typer.Exit(FOUND)
        outcome("the gates enforce their locks again", {"suspended_until": None}, as_json=json)


def _require_known(engine: sa.Engine, settings: Settings, caller: str | None, policy: str | None) -> None:
    """Exits with 2 for a policy that does not exist, with 1 for a caller that was never counted."""
    from analyzer.config.values import closest
    from analyzer.errors import SchemaBehind
    from analyzer.store.database.engine import reading
    from analyzer.store.reports.usage_windows import recent_keys, was_counted
    from analyzer.store.transaction.plans import active

    known = {policy.name for policy in settings.policies}
    with suppress(SchemaBehind, LookupError), reading(engine) as db:
        known |= {policy.name for policy in active(db)[1].policies}
    require_name("--policy", policy, known)
    if caller is not None and not was_counted(engine, "caller", caller):
        match = closest(caller, recent_keys(engine, "caller"))
        sentence = f"no lock is in force, and nothing was ever counted for {caller}"
        say(sentence + (f"; did you mean {match}?" if match else ""), err=True)
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
