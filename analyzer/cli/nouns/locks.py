"""`gatelock locks`: the gates that are closed, and the switch that opens them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.cli.exit_codes import FOUND, reporting_errors
from analyzer.cli.options import (
    ConfigOption,
    JsonOption,
    ReasonOption,
    caller_given,
    database_of,
    length_given_ms,
    reason_given,
)

if TYPE_CHECKING:
    from gatekeeper.model import Lock

OPEN_MAX_DAYS = 30  # who wants longer takes the gates out of the application

app = typer.Typer(help="The gates that are closed, and the switch that opens them all.", no_args_is_help=True)


@app.command("list")
def list_(
    context: typer.Context,
    config: ConfigOption = None,
    json: JsonOption = False,
    caller: Annotated[str | None, typer.Option(help="Only those of this one, as in api_key:acme.")] = None,
    policy: Annotated[str | None, typer.Option(help="Only those of this one.")] = None,
) -> None:
    """Show the locks in force.

    Each with its policy, its reason and its end; those that end last come first. What every gate's being
    open means for them is said beside the list.
    """
    name = caller_given(caller)
    with reporting_errors(), database_of(context, config) as engine:
        from analyzer.cli.output import json_lines, table
        from analyzer.store.reports.status import locks_in_force, suspended_until
        from gatekeeper.feed.feed_json import change_fields, time_text
        from gatekeeper.model import Set

        if (until := suspended_until(engine)) is not None:
            typer.echo(f"no lock is enforced until {time_text(until)}: `gatelock locks resume`", err=True)
        found = locks_in_force(engine, name, policy)
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
                does(lock),
                lock.detail,
            )
            for lock in found
        )
        table(["until", "scope", "key", "resource", "policy", "does", "detail"], rows, "no gate is closed")


@app.command()
def suspend(
    context: typer.Context,
    for_: Annotated[str, typer.Option("--for", help="How long, as in 30m, 2h; it ends by itself.")],
    reason: ReasonOption,
    config: ConfigOption = None,
) -> None:
    """Open every gate for a time: the off switch.

    Each gate follows within one poll. Locks are counted and set as before, and none of them is enforced;
    limiters in the applications go on. Given again, the new end is the one that counts.
    """
    length_ms, why = length_given_ms("--for", for_, OPEN_MAX_DAYS), reason_given(reason)
    with reporting_errors(), database_of(context, config) as engine:
        from analyzer.cli.operator import operator_name
        from analyzer.store.operations.suspension import suspend as open_all
        from analyzer.store.transaction.lock_feed import new_mark
        from gatekeeper.feed.feed_json import time_text

        until = open_all(engine, length_ms, operator_name(), why, new_mark)
        typer.echo(f"every gate is open until {time_text(until)}")


@app.command()
def resume(context: typer.Context, reason: ReasonOption, config: ConfigOption = None) -> None:
    """End `suspend`: the gates follow their locks again.

    Exit code 1 when they did so already.
    """
    why = reason_given(reason)
    with reporting_errors(), database_of(context, config) as engine:
        from analyzer.cli.operator import operator_name
        from analyzer.store.operations.suspension import resume as close_again
        from analyzer.store.transaction.lock_feed import new_mark

        if not close_again(engine, operator_name(), why, new_mark):
            typer.echo("the gates follow their locks: nothing is suspended", err=True)
            raise typer.Exit(FOUND)
        typer.echo("the gates follow their locks again")


def does(lock: Lock) -> str:
    """What the lock does, in a word or two.

    >>> from datetime import UTC, datetime
    >>> from gatekeeper.model import Lock, Rate
    >>> now = datetime.now(UTC)
    >>> does(Lock("caller", "user:ann", "p", now, now)), does(Lock(
    ...     "caller", "user:ann", "p", now, now, action="slow", slow=Rate(10, 60.0)))
    ('deny 429', 'slow 10/60s')
    """
    if lock.action == "deny":
        return f"deny {lock.status}"
    return lock.action if lock.slow is None else f"slow {lock.slow.limit:,}/{lock.slow.period:g}s"
