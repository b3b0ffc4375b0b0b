"""A name, and what takes its place."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

# Behind and before a name: what cannot be a part of a longer one.
BEFORE, BEHIND = r"(?<![\w@/:.-])", r"(?![\w@/-]|[.:]\w)"


class Renaming(NamedTuple):
    """A caller that is forgotten.

    Attributes:
        name: Its name, with the kind in front.
        pseudonym: What takes the place of the name.
        reference: What stands for it in closed days.
    """

    name: str
    pseudonym: str
    reference: str

    @property
    def spellings(self) -> tuple[str, ...]:
        """The name as texts may contain it: as it is, and as JSON escapes it."""
        return tuple(dict.fromkeys([self.name, _escaped(self.name)]))

    @property
    def plain_spellings(self) -> tuple[str, ...]:
        """The name without its kind, as records contain it."""
        plain = self.name.partition(":")[2]
        return tuple(dict.fromkeys([plain, _escaped(plain)]))

    def replaced(self, text: str) -> str:
        """Returns a text with the pseudonym in place of the name, but not within longer names."""
        for spelling in self.spellings:
            text = re.sub(BEFORE + re.escape(spelling) + BEHIND, lambda _: self.pseudonym, text)
        return text

    def is_named_by(self, sample: bytes) -> bool:
        """Whether a part of a record names the caller."""
        return any(
            re.search(rb"(?<!\w)" + re.escape(plain.encode()) + rb"(?!\w)", sample)
            for plain in self.plain_spellings
        )


def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1]
