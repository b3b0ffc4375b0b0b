"""`/v1/locks`: the locks in force and why, setting, clearing and extending them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from analyzer.callers.counted_names import never_counted
from analyzer.callers.explained_caller import explained_caller
from analyzer.faces.answers.asked_changes import effect_of, length_ms, series_of
from analyzer.faces.answers.foreseen_acts import Foreseen, cleared_locks
from analyzer.faces.api.endpoints import ApiContext, Asked, Endpoint, NotPossible, NotThere
from analyzer.faces.api.pages import PlacedRow
from analyzer.faces.api.parameters import CALLER, LENGTH, OfText, OfTime, OfWhole, OneOf, Parameter, YesOrNo
from analyzer.judging.locks.lock_answers import changed_fields, lock_fields
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.locks.locks_by_hand import ByHand, clear_locks, extend_locks, set_locks
from analyzer.judging.locks.stored_locks import locks_in_force
from analyzer.kernel.database.clock import instant, millis
from gatekeeper.feed.feed_json import time_text

BY_HAND_MAX_DAYS = 366

OF_CALLER = Parameter(
    "caller", OfText(CALLER, "a caller with its kind, api_key:acme"), "The caller, with its kind in front.",
    "api_key:acme",
)  # fmt: skip
OF_POLICY = Parameter("policy", OfText(), "Only locks of this policy.", "daily")


def list_locks(at: ApiContext, asked: Asked) -> Iterator[PlacedRow]:
    """Yields the locks in force, the latest end first."""
    name = _counted(at, asked)
    found = locks_in_force(at.engine, name, asked["policy"], in_shadow=asked["shadow"])
    first = next(found, None)
    if first is None and name is not None and (absence := never_counted(at.engine, name)) is not None:
        raise NotThere(f"no lock is in force, and {absence}")
    for lock in [] if first is None else chain([first], found):
        yield (-millis(lock.until), lock.policy, lock.scope, lock.key, lock.resource), lock_fields(lock)


def explain_caller(at: ApiContext, asked: Asked) -> Mapping[str, object]:
    """Returns why a caller is locked, or not."""
    name = at.settings.counted_name(asked["caller"])
    return explained_caller(at.engine, name, asked["since"] or 0).as_object()


def set_by_hand(at: ApiContext, asked: Asked) -> Mapping[str, object]:
    """Locks a series."""
    try:
        effect = effect_of(asked["action"], asked["status"], asked["rate"])
        wanted, long_ms = _series(at, asked), length_ms(asked["for"], BY_HAND_MAX_DAYS)
    except ValueError as error:
        raise NotPossible(str(error)) from error
    locks = set_locks(at.engine, wanted, long_ms, effect, _act(asked), new_mark)
    return _changed([changed_fields(lock, "set", is_changed=not asked["dry_run"]) for lock in locks])


def extend_by_hand(at: ApiContext, asked: Asked) -> Mapping[str, object]:
    """Lets the locks of a series last longer."""
    try:
        wanted, long_ms = _series(at, asked), length_ms(asked["for"], BY_HAND_MAX_DAYS)
    except ValueError as error:
        raise NotPossible(str(error)) from error
    locks = extend_locks(at.engine, wanted, asked["policy"], long_ms, _act(asked), new_mark)
    if not locks:
        raise NotThere("no lock ends before that")
    return _changed([changed_fields(lock, "extended", is_changed=not asked["dry_run"]) for lock in locks])


def clear_by_hand(at: ApiContext, asked: Asked) -> Mapping[str, object]:
    """Clears the locks of a series."""
    held = asked["hold_off"]
    try:
        wanted = _series(at, asked)
        held_ms = None if held is None else 0 if held == "none" else length_ms(held, BY_HAND_MAX_DAYS)
    except ValueError as error:
        raise NotPossible(str(error)) from error
    cleared = clear_locks(at.engine, wanted, asked["policy"], held_ms, _act(asked), new_mark)
    if not cleared:
        raise NotThere("no such lock is in force")
    done = [
        (one.lock, f"cleared until {time_text(instant(one.held_off_ms))}" if one.held_off_ms else "cleared")
        for one in cleared
    ]
    return _changed([changed_fields(lock, text, is_changed=not asked["dry_run"]) for lock, text in done])


def foresee_clearing(at: ApiContext, asked: Asked) -> Foreseen:
    """Returns which locks would be cleared."""
    try:
        wanted = _series(at, asked)
    except ValueError as error:
        raise NotPossible(str(error)) from error
    act = _act(asked)._replace(is_shown_only=True)
    cleared = clear_locks(at.engine, wanted, asked["policy"], None, act, new_mark)
    return cleared_locks([f"{one.lock.scope} {one.lock.key}" for one in cleared])


def _series(at: ApiContext, asked: Asked) -> Any:
    return series_of(
        _counted(at, asked),
        asked["tenant"],
        asked["address"],
        asked["resource"],
        everyone=bool(asked["everyone"]),
    )


def _counted(at: ApiContext, asked: Asked) -> str | None:
    """Returns the name that the caller is counted by; None without one."""
    caller: str | None = asked["caller"]
    return None if caller is None else at.settings.counted_name(caller)


def _act(asked: Asked) -> ByHand:
    return ByHand(asked.who, asked["reason"].strip(), asked["dry_run"])


def _changed(locks: list[dict[str, object]]) -> Mapping[str, object]:
    return {"locks": locks}


LOCK = {
    "scope": "caller", "key": "api_key:acme", "resource": None, "policy": "daily", "kind": "quota",
    "action": "deny", "status": 429, "reason": "quota-exceeded",
    "detail": "100,000 requests per day (Europe/Berlin), 100,214 counted",
    "began": "2026-11-20T21:14:03Z", "until": "2026-11-20T23:00:00Z", "on_stale": "keep",
}  # fmt: skip
TARGET = (
    OF_CALLER,
    Parameter("tenant", OfText(), "All requests of a tenant.", "acme"),
    Parameter("address", OfText(), "An address or a range, 203.0.113.0/24.", "203.0.113.0/24"),
    Parameter("resource", OfText(), "All requests of a resource; narrows another one.", "/v1/export"),
    Parameter("everyone", YesOrNo(), "All requests.", False, False),
    Parameter("dry_run", YesOrNo(), "Show what would change, and change nothing.", True, False),
)
FOR = Parameter("for", OfText(LENGTH, "30m, 2h or 7d"), "Time from now until it ends.", "2h", required=True)
DONE = {"locks": [LOCK | {"done": "set", "changed": True}]}

ENDPOINTS = (
    Endpoint(
        "GET", "/v1/locks/list", "read", "The locks in force, the latest end first.", list_locks, LOCK,
        (OF_CALLER, OF_POLICY, Parameter("shadow", YesOrNo(), "Locks that no gate gets.", False, False)),
        (0, "", "", "", ""),
    ),
    Endpoint(
        "GET", "/v1/locks/explain", "view",
        "Why a caller is locked, or not: its locks, its use and limit by each policy with what remains, its "
        "busiest resources of the last day, its locks since a time.",
        explain_caller, {"caller": "api_key:acme", "plan": "pro", "tenant": "", "locks": [LOCK]},
        (
            OF_CALLER._replace(required=True),
            Parameter("since", OfTime(), "Locks in force since then.", "7d", 0),
        ),
    ),
    Endpoint(
        "POST", "/v1/locks/set", "operate",
        "Lock a client by hand, for a time. The reason is what a refused client reads.", set_by_hand, DONE,
        (
            *TARGET, FOR,
            Parameter("action", OneOf(["deny", "slow", "tag"]), "The effect.", "deny", "deny"),
            Parameter("status", OfWhole(400, 599), "HTTP status of denials.", 429, 429),
            Parameter("rate", OfText(), "Admitted by each process with `slow`, 10/s.", "10/s"),
        ),
    ),
    Endpoint(
        "POST", "/v1/locks/extend", "operate", "Let locks last longer: until a time from now.",
        extend_by_hand, DONE, (*TARGET, FOR, OF_POLICY),
    ),
    Endpoint(
        "POST", "/v1/locks/clear", "operate",
        "Clear locks, and do not set them again for a time. More than ten have to be confirmed.",
        clear_by_hand, DONE,
        (
            *TARGET, OF_POLICY,
            Parameter(
                "hold_off", OfText(rf"^none$|{LENGTH}", "a length, or none"),
                "Not set again before; none: at once. By default the end of the lock.", "1d",
            ),
        ),
        foresee=foresee_clearing,
    ),
)  # fmt: skip
