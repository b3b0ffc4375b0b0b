"""Options, parsers and lists of the commands about overrides."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from analyzer.faces.cli.exit_codes import FOUND, usage_error
from analyzer.faces.cli.options import AskedTime, counted_caller, parse_length_ms, parse_time, require_name
from analyzer.faces.cli.output import say
from analyzer.judging.judged_changes import JudgedChanges

if TYPE_CHECKING:
    import sqlalchemy as sa

    from analyzer.callers.caller_changes import OverrideRequest, StoredOverride
    from analyzer.judging.caller_limits import Subject
    from analyzer.plan.meter_units import Unit
    from analyzer.plan.policies import OverrideKind, Policy

DAYS_MAX = 100 * 366  # more is probably a typing error

CallerOption = Annotated[
    str | None, typer.Option("--caller", metavar="NAME", help="One caller: api_key:acme.", show_default=False)
]
TenantOption = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="Each caller of a tenant.", show_default=False)
]
FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="Begin: 2026-12-01 (UTC), 2026-12-01T14:00Z. Default: now."),
]
EndOption = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="End: 2026-12-01 (UTC), 2026-12-01T14:00Z. Default: none."),
]
ForOption = Annotated[
    str | None, typer.Option("--for", metavar="LENGTH", help="Instead of --until: 12h or 30d from now.")
]
PolicyOption = Annotated[
    str | None,
    typer.Option("--policy", metavar="NAME", help="Policy; may be left out where there is only one."),
]
AllOption = Annotated[bool, typer.Option("--all", help="Also those that have ended.")]


def subject_of(caller: str | None, tenant: str | None, address: str | None = None) -> Subject:
    """Returns whom an override is for. Exits with 2 unless exactly one is given, and is a valid one."""
    from ipaddress import ip_network

    from analyzer.judging.caller_limits import Subject

    given = [one for one in (caller, tenant, address) if one]
    if len(given) != 1:
        options = "--caller or --tenant" if address is None else "--caller, --tenant or --address"
        raise usage_error(f"write {options}, one of them")
    if caller:
        return Subject("caller", caller)
    if tenant:
        return Subject("tenant", tenant)
    try:
        return Subject("address", str(ip_network(str(address))))
    except ValueError as error:
        raise usage_error(f"--address {address}: write 10.1.2.3, 10.0.0.0/8 or 2001:db8::/32") from error


def counted_subject(
    context: typer.Context, config: Path | None, engine: sa.Engine, subject: Subject
) -> Subject:
    """Returns the subject, a caller by the name that it is counted by. Raises as `counted_caller`."""
    if subject.kind != "caller":
        return subject
    return subject._replace(name=counted_caller(context, config, engine, subject.name))


class AskedPeriod(NamedTuple):
    """The time of an override as it was written."""

    begin: AskedTime | None
    until: AskedTime | None
    length_ms: int | None
    length: str | None

    def within(self, engine: sa.Engine) -> tuple[int | None, int | None]:
        """Returns begin and end in milliseconds, None for now and for none, by the database's clock.

        Exits with 2 if it is over, or ends before it begins. Raises StoreAway.
        """
        from analyzer.kernel.database.clock import database_now, millis

        now_ms = millis(database_now(engine))
        begins = None if self.begin is None else self.begin.second(engine) * 1000
        ends = None if self.until is None else self.until.second(engine) * 1000
        if self.until is not None and ends is not None and ends <= now_ms:
            raise usage_error(f"--until {self.until.text} is over: write a time of the future, or --for 30d")
        if self.length_ms is not None:
            ends = now_ms + self.length_ms
        if self.begin is not None and begins is not None and ends is not None and ends <= begins:
            option = f"--for {self.length}, counted from now,"
            option = option if self.until is None else f"--until {self.until.text}"
            raise usage_error(f"{option} is not later than --from {self.begin.text}: write a later end")
        return begins, ends


def asked_period(from_: str | None, until: str | None, length: str | None) -> AskedPeriod:
    """The time that the options describe. Exits with 2 for a text of another form."""
    if length is not None and until is not None:
        raise usage_error("write --until or --for, not both")
    length_ms = None if length is None else parse_length_ms("--for", length, DAYS_MAX)
    return AskedPeriod(parse_time(from_), parse_time(until), length_ms, length)


def policy_of(engine: sa.Engine, name: str | None) -> Policy:
    """Returns the policy of the plan in force; without a name, the only one.

    Exits with 2 if there is none.
    """
    from analyzer.faces.answers.asked_changes import policies_by_name, require_limit

    policies = policies_by_name(engine)
    require_name("--policy", name, policies)
    if name is None and len(policies) != 1:
        raise usage_error(f"--policy is missing: write one of {', '.join(policies)}" if policies
                          else "no policy is in force: there is no limit to change")  # fmt: skip
    found = policies[name] if name is not None else next(iter(policies.values()))
    try:
        require_limit(found)
    except ValueError as error:
        raise usage_error(str(error)) from error
    return found


def amount_of(policy: Policy, option: str, text: str) -> int:
    """Returns an amount in the unit of the policy's meter. Exits with 2 if the text is not one."""
    from analyzer.faces.answers import asked_changes

    try:
        return asked_changes.amount_of(policy, text)
    except ValueError as error:
        raise usage_error(f"{option} {error}") from error


