"""`gatelock audit`: compares the counts of the partitions with the buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.cli.exit_codes import FOUND, reporting_errors
from analyzer.cli.options import ConfigOption, JsonOption, open_database

if TYPE_CHECKING:
    from analyzer.store.reports.audit import Audit
    from analyzer.store.transaction.gaps import RecordedGap

SKIPPED_MAX = 10  # skipped ranges printed below the table
SUMS = ("buckets", "counted", "overflow", "days_read", "days_proved", "days_deleted", "equal")
COLUMNS = ("topic", "partition", "next", "seen", "counted", "duplicate", "dead", "late", "skipped")


def audit(
    context: typer.Context,
    config: ConfigOption = None,
    json: JsonOption = False,
    every_day: Annotated[
        bool, typer.Option("--all", help="Read the buckets of every day, also of those proved earlier.")
    ] = False,
) -> None:
    """Check that all records are counted once.

    For each partition: seen = counted + duplicate + dead (unreadable, or from the future) + late (too old).
    Over all partitions: counted equals the requests in the buckets, day by day (UTC). A past day whose
    buckets were found equal is not read again until something is counted in it. The column skipped has the
    offsets that an operator skipped with `gatelock gaps accept`; no other column includes them. Exit code 1
    if anything differs.

    Example: gatelock audit --json
    """
    with reporting_errors(), open_database(context, config) as engine:
        from analyzer.cli.nouns.gaps import fields_of
        from analyzer.cli.output import format_second, json_lines
        from analyzer.store.reports.audit import audit as compare

        found = compare(engine, every_day=every_day)
        if json:
            partitions = [{**ledger._asdict(), "equal": ledger.equal} for ledger in found.partitions]
            skipped = [fields_of(gap) for gap in found.skipped]
            counted = {name: getattr(found, name) for name in SUMS}
            differing = [
                {"day": format_second(day.day_s), "counted": day.counted, "in_buckets": day.in_buckets}
                for day in found.differing
            ]
            json_lines([{"partitions": partitions, **counted, "differing": differing, "gaps": skipped}])
        else:
            _print(found)
        if not found.equal:
            raise typer.Exit(FOUND)


def _print(found: Audit) -> None:
    from analyzer.cli.output import format_second, plural, table

    has_duplicates = any(ledger.duplicate for ledger in found.partitions)
    columns = [name for name in COLUMNS if name != "duplicate" or has_duplicates]
    rows = [
        [*(getattr(ledger, name) for name in columns), "=" if ledger.equal else "differs"]
        for ledger in found.partitions
    ]
    table([*columns, ""], rows, "nothing was read yet")
    verdict = "equal" if found.counted == found.buckets else "NOT EQUAL"
    typer.echo(f"{found.counted:,} counted, {found.buckets:,} in buckets: {verdict}")
    typer.echo(
        f"{plural(found.days_read, 'day')} read, {found.days_proved:,} proved before, "
        f"{found.days_deleted:,} deleted after their retention"
    )
    for day in found.differing[:SKIPPED_MAX]:
        when = format_second(day.day_s)
        typer.echo(f"{when}: {day.counted:,} counted, {day.in_buckets:,} in buckets: NOT EQUAL")
    for gap in found.skipped[:SKIPPED_MAX]:
        typer.echo(f"skipped: {gap.part} {skipped_range(gap)}")
    if len(found.skipped) > SKIPPED_MAX:
        typer.echo(f"... and {len(found.skipped) - SKIPPED_MAX} more: `gatelock gaps list --all`")
    if found.overflow:
        typer.echo(f"{found.overflow:,} of these are in overflow: not counted under the name of their caller")


def skipped_range(gap: RecordedGap) -> str:
    """The offsets of an accepted gap, with the operator, the time and the reason."""
    from gatekeeper.feed.feed_json import time_text

    when = "" if gap.accepted is None else time_text(gap.accepted)
    return f"[{gap.gap.start}, {gap.accepted_to}), {gap.gap.kind}: {gap.accepted_by}, {when}: {gap.reason}"
