"""Scales decimal numbers to integers, exactly from their digits and never through floats."""

from __future__ import annotations

import re

# A number with more digits before the point is neither a time nor an amount, in any unit.
DIGITS_MAX = 40
EXPONENT_DIGITS_MAX = 9
NUMBER = re.compile(rb"(-?)([0-9]++)(?:\.([0-9]++))?(?:[eE]([+-]?)0*+([0-9]*+))?")

QUOTED_NUMBER = re.compile(r"-?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")


def number_in(text: str) -> int | bytes | None:
    """Returns the number that a text is, as a decoder returns one without quotes; None for another text.

    >>> number_in("345"), number_in("0.003"), number_in("-"), number_in("12 ")
    (345, b'0.003', None, None)
    """
    if not text.isascii():
        return None
    if len(text) <= DIGITS_MAX and text.removeprefix("-").isdecimal():
        return int(text)
    return text.encode() if QUOTED_NUMBER.fullmatch(text) else None


def scaled(written: int | bytes, places: int) -> int | None:
    """Returns `written` times 10**places, rounded towards minus infinity; None when it has too many digits.

    `bytes` are a number as JSON writes it.

    >>> scaled(b"0.29", 2), scaled(b"1.0000019", 6), scaled(b"2e3", 0), scaled(b"-0.5", 0), scaled(1500, -3)
    (29, 1000001, 2000, -1, 1)
    """
    if isinstance(written, int):
        return written * int(10 ** max(0, places)) // int(10 ** max(0, -places))
    integer_part, _, behind = written.partition(b".")
    if (
        places >= 0
        and integer_part.isdigit()
        and behind.isdigit()
        and len(integer_part) < DIGITS_MAX - places
    ):
        return int(integer_part + behind[:places].ljust(places, b"0"))  # the usual form
    match = NUMBER.fullmatch(written)
    if match is None:
        return None
    sign, whole, fraction, exponent_sign, exponent = match.groups()
    fraction = fraction or b""
    digits = (whole + fraction).lstrip(b"0")
    if not digits:
        return 0
    if len(exponent or b"") > EXPONENT_DIGITS_MAX:
        exponent = b"9" * EXPONENT_DIGITS_MAX
    shift = int((exponent_sign or b"") + (exponent or b"0"))
    before_point = len(digits) - len(fraction) + shift + places
    if before_point > DIGITS_MAX:
        return None
    kept, cut = (digits[:before_point], digits[before_point:]) if before_point > 0 else (b"", digits)
    number = int(kept.ljust(max(0, before_point), b"0") or b"0")
    return number if not sign else -number - bool(cut.strip(b"0"))