def show_overrides(
    engine: sa.Engine, kinds: Collection[OverrideKind], empty: str, *, ended: bool, as_json: bool
) -> None:
    """Prints overrides of these kinds as a table, with amounts in the unit of the meter, or as JSON."""
    from analyzer.callers.caller_answers import override_fields
    from analyzer.callers.caller_changes import stored_overrides
    from analyzer.faces.cli.output import json_lines, table

    found = stored_overrides(engine, kinds, ended=ended)

    names = ["id", "for", "name", "policy", "change", "from", "until", "state", "reason", "who"]
    if as_json:
        json_lines(map(override_fields, found))
        return
    units = _units(engine)
    rows = (list((override_fields(one) | {"change": _change(one, units)}).values()) for one in found)
    table(names, [["" if cell is None else str(cell) for cell in row] for row in rows], empty)


def _units(engine: sa.Engine) -> Mapping[str, Unit | None]:
    """Returns the units of the limits of policies, by name."""
    from analyzer.judging.sql.plans import plan_in_force

    plan = plan_in_force(engine)
    return {} if plan is None else {policy.name: policy.meter_unit for policy in plan.policies}


def _change(override: StoredOverride, units: Mapping[str, Unit | None]) -> str:
    from analyzer.plan.meter_units import amount_text

    amount = amount_text(override.amount, units.get(override.policy))
    return {"limit": amount, "grant": f"+{amount}", "exempt": "exempt"}[override.kind]


def add_one(engine: sa.Engine, asked: OverrideRequest, why: str, *, as_json: bool) -> None:
    """Stores an override, and says what it is and which locks it has changed."""
    from analyzer.callers.caller_answers import override_fields
    from analyzer.callers.caller_changes import add_override, in_words
    from analyzer.faces.cli.operator import operator_name
    from analyzer.faces.cli.output import outcome
    from analyzer.judging.locks.lock_feed import new_mark

    stored, judged = add_override(engine, asked, operator_name(), why, new_mark)
    done = JudgedChanges(judged)
    sentence = (
        f"{stored.id}: {in_words(stored, _units(engine).get(stored.policy))}, {stored.state}; {done.sentence}"
    )
    outcome(sentence, override_fields(stored) | done.fields, as_json=as_json)


def end_one(engine: sa.Engine, id_: str, kinds: tuple[OverrideKind, ...], why: str, *, as_json: bool) -> None:
    """Ends an override. Exits with 1 if none of these kinds has this id and has not ended."""
    from analyzer.callers.caller_answers import override_fields
    from analyzer.callers.caller_changes import end_override, in_words
    from analyzer.faces.cli.operator import operator_name
    from analyzer.faces.cli.output import outcome
    from analyzer.judging.locks.lock_feed import new_mark

    ended = end_override(engine, id_, kinds, operator_name(), why, new_mark)
    if ended is None:
        say(f"none with the id {id_} is in force or planned: the list shows the ids", err=True)
        raise typer.Exit(FOUND)
    stored, judged = ended
    done = JudgedChanges(judged)
    sentence = f"ended: {in_words(stored, _units(engine).get(stored.policy))}; {done.sentence}"
    outcome(sentence, override_fields(stored) | {"state": "ended"} | done.fields, as_json=as_json)
