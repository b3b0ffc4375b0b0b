"""Callers whose names are forgotten: their requests are counted under a pseudonym."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from gatekeeper.identity import NameDigest

FORGOTTEN = "forgotten"  # kind of the pseudonyms, which no field of a source may have as its name
KNOWN_MAX = 100_000  # names in memory; then all are looked up again


def make_pseudonym(reference: str) -> str:
    """Returns the name under which a forgotten caller is counted and reported.

    >>> make_pseudonym("058ea18ec06f363c")
    'forgotten:058ea18ec06f363c'
    """
    return f"{FORGOTTEN}:{reference}"


def reference_in(name: str) -> str:
    """Returns the reference in a pseudonym; "" for another name.

    >>> reference_in("forgotten:058ea18ec06f363c"), reference_in("api_key:acme")
    ('058ea18ec06f363c', '')
    """
    kind, _, reference = name.partition(":")
    return reference if kind == FORGOTTEN else ""


class ForgottenCallers:
    """Replaces the names of forgotten callers, known by their references alone.

    Args:
        references: Of the callers that are forgotten.
        digest: Makes references of names.
    """

    def __init__(self, references: Collection[str], digest: NameDigest) -> None:
        self._references = frozenset(references)
        self._digest = digest
        self._names: dict[str, str] = {}

    def has_any(self, names: Iterable[str]) -> bool:
        """Whether one of some names is a forgotten caller's."""
        texts = list(names)
        return self.names_to_count(texts) is not texts

    def names_to_count(self, callers: Sequence[str]) -> Sequence[str]:
        """Returns the names with pseudonyms in place of forgotten ones; `callers` itself where none is."""
        distinct = set(callers)
        if len(self._names) > KNOWN_MAX:
            self._names = {}
        for name in distinct - self._names.keys():
            reference = self._digest.of(name)
            self._names[name] = make_pseudonym(reference) if reference in self._references else name
        names = self._names
        if all(names[name] == name for name in distinct):
            return callers
        return [names[name] for name in callers]
