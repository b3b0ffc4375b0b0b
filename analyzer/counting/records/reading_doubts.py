"""Doubts about what a source yields: the question that a wrong reading of its records raises.

A reading that takes a time, an id or a proxy for the caller parses without an error. What it yields shows
it: a caller for each request, or one caller for all. `look`, `import`, `run` and `doctor` ask by `doubt`.
"""

from __future__ import annotations

from collections.abc import Collection

from analyzer.kernel.model import DrainedCounts
from gatekeeper.identity import UNNAMED

REQUESTS_MIN = 100  # below it, chance makes one caller, or as many as requests
REQUESTS_MAX = 10_000  # of a source that are examined: a wrong mapping shows from the beginning


def doubt(requests: int, callers: int, caller: str, elsewhere: str = "") -> str:
    """Returns the question that these counts raise; "" for none.

    Args:
        requests: Requests that were counted.
        callers: Their different callers.
        caller: The busiest of them.
        elsewhere: A sentence on another field that has addresses; "" where none is known.

    >>> doubt(250, 1, "address:10.0.0.5")
    'one caller has 100 % of 250 requests, address:10.0.0.5: a proxy in front?'
    >>> doubt(250, 9, "address:10.0.0.5")
    ''
    """
    if requests < REQUESTS_MIN or not callers:
        return ""
    if callers == 1 and caller == UNNAMED:
        caller, question = "which has no usable name", "does `caller` of the source name its field?"
    elif callers == 1:
        question = "a proxy in front?"
    elif callers >= requests:
        return (
            f"each of {requests:,} requests has a different caller, such as {caller}: does `caller` of the "
            "source name a field that is new in each request, as a time or an id is?"
        )
    else:
        return ""
    sentence = f"one caller has 100 % of {requests:,} requests, {caller}: {question}"
    return f"{sentence} {elsewhere}" if elsewhere else sentence


class ReadingTally:
    """Requests and their callers as an analyzer counts them, of the first ones, or while there is one caller.

    >>> tally = ReadingTally()
    >>> tally.note(99, {"address:10.0.0.5"}), tally.question()
    (None, '')
    >>> tally.note(1, {"address:10.0.0.5"}), tally.question()
    (None, 'one caller has 100 % of 100 requests, address:10.0.0.5: a proxy in front?')
    """

    def __init__(self) -> None:
        self._requests = 0
        self._callers: set[str] = set()

    def note(self, requests: int, callers: Collection[str]) -> None:
        """Adds requests with their different callers."""
        if self._requests < REQUESTS_MAX or len(self._callers) == 1:
            self._requests += requests
            self._callers.update(callers)

    def question(self, elsewhere: str = "") -> str:
        """Returns the question that these requests raise; "" for none."""
        return doubt(self._requests, len(self._callers), min(self._callers, default=""), elsewhere)


class ReadingQuestions:
    """The questions that the sources of an analyzer raise, each once.

    Sources whose records are counted together are judged together.
    """

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, ...], ReadingTally] = {}
        self._asked: set[tuple[str, ...]] = set()

    def note(self, counted: DrainedCounts) -> str:
        """Adds what was counted; returns a question that it raises for the first time, "" for none."""
        sources = tuple(sorted({progress.part.source for progress in counted.parts if progress.counted}))
        if not sources or sources in self._asked:
            return ""
        tally = self._tallies.setdefault(sources, ReadingTally())
        tally.note(*requests_and_callers(counted))
        question = tally.question()
        if question:
            self._asked.add(sources)
        return f"{' and '.join(sources)}: {question}" if question else ""


def requests_and_callers(counted: DrainedCounts) -> tuple[int, set[str]]:
    """Returns how many records were counted, and their callers; none where no grouping is by caller."""
    tables = [table.keys for table in counted.tables if table.grouping == "caller"]
    return sum(progress.counted for progress in counted.parts), set().union(*tables)
