"""Destinations: which events they get, how these are gathered, and when no message is sent."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import NamedTuple
from zoneinfo import ZoneInfo

from analyzer.alerts.alert_messages import ENDS, AlertEvent
from analyzer.alerts.channels import Channel
from analyzer.kernel.outbox import Severity

RANKS: dict[Severity, int] = {"info": 0, "warning": 1, "critical": 2}
DAY_MIN = 1_440


@dataclass(frozen=True, slots=True)
class Route:
    """The events that a destination gets: those that all conditions accept.

    Attributes:
        kinds: Globs of kinds, such as "lock.*".
        severity: The least one.
        policies: Globs of policies; (): any, and events without one.
        tenants: Globs of tenants; (): any, and events without one.
        about: Globs of what events are about: callers, names of signals; (): anything.
        ends: Whether it gets the ends of locks and signals, too.
    """

    kinds: tuple[str, ...] = ("*",)
    severity: Severity = "info"
    policies: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    about: tuple[str, ...] = ()
    ends: bool = True

    def takes(self, event: AlertEvent) -> bool:
        """Whether the destination gets this event."""
        return (
            RANKS[event.severity] >= RANKS[self.severity]
            and (self.ends or event.kind not in ENDS)
            and _matches(self.kinds, event.kind)
            and (not self.policies or _matches(self.policies, event.policy))
            and (not self.tenants or _matches(self.tenants, event.tenant))
            and (not self.about or _matches(self.about, event.about))
        )


class QuietTime(NamedTuple):
    """Hours of each day in which only critical messages are sent.

    Attributes:
        begin_min: Minutes after midnight.
        end_min: The same of its end, which may be on the next day.
        zone: The time zone of both.
    """

    begin_min: int
    end_min: int
    zone: str = "UTC"

    def end_s(self, at_s: float) -> float | None:
        """Returns when the quiet time that holds this moment ends, in seconds since 1970; None: none does.

        >>> QuietTime(22 * 60, 7 * 60).end_s(6 * 3600), QuietTime(22 * 60, 7 * 60).end_s(7 * 3600)
        (25200.0, None)
        >>> QuietTime(22 * 60, 7 * 60).end_s(23 * 3600), QuietTime(600, 720).end_s(11 * 3600)
        (111600.0, 43200.0)
        """
        local = datetime.fromtimestamp(at_s, ZoneInfo(self.zone))
        minute = local.hour * 60 + local.minute
        if (minute - self.begin_min) % DAY_MIN >= (self.end_min - self.begin_min) % DAY_MIN:
            return None
        days = 1 if self.end_min <= minute else 0
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
        end = midnight + timedelta(days=days, minutes=self.end_min)
        return end.replace(tzinfo=local.tzinfo).astimezone(UTC).timestamp()


class Gathering(NamedTuple):
    """The pace at which events become messages.

    Attributes:
        wait_s: For which a message waits for more events of its topic; 0: each event is a message.
        every_s: Between two messages of one topic.
    """

    wait_s: float = 30.0
    every_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Destination:
    """A destination of `[[alerts]]`.

    Attributes:
        name: As configured.
        channel: How messages are sent.
        route: Which events it gets.
        gathering: How they are gathered.
        quiet: When only critical ones are sent; None: never.
        give_up_s: After which a message that is not acknowledged is dead.
    """

    name: str
    channel: Channel
    route: Route = field(default_factory=Route)
    gathering: Gathering = field(default_factory=Gathering)
    quiet: QuietTime | None = None
    give_up_s: float = 86_400.0

    def topic(self, event: AlertEvent) -> str:
        """Returns what is gathered in one message with this event."""
        kind = event.kind.partition(".")[0]
        apart = event.signal if self.channel.has_incidents and kind == "signal" else event.policy
        return f"{event.kind} {event.severity} {apart}"

    def due_s(self, at_s: float, severity: Severity, last_s: float | None) -> float:
        """Returns when a message that begins to gather at `at_s` is due.

        Args:
            at_s: In seconds since 1970.
            severity: Of its events.
            last_s: When the message before, of the same topic, was due; None: there is none.
        """
        due_s = at_s + self.gathering.wait_s
        if self.gathering.wait_s and last_s is not None:
            due_s = max(due_s, last_s + self.gathering.every_s)
        end_s = self.quiet.end_s(due_s) if self.quiet is not None and severity != "critical" else None
        return due_s if end_s is None else end_s


def _matches(globs: Collection[str], text: str) -> bool:
    return any(fnmatchcase(text, glob) for glob in globs)
