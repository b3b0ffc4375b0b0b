"""Notices as objects."""

from __future__ import annotations

from datetime import UTC, datetime

from analyzer.judging.earned_notices import LASTS_S
from analyzer.judging.sql.raised_notices import RaisedNotice
from gatekeeper.feed.feed_json import time_text


def notice_fields(raised: RaisedNotice) -> dict[str, object]:
    """Returns a notice as an object."""
    notice = raised.notice
    begin, end = (
        None if second == LASTS_S else time_text(datetime.fromtimestamp(second, UTC))
        for second in (notice.at.window_s, notice.until_s)
    )
    return {
        "id": notice.at.id,
        "at": time_text(raised.at),
        "scope": notice.scope,
        "key": notice.at.key,
        "resource": notice.at.resource,
        "policy": notice.at.policy,
        "threshold": notice.at.threshold / 1_000,
        "used": notice.used,
        "limit": notice.limit,
        "from": begin,
        "until": end,
        "detail": notice.detail,
    }
