"""`gatelock upkeep rejects`: records that could not be read, and counting them after a repair."""

from __future__ import annotations

import re
import sys
from base64 import b64encode
from collections import Counter as Tally
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

from click import Context
from click.exceptions import Exit

from analyzer.build import build_retry
from analyzer.counting.gaps import recorded_gaps
from analyzer.faces.cli.described_options import Argument, Option
from analyzer.faces.cli.exit_codes import FOUND, reporting_errors, usage_error
from analyzer.faces.cli.operator import operator_name
from analyzer.faces.cli.options import (
    AskedTime,
    ConfigOption,
    JsonOption,
    SinceOption,
    load_settings,
    open_database,
    parse_time,
    require_name,
    require_reason,
    second_at,
)
from analyzer.faces.cli.output import json_lines, say, table
from analyzer.faces.cli.reject_reasons import EXPECTED, advice, expected
from analyzer.flush.followed_partitions import followed
from analyzer.flush.rejects import RejectFilter, rejected
from analyzer.judging.judged_changes import JudgedChanges
from analyzer.kernel.logs import printable
from gatekeeper.feed.feed_json import time_text

if TYPE_CHECKING:
    import sqlalchemy as sa

    from analyzer.config.settings import Settings
    from analyzer.flush.rejects import RejectedRecord
    from analyzer.plan.mapping import SourceMapping

PARTITION = re.compile(r"(?P<topic>.+)\[(?P<number>\d{1,18})\]")
RECORD = re.compile(PARTITION.pattern + r"@(?P<offset>\d{1,18})")
SHOWN_BYTES = 60
DIGITS_MAX = 18  # of a number that fits a column of 64 bits

SourceOption = Annotated[str | None, Option(metavar="NAME", help="Only this source.")]
TopicOption = Annotated[str | None, Option(metavar="NAME", help="Only this topic or file.")]
PartitionOption = Annotated[
    str | None,
    Option("--partition", metavar="PARTITION", help="Only this partition: 3, or 'access-log[3]'."),
]
RejectReasonOption = Annotated[
    str | None,
    Option(metavar="REASON", help="Only this reason, such as bad-caller."),
]


def list_(
    context: Context,
    config: ConfigOption = None,
    json: JsonOption = False,
    source: SourceOption = None,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    reason: RejectReasonOption = None,
    since: SinceOption = None,
    raw: Annotated[
        bool, Option("--raw", help="Print the records alone, one per line, in the order of their log.")
    ] = False,
) -> None:
    """Show rejected records, the latest first.

    The newest 100,000 are kept; `gatelock billing audit` counts all of them. Several options must all apply.
    --raw is for a repair: records of which only the beginning was kept are left out, their number is
    printed, and the exit code is 1.

    Example: gatelock upkeep rejects list --reason bad-caller --since 2h
    """
    if raw and json:
        raise usage_error("give --raw or --json, not both")
    selection, begin = _selection(source, topic, partition, reason), parse_time(since)
    with reporting_errors(), open_database(context, config) as engine:
        rows = rejected(engine, _since(engine, selection, begin))
        first = next(rows, None)
        if first is None:
            _require_names(engine, load_settings(context, config), source, topic)
        rejects = chain([] if first is None else [first], rows)
        for sentence in _stopped(engine, source, topic):
            say(sentence, err=True)
        if raw:
            _print_raw(rejected(engine, _since(engine, selection, begin), by_offset=True))
            return
        if json:
            json_lines(map(fields_of, rejects))
            return
        cells = (
            (
                time_text(reject.found),
                reject.where,
                reject.part.source,
                reject.reason,
                "?" if reject.value_bytes is None else reject.value_bytes,
                _text(reject.sample[:SHOWN_BYTES]) + ("..." if len(reject.sample) > SHOWN_BYTES else ""),
            )
            for reject in rejects
        )
        table(["found", "record", "source", "reason", "bytes", "begins"], cells, "no rejected record matches")


