"""Notices: the thresholds of policies that series have reached, each raised once per series and window.

A rolling window has no end, so its notice lasts until a judgement finds the sum below the threshold. It is
raised again when the sum reaches the threshold after that, at most once in the length of the window.

A notice changes nothing for the client. A policy with the action "notify" raises notices instead of locks.
"""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

from analyzer.judging.totals import TotalKey
from analyzer.plan.sums import NEVER, sum_text
from analyzer.plan.windows import ALWAYS

LASTS_S = ALWAYS.until_s  # as the end of a notice of a rolling window whose sum has not fallen since
WHOLE = 1_000  # thresholds are stored in thousandths of the limit


class NoticeKey(NamedTuple):
    """The identity of a notice: of equal keys one is raised, also if the limit changes.

    Attributes:
        policy: Name of the policy.
        sum: Name of the sum that was judged, windows included.
        key: Key of the series.
        resource: Resource of the series, or "".
        window_s: Start of the window; of rolling windows the time at which the notice was raised.
        threshold: Thousandths of the limit.
    """

    policy: str
    sum: str
    key: str
    resource: str
    window_s: int
    threshold: int

    @property
    def id(self) -> str:
        """The notice's name outside of the database; equal for a notice that is raised again after a restore.

        >>> NoticeKey("daily", "caller requests day UTC", "user:ann", "", 1_763_596_800, 800).id
        '5b709f955d2f62dd3ef617adf4196ae5'
        """
        return hashlib.sha256(json.dumps(self).encode()).hexdigest()[:32]


class Notice(NamedTuple):
    """A threshold that a series has reached."""

    at: NoticeKey
    scope: str  # of the series
    used: int
    limit: int
    until_s: int  # end of the window; of rolling windows LASTS_S, or when the sum was found below
    detail: str
    was_raised: bool = False  # before, and its end has changed


class LastNotice(NamedTuple):
    """A notice that was raised before: in the same window, or the last one of a rolling sum."""

    window_s: int
    until_s: int
    raised_s: float

    @property
    def lasts(self) -> bool:
        """Whether the rolling sum has not been found below the threshold since."""
        return self.until_s == LASTS_S


def notice_key(policy: str, total: TotalKey, threshold: int) -> NoticeKey:
    """Returns the key of a policy's notice about a total; without the time, if that is of a rolling sum."""
    return NoticeKey(policy, sum_text(total.sum), total.key, total.resource, total.window.start_s, threshold)


def amount_at(limit: int, threshold: int) -> int:
    """Returns the least whole amount that is so many thousandths of the limit.

    >>> amount_at(100, 800), amount_at(3, 500)
    (80, 2)
    """
    return min(-(-limit * threshold // WHOLE), NEVER)


def percent(threshold: int) -> str:
    """Returns thousandths as a percentage.

    >>> percent(800), percent(995)
    ('80%', '99.5%')
    """
    return f"{threshold / 10:g}%"
