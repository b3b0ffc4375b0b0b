"""Locks and notices that the change of a command has brought, in words and as fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analyzer.judging.judge import Judged


class JudgedChanges:
    """Locks set and cleared and notices raised by a command, in one transaction or several.

    Of very many, the lines of the first are kept.
    """

    def __init__(self, *parts: Judged) -> None:
        self._counted = {"locked": 0, "freed": 0, "notices": 0}
        self._lines: list[str] = []
        for judged in parts:
            self.add(judged)

    def add(self, judged: Judged) -> None:
        """Adds what one more transaction has judged."""
        from analyzer.judging.judgement_log import SHOWN_MAX, log_lines
        from gatekeeper.model import Set

        locked = sum(isinstance(change, Set) for change in judged.changes)
        self._counted["locked"] += locked
        self._counted["freed"] += len(judged.changes) - locked
        self._counted["notices"] += len(judged.notices)
        self._lines += list(log_lines(judged))[: SHOWN_MAX - len(self._lines)]

    @property
    def sentence(self) -> str:
        """Their numbers, and below that a line for each, indented."""
        locked, freed, notices = self._counted.values()
        counted = f"{locked:,} locked, {freed:,} freed"
        counted += f", {notices:,} notice{'s' * (notices != 1)}" if notices else ""
        return "\n  ".join([counted, *self._lines])

    @property
    def addition(self) -> str:
        """The sentence behind a semicolon, for commands that rarely change a lock; "" if there is nothing."""
        return f"; {self.sentence}" if any(self._counted.values()) else ""

    @property
    def fields(self) -> dict[str, Any]:
        """The numbers and the lines, for `--json`."""
        return {**self._counted, "judged": self._lines}
