"""Sentences about the partitions that a day waits for, each with a command; of renamed files, an import."""

from __future__ import annotations

import shlex
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day
from analyzer.billing.days.targets import AwaitedPartition
from analyzer.config.settings import Settings
from analyzer.flush.sql_store import SqlStore
from analyzer.sources.files.renamed_files import find_renamed


class Awaited(NamedTuple):
    """A partition that a day waits for.

    Attributes:
        sentence: Why, for people.
        command: What an operator can do.
        effect: What the command does.
        loses_nothing: Whether every record is counted then.
    """

    sentence: str
    command: str
    effect: str
    loses_nothing: bool = False


def describe(engine: sa.Engine, settings: Settings, day: Day, partition: AwaitedPartition) -> Awaited:
    """Returns what a day waits for. Looks for a renamed file on this machine. Raises StoreAway."""
    sentence, part = str(partition), partition.part
    if partition.renamed_ms is None:
        left_out = shlex.quote(partition.name or str(part))
        close = f"gatelock billing days close {day.date} --zone {day.zone} --without {left_out} --reason TEXT"
        return Awaited(sentence, close, "close it without this one")
    host = next((source.host for source in settings.sources if source.name == part.source), None)
    renamed = find_renamed(part, SqlStore(engine, ""), host or "")
    path = "FILE"
    if renamed is not None:
        path = shlex.quote(str(renamed.path))
        sentence += f"; {renamed.uncounted:,} bytes of it are not counted"
    command = f"gatelock upkeep import {path} --source {shlex.quote(part.source)}"
    return Awaited(sentence, command, "count the rest of it", loses_nothing=True)
