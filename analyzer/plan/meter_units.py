"""Units of meters: values as text with their unit, and limits read from such text.

A meter of durations holds microseconds, one of decimals millionths, one of money billionths, one of bytes
bytes. People write and read `1h`, `50.00` and `2 GiB`. Text is exact in both directions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Literal, NamedTuple, get_args

from analyzer.kernel.number_texts import count_text, micros_text, size_text

Unit = Literal["duration", "decimal", "money", "bytes"]
UNITS: tuple[Unit, ...] = get_args(Unit)
STORED_IN: Mapping[str, str] = {
    "duration": "microseconds", "decimal": "millionths", "money": "billionths", "bytes": "bytes"
}  # fmt: skip


class HumanUnit(NamedTuple):
    """A larger unit in which a stored amount is a decimal number, exactly."""

    symbol: str
    places: int  # digits behind the point, of which the last one is a stored unit


HUMAN_UNITS: Mapping[str, HumanUnit] = {  # by the unit in which an amount is stored
    "microseconds": HumanUnit("s", 6), "millionths": HumanUnit("", 6), "billionths": HumanUnit("", 9),
    "bytes": HumanUnit("GB", 9),
}  # fmt: skip
WHOLE = HumanUnit("", 0)
SYMBOLS: Mapping[str, str] = {"duration": "s", "bytes": "bytes"}  # of a column; decimals and money have none
NOUNS: Mapping[str, str] = {"duration": "time", "decimal": "decimals", "money": "money", "bytes": "bytes"}
EXAMPLES: Mapping[str, str] = {"duration": "1h", "decimal": "50.00", "money": "50.00", "bytes": "2 GiB"}

# Digits behind the point. A token of a language model costs down to 0.00000001: in millionths, whole requests
# would cost nothing.
PLACES: Mapping[str, int] = {"duration": 6, "decimal": 6, "money": 9}
PLACES_SHOWN = 2  # at least, of decimals and money
MICROSECONDS = {"us": 1, "ms": 10**3, "s": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6, "d": 86_400 * 10**6}
BYTES = {"B": 1} | {
    name: base**power
    for power, letter in enumerate("kMGT", start=1)
    for name, base in ((f"{letter}B", 1000), (f"{letter.upper()}iB", 1024))
}
COUNT_AXIS = ((1, ""), (10**3, "k"), (10**6, "M"), (10**9, "G"), (10**12, "T"))  # on axes, which have no room
AXIS_STEPS: Mapping[str, Sequence[tuple[int, str]]] = {
    "duration": ((1, "µs"), (10**3, "ms"), (10**6, "s"), (60 * 10**6, "min"), (3_600 * 10**6, "h"),
                 (86_400 * 10**6, "d")),
    "bytes": ((1, "B"), (10**3, "kB"), (10**6, "MB"), (10**9, "GB"), (10**12, "TB")),
}  # fmt: skip
NUMBER = r"(\d[\d_]*(?:\.\d+)?)"
DURATION = re.compile(rf"(?:{NUMBER} *({'|'.join(MICROSECONDS)}) *)+")
DURATION_PART = re.compile(rf"{NUMBER} *({'|'.join(sorted(MICROSECONDS, key=len, reverse=True))})")
SIZE = re.compile(rf"{NUMBER} *({'|'.join(BYTES)})")


def readings(text: str) -> dict[Unit | None, Decimal]:
    """Returns the stored values that `text` can mean, by unit; None stands for whole numbers.

    Digits alone may be a whole number, a decimal or money. Nothing that is finer than what is stored is cut
    off, so a value may have a fraction. Empty if the text is not an amount.

    >>> readings("1h30m"), readings("2 GiB")
    ({'duration': Decimal('5400000000')}, {'bytes': Decimal('2147483648')})
    >>> readings("5"), readings("many")
    ({'decimal': Decimal('5000000'), 'money': Decimal('5000000000'), None: Decimal('5')}, {})
    """
    text = text.strip()
    if re.fullmatch(NUMBER, text):
        amount = Decimal(text.replace("_", ""))
        amounts: dict[Unit | None, Decimal] = {
            "decimal": amount * 10 ** PLACES["decimal"],
            "money": amount * 10 ** PLACES["money"],
        }
        return amounts if "." in text else amounts | {None: amount}
    if DURATION.fullmatch(text):
        parts = DURATION_PART.findall(text)
        return {"duration": sum((_scaled(number, MICROSECONDS[unit]) for number, unit in parts), Decimal(0))}
    if size := SIZE.fullmatch(text):
        return {"bytes": _scaled(size[1], BYTES[size[2]])}
    return {}


def _scaled(number: str, factor: int) -> Decimal:
    return Decimal(number.replace("_", "")) * factor


UNLIMITED = 1 << 62  # as a limit: none. No total reaches it, and a flush adds to totals before it compares


def amount_text(value: int, unit: str | None) -> str:
    """Returns a stored value with its unit, exactly.

    >>> [amount_text(value, "duration") for value in (3_600_000_000, 3_600, 61_500_000)]
    ['1h', '3.6ms', '1m1.5s']
    >>> amount_text(1_250_000_000, "decimal"), amount_text(50, "decimal")
    ('1,250.00', '0.00005')
    >>> amount_text(1_250_000_000, "money"), amount_text(50, "money")
    ('1.25', '0.00000005')
    >>> amount_text(2 << 30, "bytes"), amount_text(3_000, "bytes"), amount_text(2_147_483_649, "bytes")
    ('2 GiB', '3 kB', '2,147,483,649 B')
    >>> amount_text(100_000, None), amount_text(UNLIMITED, "bytes")
    ('100,000', 'unlimited')
    """
    if value >= UNLIMITED:
        return "unlimited"
    match unit:
        case "duration":
            return _duration_text(value)
        case "decimal" | "money":
            whole, fraction = divmod(value, 10 ** PLACES[unit])
            digits = f"{fraction:0{PLACES[unit]}}"
            return f"{whole:,}.{digits[:PLACES_SHOWN]}{digits[PLACES_SHOWN:].rstrip('0')}"
        case "bytes":
            name, size = min(
                ((name, size) for name, size in BYTES.items() if value and value % size == 0),
                key=lambda unit: -unit[1],
                default=("B", 1),
            )
            return f"{value // size:,} {name}"
        case _:
            return f"{value:,}"


def rounded_text(value: int, unit: str | None) -> str:
    """Returns a stored value with its unit, as three digits or two units of time.

    >>> rounded_text(274_715_300, "duration"), rounded_text(2_147_483_649, "bytes")
    ('4 min 35 s', '2.15 GB')
    >>> rounded_text(12_500_000, "decimal"), rounded_text(50, "money"), rounded_text(1_234_567, None)
    ('12.5', '0.00000005', '1.23 million')
    """
    if value >= UNLIMITED:
        return "unlimited"
    if unit == "duration":
        return micros_text(value)
    if unit == "bytes":
        return size_text(value)
    return count_text(Decimal(value).scaleb(-PLACES.get(unit or "", 0)))


class Scale(NamedTuple):
    """The unit in which the values of a chart are shown: stored values are divided by `divisor`."""

    divisor: int
    symbol: str


def chart_scale(most: int, unit: str | None) -> Scale:
    """Returns the unit for values up to `most`, so that an axis has numbers of at most four digits.

    >>> chart_scale(274_715_300, "duration"), chart_scale(12_000, None)
    (Scale(divisor=60000000, symbol='min'), Scale(divisor=1000, symbol='k'))
    """
    base = 10 ** PLACES.get(unit or "", 0)
    if unit == "duration" and not most:
        return Scale(MICROSECONDS["s"], "s")
    steps = AXIS_STEPS.get(unit or "", tuple((base * size, name) for size, name in COUNT_AXIS))
    return next((Scale(*step) for step in reversed(steps) if most >= 2 * step[0]), Scale(*steps[0]))


def human_amount(value: int, stored_in: str) -> Decimal:
    """Returns a stored amount in its unit of `HUMAN_UNITS`, exactly; "" is that of whole numbers.

    >>> human_amount(1_250_000, "microseconds"), human_amount(-2_147_483_648, "bytes"), human_amount(7, "")
    (Decimal('1.250000'), Decimal('-2.147483648'), Decimal('7'))
    """
    return Decimal(value).scaleb(-HUMAN_UNITS.get(stored_in, WHOLE).places)


def column_texts(values: Sequence[int | None], unit: str | None) -> list[str]:
    """Returns the values of a column in the unit of `SYMBOLS`, exactly, with equally many digits.

    None is empty text.

    >>> column_texts([3_600_000_000, None, 1_250_000], "duration")
    ['3,600.00', '', '1.25']
    >>> column_texts([50_000_000], "decimal"), column_texts([2 << 30], "bytes")
    (['50.00'], ['2,147,483,648'])
    """
    if unit is None or unit not in PLACES:
        return ["" if value is None else f"{value:,}" for value in values]
    places = PLACES[unit]
    least = 0 if unit == "duration" else PLACES_SHOWN
    fractions = [f"{value % 10**places:0{places}}".rstrip("0") for value in values if value is not None]
    digits = max([least, *map(len, fractions)])
    return ["" if value is None else f"{Decimal(value).scaleb(-places):,.{digits}f}" for value in values]


def with_noun(value: int, unit: str | None, meter: str) -> str:
    """Returns an amount of a meter as a phrase.

    >>> with_noun(100_000, None, "requests"), with_noun(3_600_000_000, "duration", "busy")
    ('100,000 requests', '1h of busy')
    """
    has_unit = unit is not None and value < UNLIMITED
    return f"{amount_text(value, unit)} of {meter}" if has_unit else f"{amount_text(value, unit)} {meter}"


def _duration_text(value: int) -> str:
    if value < MICROSECONDS["s"]:
        if value < MICROSECONDS["ms"]:
            return f"{value}us" if value else "0s"
        return f"{_plain(Decimal(value) / MICROSECONDS['ms'])}ms"
    text = ""
    for unit in ("h", "m"):
        count, value = divmod(value, MICROSECONDS[unit])
        text += f"{count}{unit}" if count else ""
    return text + (f"{_plain(Decimal(value) / MICROSECONDS['s'])}s" if value else "")


def _plain(number: Decimal) -> str:
    """Returns the digits without zeros at the end, never with an exponent."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
