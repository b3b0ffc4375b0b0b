"""`gatelock rejects`: records that could not be read."""

from __future__ import annotations

import re
import sys
from collections import Counter as Tally
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from analyzer.cli.exit_codes import FOUND, reporting_errors, usage_error
from analyzer.cli.options import (
    ConfigOption,
    JsonOption,
    SinceOption,
    database_of,
    reason_given,
    second_given,
    settings_of,
)

if TYPE_CHECKING:
    from analyzer.core.records.mapping import SourceMapping
    from analyzer.store.operations.rejects import RejectedRecord, RejectFilter

app = typer.Typer(help="Records that could not be read, and counting them after all.", no_args_is_help=True)
NAMED = re.compile(r"(?P<topic>.+)\[(?P<number>\d{1,18})\]")
WHERE = re.compile(NAMED.pattern + r"@(?P<offset>\d{1,18})")
SHOWN_BYTES = 60
DIGITS_MAX = 18  # of a number that a column takes

SourceOption = Annotated[str | None, typer.Option(help="Only those of this one.")]
TopicOption = Annotated[str | None, typer.Option(help="Only those of this one.")]
PartitionOption = Annotated[
    str | None, typer.Option("--partition", help="Only those of this one: 3, or access-log[3].")
]
RejectReasonOption = Annotated[str | None, typer.Option(help="Only those with this one, as in bad-caller.")]

EXPECTED = {
    "tombstone": "a value; this record has none",
    "too-large": "a value of at most {value_bytes_max:,} bytes",
    "bad-utf8": "UTF-8",
    "bad-json": "one JSON object",
    "bad-line": "a line of the combined format",
    "bad-caller": "a caller: text of at most {name_bytes_max} bytes without control characters, in {caller}",
    "bad-time": "a time between 1970 and 9997, in {time}",
    "bad-number": "numbers from 0 to 2^53, in {fields}",
    "bad-field": "text, a whole number or a boolean, in {fields}",
    "future": "a time at most {future_ms_max:,} ms ahead of the record's Kafka time, in {time}",
    "past": "a time at most {past_ms_max:,} ms behind the record's Kafka time, in {time}",
}


class ExportFormat(StrEnum):
    JSON = "json"
    RAW = "raw"


@app.command("list")
def list_(
    context: typer.Context,
    config: ConfigOption = None,
    json: JsonOption = False,
    source: SourceOption = None,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    reason: RejectReasonOption = None,
    since: SinceOption = None,
) -> None:
    """Show the records that could not be read, the last found first.

    The newest 100,000 are kept; `gatelock audit` counts all that there ever were.
    """
    wanted = _wanted(source, topic, partition, reason, since)
    with reporting_errors(), database_of(context, config) as engine:
        from analyzer.cli.output import json_lines, table
        from analyzer.store.operations.rejects import rejected
        from gatekeeper.feed.feed_json import time_text

        found = rejected(engine, wanted)
        if json:
            json_lines(map(fields_of, found))
            return
        cells = (
            (
                time_text(each.found),
                each.where,
                each.part.source,
                each.reason,
                "?" if each.value_bytes is None else each.value_bytes,
                _text(each.sample[:SHOWN_BYTES]) + ("..." if len(each.sample) > SHOWN_BYTES else ""),
            )
            for each in found
        )
        table(["found", "record", "source", "reason", "bytes", "begins"], cells, "every record could be read")


