"""The conditions that an installation can be in: the one list of what can be wrong.

`gatelock doctor`, the banner of the pages, `/readyz`, the metrics, alarms and the log show conditions. Only
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


class ConditionKind(NamedTuple):
    """A row of the table of conditions.

    Attributes:
        severity: critical: counts, bills or enforcement are in danger now. warning: late, degraded or soon
            wrong. info: for a decision, when there is time.
        page: The page that shows more.
        after_s: How long it has to last before it is a signal: starts and short pauses are not.
    """

    severity: Severity
    page: str
    after_s: int = 0


CONDITIONS: Mapping[str, ConditionKind] = {
    "database-away": ConditionKind("critical", "/health"),
    "database-unusable": ConditionKind("critical", "/health"),
    "schema-version": ConditionKind("critical", "/health"),
    "disk-space": ConditionKind("critical", "/health"),
    "database-clock": ConditionKind("warning", "/health"),
    "no-analyzer": ConditionKind("critical", "/health"),
    "not-watched": ConditionKind("critical", "/health"),
    "analyzer-problem": ConditionKind("critical", "/health", 15),
    "configuration-refused": ConditionKind("warning", "/health"),
    "plan-unreadable": ConditionKind("critical", "/policies"),
    "plan-differs": ConditionKind("warning", "/policies"),
    "analyzer-file-differs": ConditionKind("warning", "/policies"),
    "analyzer-file-waits": ConditionKind("warning", "/policies", 60),
    "two-groups": ConditionKind("warning", "/health"),
    "totals-filling": ConditionKind("warning", "/policies", 60),
    "brake": ConditionKind("warning", "/policies"),
    "source-unread": ConditionKind("critical", "/health", 120),
    "source-silent": ConditionKind("critical", "/health"),
    "source-lag": ConditionKind("warning", "/health", 15),
    "shipping-delay": ConditionKind("warning", "/health"),
    "clock-skew": ConditionKind("warning", "/health"),
    "partition-stopped": ConditionKind("critical", "/health"),
    "rejected-records": ConditionKind("warning", "/health"),
    "duplicate-records": ConditionKind("warning", "/health"),
    "id-horizon": ConditionKind("warning", "/health"),
    "disbelieved-verdicts": ConditionKind("warning", "/gates"),
    "day-waits": ConditionKind("warning", "/days"),
    "day-differs": ConditionKind("critical", "/days"),
    "usage-expires": ConditionKind("critical", "/days"),
    "job-fails": ConditionKind("warning", "/health"),
    "job-late": ConditionKind("warning", "/health"),
    "alerts-undelivered": ConditionKind("warning", "/alerts"),
    "token-expires": ConditionKind("warning", "/gates"),
    "locks-suspended": ConditionKind("critical", "/"),
    "gate-refused": ConditionKind("warning", "/gates"),
    "gate-silent": ConditionKind("warning", "/gates"),
    "gate-off": ConditionKind("warning", "/gates"),
    "gate-stale": ConditionKind("warning", "/gates"),
    "gate-foreign": ConditionKind("warning", "/gates"),
    "gate-behind": ConditionKind("warning", "/gates"),
    "gate-clock": ConditionKind("warning", "/gates"),
    "gate-old": ConditionKind("warning", "/gates"),
    "unasked-value": ConditionKind("warning", "/gates"),
    "client-refused": ConditionKind("warning", "/gates"),
    "sql-gates": ConditionKind("warning", "/gates"),
    "facts-wait": ConditionKind("warning", "/health"),
    "lock-unmet": ConditionKind("warning", "/gates", 60),
    "judgements-wait": ConditionKind("warning", "/health", 30),
    "locks-late": ConditionKind("warning", "/health"),
    "attack": ConditionKind("critical", "/attack"),
    "shadow-locks": ConditionKind("info", "/policies"),
    "unknown-callers": ConditionKind("warning", "/gates"),
    "kafka-away": ConditionKind("critical", "/health"),
    "kafka-unusable": ConditionKind("critical", "/health"),
    "topic-unreadable": ConditionKind("critical", "/health"),
    "group-shared": ConditionKind("warning", "/health"),
}


class Observation(NamedTuple):
    """The state of one part in one sentence.

    Attributes:
        state: All but `fine` have the name of a condition; `info` is for a decision, and not wrong.
        what: The sentence.
        cure: What to do, with the command in backticks; "" if nothing is to be done.
        name: A key of CONDITIONS; "" if the part is fine.
        subject: The part, where there are several: the same as long as the condition lasts.
    """

    state: State
    what: str
    cure: str = ""
    name: str = ""
    subject: str = ""

    @property
    def severity(self) -> Severity | None:
        """The severity of the condition; None if the part is fine."""
        return CONDITIONS[self.name].severity if self.name else None


def fine(what: str, cure: str = "") -> Observation:
    """Returns that a part is fine."""
    return Observation("fine", what, cure)


def in_condition(name: str, subject: str, what: str, cure: str) -> Observation:
    """Returns that a part is in the condition `name`."""
    state: State = "info" if CONDITIONS[name].severity == "info" else "wrong"
    return Observation(state, what, cure, name, subject)


class Signal(NamedTuple):
    """A condition that stands.

    Attributes:
        name: A key of CONDITIONS.
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
        return CONDITIONS[self.name].page

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
    """Returns the conditions among observations, one for each name and subject, the worst first.

    Several observations with one subject become one, which says how many more there are.
    """
    sentences: dict[tuple[str, str], list[Observation]] = {}
    for observation in observations:
        if observation.name:
            sentences.setdefault((observation.name, observation.subject), []).append(observation)
    signals = []
    for (name, subject), (first, *others) in sentences.items():
        more = f"; {len(others)} more of this kind" if others else ""
        signals.append(Signal(name, subject, CONDITIONS[name].severity, f"{first.what}{more}", first.cure))
    return sorted(signals, key=lambda signal: signal.order)
