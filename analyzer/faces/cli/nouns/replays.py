"""`gatelock upkeep replay`: logs that were counted are counted again, compared, and swapped in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from click import Context
from click.exceptions import Exit

from analyzer.acting.foreseen import Foreseen
from analyzer.build import build_replay
from analyzer.faces.cli.confirmation import YesOption, is_confirmed
from analyzer.faces.cli.described_options import Argument, Option
from analyzer.faces.cli.exit_codes import FOUND, reporting_errors, usage_error
from analyzer.faces.cli.operator import operator_name
from analyzer.faces.cli.options import (
    AskedTime,
    ConfigOption,
    DryRunOption,
    JsonOption,
    ReasonOption,
    UntilOption,
    load_settings,
    open_database,
    parse_time,
    require_name,
    require_reason,
)
from analyzer.faces.cli.output import json_lines, outcome, say, table
from analyzer.kernel.time_texts import format_second
from analyzer.replay import swap as swapping
from analyzer.replay.generations import all_stored, stored
from analyzer.replay.generations import drop as drop_replay
from analyzer.replay.replay_comparison import compare as compare_replay

if TYPE_CHECKING:
    import sqlalchemy as sa

    from analyzer.config.settings import Settings
    from analyzer.kernel.model import Partition
    from analyzer.replay.generations import Replay
    from analyzer.replay.replay_comparison import ReplayComparison
    from analyzer.replay.replay_run import LogReplay
    from analyzer.replay.swap import SwapOutcome


SHOWN = 20  # differences of each meter

NumberArgument = Annotated[int, Argument(metavar="NUMBER", help="The replay: `gatelock upkeep replay list`.")]
JudgeOption = Annotated[bool, Option("--judge", help="Also raise and clear locks by the changed totals.")]
RowsOption = Annotated[
    int | None,
    Option("--rows", metavar="NUMBER", min=1, help="Rows of counts that may change; default: 50,000."),
]


def start(
    context: Context,
    logs: Annotated[
        list[str] | None,
        Argument(metavar="[FILE...|TOPIC]", help="Files that were counted, or a topic of [[sources]]."),
    ] = None,
    source: Annotated[
        str | None, Option(metavar="NAME", help="The source that the files were counted as.")
    ] = None,
    since: Annotated[
        str | None,
        Option("--from", metavar="TIME", help="Of a topic: begin, by the Kafka time of its records."),
    ] = None,
    until: UntilOption = None,
    again: Annotated[
        int | None,
        Option("--resume", metavar="NUMBER", help="Continue this one, which was interrupted."),
    ] = None,
    is_compared: Annotated[bool, Option("--compare", help="Then show the differences.")] = False,
    is_swapped: Annotated[bool, Option("--swap", help="Then swap it in; needs --reason.")] = False,
    reason: Annotated[str, Option(metavar="TEXT", help="Why it is swapped in.")] = "",
    judge: JudgeOption = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Count logs again, beside the live counts.

    Nothing that is counted changes before the swap, and analyzers keep running. A file is counted again
    whole, a topic from --from to --to, as far as it is counted. One that was interrupted continues with
    --resume: what was counted of it counts once. Asks before --swap.

    Example: gatelock upkeep replay start access-log --from 7d --compare
    """
    reason_text = require_reason(reason) if is_swapped else ""
    begin, end = parse_time(since), parse_time(until)
    with reporting_errors(), open_database(context, config) as engine:
        settings = load_settings(context, config)
        if (again is None) is not bool(logs):
            raise usage_error("write FILE... or TOPIC, or --resume NUMBER")
        if again is None:
            job, replay = _begun(settings, engine, logs or [], source, begin, end)
            say(f"replay {replay.id} begins: {replay.about}", err=True)
        else:
            if source is not None or begin is not None or end is not None:
                raise usage_error("--resume: goes without --source, --from and --to, which are stored")
            replay = stored(engine, again)
            if replay.state != "counting":
                raise usage_error(f"replay {again} is {replay.state}: there is nothing to continue")
            job = build_replay(settings, engine, replay.source)
        replay = job.run(replay, _say_progress)
        _after(engine, replay, reason_text, is_compared=is_compared, is_judged=judge, yes=yes, as_json=json)


