"""Parts of sentences."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """The count with its noun.

    >>> plural(1, "gate"), plural(2, "gate"), plural(1_200, "fault")
    ('1 gate', '2 gates', '1,200 faults')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def verb(count: int) -> str:
    """The past verb of a count.

    >>> verb(1), verb(0), verb(2)
    ('was', 'were', 'were')
    """
    return "was" if count == 1 else "were"
