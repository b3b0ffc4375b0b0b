"""The callers of a moment as texts of a table."""

from __future__ import annotations

from analyzer.faces.live_callers import LiveCaller, LiveCallers, LiveQuery
from analyzer.kernel.number_texts import share_text

COLUMNS = ("caller", "rate/s", "requests", "denied", "share", "change", "nearest limit", "state")


def heading(answer: LiveCallers, query: LiveQuery) -> str:
    """Returns the line above the callers: what all of them send."""
    parts = [
        f"{answer.at}: {rate_text(answer.rate)} requests/s",
        f"{answer.requests:,} in {answer.span}, {percent(answer.denied, answer.requests)} denied",
        f"by {query.sort}",
    ]
    parts += [f'only "{query.text}"'] * bool(query.text)
    parts += [answer.note] * bool(answer.note)
    parts += [f"no lock is enforced until {answer.suspended}"] * bool(answer.suspended)
    return "; ".join(parts)


def texts_of(row: LiveCaller) -> list[str]:
    """Returns the texts of a caller, in the order of COLUMNS."""
    return [
        row.caller,
        rate_text(row.rate),
        f"{row.requests:,}",
        f"{row.denied:,}",
        percent(row.share, 1),
        change_text(row.requests, row.earlier),
        limit_text(row),
        f"locked: {', '.join(row.locked_by)}" if row.locked_by else "",
    ]


def limit_text(row: LiveCaller) -> str:
    """Returns the policy whose limit is nearest, with the part that is used; "" for none."""
    return f"{row.policy} {percent(row.used, 1)}" + " in shadow" * row.is_shadow if row.policy else ""


def rate_text(rate: float) -> str:
    """Returns requests per second.

    >>> rate_text(0), rate_text(0.04), rate_text(3.14), rate_text(1204.4), rate_text(0.001)
    ('0', '0.04', '3.1', '1,204', '<0.01')
    """
    if 0 < rate < 0.01:
        return "<0.01"
    return f"{rate:,.0f}" if rate >= 100 or rate == 0 else f"{rate:.1f}" if rate >= 1 else f"{rate:.2g}"


def percent(part: float, whole: float) -> str:
    """Returns a share, in a few cells.

    >>> percent(1, 3), percent(0, 0), percent(1, 100_000), percent(97.96, 100)
    ('33 %', '0 %', '<0.1 %', '98 %')
    """
    return share_text(part, whole).replace("less than ", "<")


def change_text(present: int, earlier: int) -> str:
    """Returns how much a count has changed.

    >>> change_text(120, 100), change_text(0, 100), change_text(5, 0), change_text(1_204_000, 100)
    ('+20 %', '-100 %', 'new', '12,040 times')
    """
    if not earlier:
        return "new" if present else ""
    factor = present / earlier
    if factor >= 2:
        return f"{factor:,.0f} times" if factor >= 10 else f"{factor:.1f} times"
    return f"{(factor - 1) * 100:+.0f} %"
