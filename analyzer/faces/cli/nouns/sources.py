"""`gatelock sources`: the partitions that are read, by which analyzer, and how far behind."""

from __future__ import annotations

from typing import Annotated

import typer

from analyzer.faces.cli.exit_codes import FOUND, reporting_errors
from analyzer.faces.cli.options import ConfigOption, JsonOption, ReasonOption, open_database, require_reason
from analyzer.faces.cli.output import say

app = typer.Typer(help="Partitions that are read, by which analyzer, how far behind.", no_args_is_help=True)


@app.command("list")
def list_(context: typer.Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show every partition that was ever read.

    Lists for each partition the next offset, the lag at the last heartbeat of its analyzer, the shipping
    delay of its source (99th percentile), what is known of its clock, and the age of the heartbeat. Exit
    code 1 if a partition has no analyzer.

    Example: gatelock sources list
    """
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.delays.partition_delays import measured_by_owner, partition_delays
        from analyzer.faces.cli.output import json_lines, table
        from analyzer.flush.followed_partitions import SILENT_MS, followed

        found = followed(engine)
        measured = measured_by_owner(engine)
        delays = [
            partition_delays(part.owner, part.source, f"{part.topic}[{part.partition}]", measured)
            for part in found
        ]
        if json:
            json_lines(part._asdict() | of._asdict() for part, of in zip(found, delays, strict=True))
        else:
            rows = [
                [
                    part.source,
                    f"{part.topic}[{part.partition}]",
                    part.next,
                    part.behind_records,
                    f"{part.behind_s:.1f}",
                    "" if of.shipping_p99_s is None else f"{of.shipping_p99_s:g} s",
                    clock_text(of.kafka_ahead_s),
                    "not followed" if part.heard_s is None else f"{part.heard_s:.0f} s ago",
                    part.owner,
                ]
                for part, of in zip(found, delays, strict=True)
            ]
            columns = [
                "source", "partition", "next", "records behind", "seconds behind", "shipping",
                "Kafka's clock", "heard", "analyzer",
            ]  # fmt: skip
            table(columns, rows, "nothing was read yet")
        if any(part.heard_s is not None and part.heard_s * 1000 > SILENT_MS for part in found):
            raise typer.Exit(FOUND)


def clock_text(ahead_s: float | None) -> str:
    """Returns what the times in Kafka prove about their clock; "" if nothing is measured.

    >>> clock_text(4.0), clock_text(-2.71), clock_text(None)
    ('at least 4.0 s ahead', 'at most 2.7 s behind', '')
    """
    if ahead_s is None:
        return ""
    return f"at least {ahead_s:.1f} s ahead" if ahead_s > 0 else f"at most {-ahead_s:.1f} s behind"


@app.command("retire")
def retire(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="As `sources list` shows it.")],
    reason: ReasonOption,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Retire a source that no analyzer reads any more.

    Its partitions then no longer count as lag. What was counted is kept; an analyzer that reads the source
    again continues at the stored offset. Exit code 1 if no partition of it is without an analyzer.

    Example: gatelock sources retire billing-log --reason "now billing-v2"
    """
    why = require_reason(reason)
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.faces.cli.operator import operator_name
        from analyzer.faces.cli.output import outcome, plural
        from analyzer.flush.followed_partitions import retire as retire_source

        number = retire_source(engine, source, operator_name(), why)
        if not number:
            say(f"{source}: nothing to retire; `gatelock sources list` shows the sources", err=True)
            raise typer.Exit(FOUND)
        fields = {"source": source, "partitions": number}
        outcome(f"{source}: {plural(number, 'partition')} retired", fields, as_json=json)
