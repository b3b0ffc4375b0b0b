"""Parsers of changes that operators ask for, by options of a command or parameters of a request."""

from __future__ import annotations

from ipaddress import ip_network

from analyzer.config.tables.actions import rate_of
from analyzer.config.tables.policies import readings_of
from analyzer.config.values import DAY_S, DURATION, NAME, UNITS_S, zone_cure
from analyzer.judging.caller_limits import Profile
from analyzer.judging.kinds import kind_of
from analyzer.judging.locks.locks_by_hand import Effect, LockTarget
from analyzer.judging.sql.plans import plan_in_force
from analyzer.kernel.database.engine import Engine
from analyzer.kernel.logs import printable
from analyzer.plan.policies import Policy, base_name
from analyzer.plan.value_rules import is_anchor
from analyzer.plan.windows import is_zone


def series_of(
    caller: str | None, tenant: str | None, address: str | None, resource: str | None, *, everyone: bool
) -> list[LockTarget]:
    """Returns the series that a request names. Raises ValueError unless it names one, in one way."""
    named = [
        *([("caller", caller)] if caller else []),
        *([("tenant", tenant)] if tenant else []),
        *([network_of(address)] if address else []),
        *([("everyone", "")] if everyone else []),
    ]
    if not named and resource:
        return [LockTarget("resource", resource)]
    if len(named) == 1:
        return [LockTarget(*named[0], resource or "")]
    raise ValueError("name one of caller, tenant, address, resource and everyone; resource narrows another")


def network_of(text: str) -> tuple[str, str]:
    """Returns scope and key of an address or a range. Raises ValueError."""
    try:
        found = ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text}: write 192.0.2.7, 203.0.113.0/24 or 2001:db8::/32") from error
    if found.prefixlen == found.max_prefixlen:
        return "address", str(found.network_address)
    return "range", str(found)


def effect_of(action: str, status: int, rate: str | None) -> Effect:
    """Returns the effect of a lock. Raises ValueError if its parts do not fit."""
    if action not in ("deny", "slow", "tag"):
        raise ValueError(f"{action} is not an action: write deny, slow or tag")
    if (action == "slow") is not (rate is not None):
        raise ValueError("the action slow and a rate go together: slow, 10/s")
    return Effect(action, status, None if rate is None else rate_of(rate))


def policies_by_name(engine: Engine) -> dict[str, Policy]:
    """Returns the policies in force without candidates, by name. Raises StoreAway, SchemaBehind."""
    plan = plan_in_force(engine)
    stated = () if plan is None else plan.policies
    return {policy.name: policy for policy in stated if policy.name == base_name(policy.name)}


def require_limit(policy: Policy) -> None:
    """Raises ValueError for a policy without limits of single callers."""
    if kind_of(policy).whole_of is not None:
        what = f"{policy.name} is a share, without limits of single callers"
        raise ValueError(f"{what}: see `gatelock exempt add --help`")


def amount_of(policy: Policy, text: str) -> int:
    """Returns an amount in the unit of the policy's meter. Raises ValueError if the text is not one."""
    digits = text.replace("_", "").replace(",", "")
    found = readings_of(int(digits) if digits.isascii() and digits.isdecimal() else text)
    if policy.meter_unit not in found:
        unit = policy.meter_unit or "whole numbers"
        raise ValueError(f"{text}: {policy.meter} of the policy {policy.name} is in {unit}")
    return found[policy.meter_unit]


def checked_profile(profile: Profile) -> Profile:
    """Returns the profile. Raises ValueError if a value cannot be what it stands for."""
    if profile.plan and not NAME.fullmatch(profile.plan):
        raise ValueError(f"{profile.plan!r} is not the name of a plan")
    if len(profile.tenant.encode()) > 256 or profile.tenant != printable(profile.tenant):
        raise ValueError(f"{profile.tenant!r} is not the name of a tenant")
    if profile.zone and not is_zone(profile.zone):
        raise ValueError(f"{profile.zone!r} is not a time zone: {zone_cure(profile.zone)}")
    if profile.anchor and not is_anchor(profile.anchor):
        raise ValueError(f"{profile.anchor!r} is not a day: write it as 2026-01-31")
    return profile


def length_ms(text: str, days_max: int) -> int:
    """Milliseconds in a length such as "90d", "12h", "30m" or "45s". Raises ValueError."""
    parts = DURATION.fullmatch(text.strip())
    found_ms = 0 if parts is None else round(float(parts[1]) * UNITS_S[parts[2]] * 1000)
    if not 0 < found_ms <= days_max * DAY_S * 1000:
        raise ValueError(f"{text}: write a length such as 30m, 12h or 7d; at most {days_max:,}d")
    return found_ms
