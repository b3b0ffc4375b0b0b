"""The tables of closed days; see docs/decisions/0049.

Rows of a closed day cannot be changed: triggers of the migration refuse it to every program. Callers stand in
these tables by reference, a keyed digest of their names; one table has the names.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Index, Table

from analyzer.kernel.tables.table_columns import (
    COLUMNS_PER_PAGE,
    key,
    metadata,
    number,
    partition_key,
    small,
    text,
)

# Those whose rows of closed days triggers keep; see `guards` in kernel/database/dialects.py.
CLOSED = ("days", "day_positions", "frozen_counts", "adjustments")


def _signature() -> list[Column[str]]:
    """Returns the columns by which the digest of a day signs a reason; see billing/days/signed_reasons.py."""
    return [text("salt"), text("reason_digest")]


# Days of the zones that are billed by. One row of each zone is the open day: the earliest that nothing is cut
# of, on which adjustments are booked.
days = Table(
    "days",
    metadata,
    key("id", BigInteger),
    text("zone"),
    text("date"),  # "2026-11-20", as the zone's clocks show it
    number("begin_s"),
    number("end_s"),
    text("state"),  # "open", "closing" or "closed"
    text("groupings"),  # that were frozen, one per line
    text("meters"),  # JSON: number, name and join of each, when the day was cut
    Column("cut_ms", BigInteger),
    Column("closed_ms", BigInteger),
    number("rows"),
    number("requests"),  # of the callers, admitted and denied
    text("given"),  # JSON: what the counts come from; see reports/billed_days/day_origin.py
    text("digest"),  # over the rows and the digest of the zone's day that was closed before
    text("digest_before"),
    text("digest_key"),  # the fingerprint of the key; "": no key, a digest that any program can compute
    Index(None, "zone", "begin_s", unique=True),
)
Index(
    "ix_days_cut",
    days.c.end_s,
    postgresql_where=days.c.state != "open",
    sqlite_where=days.c.state != "open",
)

# How far each partition must be counted before a day is closed, and how far it was when it was cut.
day_positions = Table(
    "day_positions",
    metadata,
    key("day", BigInteger),
    *partition_key(),
    text("source"),
    text("topic"),
    Column("target", BigInteger),  # null: a partition that needs none
    Column("cut", BigInteger),  # null: before the cut
    text("left_out"),  # why the day does not wait for it: a reason of an operator
    *_signature(),
    text("who"),
    number("is_gone"),  # 1: the log did not exist any more when its end was asked for
)


def _amounts() -> list[Column[int]]:
    """Returns columns as those of `buckets`: meter n is in column n % 8 on page n // 8."""
    return [
        Column(f"{kind}_{place}", BigInteger)
        for kind in ("value", "denied")
        for place in range(COLUMNS_PER_PAGE)
    ]


# What was counted of a day before it was cut.
frozen_counts = Table(
    "frozen_counts",
    metadata,
    key("day", BigInteger),
    small("grouping"),
    small("page"),
    key("reference"),
    key("resource"),
    *_amounts(),
    sqlite_with_rowid=False,
)

# What was counted of a day after it was cut, by the day on which it is booked.
adjustments = Table(
    "adjustments",
    metadata,
    key("day", BigInteger),
    key("booked", BigInteger),  # the id of a day of the same zone
    small("grouping"),
    small("page"),
    key("reference"),
    key("resource"),
    *_amounts(),
    Index(None, "booked"),
    sqlite_with_rowid=False,
)

# Amounts that operators have added to a day that was cut, or taken from it. Never deleted, and never changed,
# but for names of forgotten callers in the reason.
corrections = Table(
    "corrections",
    metadata,
    key("id", BigInteger),
    number("day"),
    number("booked"),
    text("grouping"),
    text("reference"),
    text("resource"),
    text("meter"),
    number("amount"),
    text("who"),
    text("reason"),
    *_signature(),
    number("at_ms"),
    Index(None, "booked"),
    Index(None, "day"),
)

# Closed days whose rows are deleted after their retention. The row is there before the others go: triggers
# permit their deletion by it. What it has of the rows is enough for the chain of digests.
deleted_days = Table(
    "deleted_days",
    metadata,
    key("day", BigInteger),
    text("content"),  # the digest of the rows, before it was chained
    number("at_ms"),
)

# The names that references stand for.
referenced_names = Table("referenced_names", metadata, key("reference"), text("name"))

EQUAL, DIFFERS = "equal", "differs"

# The last audit of each closed day.
day_audits = Table(
    "day_audits",
    metadata,
    key("day", BigInteger),
    text("zone"),
    text("date"),
    Column("at_ms", BigInteger, nullable=False),
    text("who"),
    text("digest"),  # that the day had
    text("result"),  # EQUAL or DIFFERS
    text("differences"),  # JSON: a sentence for each
    text("remarks"),  # JSON: what could not be compared, and why
)

# How far the usage of closed days was handed over to a billing service: one row for each day, kind and meter.
deliveries = Table(
    "deliveries",
    metadata,
    key("destination"),
    key("zone"),
    key("date"),  # of the day; of corrections, the day that they are booked on
    key("grouping"),
    key("kind"),  # "frozen", "late", "correction" or "live"
    key("meter"),
    text("format"),
    text("place"),  # of the last amount that was acknowledged; see reports/billed_days/usage_amounts.py
    number("events"),  # acknowledged
    number("amount"),  # their sum
    number("known"),  # of these, that the service had already
    number("left_out"),  # amounts without a customer
    number("left_out_amount"),
    text("who"),
    number("began_ms"),
    number("acknowledged_ms"),
    Column("tried_ms", BigInteger),  # since when events behind `place` may have been sent; null: none were
    Column("finished_ms", BigInteger),
)


# What was pushed of a day before it was closed, by series: see docs/decisions/0079.
live_usage = Table(
    "live_usage",
    metadata,
    key("destination"),
    key("day", BigInteger),
    key("grouping"),
    key("meter"),
    key("reference"),
    key("resource"),
    number("number"),  # of the increment that was planned last
    number("acknowledged"),  # the sum of the increments that the service has
    number("increment"),  # that is planned and not acknowledged; 0: none
    number("at_s"),  # its time
    number("is_last"),  # 1: it was planned when the day was closed
    number("planned_ms"),
    text("customer_digest"),  # of the customer that has acknowledged some; "": none has
    sqlite_with_rowid=False,
)

# When the last of the days that are cut ends: counts from then on need no adjustment.
CUT_UNTIL_S = (
    sa.select(sa.func.coalesce(sa.func.max(days.c.end_s), 0)).where(days.c.state != "open").scalar_subquery()
)