def compare(
    context: Context,
    number: NumberArgument,
    by: Annotated[str, Option(metavar="GROUPING", help="The grouping of the amounts.")] = "caller",
    config: ConfigOption = None,
    json: JsonOption = False,
    every: Annotated[bool, Option("--all", help=f"Also beyond the {SHOWN} largest.")] = False,
) -> None:
    """Shows whose amounts a swap changes, and which closed days. Amounts are those of the minutes between the
    first and the last one that changes. Exit code 1 if anything differs.
    """
    with reporting_errors(), open_database(context, config) as engine:
        replay = stored(engine, number)
        if replay.state != "counted":
            raise usage_error(f"replay {number} is {replay.state}: only one that is counted can be compared")
        if _say_comparison(engine, replay, by, None if every else SHOWN, as_json=json).rows:
            raise Exit(FOUND)


def swap(
    context: Context,
    number: NumberArgument,
    reason: ReasonOption,
    judge: JudgeOption = False,
    rows: RowsOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Put the counts of a replay in force, in one transaction.

    Differences of closed days become adjustments, booked on the open day. Totals of open windows change;
    locks stay as they are until their series grows, or with --judge. Asks first: it cannot be undone.

    Example: gatelock upkeep replay swap 3 --reason "wrong field for the key"
    """
    reason_text = require_reason(reason)
    with reporting_errors(), open_database(context, config) as engine:
        outcome = _swapped(engine, number, reason_text, is_judged=judge, is_dry=True, rows_max=rows)
        if not dry_run:
            is_confirmed(_foreseen(outcome), yes=yes, dry_run=False, as_json=json)
            outcome = _swapped(engine, number, reason_text, is_judged=judge, is_dry=False, rows_max=rows)
        _say_swapped(outcome, is_dry=dry_run, as_json=json)


def drop(
    context: Context,
    number: NumberArgument,
    reason: ReasonOption,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Give up a replay that is not swapped in.

    A process that still counts it ends.

    Example: gatelock upkeep replay drop 3 --reason "the mapping was wrong"
    """
    reason_text = require_reason(reason)
    with reporting_errors(), open_database(context, config) as engine:
        dropped = drop_replay(engine, number, operator_name(), reason_text)
        outcome(f"replay {number} is dropped", _fields(dropped), as_json=json)


def list_(context: Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show the replays, how far they are, and who asked.

    Example: gatelock upkeep replay list --json
    """
    with reporting_errors(), open_database(context, config) as engine:
        replays = all_stored(engine)
        if json:
            json_lines(map(_fields, replays))
            return
        columns = ["replay", "state", "about", "seen", "began", "swapped", "by", "reason"]
        rows = [
            ["" if fields[name] is None else fields[name] for name in columns]
            for fields in map(_fields, replays)
        ]
        table(columns, rows, "nothing was replayed")


def _begun(
    settings: Settings,
    engine: sa.Engine,
    logs: Sequence[str],
    source: str | None,
    begin: AskedTime | None,
    end: AskedTime | None,
) -> tuple[LogReplay, Replay]:
    """Returns a new replay of a topic or of files, and what counts it. Exits with 2 for wrong options."""
    source_by_topic = {entry.topic: entry.name for entry in settings.sources if entry.topic is not None}
    if len(logs) != 1 or logs[0] not in source_by_topic:
        if begin is not None or end is not None:
            raise usage_error("--from and --to are for topics: a file is counted again whole")
        job = build_replay(settings, engine, _source_of(settings, source))
        return job, job.begin_files([Path(name) for name in logs], operator_name())
    topic = logs[0]
    if begin is None:
        raise usage_error(f"--from: write from which time on {topic} is counted again")
    job, since_s = build_replay(settings, engine, source_by_topic[topic]), begin.second(engine)
    until_ms = None if end is None else end.second(engine) * 1000
    about = f"{topic} from {_time(since_s * 1000)} to {_time(until_ms) or 'its present position'}"
    return job, job.begin_topic(topic, since_s * 1000, until_ms, about, operator_name())


def _source_of(settings: Settings, source: str | None) -> str:

    names = [entry.name for entry in settings.sources]
    if source is None and len(names) == 1:
        return names[0]
    if source is None:
        raise usage_error("--source: name the entry of [[sources]] that the files were counted as")
    require_name("--source", source, names)
    return source


def _say_progress(part: Partition, begin: int, offset: int, end: int) -> None:
    say(f"{part}: {(offset - begin) / max(1, end - begin):.0%}, offset {offset:,} of {end:,}", err=True)


def _after(
    engine: sa.Engine,
    replay: Replay,
    reason: str,
    *,
    is_compared: bool,
    is_judged: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Says what was counted, compares it and swaps it in, as asked for."""
    if is_compared:
        _say_comparison(engine, replay, "caller", SHOWN, as_json=as_json)
    if reason:
        shown = _swapped(engine, replay.id, reason, is_judged=is_judged, is_dry=True, rows_max=None)
        is_confirmed(_foreseen(shown), yes=yes, dry_run=False, as_json=as_json)
        done = _swapped(engine, replay.id, reason, is_judged=is_judged, is_dry=False, rows_max=None)
        _say_swapped(done, is_dry=False, as_json=as_json)
    elif not is_compared:
        sentence = (
            f"replay {replay.id} is counted: {replay.ledger.seen:,} records; compare it, and swap it in"
        )
        outcome(sentence, _fields(replay), as_json=as_json)


def _swapped(
    engine: sa.Engine, number: int, reason: str, *, is_judged: bool, is_dry: bool, rows_max: int | None
) -> SwapOutcome:

    most = swapping.ROWS_MAX if rows_max is None else rows_max
    return swapping.swap(
        engine, number, operator_name(), reason, is_judged=is_judged, is_dry=is_dry, rows_max=most
    )


def _foreseen(shown: SwapOutcome) -> Foreseen:

    return Foreseen(
        [
            f"swapping in replay {shown.replay.id} changes {shown.rows:,} rows of counts and books "
            f"{shown.adjusted:,} adjustments of closed days, for good"
        ]
    )


def _say_swapped(done: SwapOutcome, *, is_dry: bool, as_json: bool) -> None:

    would = "would be" if is_dry else "is"
    sentence = (
        f"replay {done.replay.id} {would} swapped in: {done.rows:,} rows of counts, "
        f"{done.adjusted:,} adjustments of closed days"
    )
    changed = {"changed_rows": done.rows, "adjustments": done.adjusted, "dry_run": is_dry}
    outcome(sentence, _fields(done.replay) | changed, as_json=as_json)


def _say_comparison(
    engine: sa.Engine, replay: Replay, by: str, most: int | None, *, as_json: bool
) -> ReplayComparison:

    compared = compare_replay(engine, replay.id, 2**31 if most is None else most, by)
    ledger = replay.ledger
    if as_json:
        amounts = [amount._asdict() | {"difference": amount.difference} for amount in compared.amounts]
        stretch = {"from": _time(_ms(compared.begin_s)), "to": _time(_ms(compared.end_s))}
        json_lines(
            [
                _fields(replay)
                | {"changed_rows": compared.rows, "closed_days": [*compared.closed], **stretch}
                | {"ledger": ledger._asdict(), "amounts": amounts}
            ]
        )
        return compared
    changes = ", ".join(
        f"{getattr(ledger, name):+,} {name}" for name in ("counted", "duplicate", "dead", "late")
    )
    say(f"replay {replay.id}: {ledger.seen:,} records: {changes}; {compared.rows:,} rows of counts change")
    if ledger.kept:
        say(f"{ledger.kept:,} records stay as they are: whether a retry has counted them is not stored")
    for day in compared.closed:
        say(f"{day} is closed: its differences become adjustments")
    rows: Sequence[Sequence[Any]] = [
        [amount.meter, amount.key, amount.live, amount.replayed, f"{amount.difference:+,}"]
        for amount in compared.amounts
    ]
    table(["meter", by, "live", "replayed", "difference"], rows, "no amount differs")
    return compared


def _fields(replay: Replay) -> dict[str, Any]:
    return {
        "replay": replay.id,
        "state": replay.state,
        "source": replay.source,
        "about": replay.about,
        "plan": replay.plan,
        "seen": replay.ledger.seen,
        "began": _time(replay.began_ms),
        "counted": _time(replay.counted_ms),
        "swapped": _time(replay.swapped_ms),
        "by": replay.swapped_by or replay.who,
        "reason": replay.reason,
        "rows": replay.rows,
        "partitions": [
            {
                "partition": str(position.range.part),
                "begin": position.range.begin,
                "next": position.next,
                "end": position.range.end,
            }
            for position in replay.positions
        ],
    }


def _ms(at_s: int | None) -> int | None:
    return None if at_s is None else at_s * 1000


def _time(at_ms: int | None) -> str | None:

    return None if at_ms is None else format_second(at_ms // 1000)
