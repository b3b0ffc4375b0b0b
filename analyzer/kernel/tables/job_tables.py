"""The tables of jobs: leases and runs."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Table

from analyzer.kernel.tables.table_columns import key, metadata, number, text

# Leases of the work that one analyzer does at a time.
leases = Table("leases", metadata, key("name"), text("holder"), number("until_ms"))

# Runs of jobs; see operations/running_jobs. Kept for `[retention] jobs`.
job_runs = Table(
    "job_runs",
    metadata,
    key("job"),
    key("number", BigInteger),
    Column("scheduled_ms", BigInteger, nullable=False),  # the moment that it was done for, or the first
    Column("began_ms", BigInteger, nullable=False),
    Column("ended_ms", BigInteger),
    text("owner"),  # the process that ran it
    text("outcome"),  # see `RunOutcome` in kernel/jobs/job_schedules.py
    number("rows"),  # dealt with, so far
    text("error"),
    Column("done_ms", BigInteger),  # when a step last left nothing to do; null: not in this run
    Index(None, "began_ms"),
)
