"""Tables of locks, with what can be done about each."""

from __future__ import annotations

from typing import Any

from analyzer.faces.pages.page_content import ActForm, Chip, Column, Input
from analyzer.faces.pages.page_request import PageRequest
from analyzer.judging.locks.lock_answers import describe_action, lock_fields
from gatekeeper.model import Lock

LOCK_COLUMNS = (
    Column("key", "Who", "caller", 1), Column("does", "Does", "state"),
    Column("policy", "Policy", "policy"), Column("resource", "Route", "route"),
    Column("scope", "Scope", rank=0),
    Column("detail", "Why", rank=3), Column("began", "Since", "time"), Column("until", "Until", "time"),
)  # fmt: skip
UNLOCK = Column("unlock", "", "act")
HOLD_OFF = Input("hold_off", "Not again for", "1h", hint="30m, 2h, 7d or none")
LENGTH = Input("for", "For", "1h", required=True, hint="30m, 2h or 7d")
# The parameter of acts by which a lock of a scope is named; those by named values are not cleared by hand.
PARAMETERS = {
    "caller": "caller", "tenant": "tenant", "address": "address", "range": "address", "resource": "resource",
}  # fmt: skip


def lock_columns(request: PageRequest) -> tuple[Column, ...]:
    """Returns the columns of locks, and that of acts for a visitor who may act."""
    return (*LOCK_COLUMNS, UNLOCK) if request.visitor.may_act("operate") else LOCK_COLUMNS


def lock_row(lock: Lock) -> dict[str, Any]:
    """Returns a lock as a row of a table."""
    names = "everyone" if lock.scope == "everyone" else lock.key
    chip = Chip(describe_action(lock), "bad" if lock.action == "deny" else "watch")
    shown = Chip("shadow") if lock.action == "shadow" else chip
    fields = {"key": names, "does": shown, "unlock": unlock_form(lock)}
    return lock_fields(lock) | {"resource": lock.resource or ""} | fields


def unlock_form(lock: Lock) -> ActForm | None:
    """Returns the form that clears a lock; None for one in shadow or of a named value."""
    if lock.action == "shadow":
        return None
    if lock.scope == "everyone":
        fixed = {"everyone": "true"}
    elif lock.scope in PARAMETERS:
        fixed = {PARAMETERS[lock.scope]: lock.key}
    else:
        return None
    fixed |= {"resource": lock.resource} if lock.resource else {}
    return ActForm("Unlock", "/v1/locks/unlock", fixed | {"policy": lock.policy}, [HOLD_OFF], "Unlock")
