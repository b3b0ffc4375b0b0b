"""Numbers and times of cells as text: what the templates ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from markupsafe import Markup, escape

from analyzer.faces.pages.page_content import Quantity
from analyzer.judging.locks.lock_feed import MANUAL
from analyzer.kernel.number_texts import length_text, share_text
from analyzer.kernel.time_texts import local_text, with_local_times, zone_text
from analyzer.plan.meter_units import UNLIMITED, amount_text, rounded_text
from gatekeeper.model import WITHOUT_END

BY_HAND = "by hand"


def shown_amount(amount: Quantity) -> str:
    """Returns an amount for a column: whole numbers in full, others rounded, with their unit."""
    value = UNLIMITED if amount.value is None else amount.value
    return amount_text(value, None) if amount.unit is None else rounded_text(value, amount.unit)


def exact_amount(amount: Quantity) -> str:
    """Returns every digit of an amount, with its unit."""
    return amount_text(UNLIMITED if amount.value is None else amount.value, amount.unit)


def shown_count(value: Any) -> str:
    """Returns a whole number in full; a text as it is, such as "unlimited"."""
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def shown_age(value: Any) -> str:
    """Returns seconds as a length."""
    return length_text(round(value, 1)) if isinstance(value, int | float) else ""


def shown_time(value: Any, zone: str) -> str:
    """Returns the element of a time in the viewer's zone, whose name is copied with it.

    "no end" for that of a lock without one; another text as it is.
    """
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        return str(value)
    if moment == WITHOUT_END:
        return "no end"
    element = Markup('<time datetime="{}" title="{} {}">{}<span class="sr"> {}</span></time>')
    text, name = local_text(moment, zone), zone_text(moment, zone)
    return element.format(value, text, name, text, name)


def policy_name(name: str) -> str:
    """Returns the name of a policy as pages show it: that of locks by hand is none."""
    return BY_HAND if name == MANUAL else name


def with_commands(text: str) -> Markup:
    """Returns a text with what stands in backticks as code."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(parts)
    )


CELL_FILTERS: Mapping[str, Callable[..., Any]] = {
    "count": shown_count, "clock": shown_time, "age": shown_age, "percent": share_text,
    "amount": shown_amount, "exact": exact_amount, "local": with_local_times, "policy_name": policy_name,
    "commands": with_commands,
}  # fmt: skip
