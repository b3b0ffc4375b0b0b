"""Charts and rankings of traffic that several pages have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from analyzer.counting.traffic import Traffic, TrafficAmount, TrafficQuery
from analyzer.faces.pages.page_content import Chart, Chip, Layer, Quantity
from analyzer.faces.pages.page_request import PageRequest
from analyzer.judging.locks.stored_locks import locked_keys
from analyzer.kernel.database.engine import Engine
from analyzer.kernel.number_texts import count_text, share_text
from analyzer.plan.meter_units import rounded_text

WEEK_S = 7 * 86_400
LAYERS = 7  # of a stacked chart, beside all others and those that were refused
LOCKS_MAX = 5_000  # that are compared with the callers of a page
OTHERS = "all others"
REFUSED = "refused"
NOTHING = TrafficAmount()


def query_of(
    request: PageRequest, grouping: str, top: int, meter: str = "requests", *, ago_s: int = 0
) -> TrafficQuery:
    """Returns the query of the wanted time, or of an equal one before it."""
    filters = request.filters
    return TrafficQuery(
        grouping, filters.from_s - ago_s, filters.now_s + 1 - ago_s, filters.step_s, top, meter
    )


def stacked(request: PageRequest, amounts: Traffic, heading: str, unit: str | None = None) -> Chart:
    """Returns the admitted amounts of the largest keys, of all others, and what was refused of all."""
    times = request.filters.times
    layers = [
        Layer(key, [amounts.series[key].get(at_s, NOTHING).value for at_s in times]) for key in amounts.keys
    ]
    rest = [
        max(0, amounts.whole.get(at_s, NOTHING).value - sum(layer.values[place] or 0 for layer in layers))
        for place, at_s in enumerate(times)
    ]
    refused = [amounts.whole.get(at_s, NOTHING).denied for at_s in times]
    layers += [Layer(OTHERS, rest)] if any(rest) or not layers else []
    layers += [Layer(REFUSED, refused, "refused")] if any(refused) else []
    total = amounts.total
    about = "Nothing was counted in this time."
    if total.whole:
        largest = ", ".join(
            f"{key} {share_text(amount.whole, total.whole)}"
            for key, amount in islice(amounts.keys.items(), 3)
        )
        about = f"{rounded_text(total.whole, unit)} in {request.filters.time_text}"
        about += f", {share_text(total.denied, total.whole)} refused" if total.denied else ""
        about += f". Largest: {largest}." if largest else "."
    return Chart(heading, about, times, layers, unit, is_stacked=True)


def whole_line(amounts: Traffic, times: Sequence[int], ago_s: int = 0) -> list[int]:
    """Returns what was counted of all keys in each step."""
    return [amounts.whole.get(at_s - ago_s, NOTHING).whole for at_s in times]


def locked_callers(engine: Engine) -> dict[str, str]:
    """Returns the policy of each locked key, of at most `LOCKS_MAX` locks."""
    return locked_keys(engine, LOCKS_MAX)


def state_of(key: str, locked: Mapping[str, str]) -> Chip | None:
    """Returns the state of a caller: locked, or nothing to say."""
    return Chip("locked", "bad") if key in locked else None


def rank_rows(
    amounts: Traffic, earlier: Mapping[str, TrafficAmount], locked: Mapping[str, str], unit: str | None
) -> list[dict[str, Any]]:
    """Returns a row for each key, the largest first, with its change against the time before."""
    whole = amounts.total.whole
    return [
        {
            "caller": key, "value": Quantity(amount.whole, unit), "denied": Quantity(amount.denied, unit),
            "share": round(amount.whole / whole, 4) if whole else 0.0,
            "change": change_text(amount.whole, earlier[key].whole if key in earlier else 0),
            "state": state_of(key, locked),
        }
        for key, amount in amounts.keys.items()
    ]  # fmt: skip


def change_text(present: int, earlier: int) -> str:
    """Returns a change as a factor or in percent, "new" from nothing.

    >>> change_text(300, 100), change_text(120, 100), change_text(0, 100), change_text(7, 0)
    ('3 times', '+20 %', '-100 %', 'new')
    """
    if not earlier:
        return "new" if present else ""
    factor = present / earlier
    return f"{count_text(round(factor, 1))} times" if factor >= 2 else f"{(factor - 1) * 100:+.0f} %"
