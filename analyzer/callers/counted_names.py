"""Names of callers as an operator writes them: how they are counted, and what is near to one that is not."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from analyzer.counting.counter.caller_budget import FOLDED, OVERFLOW
from analyzer.counting.usage_windows import recent_keys, was_counted
from gatekeeper.identity import UNNAMED, address_of, typed

if TYPE_CHECKING:
    from analyzer.kernel.database.engine import Engine

NEAR_MAX = 3
SIMILAR_MIN = 0.6  # by difflib: one letter of three
OF_MANY = (UNNAMED, OVERFLOW, FOLDED)  # names without a text
KINDS = ("api_key", "user", "address")  # where no source says which names callers have


class NeverCounted(NamedTuple):
    """A name under which nothing was ever counted, with counted ones that it may be a misspelling of."""

    name: str
    near: Sequence[str]

    def __str__(self) -> str:
        """Returns a sentence without a point.

        >>> str(NeverCounted("user:an", ["user:ann", "user:jan"]))
        'nothing was ever counted for user:an; did you mean user:ann or user:jan?'
        """
        sentence = f"nothing was ever counted for {self.name}"
        return f"{sentence}; did you mean {' or '.join(self.near)}?" if self.near else sentence


def never_counted(engine: Engine, name: str, grouping: str = "caller") -> NeverCounted | None:
    """Returns what is near to a name that was never counted, None for a counted one. Raises StoreAway."""
    if was_counted(engine, grouping, name):
        return None
    return NeverCounted(name, nearest(name, recent_keys(engine, grouping)))


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Returns the known names that are most similar but for their kind, the nearest first.

    >>> nearest("api_key:acne", ["api_key:acme", "user:bob", "user:acne"])
    ['user:acne', 'api_key:acme']
    """
    of_text: defaultdict[str, list[str]] = defaultdict(list)
    for candidate in sorted(names):
        of_text[_text(candidate)].append(candidate)
    close = difflib.get_close_matches(_text(name), of_text, NEAR_MAX, SIMILAR_MIN)
    return [candidate for text in close for candidate in of_text[text]][:NEAR_MAX]


def _text(name: str) -> str:
    return name.partition(":")[2].lower() or name.lower()


def counted_as(
    engine: Engine, kinds: Iterable[str], counted_name: Callable[[str], str], text: str
) -> list[str]:
    """Returns the counted names that a text without a kind may mean: api_key:acme for acme.

    `kinds` are those of the sources; `counted_name` returns how a name with its kind is counted. Raises
    StoreAway.
    """
    candidates = [counted_name(typed(kind, text)) for kind in dict.fromkeys(kinds) or KINDS]
    return [name for name in dict.fromkeys(candidates) if was_counted(engine, "caller", name)]


def has_kind(name: str) -> bool:
    """Whether a name begins with its kind; an IPv6 address does not, although it has a colon.

    >>> has_kind("user:ann"), has_kind("ann"), has_kind("2001:db8::1"), has_kind("user:")
    (True, False, False, False)
    """
    kind, _, text = name.partition(":")
    return bool((kind and text) or name in OF_MANY) and not is_address(name)


def is_address(text: str) -> bool:
    """Whether a text is an address of a client."""
    return address_of(text) is not None
