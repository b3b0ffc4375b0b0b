"""A caller's own view of its limits, as a Gatelock server answers it for an application to pass on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from gatekeeper.feed.feed_json import JsonFields, as_object, parse_object
from gatekeeper.identity import is_name
from gatekeeper.model import LockSource, SourceError

__all__ = ["CallerView", "RemainingLimit"]

PATH = "/v1/callers/me"
CALLER_FIELD = "gatelock-caller"  # names the caller: percent-encoded, because a name may be any text
LIMITS_MAX = 1_000  # read of one answer
MAX_AGE_MAX_S = 3600.0


class RemainingLimit(NamedTuple):
    """One limit of a caller, and what remains of it.

    Attributes:
        policy: The name of the policy.
        resource: The route pattern that it is about; "" for all resources.
        meter: What is counted, such as "requests".
        unit: The unit of the amounts: "bytes", "microseconds" or "millionths"; "" for whole numbers.
        used: The amount that was used in the present window.
        limit: The amount that earns a lock; None for a caller that is exempt or has no limit.
        remaining: The amount that is left; None where `limit` is.
        window: The length of the window in seconds.
        resets: When the window ends, with its time zone; None for a rolling window.
        detail: One sentence with the limit and the use.

    Example:
        >>> limit = RemainingLimit("daily", "", "requests", "", 40, 100, 60, 86400, None, "")
        >>> limit.remaining
        60
    """

    policy: str
    resource: str
    meter: str
    unit: str
    used: int
    limit: int | None
    remaining: int | None
    window: int
    resets: datetime | None
    detail: str


class CallerView(NamedTuple):
    """The view of one caller: whether it is locked, and what remains of each limit.

    Attributes:
        locked: Whether a lock denies its requests.
        limits: Its limits.
        now: The time of the answer, with its time zone.
        document: The JSON document with all of it, and with the locks, as the server sent it.
        max_age: Seconds for which the answer may be kept.

    Example:
        >>> body = b'{"format": 1, "now": "2026-11-20T21:14:04Z", "locked": false, "locks": [], "limits": []}'
        >>> view = parse_view(body, max_age=5.0)
        >>> view.locked, view.limits
        (False, ())
    """

    locked: bool
    limits: tuple[RemainingLimit, ...]
    now: datetime
    document: bytes
    max_age: float


def is_caller(name: str) -> bool:
    """Whether `name` is the typed name of one caller: with its kind, and not that of requests without a name.

    >>> is_caller("api_key:acme"), is_caller("acme"), is_caller("unnamed:")
    (True, False, False)
    """
    kind, _, text = name.partition(":")
    return is_name(kind) and is_name(text)


def view_from(source: LockSource, caller: str) -> CallerView:
    """Returns the view of a caller from the source of a gate.

    Raises:
        ValueError: The source cannot be asked, or `caller` has no kind.
        SourceError: The view cannot be read now.
    """
    ask: Callable[[str], CallerView] | None = getattr(source, "caller_view", None)
    if ask is None:
        raise ValueError(
            "caller_view: only a server can be asked for it: make the gate with its URL, as in "
            'Gate("https://HOST:PORT")'
        )
    if not is_caller(caller):
        raise ValueError(f"caller: expected a name with its kind, such as api_key:acme, got {caller!r:.80}")
    return ask(caller)


def parse_view(document: bytes, max_age: float) -> CallerView:
    """Returns the view in a JSON document. Raises SourceError."""
    fields = parse_object(document, "answer")
    if fields.integer("format") != 1:
        raise SourceError("answer: its format is of a later version: upgrade gatelock in this application")
    limits = (as_object(item, "answer: limits") for item in fields.items("limits", LIMITS_MAX))
    return CallerView(
        locked=fields.boolean("locked"),
        limits=tuple(map(_limit, limits)),
        now=fields.time("now"),
        document=document,
        max_age=min(max_age, MAX_AGE_MAX_S),
    )


def _limit(fields: JsonFields) -> RemainingLimit:
    return RemainingLimit(
        policy=fields.text("policy"),
        resource=_text(fields, "resource"),
        meter=fields.text("meter"),
        unit=_text(fields, "unit"),
        used=fields.integer("used"),
        limit=_integer(fields, "limit"),
        remaining=_integer(fields, "remaining"),
        window=fields.integer("window_s"),
        resets=None if fields.values.get("resets") is None else fields.time("resets"),
        detail=fields.text("detail", ""),
    )


def _text(fields: JsonFields, name: str) -> str:
    return "" if fields.values.get(name) is None else fields.text(name)


def _integer(fields: JsonFields, name: str) -> int | None:
    return None if fields.values.get(name) is None else fields.integer(name)
