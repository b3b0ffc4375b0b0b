"""Whether what a source yields is plausible: the question that a wrong reading of its records raises.

A reading that takes a time, an id or a proxy for the caller parses without an error. What it yields shows
it: a caller for each request, or one caller for all. `look`, `import`, `run` and `doctor` ask by `doubt`.
"""

from __future__ import annotations

from gatekeeper.identity import UNNAMED

REQUESTS_MIN = 100  # below it, chance makes one caller, or as many as requests
REQUESTS_MAX = 10_000  # of a source that are looked at: a wrong mapping shows from the beginning


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
        question = "does `caller` of the source name its field?"
    elif callers == 1:
        question = "a proxy in front?"
    elif callers >= requests:
        return (
            f"each of {requests:,} requests has a caller of its own, such as {caller}: does `caller` of the "
            "source name a field that is new in each request, as a time or an id is?"
        )
    else:
        return ""
    asked = f"one caller has 100 % of {requests:,} requests, {caller}: {question}"
    return f"{asked} {elsewhere}" if elsewhere else asked


class ReadingTally:
    """The first requests of a source and their callers, as an analyzer counts them.

    Raises each question once: `note` returns it with the counts by which it came up.

    >>> tally = ReadingTally()
    >>> tally.note(99, {"address:10.0.0.5"}), tally.note(1, {"address:10.0.0.5"})
    ('', 'one caller has 100 % of 100 requests, address:10.0.0.5: a proxy in front?')
    """

    def __init__(self) -> None:
        self._requests = 0
        self._callers: set[str] = set()
        self._is_over = False

    def note(self, requests: int, callers: set[str]) -> str:
        """Adds requests with their different callers; returns the question that they raise, "" for none."""
        if self._is_over or not requests:
            return ""
        self._requests += requests
        self._callers |= callers
        question = self.question()
        self._is_over = bool(question) or self._requests >= REQUESTS_MAX
        return question

    def question(self, elsewhere: str = "") -> str:
        """Returns the question that all requests until now raise."""
        return doubt(self._requests, len(self._callers), min(self._callers, default=""), elsewhere)
