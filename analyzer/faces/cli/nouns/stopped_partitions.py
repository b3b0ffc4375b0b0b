"""`gatelock upkeep sources resume`: where a stopped partition continues."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from click import Context
from click.exceptions import Exit

from analyzer.acting.foreseen import Foreseen
from analyzer.counting.gaps import accept, format_range, recorded_gaps
from analyzer.faces.cli.confirmation import YesOption, is_confirmed
from analyzer.faces.cli.described_options import Argument, Option
from analyzer.faces.cli.exit_codes import FOUND, UNREACHABLE, reporting_errors, usage_error
from analyzer.faces.cli.nouns.gaps import READ_AGAIN, UNREADABLE
from analyzer.faces.cli.operator import operator_name
from analyzer.faces.cli.options import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    ReasonOption,
    load_settings,
    open_database,
    require_reason,
)
from analyzer.faces.cli.output import outcome, say
from analyzer.sources.kafka.probes.log_bounds import read_bounds

if TYPE_CHECKING:
    from analyzer.config.settings import Settings
    from analyzer.counting.gaps import RecordedGap
    from analyzer.kernel.model import Partition
    from analyzer.sources.kafka.probes.log_bounds import LogBounds

PARTITION = re.compile(r"(?P<topic>.+)\[(?P<number>\d+|\*)\]")
RETRYABLE = (*UNREADABLE, "too-many-rejected")  # another attempt may succeed


def resume(
    context: Context,
    partition: Annotated[
        str,
        Argument(
            metavar="PARTITION",
            help="As `upkeep sources list --gaps` shows it: 'access-log[3]'; 'access-log[*]' for all that "
            "are stopped.",
        ),
    ],
    to: Annotated[
        str,
        Option(
            metavar="OFFSET|next|again",
            help="Where to continue: an offset; `next`, to skip as little as possible; or `again`, to read "
            "the same offsets once more.",
        ),
    ],
    reason: ReasonOption,
    log: Annotated[
        str,
        Option(
            metavar="TOPIC_ID",
            help="The log, if several have this name; see `upkeep sources list --gaps --json`.",
        ),
    ] = "",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Continue a stopped partition, and accept its gap.

    Offsets in between are not counted, and `gatelock billing audit` reports them as skipped. After too many
    rejected records, these are read again and stored one by one. The analyzer continues within a second,
    without a restart. Asks first, because what was skipped is not counted later.

    Example: gatelock upkeep sources resume 'requests[3]' --to next --reason WHY
    """
    reason_text = require_reason(reason)
    with reporting_errors(), open_database(context, config) as engine:
        chosen = select_gaps(partition, to, log, list(recorded_gaps(engine)))
        logs = log_bounds([gap.part for gap in chosen], load_settings(context, config))
        # All offsets are checked before the first gap is accepted.
        offsets = [checked_offset(gap, to, logs) for gap in chosen]
        sentences = [
            f"{gap.part}: {gap.gap.kind} {format_range(gap.gap)}: {consequence(gap, offset)}"
            for gap, offset in zip(chosen, offsets, strict=True)
        ]
        fields = [
            {"partition": str(gap.part), "kind": gap.gap.kind, "start": gap.gap.start, "to": offset}
            for gap, offset in zip(chosen, offsets, strict=True)
        ]
        foreseen = Foreseen(sentences, {"gaps": fields}, is_asked=to != READ_AGAIN)
        if is_confirmed(foreseen, yes=yes, dry_run=dry_run, as_json=json):
            for gap, offset, sentence, shown in zip(chosen, offsets, sentences, fields, strict=True):
                accept(engine, gap, offset, operator_name(), reason_text)
                outcome(sentence, shown, as_json=json)


