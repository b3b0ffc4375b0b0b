"""Decimals, scaled exactly from their digits to whole numbers, never through floats."""

from __future__ import annotations

import re

VALUE_MAX = 2**53
DIGITS_MAX = 400  # written longer than this it is no measurement
DECIMAL = re.compile(r"(-?)(0|[1-9][0-9]*+)(?:\.([0-9]++))?(?:[eE]([+-]?[0-9]{1,4}+))?")


def scaled(digits: str, places: int) -> int | None:
    """`digits` times 10**places, cut towards zero to a whole number; None when it is no number as JSON
    writes it, or out of any use.

    >>> scaled("0.29", 2), scaled("1.0000019", 6), scaled("2e3", 0), scaled("-0.5", 0), scaled("1e999", 0)
    (29, 1000001, 2000, 0, None)
    """
    if len(digits) > DIGITS_MAX or (match := DECIMAL.fullmatch(digits)) is None:
        return None
    sign, whole, fraction, exponent = match.groups()
    fraction = fraction or ""
    shift = places + int(exponent or 0) - len(fraction)
    number = int(whole + fraction)
    if number == 0:
        return 0
    if not -DIGITS_MAX * 2 <= shift <= 64:
        return None if shift > 0 else 0
    cut: int = number * 10**shift if shift >= 0 else number // 10**-shift
    return -cut if sign else cut


def floored(digits: str, places: int) -> int | None:
    """The same, cut downwards: times before 1970 are negative, and buckets are half-open."""
    number = scaled(digits, places)
    if number is None or not digits.startswith("-"):
        return number
    finer = scaled(digits, places + DIGITS_MAX // 2)
    exact = finer is not None and finer == number * 10 ** (DIGITS_MAX // 2)
    return number if exact else number - 1
