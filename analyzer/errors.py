"""What an operator can act on, or the loop can get over. Everything else is a bug and ends the process."""

from __future__ import annotations

from analyzer.core.model import Partition


class AnalyzerError(Exception):
    """The root of this package's errors."""


class PartitionLost(AnalyzerError):
    """Another analyzer has moved the stored offset: what we counted from there is not ours to store."""

    def __init__(self, part: Partition, start: int) -> None:
        super().__init__(
            f"{part}: offset {start} was counted by another analyzer; "
            "dropping this batch and reading again from the stored offset"
        )
        self.part = part


class PlanChanged(AnalyzerError):
    """Another plan than ours is in force: what is counted and judged must be read anew."""

    def __init__(self, ours: int, active: int | None) -> None:
        super().__init__(f"plan {ours} is no longer in force (now: {active}); taking the active one")


class StoreAway(AnalyzerError):
    """The database cannot be reached, or the outcome of a commit is not known."""


class NotInstalled(AnalyzerError):
    """What the configuration asks for needs a package that is not there."""


class SchemaBehind(AnalyzerError):
    """The database's tables are of another version than this program's."""
