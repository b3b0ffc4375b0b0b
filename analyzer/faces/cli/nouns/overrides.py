"""`gatelock overrides`: other limits for callers and tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.faces.cli.exit_codes import reporting_errors
from analyzer.faces.cli.options import ConfigOption, JsonOption, ReasonOption, open_database, require_reason
from analyzer.faces.cli.override_options import (
    AllOption,
    CallerOption,
    EndOption,
    ForOption,
    FromOption,
    PolicyOption,
    TenantOption,
    add_one,
    amount_of,
    asked_period,
    counted_subject,
    end_one,
    policy_of,
    show_overrides,
    subject_of,
)

if TYPE_CHECKING:
    from analyzer.plan.policies import OverrideKind

app = typer.Typer(help="Other limits for callers and tenants.", no_args_is_help=True)

KINDS: tuple[OverrideKind, ...] = ("limit", "grant")


@app.command("add")
def add(
    context: typer.Context,
    limit: Annotated[
        str,
        typer.Option(
            "--limit", metavar="AMOUNT", help='The limit, in the unit of the meter: 5_000, "2 GiB".'
        ),
    ],
    reason: ReasonOption,
    caller: CallerOption = None,
    tenant: TenantOption = None,
    policy: PolicyOption = None,
    from_: FromOption = None,
    until: EndOption = None,
    for_: ForOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Give a caller, or each caller of a tenant, another limit.

    It holds at once, up and down: who is above it is locked, who is below it is freed. The override of a
    caller comes before that of its tenant.

    Example: gatelock overrides add --caller user:ann --limit 9_000 --reason QA
    """
    subject, why = subject_of(caller, tenant), require_reason(reason)
    period = asked_period(from_, until, for_)
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.callers.caller_changes import OverrideRequest

        judged = policy_of(engine, policy)
        amount = amount_of(judged, "--limit", limit)
        subject = counted_subject(context, config, engine, subject)
        begins, ends = period.within(engine)
        asked = OverrideRequest("limit", subject, judged.name, amount, begins, ends)
        add_one(engine, asked, why, as_json=json)


@app.command("list")
def list_(
    context: typer.Context,
    all_: AllOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show the overrides and grants that have not ended.

    Example: gatelock overrides list
    """
    with reporting_errors(), open_database(context, config) as engine:
        show_overrides(engine, KINDS, "there is no override", ended=all_, as_json=json)


@app.command("end")
def end(
    context: typer.Context,
    id_: Annotated[str, typer.Argument(metavar="ID", help="Shown by `gatelock overrides list`.")],
    reason: ReasonOption = "",
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """End an override or a grant now.

    Who is above the limit that holds from now on is locked. Exit code 1 if there is none with this id.

    Example: gatelock overrides end 5f0c9a2e --reason "the migration is done"
    """
    with reporting_errors(), open_database(context, config) as engine:
        end_one(engine, id_, KINDS, reason, as_json=json)
