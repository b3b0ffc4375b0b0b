"""Effects of acts that cannot be undone, shown before they are done: by commands, by the API and by pages.

Such an act is foreseen by a function that reads and changes nothing. Commands show it with `--dry-run`, and
ask by it on a terminal; the API answers with it until a request is confirmed; a page asks by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

LOCKS_UNASKED_MAX = 10  # so many are cleared without a question


class Foreseen(NamedTuple):
    """Effect of an act.

    Attributes:
        sentences: What will be, with its numbers, for people.
        fields: The same for programs.
        is_asked: Whether the act needs a confirmation.
    """

    sentences: Sequence[str]
    fields: Mapping[str, object] = {}
    is_asked: bool = True

    @property
    def text(self) -> str:
        """The sentences as one."""
        return "; ".join(self.sentences)


class NotConfirmed(Exception):  # an answer, raised where a request acts
    """A request to do what cannot be undone, without a confirmation."""

    def __init__(self, foreseen: Foreseen) -> None:
        super().__init__(foreseen.text)
        self.foreseen = foreseen


def cleared_locks(names: Sequence[str]) -> Foreseen:
    """Returns what clearing these locks does; `names` has one for each."""
    first = ", ".join(names[:3])
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return Foreseen(
        [f"this clears {len(names):,} locks: {first}{more}"],
        {"locks": len(names)},
        is_asked=len(names) > LOCKS_UNASKED_MAX,
    )
