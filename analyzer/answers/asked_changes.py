"""What operators ask for, as options of a command or as parameters of a request."""

from __future__ import annotations

from ipaddress import ip_network

from analyzer.config.tables.actions import rate_of
from analyzer.config.values import DAY_S, DURATION, UNITS_S
from analyzer.store.operations.locks_by_hand import Effect, LockTarget


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


def length_ms(text: str, days_max: int) -> int:
    """Milliseconds in a length such as "90d", "12h", "30m" or "45s". Raises ValueError."""
    parts = DURATION.fullmatch(text.strip())
    found_ms = 0 if parts is None else round(float(parts[1]) * UNITS_S[parts[2]] * 1000)
    if not 0 < found_ms <= days_max * DAY_S * 1000:
        raise ValueError(f"{text}: write a length such as 30m, 12h or 7d; at most {days_max:,}d")
    return found_ms