def select_gaps(partition: str, to: str, log: str, open_: Sequence[RecordedGap]) -> list[RecordedGap]:
    """The open gaps that `partition` names.

    Exits with 1 if there are none, with 2 if several logs have the name.
    """
    named = PARTITION.fullmatch(partition)
    if named is None:
        raise usage_error(
            f"{partition!r} does not name a partition; `gatelock upkeep sources list --gaps` shows the "
            "names: 'access-log[3]'"
        )
    every = named["number"] == "*"
    chosen = [gap for gap in open_ if partition == (f"{gap.part.topic}[*]" if every else str(gap.part))]
    chosen = [gap for gap in chosen if log in ("", gap.part.topic_id)]
    if not chosen:
        names = ", ".join(str(gap.part) for gap in open_[:5])
        say(f"{partition} is not stopped; {f'these are: {names}' if names else 'no partition is'}", err=True)
        raise Exit(FOUND)
    if every and to.isdecimal():
        raise usage_error(f"--to {to}: write `next` or `again`; an offset applies to a single partition")
    if len(chosen) > len({str(gap.part) for gap in chosen}):
        ids = ", ".join(sorted({gap.part.topic_id for gap in chosen}))
        raise usage_error(f"{partition}: several logs of this name are stopped; choose one with --log: {ids}")
    return chosen


def log_bounds(parts: Sequence[Partition], settings: Settings) -> Mapping[Partition, LogBounds] | str | None:
    """The first offset and the end of each log, or why Kafka does not answer; None for files.

    Raises LogGone.
    """
    if any(source.topic == part.topic for source in settings.sources for part in parts):
        return read_bounds(parts, settings.kafka.client())
    return None


def checked_offset(recorded: RecordedGap, to: str, logs: Mapping[Partition, LogBounds] | str | None) -> int:
    """The offset that `to` stands for. Exits with 2 if the partition cannot continue there, with 3 if that
    is not known because Kafka does not answer."""
    gap, part = recorded.gap, recorded.part
    if to == READ_AGAIN:
        if gap.kind not in RETRYABLE or gap.position is None:
            raise usage_error(f"{part}: reading again would not help: {gap.why}")
        return gap.position
    first, end = logs.get(part, (None, None)) if isinstance(logs, Mapping) else (None, None)
    offset = requested_offset(recorded, to, first)
    if offset < gap.start:
        raise usage_error(f"{part}: {offset} is before {gap.start}: those offsets were counted")
    if first is not None and end is not None and not first <= offset <= end:
        raise usage_error(f"{part}: {offset} is outside the log, which has [{first}, {end}) now")
    if gap.kind in (*UNREADABLE, "retention") and gap.end is not None and gap.start < offset < gap.end:
        raise usage_error(f"{part}: {offset} cannot be read either: `next` continues at {gap.end}")
    if isinstance(logs, str) and offset > (gap.behind or gap.start):
        say(
            f"{part}: cannot find out whether the log has offset {offset}: {logs}; "
            "run this again when Kafka answers",
            err=True,
        )
        raise Exit(UNREACHABLE)
    return offset


def requested_offset(recorded: RecordedGap, to: str, first: int | None) -> int:
    """The offset that `to` stands for, by the gap alone; `first` is the log's first offset, if known."""
    gap, part = recorded.gap, recorded.part
    if to.isdecimal():
        return int(to)
    if to != "next":
        raise usage_error(f"--to {to}: write an offset, `next` or `again`")
    if gap.behind is None:
        raise usage_error(f"{part}: the next readable offset is not known (yet): write an offset")
    return gap.behind if gap.kind == "too-many-rejected" else max(gap.behind, first or 0)


def consequence(recorded: RecordedGap, offset: int) -> str:
    """The analyzer's next step after the gap is accepted with this offset."""
    if recorded.gap.kind == "too-many-rejected":
        if offset == recorded.gap.position:
            return f"reading again from {offset}"
        return f"reading again; unreadable records up to {offset} are rejected one by one"
    if offset == recorded.gap.position and recorded.gap.kind in UNREADABLE:
        return f"reading again from {offset}"
    skipped = offset - recorded.gap.start
    return f"continuing at {offset}" + (f", {skipped:,} offsets are skipped" if skipped > 0 else "")
