"""Numbers as people read them: three digits that say something, and the unit behind a space.

Exact amounts of meters, with their unit: `analyzer.plan.meter_units.amount_text`.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal

COUNT_STEPS = (("", 1), (" thousand", 10**3), (" million", 10**6), (" billion", 10**9), (" trillion", 10**12))
SIZE_STEPS = ((" B", 1), (" kB", 10**3), (" MB", 10**6), (" GB", 10**9), (" TB", 10**12), (" PB", 10**15))
LENGTH_STEPS = ((" µs", 1), (" ms", 10**3), (" s", 10**6))
# From a minute on: two units, the seconds of the smaller one, how many of it the larger one has, and how many
# of the larger one the next has.
LONG_STEPS = (("min", "s", 1, 60, 60), ("h", "min", 60, 60, 24), ("d", "h", 3_600, 24, 1 << 62))
EXACT_MAX = 10_000  # counts below are shown in full
MINUTE_US = 60 * 10**6


def count_text(value: float | Decimal) -> str:
    """Returns a count: all digits below 10,000, three beyond.

    >>> count_text(9_999), count_text(12_345), count_text(999_999), count_text(2.5), count_text(0)
    ('9,999', '12.3 thousand', '1 million', '2.5', '0')
    """
    number = Decimal(str(value))
    if abs(number) < EXACT_MAX and number == number.to_integral_value():
        return f"{number:,.0f}"
    return _in_steps(number, COUNT_STEPS if abs(number) >= EXACT_MAX else COUNT_STEPS[:1])


def size_text(size: float) -> str:
    """Returns a number of bytes in the decimal unit that a reader would choose.

    >>> size_text(999), size_text(1_234_567), size_text(999_999), size_text(2_000_000_000_000)
    ('999 B', '1.23 MB', '1 MB', '2 TB')
    """
    return _in_steps(Decimal(str(size)), SIZE_STEPS)


def length_text(seconds: float) -> str:
    """Returns a length of time: in its two largest units from a minute on, to a microsecond below.

    >>> length_text(59), length_text(2_460), length_text(300_060), length_text(0.0625), length_text(0)
    ('59 s', '41 min', '3 d 11 h', '62.5 ms', '0 s')
    """
    return micros_text(round(seconds * 10**6))


def micros_text(micros: int) -> str:
    """Returns a length in microseconds, as `length_text` does.

    >>> micros_text(274_715_300), micros_text(999_999), micros_text(3_600), micros_text(59_999_999)
    ('4 min 35 s', '1 s', '3.6 ms', '1 min')
    """
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    short = _in_steps(Decimal(micros), LENGTH_STEPS) if micros else "0 s"
    if micros < MINUTE_US and short != "60 s":
        return sign + short
    for unit, smaller, smaller_s, parts, units_max in LONG_STEPS:
        whole = round(Decimal(micros) / 10**6 / smaller_s)
        count, rest = divmod(whole, parts)
        if count < units_max:
            return f"{sign}{count:,} {unit}" + (f" {rest} {smaller}" if rest else "")
    raise AssertionError("no unit")  # days are the last


def share_text(part: float, whole: float = 1) -> str:
    """Returns a part of a whole in percent, "0 %" of nothing.

    Less than all is never "100 %", and more than nothing never "0 %".

    >>> share_text(0.2213), share_text(0.0213), share_text(1, 1_000_000), share_text(0, 0)
    ('22 %', '2.1 %', 'less than 0.1 %', '0 %')
    >>> share_text(9_996, 10_000), share_text(99_999, 100_000), share_text(2_783, 2_400)
    ('99.9 %', '99.9 %', '116 %')
    """
    if not part or not whole:
        return "0 %"
    percent = 100 * Decimal(str(part)) / Decimal(str(whole))
    if 0 < percent < Decimal("0.1"):
        return "less than 0.1 %"
    has_places = abs(percent) < Decimal("9.95") or 99 < percent < 100
    places = Decimal("0.1") if has_places else Decimal(1)
    shown = min(percent.quantize(places), Decimal("99.9")) if percent < 100 else percent.quantize(places)
    text = f"{shown:,f}"
    return f"{text.removesuffix('.0')} %"


def _in_steps(number: Decimal, steps: Sequence[tuple[str, int]]) -> str:
    """Returns three digits of a number in the largest unit that leaves one before the point."""
    for place, (unit, size) in enumerate(steps):
        text = _three_digits(number / size)
        is_last = place == len(steps) - 1
        if is_last or abs(Decimal(text.replace(",", ""))) < Decimal(steps[place + 1][1]) / size:
            return text + unit
    raise AssertionError("no unit")  # steps are never empty


def _three_digits(number: Decimal) -> str:
    """Returns three digits, or all those before the point."""
    digits = max(0, 2 - number.adjusted()) if number else 0
    rounded = number.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN)
    text = f"{rounded:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
