"""`gatelock exempt`: callers, tenants and addresses that no policy locks."""

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
    TenantOption,
    add_one,
    asked_period,
    counted_subject,
    end_one,
    show_overrides,
    subject_of,
)

if TYPE_CHECKING:
    from analyzer.plan.policies import OverrideKind

KINDS: tuple[OverrideKind, ...] = ("exempt",)

app = typer.Typer(help="Callers, tenants and addresses that no policy locks.", no_args_is_help=True)


@app.command("add")
def add(
    context: typer.Context,
    reason: ReasonOption,
    caller: CallerOption = None,
    tenant: TenantOption = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address", metavar="CIDR", help="An address or a range: 10.0.0.0/8.", show_default=False
        ),
    ] = None,
    from_: FromOption = None,
    until: EndOption = None,
    for_: ForOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Exempt callers, a tenant, addresses or a range from all locks.

    Their requests are counted as before, also in the totals of a tenant, a resource or everyone, and these
    may be locked.

    Example: gatelock exempt add --address 10.0.0.0/8 --reason "our probes"
    """
    subject, why = subject_of(caller, tenant, address or ""), require_reason(reason)
    period = asked_period(from_, until, for_)
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.callers.caller_changes import OverrideRequest

        subject = counted_subject(context, config, engine, subject)
        begins, ends = period.within(engine)
        asked = OverrideRequest("exempt", subject, from_ms=begins, until_ms=ends)
        add_one(engine, asked, why, as_json=json)


@app.command("list")
def list_(
    context: typer.Context,
    all_: AllOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show the exemptions that have not ended.

    Example: gatelock exempt list
    """
    with reporting_errors(), open_database(context, config) as engine:
        show_overrides(engine, KINDS, "nothing is exempt", ended=all_, as_json=json)


@app.command("end")
def end(
    context: typer.Context,
    id_: Annotated[str, typer.Argument(metavar="ID", help="Shown by `gatelock exempt list`.")],
    reason: ReasonOption = "",
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """End an exemption now.

    Who is above its limit is locked at once. Exit code 1 if there is none with this id.

    Example: gatelock exempt end 5f0c9a2e
    """
    with reporting_errors(), open_database(context, config) as engine:
        end_one(engine, id_, KINDS, reason, as_json=json)