def show(
    context: Context,
    record: Annotated[
        str, Argument(metavar="RECORD", help="As `upkeep rejects list` shows it: 'access-log[3]@1234'.")
    ],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Shows all that was kept of the record, why it was rejected, what the mapping expects, and whether it
    can be read now. Exit code 1 if it is not in the list.
    """
    selection = _record(record)
    with reporting_errors():
        settings = load_settings(context, config)
        with open_database(context, config) as engine:
            rejects = list(rejected(engine, selection))
            if not rejects:
                say(
                    f"{printable(record)} is not in the list: it was not rejected, was counted since, or is "
                    "too old to be kept; run `gatelock upkeep rejects list`",
                    err=True,
                )
                raise Exit(FOUND)
            mappings = settings.mappings()
            retry = build_retry(settings, engine)
            for reject in rejects:
                mapping, today = mappings.get(reject.part.source), retry.why_rejected(reject)
                if json:
                    json_lines([{**fields_of(reject), **explained(reject, mapping), "today": today}])
                else:
                    say("\n".join(_lines(reject, mapping, today)))


def _print_raw(rejects: Iterator[RejectedRecord]) -> None:
    """Prints the records that were kept whole. Exits with 1 where others are left out."""
    left_out = 0
    for reject in rejects:
        if reject.whole:
            sys.stdout.buffer.write(reject.sample + b"\n")
        else:
            left_out += 1
    sys.stdout.buffer.flush()
    if left_out:
        say(f"{left_out:,} left out: only their beginning was kept, or nothing", err=True)
        raise Exit(FOUND)


def retry(
    context: Context,
    why: Annotated[
        str,
        Option(
            metavar="TEXT", help="What was corrected; kept with your name, see `gatelock upkeep events list`."
        ),
    ],
    config: ConfigOption = None,
    json: JsonOption = False,
    source: SourceOption = None,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    reason: RejectReasonOption = None,
    since: SinceOption = None,
) -> None:
    """Count rejected records that can be read now.

    Uses the mapping of today's configuration. Each record is counted once, and removed from the list; a
    duplicate, whose id was counted before, is removed without being counted. Exit code 1 if some still cannot
    be read, or were not kept whole.

    Example: gatelock upkeep rejects retry --why "key was renamed" --since 2h
    """
    correction = require_reason(why, "--why")
    selection, begin = _selection(source, topic, partition, reason), parse_time(since)
    with reporting_errors():
        settings = load_settings(context, config)
        with open_database(context, config) as engine:
            done = JudgedChanges()
            selection = _since(engine, selection, begin)
            outcomes = build_retry(settings, engine).run(selection, operator_name(), correction, done.add)
            tally = Tally((why_left, is_duplicate) for _, why_left, is_duplicate in outcomes)
            counted, duplicates = tally.pop(("", False), 0), tally.pop(("", True), 0)
            left = Tally({why_left: number for (why_left, _), number in tally.items()})
        if json:
            json_lines([{"counted": counted, "duplicate": duplicates, "left": left, **done.fields}])
        else:
            left_out = f", {duplicates:,} duplicates left out" if duplicates else ""
            say(f"{counted:,} counted{left_out}, {left.total():,} left{done.addition}")
            for why_left, number in sorted(left.items()):
                say(f"  {number:,}: {why_left}")
        if left:
            raise Exit(FOUND)


def fields_of(reject: RejectedRecord) -> dict[str, Any]:
    """The JSON object of a rejected record."""
    # Both keys are always present, one of them null, so that all lines have one shape.
    sample: dict[str, str | None] = {"sample": None, "sample_base64": None}
    try:
        sample["sample"] = reject.sample.decode()
    except UnicodeDecodeError:
        sample["sample_base64"] = b64encode(reject.sample).decode()
    return {
        "record": reject.where, "source": reject.part.source, "topic": reject.part.topic,
        "partition": reject.part.number, "offset": reject.offset, "topic_id": reject.part.topic_id,
        "reason": reject.reason, "found": time_text(reject.found), "kafka_ms": reject.kafka_ms,
        "value_bytes": reject.value_bytes, "whole": reject.whole, **sample,
    }  # fmt: skip


def _require_names(engine: sa.Engine, settings: Settings, source: str | None, topic: str | None) -> None:
    """Exits with 2 if no source or topic of this name was ever read."""
    places = {(part.source, part.topic) for part in followed(engine)}
    places |= {(gap.part.source, gap.part.topic) for gap in recorded_gaps(engine)}
    configured = {entry.name for entry in settings.sources}
    require_name("--source", source, configured | {name for name, _ in places})
    require_name("--topic", topic, {name for _, name in places})


def _stopped(engine: sa.Engine, source: str | None, topic: str | None) -> Iterator[str]:
    """Yields a sentence for each partition that stopped before it rejected its unreadable records."""
    for gap in recorded_gaps(engine):
        is_wanted = source in (None, gap.part.source) and topic in (None, gap.part.topic)
        if is_wanted and gap.gap.kind == "too-many-rejected":
            yield printable(
                f"{gap.part} waits at offset {gap.gap.start:,}: too many records in a row cannot be read; "
                "none of them is rejected yet: run `gatelock upkeep sources list --gaps`"
            )


def explained(reject: RejectedRecord, mapping: SourceMapping | None) -> dict[str, str]:
    """Sentences by name: what the mapping expects, and what the record has instead, where that shows."""
    sentences = {"expected": expected(reject.reason, reject.part.source, mapping)}
    instead = advice(reject.reason, reject.sample, mapping)
    return sentences | ({"instead": instead} if instead else {})


def _lines(reject: RejectedRecord, mapping: SourceMapping | None, today: str) -> Iterator[str]:

    yield f"record    {reject.where} of {reject.part.source}"
    yield f"found     {time_text(reject.found)}"
    yield f"reason    {reject.reason}"
    for name, sentence in explained(reject, mapping).items():
        yield f"{name:9} {printable(sentence)}"
    yield f"today     {today or 'can be read: `gatelock upkeep rejects retry --why TEXT` counts it'}"
    if reject.value_bytes is not None:
        kept = "all" if reject.whole else f"the first {len(reject.sample):,}"
        yield f"value     {reject.value_bytes:,} bytes, {kept} of them kept"
    yield _text(reject.sample)


def _text(raw: bytes) -> str:
    """Bytes as text that is safe to show in a terminal."""
    return printable(raw.decode(errors="backslashreplace"))


def _selection(
    source: str | None, topic: str | None, partition: str | None, reason: str | None
) -> RejectFilter:
    """The filter that the options describe, without a time. Exits with 2 if one of them is invalid."""
    if reason is not None and reason not in EXPECTED:
        raise usage_error(f"--reason {reason}: use one of {', '.join(EXPECTED)}")
    number = None
    if partition is not None:
        topic, number = _partition(partition, topic)
    return RejectFilter(source, topic, number, reason)


def _since(engine: sa.Engine, selection: RejectFilter, begin: AskedTime | None) -> RejectFilter:
    return selection._replace(since_ms=second_at(engine, begin) * 1000)


def _partition(text: str, topic: str | None) -> tuple[str | None, int]:
    """Topic and number of a partition, from its number or its whole name."""
    if text.isdecimal() and len(text) <= DIGITS_MAX:
        return topic, int(text)
    parts = PARTITION.fullmatch(text)
    if parts is None:
        raise usage_error(f"--partition {text}: write its number, or its name: 3, 'access-log[3]'")
    if topic not in (None, parts["topic"]):
        raise usage_error(f"--topic {topic}: {text} belongs to another topic")
    return parts["topic"], int(parts["number"])


def _record(text: str) -> RejectFilter:
    """The filter for one record. Exits with 2 if `given` does not name a record."""
    parts = RECORD.fullmatch(text)
    if parts is None:
        raise usage_error(
            f"{text!r} does not name a record; `gatelock upkeep rejects list` shows the names: "
            "'access-log[3]@1234'"
        )
    return RejectFilter(topic=parts["topic"], number=int(parts["number"]), offset=int(parts["offset"]))
