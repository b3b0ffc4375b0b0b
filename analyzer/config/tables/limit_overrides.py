"""`[[overrides]]` and `[[exempt]]`: other limits for callers and tenants, and those that are never locked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time
from ipaddress import ip_network
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from analyzer.config.tables import ConfigTable
from analyzer.config.tables.policy_values import LimitReadings, in_unit, plan_readings
from analyzer.config.values import PolicyReference, Text
from analyzer.judging.caller_limits import subject_named
from analyzer.kernel.refused_values import quote, raise_fault
from analyzer.plan.meter_units import Unit
from analyzer.plan.policies import StatedOverride, SubjectKind


def _instant(value: object) -> int:
    """A time with its zone, or a date, which begins in UTC; in seconds."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise_fault(f"{quote(value)} is not a time", "write 2026-12-01T00:00:00Z, or 2026-12-01")
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time(), UTC)
    if not isinstance(value, datetime):
        raise_fault("must be a time", "write 2026-12-01T00:00:00Z, or 2026-12-01")
    if value.tzinfo is None:
        raise_fault("has no time zone", f"write {value.isoformat()}Z for UTC")
    return int(value.timestamp())


def _caller(value: object) -> object:
    if isinstance(value, str) and ":" not in value.strip(":"):
        raise_fault(f"{quote(value)} has no kind of name in front", f"write {quote('api_key:' + value)}")
    return value


def _range(value: object) -> str:
    try:
        return str(ip_network(str(value)))
    except ValueError:
        raise_fault(f"{quote(value)} is not an address or range", 'write "10.1.2.3", "10.0.0.0/8"')


Instant = Annotated[int, BeforeValidator(_instant)]


class ExceptionTable(ConfigTable):
    """The keys of both tables."""

    caller: Annotated[Text, BeforeValidator(_caller)] | None = None
    tenant: Text | None = None
    from_: Annotated[Instant | None, Field(alias="from")] = None
    until: Instant | None = None
    reason: Text

    def subject(self, counted_name: Callable[[str], str]) -> tuple[SubjectKind, str]:
        """The kind and name of the callers that it is for; `counted_name` returns the name of counts."""
        if self.caller is None:
            return "tenant", self.tenant or ""
        return subject_named(counted_name(self.caller))

    @model_validator(mode="after")
    def _ends_later(self) -> Self:
        if self.from_ is not None and self.until is not None and self.until <= self.from_:
            raise_fault("until is not later than from", "write a later end")
        return self


class OverrideTable(ExceptionTable):
    """Another limit of one policy for a caller, or for each caller of a tenant.

    That of one period of `limits` has the period behind the name: "api/month".
    """

    policy: PolicyReference
    limit: Annotated[LimitReadings, BeforeValidator(plan_readings)]

    @model_validator(mode="after")
    def _is_for_one(self) -> Self:
        if (self.caller is None) == (self.tenant is None):
            raise_fault("needs either caller or tenant", 'write caller = "api_key:acme"')
        return self

    def stated(self, unit: Unit | None, counted_name: Callable[[str], str]) -> StatedOverride:
        """Returns the part of the plan; `unit` is that of the policy's meter."""
        kind, name = self.subject(counted_name)
        amount = in_unit(self.limit, unit)
        return StatedOverride("limit", kind, name, self.policy, amount, self.from_, self.until, self.reason)


class ExemptTable(ExceptionTable):
    """A caller, the callers of a tenant, or an address or range that no policy locks."""

    address: Annotated[str, BeforeValidator(_range)] | None = None

    @model_validator(mode="after")
    def _is_for_one(self) -> Self:
        targets: list[Any] = [
            target for target in (self.caller, self.tenant, self.address) if target is not None
        ]
        if len(targets) != 1:
            raise_fault("needs one of caller, tenant and address", 'write address = "10.0.0.0/8"')
        return self

    def stated(self, counted_name: Callable[[str], str]) -> StatedOverride:
        """Returns the part of the plan."""
        kind, name = self.subject(counted_name)
        if self.address is not None:
            kind, name = "address", self.address
        return StatedOverride("exempt", kind, name, from_s=self.from_, until_s=self.until, reason=self.reason)
