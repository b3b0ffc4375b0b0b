"""`gatelock gaps`: what stopped a partition, and the decision to go on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.cli.exit_codes import AWAY, FOUND, reporting_errors, usage_error
from analyzer.cli.options import (
    ConfigOption,
    JsonOption,
    ReasonOption,
    database_of,
    reason_given,
    settings_of,
)

if TYPE_CHECKING:
    from analyzer.config.settings import Settings
    from analyzer.core.model import Partition
    from analyzer.kafka.probes.log_bounds import LogBounds
    from analyzer.store.transaction.gaps import RecordedGap

app = typer.Typer(help="Partitions that wait for a person, and the decision to go on.", no_args_is_help=True)
NAMED = re.compile(r"(?P<topic>.+)\[(?P<number>\d+|\*)\]")
ADVISED_MAX = 10  # commands shown below a table
UNREADABLE = ("corrupt", "too-large", "unsupported")
AGAIN = (*UNREADABLE, "too-many-rejected")  # what may be otherwise by now


@app.command("list")
def list_(
    context: typer.Context,
    config: ConfigOption = None,
    json: JsonOption = False,
    every: Annotated[bool, typer.Option("--all", help="Those that somebody decided on, too.")] = False,
) -> None:
    """Show what stopped which partition, and the command to go on.

    With the offsets that nobody can count. Exit code 1 when a partition waits.
    """
    with reporting_errors(), database_of(context, config) as engine:
        from analyzer.cli.output import json_lines, table
        from analyzer.store.transaction.gaps import recorded_gaps

        found = list(recorded_gaps(engine, decided=every))
        rows = [fields_of(each) for each in found]
        if json:
            json_lines(rows)
        else:
            decided = ["accepted_to", "accepted_by", "reason"] if every else []
            shown = ["partition", "kind", "start", "end", "found", *decided, "why"]
            cells = [["?" if row[name] is None else row[name] for name in shown] for row in rows]
            table([name.replace("_", " ") for name in shown], cells, "no partition waits")
            typer.echo("".join(f"{line}\n" for line in commands(found)), nl=False)
        if any(each.accepted is None for each in found):
            raise typer.Exit(FOUND)


@app.command()
def accept(
    context: typer.Context,
    partition: Annotated[
        str,
        typer.Argument(
            help="As `gaps list` names it: 'access-log[3]'; or 'access-log[*]': all of them that wait."
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            help="The offset to go on at; or `next`: lose as little as possible; or `again`: try once more."
        ),
    ],
    reason: ReasonOption,
    log: Annotated[
        str, typer.Option(help="Which log, where several have one name: its topic_id in `gaps list --json`.")
    ] = "",
    config: ConfigOption = None,
) -> None:
    """Let a stopped partition go on.

    What lies between is not counted, and said to be skipped by `gatelock audit`; too many rejected records
    are read once more instead, and set aside one by one up to the offset. The analyzer goes on within a
    second, without a restart.
    """
    why = reason_given(reason)
    with reporting_errors(), database_of(context, config) as engine:
        from analyzer.cli.operator import operator_name
        from analyzer.store.transaction.gaps import accept as accepted
        from analyzer.store.transaction.gaps import range_of, recorded_gaps

        found = meant(partition, to, log, list(recorded_gaps(engine)))
        logs = bounds([each.part for each in found], settings_of(context, config))
        offsets = [chosen(each, to, logs) for each in found]  # all of them, before the first is accepted
        for each, offset in zip(found, offsets, strict=True):
            accepted(engine, each, offset, operator_name(), why)
            typer.echo(f"{each.part}: {each.gap.kind} {range_of(each.gap)}: {what_comes(each, offset)}")


def fields_of(known: RecordedGap) -> dict[str, object]:
    from gatekeeper.feed.feed_json import time_text

    part, gap = known.part, known.gap
    return {
        "partition": str(part), "source": part.source, "cluster": part.cluster, "topic_id": part.topic_id,
        "kind": gap.kind, "start": gap.start, "end": gap.end, "next": gap.behind, "why": gap.why,
        "found": time_text(known.found), "found_by": known.found_by, "accepted_to": known.accepted_to,
        "accepted": None if known.accepted is None else time_text(known.accepted),
        "accepted_by": known.accepted_by, "reason": known.reason, "skipped": known.skipped,
    }  # fmt: skip


def commands(found: Sequence[RecordedGap]) -> Iterator[str]:
    """What to type, for each gap that waits."""
    waiting = [each for each in found if each.accepted is None]
    lines = [
        (f"gatelock gaps accept {quote(str(each.part))} --to {to} --reason TEXT", comes)
        for each in waiting[:ADVISED_MAX]
        for to, comes in ways(each)
    ]
    wide = max((len(command) for command, _ in lines), default=0)
    yield from (f"{command:{wide}}  # {comes}" for command, comes in lines)
    if len(waiting) > ADVISED_MAX:
        yield f"... and {len(waiting) - ADVISED_MAX} more; 'TOPIC[*]' stands for all of one topic"


def ways(known: RecordedGap) -> Iterator[tuple[str, str]]:
    """The ways on: what `--to` is to be, and what comes of it."""
    from analyzer.store.transaction.gaps import range_of

    gap, lost = known.gap, f"{range_of(known.gap)} is not counted"
    if gap.kind == "recreated":
        yield "next", "the new log is counted from its beginning"
    elif gap.kind == "past-end":
        yield "next", f"on at {gap.behind}, where the log was cut off"
    elif gap.kind == "too-many-rejected":
        yield "again", "once the source's mapping is mended"
        yield "next", f"up to {gap.behind} what cannot be read is set aside"
    elif gap.behind is None:
        yield "OFFSET", "where it can be read again is not known (yet)"
    else:
        yield "next", f"on at {gap.behind}: {lost}"
    if gap.kind in UNREADABLE:
        yield "again", "once the broker's log is mended"


def meant(partition: str, to: str, log: str, open_: Sequence[RecordedGap]) -> list[RecordedGap]:
    """The open gaps that are meant by `partition`. Ends the command when there is none, or none can be told
    from another."""
    named = NAMED.fullmatch(partition)
    if named is None:
        raise usage_error(f"{partition!r} names no partition; `gatelock gaps list` does: 'access-log[3]'")
    every = named["number"] == "*"
    found = [each for each in open_ if partition == (f"{each.part.topic}[*]" if every else str(each.part))]
    found = [each for each in found if log in ("", each.part.topic_id)]
    if not found:
        others = ", ".join(str(each.part) for each in open_[:5])
        raise usage_error(
            f"{partition} does not wait; {f'these do: {others}' if others else 'no partition does'}"
        )
    if every and to.isdecimal():
        raise usage_error(f"--to {to}: an offset is of one partition; of several, `next` or `again`")
    if len(found) > len({str(each.part) for each in found}):
        ids = ", ".join(sorted({each.part.topic_id for each in found}))
        raise usage_error(f"{partition}: several logs of this name wait; say which with --log: {ids}")
    return found


def bounds(parts: Sequence[Partition], settings: Settings) -> Mapping[Partition, LogBounds] | str | None:
    """Where the logs of these begin and end, or why Kafka does not tell; None when it need not be asked."""
    if any(source.topic == part.topic for source in settings.sources for part in parts):
        from analyzer.kafka.probes.log_bounds import bounds_of

        return bounds_of(parts, settings.kafka.client())
    return None


def chosen(known: RecordedGap, to: str, logs: Mapping[Partition, LogBounds] | str | None) -> int:
    """The offset that `to` stands for. Ends the command when the partition cannot go on there."""
    gap, part = known.gap, known.part
    if to == "again":
        if gap.kind not in AGAIN or gap.position is None:
            raise usage_error(f"{part}: to try again would change nothing: {gap.why}")
        return gap.position
    first, end = logs.get(part, (None, None)) if isinstance(logs, Mapping) else (None, None)
    offset = wanted(known, to, first)
    if offset < gap.start:
        raise usage_error(f"{part}: {offset} is before {gap.start}: what lies there was counted")
    if first is not None and end is not None and not first <= offset <= end:
        raise usage_error(f"{part}: the log has [{first}, {end}) now, and not {offset}")
    if gap.kind in (*UNREADABLE, "retention") and gap.end is not None and gap.start < offset < gap.end:
        raise usage_error(f"{part}: {offset} cannot be read either: `next` goes on at {gap.end}")
    if isinstance(logs, str) and offset > (gap.behind or gap.start):
        unknown = f"{part}: whether the log has {offset} is not known: {logs}"
        typer.echo(f"{unknown}; say it again when Kafka answers", err=True)
        raise typer.Exit(AWAY)
    return offset


def wanted(known: RecordedGap, to: str, first: int | None) -> int:
    """The same as far as the gap itself says it."""
    gap, part = known.gap, known.part
    if to.isdecimal():
        return int(to)
    if to != "next":
        raise usage_error(f"--to {to}: an offset, `next` or `again`")
    if gap.behind is None:
        raise usage_error(f"{part}: where it can be read again is not known (yet): give an offset")
    return gap.behind if gap.kind == "too-many-rejected" else max(gap.behind, first or 0)


def what_comes(known: RecordedGap, offset: int) -> str:
    if known.gap.kind == "too-many-rejected":
        return f"read once more; up to {offset} each record that cannot be read is set aside"
    if offset == known.gap.position and known.gap.kind in UNREADABLE:
        return f"read once more from {offset}"
    skipped = offset - known.gap.start
    return f"going on at {offset}" + (f", {skipped:,} offsets are skipped" if skipped > 0 else "")
