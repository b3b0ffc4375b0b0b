"""Locks and notices that judgements have brought, in words: for the log of the daemon, and for commands.

Flushes, the jobs of the warden, activations of plans and commands use `log_lines`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from analyzer.judging.judge import BY_PLAN, Judged
from gatekeeper.model import WITHOUT_END, Change, Set

log = logging.getLogger(__name__)

SHOWN_MAX = 50  # locks, and notices, of one transaction: a plan may change those of all callers


def log_judged(judged: Judged, cause: str = "") -> None:
    """Logs the locks and notices of a transaction, after its commit; alarms of brakes as warnings.

    Args:
        judged: The changes of locks, and the notices.
        cause: What stands in front of each line, such as "plan 3"; "" for none.
    """
    prefix = f"{cause}: " if cause else ""
    for alarm in judged.alarms:
        log.warning("%s%s", prefix, alarm)
    for line in _lines_of_changes(judged):
        log.info("%s%s", prefix, line)


def log_lines(judged: Judged) -> Iterator[str]:
    """Yields a line for each alarm, each lock that was set, extended or cleared, and each notice.

    Of very many the first SHOWN_MAX, and a line that says how many more there are.
    """
    yield from judged.alarms
    yield from _lines_of_changes(judged)


def _lines_of_changes(judged: Judged) -> Iterator[str]:
    evidence = judged.evidence
    by_plan = f"plan {evidence.plan} ends" if evidence.cause_of_end == BY_PLAN else ""
    yield from (_change_line(change, by_plan) for change in judged.changes[:SHOWN_MAX])
    if (more := len(judged.changes) - SHOWN_MAX) > 0:
        yield f"{more:,} more changes of locks: gatelock locks list"
    for notice in judged.notices[:SHOWN_MAX]:
        yield f"notice about {notice.at.key or 'everyone'} by {notice.at.policy}: {notice.detail}"
    if (more := len(judged.notices) - SHOWN_MAX) > 0:
        yield f"{more:,} more notices: gatelock locks list --notices"


def _change_line(change: Change, by_plan: str) -> str:
    key = change.at
    who = " ".join(part for part in (key.key, key.resource) if part) or "everyone"
    if not isinstance(change, Set):
        if by_plan:
            return f"unlocked {who}: {by_plan} its lock by {key.policy}"
        return f"unlocked {who}: its lock by {key.policy} has ended"
    lock = change.lock
    since, until = (f"{time:%Y-%m-%d %H:%M:%SZ}" for time in (lock.began, lock.until))
    end = "without an end" if lock.until >= WITHOUT_END else f"until {until}"
    return f"locked {who} from {since} {end}: {lock.action} by {key.policy}: {lock.detail}"
