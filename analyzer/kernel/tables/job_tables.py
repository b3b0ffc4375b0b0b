"""The tables of jobs: leases, what each job last came to, and its runs."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Table

from analyzer.kernel.tables.table_columns import key, metadata, number, text

# Leases of the work that one analyzer does at a time.
leases = Table("leases", metadata, key("name"), text("holder"), number("until_ms"))

# What each job last came to; see operations/running_jobs.
jobs = Table(
    "jobs",
    metadata,
    key("name"),
    Column("done_ms", BigInteger),  # when a step last left nothing to do; null: never yet
    Column("failing_since_ms", BigInteger),  # the first of the failures in a row; null: it does not fail
    Column("failed_ms", BigInteger),  # the last failure
    text("error"),  # of the last failure
    text("owner"),  # the process that reported last
)

# Runs of the scheduled jobs; see operations/running_jobs. Kept for `[retention] jobs`.
job_runs = Table(
    "job_runs",
    metadata,
    key("job"),
    key("number", BigInteger),
    Column("scheduled_ms", BigInteger, nullable=False),  # the moment that it was done for
    Column("began_ms", BigInteger, nullable=False),
    Column("ended_ms", BigInteger),
    text("owner"),  # the process that ran it
    text("outcome"),  # see `RunOutcome` in core/job_schedules.py
    number("rows"),  # dealt with, so far
    text("error"),
    Index(None, "began_ms"),
)
