"""`gatelock audit`: whether the numbers agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from analyzer.cli.exit_codes import FOUND, reporting_errors
from analyzer.cli.options import ConfigOption, JsonOption, database_of

if TYPE_CHECKING:
    from analyzer.store.transaction.gaps import RecordedGap

SKIPPED_MAX = 10  # gaps told of below the table


def audit(context: typer.Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Find out whether the numbers agree.

    Each partition's ledger with itself: seen is counted, duplicate, dead (unreadable, or from the future)
    and late (too old) together. And all buckets with all ledgers: each counted request is in one bucket.
    Skipped are offsets that somebody passed over with `gatelock gaps accept`; they are in nothing else.
    Exit code 1 when something differs.
    """
    with reporting_errors(), database_of(context, config) as engine:
        from analyzer.cli.nouns.gaps import fields_of
        from analyzer.cli.output import json_lines, table
        from analyzer.store.reports.audit import audit as audited

        found = audited(engine)
        if json:
            partitions = [{**ledger._asdict(), "equal": ledger.equal} for ledger in found.partitions]
            skipped = [fields_of(each) for each in found.skipped]
            counted = {name: getattr(found, name) for name in ("buckets", "counted", "overflow", "equal")}
            json_lines([{"partitions": partitions, **counted, "gaps": skipped}])
        else:
            columns = ["topic", "partition", "next", "seen", "counted", "duplicate", "dead", "late"]
            columns += ["skipped"]
            rows = [
                [*(getattr(ledger, name) for name in columns), "=" if ledger.equal else "differs"]
                for ledger in found.partitions
            ]
            table([*columns, ""], rows, "nothing was read yet")
            verdict = "equal" if found.equal else "NOT EQUAL"
            typer.echo(f"{found.counted:,} counted, {found.buckets:,} in buckets: {verdict}")
            for each in found.skipped[:SKIPPED_MAX]:
                typer.echo(f"skipped: {each.part} {passed_over(each)}")
            if len(found.skipped) > SKIPPED_MAX:
                typer.echo(f"... and {len(found.skipped) - SKIPPED_MAX} more: `gatelock gaps list --all`")
            if found.overflow:
                typer.echo(f"{found.overflow:,} of these are in overflow: and not under their caller's name")
        if not found.equal:
            raise typer.Exit(FOUND)


def passed_over(known: RecordedGap) -> str:
    """What was passed over, and by whose word."""
    from gatekeeper.feed.feed_json import time_text

    when = "" if known.accepted is None else time_text(known.accepted)
    stretch = f"[{known.gap.start}, {known.accepted_to})"
    return f"{stretch}, {known.gap.kind}: {known.accepted_by}, {when}: {known.reason}"
