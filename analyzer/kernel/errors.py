"""Errors that an operator can act on or the loop recovers from.

Any other error is a bug and ends the process.
"""

from __future__ import annotations

from analyzer.kernel.model import Partition


class AnalyzerError(Exception):
    """Base of this package's errors."""


class PartitionLost(AnalyzerError):
    """Another analyzer has moved the stored offset: what was counted from there must not be stored."""

    def __init__(self, part: Partition, start: int) -> None:
        super().__init__(
            f"{part}: offset {start} was counted by another analyzer; "
            "dropping this batch and reading again from the stored offset"
        )
        self.part = part


class PlanChanged(AnalyzerError):
    """Another plan than the counter's is in force: records must be read again under it."""

    def __init__(self, counted_by: int, active: int | None) -> None:
        reason = (
            f"now: {active}" if active != counted_by else "another one has its number: a dump was restored"
        )
        super().__init__(f"plan {counted_by} is no longer in force ({reason}); taking the active one")


class CannotCount(AnalyzerError):
    """The plan in force cannot be counted by in this process."""


class SourceDiffers(AnalyzerError):
    """A source is to be counted by another mapping than the plan in force has for it."""


class StoreAway(AnalyzerError):
    """The database cannot be reached, or the outcome of a commit is unknown."""


class StoreRefused(StoreAway):
    """The database was reached, and has refused or ended the transaction.

    Attributes:
        what: What is wrong.
        cure: What to do.
    """

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(f"{what}; {cure}")
        self.what = what
        self.cure = cure


class DatabaseReplaced(StoreAway):
    """The SQLite file is another one than when it was opened; nothing more may be written. Start again."""


class DatabaseUnusable(AnalyzerError):
    """The database cannot hold every caller's name.

    Attributes:
        what: What is wrong.
        cure: What to do.
    """

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(f"{what}; {cure}")
        self.what = what
        self.cure = cure


class NotInstalled(AnalyzerError):
    """The configuration needs a package that is not installed."""


class ReleaseUnsupported(AnalyzerError):
    """A package is installed in a release that cannot be used."""


class SchemaBehind(AnalyzerError):
    """The database's tables are of another version than this program's."""


class ChainCut(AnalyzerError):
    """The chain of what is given does not contain what its witness has seen: it was restored, or cut."""


class WitnessAway(AnalyzerError):
    """The witness of the chain cannot be read or written."""


class CountsDiffer(AnalyzerError):
    """The buckets of a day do not hold what was counted in it."""


class LogsUnknown(AnalyzerError):
    """Kafka does not say where its logs end."""


class LogUnreadable(AnalyzerError):
    """A log cannot be read again: Kafka does not answer, or it is not there from some offset on."""


class ClosingLost(AnalyzerError):
    """Another process has taken over the closing of a day."""


class DayAltered(AnalyzerError):
    """The rows of a closed day do not have the digest with which it was closed."""


class NothingToClose(AnalyzerError):
    """Nothing was counted by a grouping that a day is to be closed by."""


class CannotForget(AnalyzerError):
    """A caller's name cannot be replaced everywhere."""


class CorrectionRefused(AnalyzerError):
    """A day cannot be corrected in this way."""


class DeliveryFailed(AnalyzerError):
    """A billing service refuses events, or does not answer.

    Attributes:
        is_away: Whether it may take them later.
    """

    def __init__(self, reason: str, *, is_away: bool = False) -> None:
        super().__init__(reason)
        self.is_away = is_away


class NotAtService(DeliveryFailed):
    """A billing service does not have what it was asked for."""


class DeliveryLost(AnalyzerError):
    """Another process hands over to the same destination."""


class ReplayRefused(AnalyzerError):
    """A log cannot be counted again exactly, or what was counted of it cannot be swapped in."""


class BackupFailed(AnalyzerError):
    """The database cannot be copied."""


class RestoreRefused(AnalyzerError):
    """A day cannot be closed again as it was before a restore."""


class ReplayLost(AnalyzerError):
    """Another process continues the replay, or has dropped it."""


class TopicNotWritten(AnalyzerError):
    """A record was not acknowledged by Kafka."""
