"""`gatelock gaps`: what stopped a partition, and the decision to go on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.cli.ending import FOUND, told, wrong
from analyzer.cli.given import Config, Json, database_of, settings_of

if TYPE_CHECKING:
    from analyzer.settings import Settings
    from analyzer.store.gaps import Known

app = typer.Typer(help="Partitions that wait for a person, and the decision to go on.", no_args_is_help=True)
NAMED = re.compile(r"(?P<topic>.+)\[(?P<number>\d+)\]")


@app.callback()
def gaps() -> None:
    """Partitions that wait for a person, and the decision to go on."""


@app.command("list")
def list_(
    context: typer.Context,
    config: Config = None,
    json: Json = False,
    every: Annotated[bool, typer.Option("--all", help="Those that somebody decided on, too.")] = False,
) -> None:
    """Show what stopped which partition, and the offsets that nobody can count.

    Exit code 1 when a partition waits.
    """
    with told(), database_of(context, config) as engine:
        from analyzer.cli.show import json_lines, table
        from analyzer.store.gaps import known

        found = list(known(engine, decided=every))
        rows = [fields_of(each) for each in found]
        if json:
            json_lines(rows)
        else:
            decided = ["accepted_to", "accepted_by", "reason"] if every else []
            shown = ["partition", "kind", "start", "end", "found", *decided, "why"]
            cells = [["?" if row[name] is None else row[name] for name in shown] for row in rows]
            table([name.replace("_", " ") for name in shown], cells, "no partition waits")
        if any(each.accepted is None for each in found):
            raise typer.Exit(FOUND)


@app.command()
def accept(
    context: typer.Context,
    partition: Annotated[str, typer.Argument(help="As `gaps list` names it: 'access-log[3]'.")],
    to: Annotated[
        str,
        typer.Option(
            help="The offset to go on at; or `next`: lose as little as possible; or `again`: try once more."
        ),
    ],
    reason: Annotated[str, typer.Option(help="Why; it is kept with your name.")],
    config: Config = None,
) -> None:
    """Let a stopped partition go on.

    What lies between is not counted, and said to be skipped by `gatelock audit`; too many rejected records
    are read once more instead, and set aside one by one up to the offset. The analyzer goes on within a
    second, without a restart.
    """
    if not reason.strip():
        raise wrong("--reason: say why; it is kept with your name")
    with told(), database_of(context, config) as engine:
        from analyzer.cli.person import person
        from analyzer.store.gaps import accept as accepted
        from analyzer.store.gaps import known, range_of

        gap = the_one(partition, list(known(engine)))
        offset = chosen(gap, to, *bounds(gap, settings_of(context, config)))
        accepted(engine, gap, offset, person(), reason.strip())
        typer.echo(f"{gap.part}: {gap.gap.kind} {range_of(gap.gap)}: {what_comes(gap, offset)}")


def fields_of(known: Known) -> dict[str, object]:
    from gatekeeper.wire import time_text

    part, gap = known.part, known.gap
    return {
        "partition": str(part), "source": part.source, "cluster": part.cluster, "topic_id": part.topic_id,
        "kind": gap.kind, "start": gap.start, "end": gap.end, "next": gap.behind, "why": gap.why,
        "found": time_text(known.found), "found_by": known.found_by, "accepted_to": known.accepted_to,
        "accepted": None if known.accepted is None else time_text(known.accepted),
        "accepted_by": known.accepted_by, "reason": known.reason, "skipped": known.skipped,
    }  # fmt: skip


def the_one(partition: str, open_: list[Known]) -> Known:
    """The open gap of `partition`. Ends the command when there is none, or more than one."""
    if NAMED.fullmatch(partition) is None:
        raise wrong(f"{partition!r} names no partition; `gatelock gaps list` does: 'access-log[3]'")
    found = [each for each in open_ if str(each.part) == partition]
    if len(found) == 1:
        return found[0]
    if found:
        raise wrong(
            f"{partition}: several logs of this name wait; retire the source that is not read any more"
        )
    others = ", ".join(str(each.part) for each in open_[:5])
    raise wrong(
        f"{partition} waits for nobody: " + (f"these do: {others}" if others else "no partition does")
    )


def bounds(known: Known, settings: Settings) -> tuple[int | None, int | None]:
    """The first offset and the end of the partition's log, if Kafka tells; (None, None) where it does not."""
    if not any(source.topic == known.part.topic for source in settings.sources):
        return None, None
    from analyzer.kafka.bounds import bounds_of

    found = bounds_of(known.part, settings.kafka.client())
    if isinstance(found, str):
        typer.echo(f"the end of the log is not known: {found}", err=True)
        return None, None
    return found


def chosen(known: Known, to: str, first: int | None, end: int | None) -> int:
    """The offset that `to` stands for. Ends the command when the partition cannot go on there."""
    gap, part = known.gap, known.part
    if to == "again" and gap.kind == "past-end":
        raise wrong(
            f"{part}: its log ends before {gap.position}; what comes up to there would be passed over"
        )
    if to == "again":
        offset = gap.start if gap.position is None else gap.position
    elif to == "next":
        if gap.behind is None:
            raise wrong(f"{part}: where it can be read again is not known (yet): give an offset")
        offset = gap.behind if gap.kind == "too-many-rejected" else max(gap.behind, first or 0)
    elif to.isdecimal():
        offset = int(to)
    else:
        raise wrong(f"--to {to}: an offset, `next` or `again`")
    if offset < gap.start:
        raise wrong(f"{part}: {offset} is before {gap.start}: what lies there was counted")
    if first is not None and end is not None and to != "again" and not first <= offset <= end:
        raise wrong(f"{part}: the log has [{first}, {end}) now, and not {offset}")
    return offset


def what_comes(known: Known, offset: int) -> str:
    if known.gap.kind == "too-many-rejected":
        return f"read once more; up to {offset} each record that cannot be read is set aside"
    skipped = offset - known.gap.start
    return f"going on at {offset}" + (f", {skipped:,} offsets are skipped" if skipped > 0 else "")
