"""A name, and what takes its place."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

# Behind and before a name: what cannot be a part of a longer one.
BEFORE, BEHIND = r"(?<![\w@/:.-])", r"(?![\w@/-]|[.:]\w)"
# The same without the kind, which follows more characters: "customer:acme", "/customers/acme/".
BEFORE_PLAIN, BEHIND_PLAIN = r"(?<![\w@.-])", r"(?![\w@-]|[.:]\w)"


class Renaming(NamedTuple):
    """A caller that is forgotten.

    Attributes:
        name: Its name, with the kind in front.
        pseudonym: What takes the place of the name.
        reference: What stands for it in closed days.
        clear: Its name as people write it, where it is counted by a digest; "": as `name`.
    """

    name: str
    pseudonym: str
    reference: str
    clear: str = ""

    @property
    def spellings(self) -> tuple[str, ...]:
        """The name as texts may contain it: as it is, and as JSON escapes it."""
        return _spellings(self.name, self.clear)

    @property
    def plain(self) -> str:
        """The name without its kind, as people write it."""
        return (self.clear or self.name).partition(":")[2]

    @property
    def plain_spellings(self) -> tuple[str, ...]:
        """The name without its kind, as records and texts that quote them contain it."""
        return _spellings(self.name.partition(":")[2], self.plain)

    def replaced(self, text: str) -> str:
        """Returns a text with the pseudonym in place of the name, but not within longer names."""
        return self._replaced(text, self.spellings, BEFORE, BEHIND)

    def replaced_plain(self, text: str) -> str:
        """Returns a text with the pseudonym in place of the name, also where it has no kind in front."""
        return self._replaced(self.replaced(text), self.plain_spellings, BEFORE_PLAIN, BEHIND_PLAIN)

    def is_named_by(self, sample: bytes) -> bool:
        """Whether a part of a record names the caller."""
        return any(
            re.search((BEFORE_PLAIN + re.escape(plain) + BEHIND_PLAIN).encode(), sample)
            for plain in self.plain_spellings
        )

    def _replaced(self, text: str, spellings: tuple[str, ...], before: str, behind: str) -> str:
        for spelling in spellings:
            text = re.sub(before + re.escape(spelling) + behind, lambda _: self.pseudonym, text)
        return text


def _spellings(*names: str) -> tuple[str, ...]:
    """Returns the names as they are, as JSON escapes them, and as Python shows their bytes."""
    shown = ((name, json.dumps(name)[1:-1], repr(name.encode())[2:-1]) for name in names if name)
    return tuple(dict.fromkeys(spelling for forms in shown for spelling in forms))
