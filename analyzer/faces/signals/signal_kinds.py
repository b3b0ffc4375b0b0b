"""The kinds of signals: the one list of what can be wrong with an installation, or wait for a decision.

`gatelock doctor`, the banner of the pages, `/readyz`, the metrics, alarms and the log show signals. Only
the checks of `doctor` decide whether one stands. docs/doctor.md has a row for each name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from analyzer.kernel.outbox import Severity

SEVERITIES: Sequence[Severity] = ("critical", "warning", "info")  # the worst first
State = Literal["fine", "info", "wrong", "away"]

LISTED_MAX = 3  # of a kind, each in a line
COMMAND = re.compile(r"`(gatelock [^`]+)`")


class SignalKind(NamedTuple):
    """A row of the table of kinds.

    Attributes:
        severity: critical: counts, bills or enforcement are in danger now. warning: late, degraded or soon
            wrong. info: for a decision, when there is time.
        page: The page that shows more.
        after_s: How long it has to last before it is a signal: starts and short pauses are not.
    """

    severity: Severity
    page: str
    after_s: int = 0


SIGNAL_KINDS: Mapping[str, SignalKind] = {
    "database-away": SignalKind("critical", "/health"),
    "database-unusable": SignalKind("critical", "/health"),
    "schema-version": SignalKind("critical", "/health"),
    "disk-space": SignalKind("critical", "/health"),
    "database-clock": SignalKind("warning", "/health"),
    "no-analyzer": SignalKind("critical", "/health"),
    "not-watched": SignalKind("critical", "/health"),
    "analyzer-problem": SignalKind("critical", "/health", 15),
    "configuration-refused": SignalKind("warning", "/health"),
    "plan-unreadable": SignalKind("critical", "/policies"),
    "plan-differs": SignalKind("warning", "/policies"),
    "analyzer-file-differs": SignalKind("warning", "/policies"),
    "analyzer-file-waits": SignalKind("warning", "/policies", 60),
    "two-groups": SignalKind("warning", "/health"),
    "totals-filling": SignalKind("warning", "/policies", 60),
    "brake": SignalKind("warning", "/policies"),
    "source-unread": SignalKind("critical", "/health", 120),
    "source-silent": SignalKind("critical", "/health"),
    "source-lag": SignalKind("warning", "/health", 15),
    "shipping-delay": SignalKind("warning", "/health"),
    "clock-skew": SignalKind("warning", "/health"),
    "partition-stopped": SignalKind("critical", "/health"),
    "rejected-records": SignalKind("warning", "/health"),
    "duplicate-records": SignalKind("warning", "/health"),
    "id-horizon": SignalKind("warning", "/health"),
    "disbelieved-verdicts": SignalKind("warning", "/gates"),
    "day-waits": SignalKind("warning", "/days"),
    "day-differs": SignalKind("critical", "/days"),
    "usage-expires": SignalKind("critical", "/days"),
    "job-fails": SignalKind("warning", "/health"),
    "job-late": SignalKind("warning", "/health"),
    "alerts-undelivered": SignalKind("warning", "/alerts"),
    "token-expires": SignalKind("warning", "/gates"),
    "locks-suspended": SignalKind("critical", "/"),
    "gate-refused": SignalKind("warning", "/gates"),
    "gate-silent": SignalKind("warning", "/gates"),
    "gate-off": SignalKind("warning", "/gates"),
    "gate-stale": SignalKind("warning", "/gates"),
    "gate-foreign": SignalKind("warning", "/gates"),
    "gate-behind": SignalKind("warning", "/gates"),
    "gate-clock": SignalKind("warning", "/gates"),
    "gate-old": SignalKind("warning", "/gates"),
    "unasked-value": SignalKind("warning", "/gates"),
    "client-refused": SignalKind("warning", "/gates"),
    "sql-gates": SignalKind("warning", "/gates"),
    "facts-wait": SignalKind("warning", "/health"),
    "lock-unmet": SignalKind("warning", "/gates", 60),
    "judgements-wait": SignalKind("warning", "/health", 30),
    "locks-late": SignalKind("warning", "/health"),
    "attack": SignalKind("critical", "/attack"),
    "shadow-locks": SignalKind("info", "/policies"),
    "unknown-callers": SignalKind("warning", "/gates"),
    "kafka-away": SignalKind("critical", "/health"),
    "kafka-unusable": SignalKind("critical", "/health"),
    "topic-unreadable": SignalKind("critical", "/health"),
    "group-shared": SignalKind("warning", "/health"),
}


class Observation(NamedTuple):
    """The state of one part in one sentence.

    Attributes:
        state: All but `fine` have the name of a signal; `info` is for a decision, and not wrong.
        what: The sentence.
        cure: What to do, with the command in backticks; "" if nothing is to be done.
        name: A key of SIGNAL_KINDS; "" if the part is fine.
        subject: The part, where there are several: the same as long as the signal lasts.
    """

    state: State
    what: str
    cure: str = ""
    name: str = ""
    subject: str = ""

    @property
    def severity(self) -> Severity | None:
        """The severity of the signal; None if the part is fine."""
        return SIGNAL_KINDS[self.name].severity if self.name else None


def fine(what: str, cure: str = "") -> Observation:
    """Returns that a part is fine."""
    return Observation("fine", what, cure)


def raised(name: str, subject: str, what: str, cure: str) -> Observation:
    """Returns that a part raises the signal `name`."""
    state: State = "info" if SIGNAL_KINDS[name].severity == "info" else "wrong"
    return Observation(state, what, cure, name, subject)


class Signal(NamedTuple):
    """Something that is wrong, or waits for a decision, as long as it lasts.

    Attributes:
        name: A key of SIGNAL_KINDS.
        subject: What it is about; "" where there is one of it.
        severity: How bad it is.
        what: One sentence.
        cure: What to do, with the command in backticks; may be "".
        since_ms: When it was first seen, by the database's clock; 0: it was not stored yet.
    """

    name: str
    subject: str
    severity: Severity
    what: str
    cure: str
    since_ms: int = 0

    @property
    def page(self) -> str:
        """The page that shows more."""
        return SIGNAL_KINDS[self.name].page

    @property
    def command(self) -> str:
        """The first command of the cure; "" without one."""
        command = COMMAND.search(self.cure)
        return command.group(1) if command else ""

    @property
    def order(self) -> tuple[int, int, str, str]:
        """The worst first, then the oldest."""
        return SEVERITIES.index(self.severity), self.since_ms, self.name, self.subject


def standing(observations: Iterable[Observation]) -> list[Signal]:
    """Returns the signals among observations, one for each name and subject, the worst first.

    Several observations with one subject become one, which says how many more there are.
    """
    sentences: dict[tuple[str, str], list[Observation]] = {}
    for observation in observations:
        if observation.name:
            sentences.setdefault((observation.name, observation.subject), []).append(observation)
    signals = []
    for (name, subject), (first, *others) in sentences.items():
        more = f"; {len(others)} more of this kind" if others else ""
        signals.append(Signal(name, subject, SIGNAL_KINDS[name].severity, f"{first.what}{more}", first.cure))
    return sorted(signals, key=lambda signal: signal.order)
