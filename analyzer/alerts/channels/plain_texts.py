"""Texts that a receiver shows: printable, on one line, of bounded length."""

from __future__ import annotations

from analyzer.kernel.logs import printable


def plain(text: str, most: int) -> str:
    r"""Returns a text without characters that change how others are shown, cut in the middle.

    >>> plain("user:ann\nBcc: x\u202e", 40)
    'user:ann\\nBcc: x\\u202e'
    >>> plain("a" * 30, 11)
    'aaaaa…aaaaa'
    """
    shown = printable(text)
    if len(shown) <= most:
        return shown
    head = most // 2
    return f"{shown[:head]}…{shown[len(shown) - (most - head - 1) :]}"
