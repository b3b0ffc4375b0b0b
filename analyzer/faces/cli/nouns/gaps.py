"""`gatelock upkeep sources list --gaps`: the gaps that stop partitions, and the commands that resume them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Annotated

from click import Context
from click.exceptions import Exit

from analyzer.counting.gaps import format_range, recorded_gaps
from analyzer.faces.cli.described_options import Option
from analyzer.faces.cli.exit_codes import FOUND, reporting_errors
from analyzer.faces.cli.options import ConfigOption, JsonOption, open_database
from analyzer.faces.cli.output import json_lines, say, table
from gatekeeper.feed.feed_json import time_text

if TYPE_CHECKING:
    from analyzer.counting.gaps import RecordedGap

COMMANDS_MAX = 10  # gaps for which commands are shown below the table
UNREADABLE = ("corrupt", "too-large", "unsupported")
READ_AGAIN = "again"  # the offset that reads the same records once more, and so loses none


def list_(
    context: Context,
    config: ConfigOption = None,
    json: JsonOption = False,
    every: Annotated[bool, Option("--all", help="Also gaps that were accepted.")] = False,
) -> None:
    """Show why partitions stopped, and how to continue.

    Lists for each partition the offsets that cannot be counted, and the commands that resume it. Exit code 1
    if a partition is stopped.

    Example: gatelock upkeep sources list --gaps --all
    """
    with reporting_errors(), open_database(context, config) as engine:
        recorded = list(recorded_gaps(engine, decided=every))
        rows = [fields_of(gap) for gap in recorded]
        if json:
            json_lines(rows)
        else:
            decision = ["accepted_to", "accepted_by", "reason"] if every else []
            columns = ["partition", "kind", "start", "end", "found", *decision, "why"]
            cells = [["?" if row[name] is None else row[name] for name in columns] for row in rows]
            table([name.replace("_", " ") for name in columns], cells, "no partition is stopped")
            for line in commands(recorded):
                say(line)
        if any(gap.accepted is None for gap in recorded):
            raise Exit(FOUND)


def fields_of(recorded: RecordedGap) -> dict[str, object]:
    """The JSON object of a gap."""
    part, gap = recorded.part, recorded.gap
    return {
        "partition": str(part), "source": part.source, "cluster": part.cluster, "topic_id": part.topic_id,
        "kind": gap.kind, "start": gap.start, "end": gap.end, "next": gap.behind, "why": gap.why,
        "found": time_text(recorded.found), "found_by": recorded.found_by,
        "accepted_to": recorded.accepted_to,
        "accepted": None if recorded.accepted is None else time_text(recorded.accepted),
        "accepted_by": recorded.accepted_by, "reason": recorded.reason, "skipped": recorded.skipped,
    }  # fmt: skip


def commands(recorded: Sequence[RecordedGap]) -> Iterator[str]:
    """The commands that resume the partition of each open gap, with their consequence as a comment."""
    open_ = [gap for gap in recorded if gap.accepted is None]
    lines = [
        (f"gatelock upkeep sources resume {quote(str(gap.part))} --to {to} --reason TEXT", comment)
        for gap in open_[:COMMANDS_MAX]
        for to, comment in choices(gap)
    ]
    width = max((len(command) for command, _ in lines), default=0)
    yield from (f"{command:{width}}  # {comment}" for command, comment in lines)
    if len(open_) > COMMANDS_MAX:
        yield f"... and {len(open_) - COMMANDS_MAX} more; 'TOPIC[*]' stands for all of one topic"


def choices(recorded: RecordedGap) -> Iterator[tuple[str, str]]:
    """The values of `--to` that suit the gap, each with its consequence."""
    gap, lost = recorded.gap, f"{format_range(recorded.gap)} is not counted"
    if gap.kind == "recreated":
        yield "next", "count the new log from its beginning"
    elif gap.kind == "past-end":
        yield "next", f"continue at {gap.behind}, where the log was truncated"
    elif gap.kind == "too-many-rejected":
        yield READ_AGAIN, "after the source's mapping is corrected"
        yield "next", f"reject unreadable records up to {gap.behind}"
    elif gap.behind is None:
        yield "OFFSET", "the next readable offset is not known (yet)"
    else:
        yield "next", f"continue at {gap.behind}: {lost}"
    if gap.kind in UNREADABLE:
        yield READ_AGAIN, "after the broker's log is repaired"
