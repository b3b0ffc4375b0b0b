"""Pauses between tries: each is twice as long as the one before, up to a bound, with jitter."""

from __future__ import annotations


def retry_pause_s(failures: int, first_s: float, longest_s: float, random: float) -> float:
    """Returns the pause after this number of failures in a row; `random`, from 0 to 1, is the jitter.

    >>> [retry_pause_s(failures, 5.0, 3_600.0, 1.0) for failures in (1, 2, 3, 20)]
    [5.0, 10.0, 20.0, 3600.0]
    >>> retry_pause_s(1, 5.0, 3_600.0, 0.0)
    2.5
    """
    return min(first_s * 2.0 ** min(failures - 1, 20), longest_s) * (0.5 + random / 2)
