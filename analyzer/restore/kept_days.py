"""Closed days as the manifests of kept reports describe them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from analyzer.billing.days.closing import ClosedBefore
from analyzer.billing.reports.file_audit import FileUnreadable, read_manifest
from analyzer.billing.reports.manifest import MANIFEST
from analyzer.kernel.model import Partition


class KeptDay(NamedTuple):
    """A closed day in a manifest.

    Attributes:
        zone: Of the day.
        date: As the zone's clocks show it.
        requests: Of callers, admitted and denied.
        before: How it was closed.
        manifest: Its path.
    """

    zone: str
    date: str
    requests: int
    before: ClosedBefore
    manifest: Path

    def __str__(self) -> str:
        return f"{self.date} ({self.zone})"

    @property
    def cuts(self) -> dict[Partition, int]:
        """The offset of each partition up to which it was counted when the day was cut."""
        return {part: int(values["cut"]) for part, values in self.before.partitions.items()}


def read_kept_days(folder: Path) -> list[KeptDay]:
    """Returns the closed days of all manifests in a folder and those below it, in the order of their cuts.

    Raises FileUnreadable for a manifest that cannot be read, and for two of one day with other digests.
    """
    found: dict[tuple[str, str], KeptDay] = {}
    for path in sorted(folder.rglob(f"*{MANIFEST}")):
        manifest = read_manifest(path)
        try:
            days = [_kept_day(path, manifest, day) for day in manifest["days"] if day["state"] == "final"]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise FileUnreadable(f"{path} is not a manifest of closed days: {error!r}") from error
        for day in days:
            known = found.setdefault((day.zone, day.date), day)
            if known.before.digest != day.before.digest:
                both = f"{known.manifest} and {path}"
                raise FileUnreadable(f"{both} have other digests of {day}: keep the one that was billed")
    return sorted(found.values(), key=lambda day: (day.before.cut_ms, day.zone, day.date))


def _kept_day(path: Path, manifest: Mapping[str, Any], day: Mapping[str, Any]) -> KeptDay:
    beside = ("date", "state", "requests", "digest", "digest_key")
    origin = {name: value for name, value in day.items() if name not in beside}
    partitions = {_partition(entry): entry for entry in origin["partitions"]}
    before = ClosedBefore(
        int(origin["cut_ms"]), partitions, origin, str(day["digest"]), str(day.get("digest_key", ""))
    )
    return KeptDay(str(manifest["zone"]), str(day["date"]), int(day["requests"]), before, path)


def _partition(entry: Mapping[str, Any]) -> Partition:
    key = entry["cluster"], entry["topic_id"], int(entry["partition"])
    return Partition(*key, entry.get("source", ""), entry["topic"])
