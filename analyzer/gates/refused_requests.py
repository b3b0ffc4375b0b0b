"""Clients whose requests for locks are refused, such as gates without a token."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

# Acts of refused clients and their cures, by the reason of the refusal.
REASONS = {
    "no-token": (
        "asks without a token",
        "run `gatelock upkeep tokens create NAME --scope read`, and give it the token, as GATEKEEPER_TOKEN "
        "or Gate(..., token=...)",
    ),
    "invalid-token": (
        "asks with a token that was revoked, has expired or never existed",
        "give it a token of `gatelock upkeep tokens list`, or a new one; stop it unless it is your gate",
    ),
    "scope": (
        "asks with a token whose scope is not enough",
        "create a token with the scope read for it",
    ),
    "not-local": (
        "asks from another machine, or through a proxy, while no token exists",
        "run `gatelock upkeep tokens create NAME --scope read`, and give it the token",
    ),
    "other-token": (
        "reports for a gate that belongs to another token",
        "give each application its own token, and look for the owner of this address: gates do not do this",
    ),
    "too-many-gates": (
        "reports for more gates than one token may have",
        "give each application its own token, and look for the owner of this address",
    ),
}
OTHERS = "others"  # stands for the clients beyond the number that is stored


class RefusedRequests(NamedTuple):
    """The refused requests of one client, for one reason.

    Attributes:
        address: The address that the requests come from; "" stands for all clients beyond a bound.
        instance: The name of a gate, as the requests have it; "" if they have none.
        reason: A key of `REASONS`.
        requests: How many were refused.
        since: When the first of them was, by the database's clock.
        first_age_s: Seconds since the first.
        last_age_s: Seconds since the last.
    """

    address: str
    instance: str
    reason: str
    requests: int
    since: datetime
    first_age_s: float
    last_age_s: float

    @property
    def client(self) -> str:
        """The address, and the name of the gate if it is known."""
        address = self.address or OTHERS
        return f"{address} ({self.instance})" if self.instance else address

    @property
    def sentence(self) -> str:
        """A sentence on the act of the client, without its name."""
        act, _ = REASONS.get(self.reason, (f"is refused: {self.reason}", ""))
        plural = "" if self.requests == 1 else "s"
        return (
            f"{act} since {self.since:%Y-%m-%dT%H:%M:%SZ}, last {self.last_age_s:.0f} s ago: "
            f"{self.requests:,} request{plural} refused"
        )

    @property
    def cure(self) -> str:
        """An instruction that ends the refusals."""
        return REASONS.get(self.reason, ("", "see the log of the server"))[1]