@app.command()
def show(
    context: typer.Context,
    record: Annotated[str, typer.Argument(help="As `rejects list` names it: 'access-log[3]@1234'.")],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show one record: why it could not be read.

    All of it that was kept, what was expected in its place, and whether it could be read today.
    """
    wanted = _place(record)
    with reporting_errors():
        settings = settings_of(context, config)
        with database_of(context, config) as engine:
            from analyzer.build import build_retry
            from analyzer.cli.output import json_lines
            from analyzer.store.operations.rejects import rejected

            found = list(rejected(engine, wanted))
            if not found:
                raise usage_error(
                    f"{record} is not there: it was read, or counted since, or is older than the rest; "
                    "`gatelock rejects list` names those that are"
                )
            mappings = settings.mappings()
            retry = build_retry(settings, engine)
            for each in found:
                mapping, today = mappings.get(each.part.source), retry.why_rejected(each)
                if json:
                    json_lines([{**fields_of(each), "expected": expected(each, mapping), "today": today}])
                else:
                    typer.echo("\n".join(_in_words(each, mapping, today)))


@app.command()
def export(
    context: typer.Context,
    config: ConfigOption = None,
    form: Annotated[
        ExportFormat,
        typer.Option("--format", help="json: an object per line; raw: the records, a line each."),
    ] = ExportFormat.JSON,
    output: Annotated[Path | None, typer.Option(help="A file to write instead of stdout.")] = None,
    source: SourceOption = None,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    reason: RejectReasonOption = None,
    since: SinceOption = None,
) -> None:
    """Write out the records that could not be read, for repair.

    In the order of their log. `raw` leaves out those of which only the beginning was kept, and says how many.
    """
    wanted = _wanted(source, topic, partition, reason, since)
    with reporting_errors(), database_of(context, config) as engine, _opened(output) as file:
        import json

        from analyzer.store.operations.rejects import rejected

        cut = 0
        for each in rejected(engine, wanted, by_offset=True):
            if form is ExportFormat.JSON:
                file.write(json.dumps(fields_of(each)).encode() + b"\n")
            elif each.whole:
                file.write(each.sample + b"\n")
            else:
                cut += 1
        if cut:
            typer.echo(f"{cut:,} left out: only their beginning was kept, or nothing", err=True)
            raise typer.Exit(FOUND)


@app.command()
def retry(
    context: typer.Context,
    why: Annotated[str, typer.Option(help="What was mended; it is kept with your name.")],
    config: ConfigOption = None,
    json: JsonOption = False,
    source: SourceOption = None,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    reason: RejectReasonOption = None,
    since: SinceOption = None,
) -> None:
    """Count the records that can be read by now.

    Under today's configuration. Each is counted once, however often this is called, and leaves the list.
    Exit code 1 when some cannot be read still, or were not kept whole.
    """
    mended = reason_given(why, "--why", "what was mended")
    wanted = _wanted(source, topic, partition, reason, since)
    with reporting_errors():
        settings = settings_of(context, config)
        with database_of(context, config) as engine:
            from analyzer.build import build_retry
            from analyzer.cli.operator import operator_name
            from analyzer.cli.output import json_lines

            outcomes = build_retry(settings, engine).run(wanted, operator_name(), mended)
            left = Tally(why for _, why in outcomes)
            counted = left.pop("", 0)
        if json:
            json_lines([{"counted": counted, "left": left}])
        else:
            typer.echo(f"{counted:,} counted, {left.total():,} left")
            for trouble, number in sorted(left.items()):
                typer.echo(f"  {number:,}: {trouble}")
        if left:
            raise typer.Exit(FOUND)


def fields_of(reject: RejectedRecord) -> dict[str, Any]:
    from base64 import b64encode

    from gatekeeper.feed.feed_json import time_text

    # Both are always there, one of them null: what reads many such lines wants one shape.
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


def expected(reject: RejectedRecord, mapping: SourceMapping | None) -> str:
    """What the mapping of today wants in the place of what was found."""
    if mapping is None:
        return f"no source is called {reject.part.source} any more"
    paths = {name: ".".join(field.path) for name, field in mapping.fields.items()}
    said = {name: getattr(mapping, name) for name in ("value_bytes_max", "name_bytes_max")}
    said |= {name: getattr(mapping, name) for name in ("future_ms_max", "past_ms_max")}
    time = (
        "its Kafka time" if mapping.time is None else f"{'.'.join(mapping.time.path)} ({mapping.time.unit})"
    )
    callers = " or ".join(f"{paths.get(name, name)} ({name})" for name in mapping.caller)
    others = ", ".join(f"{path} ({name})" for name, path in paths.items())
    return EXPECTED[reject.reason].format(**said, time=time, caller=callers, fields=others or "no field")


def _in_words(reject: RejectedRecord, mapping: SourceMapping | None, today: str) -> Iterator[str]:
    from gatekeeper.feed.feed_json import time_text

    yield f"record    {reject.where} of {reject.part.source}"
    yield f"found     {time_text(reject.found)}"
    yield f"reason    {reject.reason}"
    yield f"expected  {expected(reject, mapping)}"
    yield f"today     {today or 'it can be read: `gatelock rejects retry` counts it'}"
    if reject.value_bytes is not None:
        kept = "all" if reject.whole else f"the first {len(reject.sample):,}"
        yield f"value     {reject.value_bytes:,} bytes, {kept} of them kept"
    yield _text(reject.sample)


def _text(raw: bytes) -> str:
    """Bytes as a terminal may show them."""
    from analyzer.logs import printable

    return printable(raw.decode(errors="backslashreplace"))


def _wanted(
    source: str | None, topic: str | None, partition: str | None, reason: str | None, since: str | None
) -> RejectFilter:
    from analyzer.store.operations.rejects import RejectFilter

    if reason is not None and reason not in EXPECTED:
        raise usage_error(f"{reason!r} is no reason; known are: {', '.join(EXPECTED)}")
    number = None
    if partition is not None:
        topic, number = _partition(partition, topic)
    return RejectFilter(source, topic, number, reason, (second_given(since) or 0) * 1000)


def _partition(given: str, topic: str | None) -> tuple[str | None, int]:
    """A partition by its number, or as it is called everywhere: 'access-log[3]'."""
    if given.isdecimal() and len(given) <= DIGITS_MAX:
        return topic, int(given)
    parts = NAMED.fullmatch(given)
    if parts is None:
        raise usage_error(f"{given!r} names no partition; write 3, or 'access-log[3]'")
    if topic not in (None, parts["topic"]):
        raise usage_error(f"--topic {topic}: {given} is of another one")
    return parts["topic"], int(parts["number"])


def _place(record: str) -> RejectFilter:
    from analyzer.store.operations.rejects import RejectFilter

    parts = WHERE.fullmatch(record)
    if parts is None:
        raise usage_error(f"{record!r} names no record; `gatelock rejects list` does: 'access-log[3]@1234'")
    return RejectFilter(topic=parts["topic"], number=int(parts["number"]), offset=int(parts["offset"]))


@contextmanager
def _opened(output: Path | None) -> Iterator[IO[bytes]]:
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        file = output.open("xb")
    except FileExistsError as error:
        raise usage_error(
            f"{output}: there is such a file, and it is not overwritten: name another one"
        ) from error
    except OSError as error:
        raise usage_error(f"{output}: {error.strerror}") from error
    with file:
        yield file
