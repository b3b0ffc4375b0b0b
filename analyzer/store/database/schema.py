"""The tables, defined once; the migrations are compared against them.

Times are whole milliseconds since 1970 UTC by the database's clock, buckets and windows whole
seconds by the records' own. Text keys are primary keys: a flush writes them without asking for ids.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Index, LargeBinary, MetaData, Table, Text

TOTAL_MAX = 2**63 - 1  # what a 64-bit column holds; a sum stops there rather than fail for ever or wrap

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


# Compared byte by byte, as Python does, whatever the language of the database: one order everywhere.
NAME = Text().with_variant(Text(collation="C"), "postgresql")


def key(name: str, kind: Text | type[BigInteger] = NAME) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def number(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, default=0)


def added(name: str) -> Column[int]:
    """A number that an analyzer of the last version, still running beside this one, does not write."""
    return Column(name, BigInteger, nullable=False, default=0, server_default="0")


def text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False, default="")


# One row per partition: how far it is counted, its ledger, and how far behind it was when last heard of.
# seen = counted + duplicate + dead + late
offsets = Table(
    "offsets",
    metadata,
    key("cluster"),
    key("topic_id"),
    key("partition", BigInteger),
    text("source"),
    text("topic"),
    Column("next", BigInteger, nullable=False),
    text("resume_token"),
    number("seen"),
    number("counted"),
    number("duplicate"),
    number("dead"),
    number("late"),
    text("owner"),
    Column("beat_ms", BigInteger),  # null: nobody follows it (a file that was imported whole)
    number("behind_ms"),
    number("behind_records"),
    # What counting the next record depends on: see `Carried` in core/model.py, and `named` below.
    added("reject_run"),
    added("rejects_accepted_to"),
    added("behind_run"),
    Column("hour", BigInteger),
    Column("hour_before", BigInteger),
)

# The callers that a partition counts by name, in the hour that it has come to and the one before; a row for
# each flush in which some were new.
named_callers = Table(
    "named_callers",
    metadata,
    key("cluster"),
    key("topic_id"),
    key("partition", BigInteger),
    key("hour", BigInteger),
    key("how"),  # "old", "new" or "drawn"
    key("next", BigInteger),  # the partition's offset after that flush
    text("callers"),  # a line each
)

# Pages of `buckets` and `totals` keep room: an update that finds some on its page touches no index, and takes
# a third of the time. A bucket is updated for as long as its minute lasts; a total for all its window.

# Each count is in exactly one row: rolling minutes up into quarters moves it. The key begins with the time,
# so that flushes write side by side and a report reads a stretch.
buckets = Table(
    "buckets",
    metadata,
    key("grouping"),
    key("meter"),
    key("width_s", BigInteger),
    key("bucket_s", BigInteger),
    key("key"),
    key("resource"),
    Column("value", BigInteger, nullable=False),
    Column("denied", BigInteger, nullable=False),
    postgresql_with={"fillfactor": 70},
)

# One running total per judged series and window. Its row serialises the flushes of that series.
totals = Table(
    "totals",
    metadata,
    key("policy"),
    key("key"),
    key("resource"),
    key("window_s", BigInteger),
    Column("until_s", BigInteger, nullable=False),
    Column("used", BigInteger, nullable=False),
    Index(None, "until_s"),
    postgresql_with={"fillfactor": 50},
)

rejects = Table(
    "rejects",
    metadata,
    key("cluster"),
    key("topic_id"),
    key("partition", BigInteger),
    key("offset", BigInteger),
    text("source"),
    text("topic"),
    text("reason"),
    Column("sample", LargeBinary, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("value_bytes", BigInteger),  # of the whole value; null: a tombstone
    Column("kafka_ms", BigInteger),
    Index(None, "at_ms"),
)

# What every flush must agree with. The row with `active` = 1 is the one in force.
plans = Table(
    "plans",
    metadata,
    key("version", BigInteger),
    text("digest"),
    text("body"),  # JSON: groupings, meters, policies
    number("active"),
    Column("at_ms", BigInteger, nullable=False),
)

locks = Table(
    "locks",
    metadata,
    key("scope"),
    key("key"),
    key("resource"),
    key("policy"),
    text("kind"),
    text("action"),
    number("status"),
    text("reason"),
    text("detail"),
    Column("began_ms", BigInteger, nullable=False),
    Column("until_ms", BigInteger, nullable=False),
    text("on_stale"),
    added("slow_limit"),  # requests in slow_ms, for the action "slow"; 0 for others
    added("slow_ms"),
    Index(None, "until_ms"),
)

# One row. Touched last in a transaction and only when a lock changed, then held until commit:
# versions become visible in the order of their numbers.
feed = Table(
    "feed",
    metadata,
    key("id", BigInteger),
    Column("version", BigInteger, nullable=False),
    Column("mark", Text, nullable=False),
    Column("pruned_to", BigInteger, nullable=False),  # changes up to and with this version are gone
)

feed_versions = Table(
    "feed_versions",
    metadata,
    key("version", BigInteger),
    Column("mark", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Index(None, "at_ms"),
)

lock_changes = Table(
    "lock_changes",
    metadata,
    key("version", BigInteger),
    key("number", BigInteger),  # 0, 1, ... within the version
    text("op"),  # "set" or "clear"
    text("scope"),
    text("key"),
    text("resource"),
    text("policy"),
    text("kind"),
    text("action"),
    number("status"),
    text("reason"),
    text("detail"),
    number("began_ms"),
    number("until_ms"),
    text("on_stale"),
    added("slow_limit"),
    added("slow_ms"),
)

# Who may do the work that only one does at a time.
leases = Table(
    "leases",
    metadata,
    key("name"),
    text("holder"),
    Column("until_ms", BigInteger, nullable=False),
)

# Who did what by hand, when and why. Written in the transaction of the act itself; nothing deletes from it.
events = Table(
    "events",
    metadata,
    key("id"),
    Column("at_ms", BigInteger, nullable=False),
    text("who"),
    text("act"),  # "gap accepted", "token created", ...
    text("about"),  # what it was done to, as the commands name it
    text("why"),
    Index(None, "at_ms"),
)

# What stopped a partition, or once did, and who let it go on where. Nothing deletes from it: what was passed
# over is part of the account. A gap is open while nobody accepted it and the partition stands at `position`.
gaps = Table(
    "gaps",
    metadata,
    key("id"),
    text("cluster"),
    text("topic_id"),
    number("partition"),
    text("source"),
    text("topic"),
    text("kind"),
    number("start"),
    Column("end", BigInteger),  # null: not known
    Column("position", BigInteger),  # the stored offset meanwhile; null: none, it never began
    text("why"),
    number("found_ms"),
    text("found_by"),
    Column("accepted_to", BigInteger),
    Column("accepted_ms", BigInteger),
    text("accepted_by"),
    text("reason"),
)
Index(
    "ix_gaps_open",
    gaps.c.cluster,
    gaps.c.topic_id,
    gaps.c.partition,
    unique=True,
    postgresql_where=gaps.c.accepted_ms.is_(None),
    sqlite_where=gaps.c.accepted_ms.is_(None),
)

# Who may ask over HTTP. Of a token only its digest is here: whoever reads this table can use none of them.
tokens = Table(
    "tokens",
    metadata,
    key("name"),
    text("digest"),
    text("scope"),  # "read", "operate" or "admin": each may do what those before it may
    Column("made_ms", BigInteger, nullable=False),
    Column("until_ms", BigInteger),  # null: until it is revoked
)

# What gates last told of themselves. No verdict depends on it.
gates = Table(
    "gates",
    metadata,
    key("instance"),
    number("number"),  # how often it had told: what comes late does not replace what is newer
    Column("at_ms", BigInteger, nullable=False),  # when it was heard of last
    Column("first_ms", BigInteger, nullable=False),
    text("told"),  # JSON: see gatekeeper/telemetry/status_json.py
    Index(None, "at_ms"),
)
