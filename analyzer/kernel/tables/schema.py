"""The tables, defined once; the migrations are compared against them.

Times are whole milliseconds since 1970 UTC by the database's clock; buckets and windows are whole seconds by
the records' own time. Primary keys are text: a flush writes them without looking up ids.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, Table, Text

from analyzer.kernel.tables import outbox_tables, ranking_tables, session_tables, signal_tables, table_columns
from analyzer.kernel.tables.billing_tables import (
    adjustments,
    corrections,
    day_audits,
    day_positions,
    days,
    deleted_days,
    deliveries,
    frozen_counts,
    live_usage,
    referenced_names,
)
from analyzer.kernel.tables.chain_tables import chain_entries, chain_salts
from analyzer.kernel.tables.counter_tables import event_ids, named_callers, secrets
from analyzer.kernel.tables.job_tables import job_runs, leases
from analyzer.kernel.tables.replay_tables import replay_positions, replayed_counts, replayed_rejects, replays
from analyzer.kernel.tables.table_columns import (
    COLUMNS_PER_PAGE,
    key,
    key_of_lock,
    number,
    partition_key,
    small,
    text,
)

UNKNOWN = -1  # an amount that is not known
TOTAL_MAX = 2**63 - 1  # the largest number of a column; a sum stops there rather than overflow

metadata = table_columns.metadata
# Defined elsewhere, and among `metadata` too.
OF_COUNTERS = (named_callers, event_ids, secrets)
OF_JOBS = (leases, job_runs, signal_tables.signals)
OF_BROWSERS = (session_tables.sessions,)
OF_ALERTS = (outbox_tables.outbox, outbox_tables.alert_messages, outbox_tables.alert_contacts)
OF_RANKINGS = (ranking_tables.changed_quarters, ranking_tables.rankings)
OF_REPLAYS = (replays, replay_positions, replayed_counts, replayed_rejects)
OF_BILLING = (
    days, day_positions, frozen_counts, adjustments, corrections, deleted_days, referenced_names, day_audits,
    deliveries, live_usage, chain_entries, chain_salts,
)  # fmt: skip

# One row per partition: how far it is counted, its ledger, and how far behind it was at its last heartbeat.
# seen = counted + duplicate + dead + late
offsets = Table(
    "offsets",
    metadata,
    *partition_key(),
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
    Column("beat_ms", BigInteger),  # last heartbeat; null: no analyzer follows it (an imported file)
    number("behind_ms"),
    number("behind_records"),
    # State of the counter: see `CounterState` in core/model.py, and `named_callers`.
    number("reject_run"),
    number("rejects_accepted_to"),
    number("behind_run"),
    Column("hour", BigInteger),
    Column("hour_before", BigInteger),
    number("begin"),  # the offset at which counting began
    number("renamed"),  # of those counted: under another name of the request, because its own was unusable
    # See `IdState` in core/model.py, and `event_ids`; null: the source never had ids.
    Column("ids_reached_ms", BigInteger),
    number("ids_far_run"),
    Column("ids_kept_ms", BigInteger),
)

# Numbers of what a plan names: small integers in millions of rows. Numbers are given when a plan comes in
# force and never change; a meter that is renamed keeps its own.
catalog = Table(
    "catalog",
    metadata,
    key("kind"),  # see `analyzer.plan.catalog`; "folded": see `roll_up`
    key("name"),  # of a sum: grouping, meter and period, "caller requests day Europe/Berlin"
    Column("number", BigInteger, nullable=False),
    text("join"),  # of a meter
    text("meaning"),  # of a meter: its digest
)

# Pages of `buckets` and `totals` keep free space: an update that finds some on its page touches no index
# (HOT), and takes a third of the time. A bucket is updated while its minute lasts, a total during its whole
# window.

# Each count is in exactly one row: rolling minutes up into quarters moves it. All meters of a series share
# the row: meter n has the columns n % 8 on page n // 8. The key begins with the time, so that flushes write
# adjacent rows and a report reads one stretch.
buckets = Table(
    "buckets",
    metadata,
    small("grouping"),
    small("page"),
    small("width_s", Integer),
    key("bucket_s", BigInteger),
    # Null where the row was written without the meter; of requests that a gate had denied, also where there
    # were none.
    *(Column(f"value_{place}", BigInteger) for place in range(COLUMNS_PER_PAGE)),
    *(Column(f"denied_{place}", BigInteger) for place in range(COLUMNS_PER_PAGE)),
    key("key"),  # texts last: PostgreSQL aligns numbers behind them
    key("resource"),
    postgresql_with={"fillfactor": 70},
    sqlite_with_rowid=False,
)

# Requests counted by UTC day: what the buckets of that day add up to. Written with the offsets, by the
# partition that is the first of its flush, whose offset the writer holds anyway. Never deleted: it says what
# was counted when the buckets are gone.
day_counts = Table(
    "day_counts",
    metadata,
    *partition_key(),
    key("day_s", BigInteger),
    Column("requests", BigInteger, nullable=False),
)

# Days whose buckets were found equal to `day_counts` when these amounted to `requests`.
proofs = Table(
    "proofs",
    metadata,
    key("day_s", BigInteger),
    Column("requests", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    number("deleted"),  # 1: the day's buckets were deleted after their retention
)

# One running total per sum (grouping, meter, period), series and window, shared by the policies with that
# sum. Its row serialises the flushes of that series. No index contains `used` or `next`: an update must stay
# a HOT one.
totals = Table(
    "totals",
    metadata,
    small("sum"),
    key("window_s", BigInteger),
    key("key"),
    key("resource"),
    Column("used", BigInteger, nullable=False),
    Column("next", BigInteger, nullable=False),  # the least value at which something must be judged
    Column("plan", BigInteger, nullable=False),  # version of the plan by which `next` was computed
    Column("touched_s", BigInteger),  # of a rolling sum, whose window_s is 0: when it grew last
    postgresql_with={"fillfactor": 50},
    sqlite_with_rowid=False,
)


def _slots(number: int) -> Table:
    return Table(
        f"slots_{number}",
        metadata,
        small("sum"),
        key("key"),
        key("resource"),
        key("slot_s", BigInteger),  # last: the slots of one series are one stretch
        Column("value", BigInteger, nullable=False),
        postgresql_with={"fillfactor": 70},
        sqlite_with_rowid=False,
    )


# Slots of rolling sums, which judgements read; not accounts. The tables are used in turn, each for a
# generation of time, and emptied whole: see transaction/judgement/slots.py.
slots = tuple(_slots(number) for number in range(3))

# Values that sums of distinct values have counted, each once for a series and a window: a calendar's, or a
# slot of a rolling one. The total of the series is held while rows of it are added.
distinct_values = Table(
    "distinct_values",
    metadata,
    small("sum"),
    key("key"),
    key("resource"),
    key("window_s", BigInteger),  # behind the series: the slots of one series are one stretch
    key("value", BigInteger),  # a digest
    Index(None, "sum", "window_s"),
    sqlite_with_rowid=False,
)

# Totals that must be judged at a given time, grown or not.
postponed = Table(
    "postponed",
    metadata,
    small("sum"),
    key("window_s", BigInteger),
    key("key"),
    key("resource"),
    Column("due_ms", BigInteger, nullable=False),
    number("is_behind"),  # 1: because the analyzers are behind
    Index(None, "due_ms"),
)
# For the number of them, which status pages read.
Index(
    "ix_postponed_behind",
    postponed.c.is_behind,
    postgresql_where=postponed.c.is_behind == 1,
    sqlite_where=postponed.c.is_behind == 1,
)

# Totals of callers whose zone or anchor has changed, which wait for what the buckets have from before.
refills = Table(
    "refills",
    metadata,
    key("key"),
    small("sum"),
    key("window_s", BigInteger),
    Column("version", BigInteger, nullable=False),  # of the directory, by which the windows changed
    sqlite_with_rowid=False,
)

# Series that are over the mark of a share policy and not locked yet, because that must last for some time.
holds = Table(
    "holds",
    metadata,
    *key_of_lock(),
    Column("since_ms", BigInteger, nullable=False),
    Column("seen_ms", BigInteger, nullable=False),  # when the warden last found it over the mark
    Index(None, "seen_ms"),
)

# Thresholds of policies that series have reached. The row keeps a notice from being raised again, so it must
# outlive its window.
notices = Table(
    "notices",
    metadata,
    key("policy"),
    key("sum"),  # its name in the catalog
    key("key"),
    key("resource"),
    key("window_s", BigInteger),
    key("threshold", BigInteger),  # thousandths of the limit
    text("scope"),
    Column("used", BigInteger, nullable=False),
    Column("limit", BigInteger, nullable=False),
    Column("until_s", BigInteger, nullable=False),
    text("detail"),
    Column("at_ms", BigInteger, nullable=False),
    Index(None, "at_ms"),
)

rejects = Table(
    "rejects",
    metadata,
    *partition_key(),
    key("offset", BigInteger),
    text("source"),
    text("topic"),
    text("reason"),
    Column("sample", LargeBinary, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("value_bytes", BigInteger),  # of the whole value; null: a tombstone or unknown
    Column("kafka_ms", BigInteger),
    Index(None, "at_ms"),
)

# The plans that every flush must agree with. The row with `active` = 1 is in force.
plans = Table(
    "plans",
    metadata,
    key("version", BigInteger),
    text("digest"),
    text("body"),  # JSON: see core/judging/plan.py
    number("active"),
    Column("at_ms", BigInteger, nullable=False),
    # JSON: what is left to do until totals and locks agree with the plan; see judgement/activation.py.
    text("pending"),
    # Random: after a restore, another plan may have the number.
    text("mark"),
)

# Analyzers by the name in their configuration, for the decision which configuration is put in force; see
# core/judging/proposals.py. Imports and commands are not among them.
analyzers = Table(
    "analyzers",
    metadata,
    key("name"),
    number("format"),  # the newest format of plans that it reads
    text("release"),  # version of the program
    text("file"),  # JSON: digests of the parts of the configuration it last started with
    text("settled"),  # JSON: digests of the parts that were equal to the plan, put in force or declined
    text("reads"),  # JSON: consumer group and topics
    Column("started_ms", BigInteger, nullable=False),
    Column("beat_ms", BigInteger, nullable=False),
    text("measured"),  # JSON: see core/delays/measured_delays.py; "": nothing yet
    text("refused"),  # why its changed configuration is refused; "": it is not
    text("problems"),  # JSON: problems that only it can see, a sentence by name; "": nothing yet
)

# From which offset on a partition was counted by which plan. A row for each change; retried records are
# counted by the plan of the moment.
stretches = Table(
    "stretches",
    metadata,
    *partition_key(),
    key("start", BigInteger),  # offset
    Column("plan", BigInteger, nullable=False),  # version
    text("mark"),
)

# Facts about callers: as an operator or a file has stated them, which come first, and as records state them.
callers = Table(
    "callers",
    metadata,
    key("caller"),
    text("plan"),
    text("tenant"),
    Column("version", BigInteger, nullable=False),  # of the directory, in which the row was changed
    *map(text, ("zone", "anchor", "record_plan", "record_tenant", "record_zone", "record_anchor")),
    Index(None, "version"),
)

# What the records of each partition state about callers: a row for each caller and fact.
record_facts = Table(
    "record_facts",
    metadata,
    key("caller"),
    key("fact"),  # the name of a column of `callers`
    *partition_key(),
    text("value"),
    Column("since_ms", BigInteger, nullable=False),  # Kafka time of the record that changed the value
    Column("offset", BigInteger, nullable=False),  # of this record
    sqlite_with_rowid=False,
)

# Callers whose `record_facts` have changed, and may not be in `callers` yet.
waiting_facts = Table("waiting_facts", metadata, key("caller"), number("at_ms"), Index(None, "at_ms"))

# Exceptions from policies. Rows stay for some time when they have ended: they explain locks.
overrides = Table(
    "overrides",
    metadata,
    key("id"),
    text("kind"),  # "limit", "grant" or "exempt"
    text("subject_kind"),  # "caller", "tenant" or "address"
    text("subject"),
    text("policy"),  # "": of an exemption from all policies
    number("amount"),
    Column("from_ms", BigInteger, nullable=False),
    # Of a grant to a limit whose window does not begin again, else null: what was granted (once it has ended,
    # `amount` is what was used of it), and what its series had used when it began and when it ended.
    *(Column(name, BigInteger) for name in ("granted", "used_from", "used_until")),
    Column("until_ms", BigInteger),  # null: until an operator ends it
    text("state"),  # "planned", "in force" or "ended"
    text("origin"),  # "command", or "plan": stated by the plan in force
    Column("due_ms", BigInteger),  # when the warden changes the state; null: never
    *map(text, ("reason", "who")),
    Column("at_ms", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),  # of the directory, in which the row was changed
    Index(None, "version"),
    Index(None, "due_ms"),
    Index(None, "subject"),
    Index(None, "state", "subject_kind"),
)

# A row for each change of the two tables above; see judgement/directory.py.
directory_versions = Table(
    "directory_versions",
    metadata,
    key("version", BigInteger),
    text("mark"),  # random: after a restore, another change may have the number
    Column("wide", BigInteger, nullable=False),  # how many of the changes so far concerned callers unnamed
    Column("at_ms", BigInteger, nullable=False),
)

locks = Table(
    "locks",
    metadata,
    *key_of_lock(),
    text("kind"),
    text("action"),
    number("status"),
    text("reason"),
    text("detail"),
    Column("began_ms", BigInteger, nullable=False),
    Column("until_ms", BigInteger, nullable=False),
    text("on_stale"),
    number("slow_limit"),  # requests in slow_ms, for the action "slow"; 0 for others
    number("slow_ms"),
    Index(None, "until_ms"),
)

# When locks were in force, those that no gate got among them, for as long as a record may be late. The first
# row has an empty key, and says since when there is a history.
lock_history = Table(
    "lock_history",
    metadata,
    key("scope"),
    key("key"),
    key("until_ms", BigInteger),  # before the rest: of one key the few rows since a time are looked up
    key("began_ms", BigInteger),
    key("resource"),
    key("policy"),
    Column("ended_ms", BigInteger),  # null: as far as is known, at `until_ms`
    # "" while in force; "cleared", "plan": by a new one, "replaced" by one with another end, "lapsed": after
    # its end. "tag", "notify": of a lock with this action, which refused no requests, from its begin on
    text("cause"),
    text("action"),  # "": of the first row
    text("detail"),
    number("plan"),  # the version of the plan that has earned it; 0: set by hand
    number("used_began", UNKNOWN),  # what the series had used when the lock began
    number("used_ended", UNKNOWN),
    Index(None, "until_ms"),
)
Index(
    "ix_lock_history_open",
    lock_history.c.scope,
    lock_history.c.key,
    lock_history.c.resource,
    lock_history.c.policy,
    postgresql_where=lock_history.c.ended_ms.is_(None),
    sqlite_where=lock_history.c.ended_ms.is_(None),
)

# Denied requests that count, because no lock of the policy that their records name was in force. A row per
# caller, policy and minute, as buckets are; its requests are the first ones of the offsets from `begin` to
# `next`: a lock may begin within the minute. Kept as long as the history.
disbelieved = Table(
    "disbelieved",
    metadata,
    *partition_key(),
    key("logged_s", BigInteger),  # the minute of the records' Kafka time
    key("bucket_s", BigInteger),  # the minute of the requests
    key("caller"),
    key("policy"),
    key("series_digest"),  # of `series`, which may be too long for a key
    text("series"),  # in which they count, as JSON: a list of grouping, key, resource
    Column("begin", BigInteger, nullable=False),
    Column("next", BigInteger, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Index(None, "logged_s"),
)

# Until when a series gets no lock by a policy, because an operator has cleared one.
hold_offs = Table(
    "hold_offs",
    metadata,
    *key_of_lock(),
    Column("until_ms", BigInteger, nullable=False),
    *map(text, ("who", "reason")),
    Column("at_ms", BigInteger, nullable=False),
    Index(None, "until_ms"),
)

# The brake of each policy in force: its age, what began in the present interval, and since when it acts. See
# core/judging/brakes.py. The row is held by each transaction that sets a new lock of the policy.
brakes = Table(
    "brakes",
    metadata,
    key("policy"),
    *map(number, ("since_ms", "interval_ms", "locks", "requests", "paced_until_ms")),
    number("is_clearing"),  # 1: locks that gates have got are still to be turned to shadow
    *(Column(name, BigInteger) for name in ("braked_ms", "released_ms")),  # null: never
    text("why"),
)

# How many records were counted so far, and how far the partition furthest behind is, each minute of the last
# hours: the traffic of an interval.
traffic_samples = Table(
    "traffic_samples", metadata, key("at_ms", BigInteger), number("counted"), number("behind_ms")
)

# One row. Written last in a transaction, only when a lock changed, and locked until commit: versions become
# visible in the order of their numbers.
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
    number("slow_limit"),
    number("slow_ms"),
)

# The audit log: acts of operators, changes of the plan, renamed sources. Written in the transaction of the
# act itself; never deleted.
events = Table(
    "events",
    metadata,
    key("id"),
    Column("at_ms", BigInteger, nullable=False),
    text("who"),
    text("act"),  # "gap accepted", "token created", ...
    text("about"),  # the object, as the commands name it
    text("why"),
    Index(None, "at_ms"),
)

# Gaps that stopped a partition, and the decisions on them. Decided gaps are never deleted: the offsets that
# were skipped are part of the ledger. A gap is open while it is not accepted and the partition is at
# `position`.
gaps = Table(
    "gaps",
    metadata,
    key("id"),
    text("cluster"),
    text("topic_id"),
    number("partition"),
    *map(text, ("source", "topic")),
    text("kind"),
    number("start"),
    Column("end", BigInteger),  # null: unknown
    Column("position", BigInteger),  # the stored offset while it is open; null: none yet
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

# Bearer tokens for HTTP. Only digests are stored: reading this table gives access to nothing.
tokens = Table(
    "tokens",
    metadata,
    key("name"),
    text("digest"),
    text("scope"),  # a `TokenScope`: each includes those before it
    Column("made_ms", BigInteger, nullable=False),
    Column("until_ms", BigInteger),  # expiry; null: until it is revoked
)

# The last status that each gate reported. No judgement depends on it.
gates = Table(
    "gates",
    metadata,
    key("instance"),
    number("number"),  # of the report: one that arrives late does not replace a newer one
    Column("at_ms", BigInteger, nullable=False),  # of the last report
    Column("first_ms", BigInteger, nullable=False),
    text("told"),  # JSON: see gatekeeper/telemetry/status_json.py
    Column("token", Text),  # name of the one that the row belongs to; "" without one, null over SQL
    Index(None, "at_ms"),
)

# Refused requests for locks, by client: a bounded number of rows; see reports/refused_clients.py.
refused_requests = Table(
    "refused_requests",
    metadata,
    key("address"),  # "" stands for all clients beyond a bound
    key("instance"),  # the gate's, if the requests name it
    key("reason"),
    Column("requests", BigInteger, nullable=False),
    Column("first_ms", BigInteger, nullable=False),
    Column("last_ms", BigInteger, nullable=False),
)
