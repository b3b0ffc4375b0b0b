"""Results of simulations: locks by series, sums over all series, and what differs between two policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from analyzer.forecast.simulation.series_simulation import SimulatedLock

ChangeName = Literal["newly locked", "no longer locked", "longer", "shorter", "as before"]
CHANGES: tuple[ChangeName, ...] = ("newly locked", "longer", "shorter", "no longer locked", "as before")


class SeriesLocks(NamedTuple):
    """The locks of one series, at least one, in the order of time."""

    key: str
    resource: str
    locks: Sequence[SimulatedLock]

    @property
    def locked_s(self) -> int:
        """Seconds of all locks together; the last one may end in the future."""
        return sum(lock.until_s - lock.began_s for lock in self.locks)

    @property
    def requests(self) -> int:
        """Requests that came during the locks."""
        return sum(lock.requests for lock in self.locks)


class PolicyLocks(NamedTuple):
    """The locks of all series by one policy, and how often each threshold was reached."""

    series: Mapping[tuple[str, str], SeriesLocks]  # by key and resource
    notices: Counter[int]  # by thousandths of the limit

    @property
    def keys(self) -> int:
        """The number of callers, or other keys, with a lock."""
        return len({key for key, _ in self.series})

    @property
    def locks(self) -> int:
        return sum(len(series.locks) for series in self.series.values())

    @property
    def locked_s(self) -> int:
        return sum(series.locked_s for series in self.series.values())

    @property
    def requests(self) -> int:
        return sum(series.requests for series in self.series.values())


class SeriesChange(NamedTuple):
    """The locks of one series by two policies; None where it has none."""

    change: ChangeName
    now: SeriesLocks | None
    then: SeriesLocks | None

    @property
    def of(self) -> SeriesLocks:
        """The locks by the policy that is simulated, else those by the present one."""
        series = self.now or self.then
        assert series is not None  # noqa: S101 - a series without any lock is not compared
        return series


def changes(now: PolicyLocks, then: PolicyLocks) -> list[SeriesChange]:
    """Returns the series with a lock by either policy: by kind of change, those with most requests first."""
    return sorted(
        _changes(now, then),
        key=lambda change: (
            CHANGES.index(change.change),
            -change.of.requests,
            change.of.key,
            change.of.resource,
        ),
    )


def _changes(now: PolicyLocks, then: PolicyLocks) -> Iterator[SeriesChange]:
    for name in now.series.keys() | then.series.keys():
        new, old = now.series.get(name), then.series.get(name)
        if old is None:
            yield SeriesChange("newly locked", new, None)
        elif new is None:
            yield SeriesChange("no longer locked", None, old)
        elif new.locked_s == old.locked_s:
            yield SeriesChange("as before", new, old)
        else:
            yield SeriesChange("longer" if new.locked_s > old.locked_s else "shorter", new, old)
