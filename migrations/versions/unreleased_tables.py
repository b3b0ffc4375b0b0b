"""All tables, until the first release is tagged: a change of the tables edits this migration.

Its version is a digest of this file, so that a database that another text of it has made is recognised, and
refused. See docs/decisions/0069 for what replaces it when the release is tagged.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import op

from analyzer.kernel.database.migrate import require_empty
from analyzer.kernel.database.revisions import unreleased_revision

revision = unreleased_revision(Path(__file__))
down_revision = None
branch_labels = None
depends_on = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")  # compared byte by byte in any locale
AMOUNTS = tuple(f"{kind}_{place}" for kind in ("value", "denied") for place in range(8))
FOREVER_MS = 2**63 - 1

TABLES = (
    "offsets", "stretches", "catalog", "buckets", "day_counts", "proofs", "changed_quarters", "rankings",
    "rejects", "named_callers",
    "event_ids", "secrets", "plans", "analyzers", "totals", "slots_0", "slots_1", "slots_2",
    "distinct_values", "postponed", "refills", "holds", "notices", "brakes", "traffic_samples", "callers",
    "record_facts", "waiting_facts", "overrides", "directory_versions", "locks", "lock_history",
    "disbelieved", "hold_offs", "feed", "feed_versions", "lock_changes", "events", "gaps", "tokens",
    "sessions", "gates", "refused_requests", "days", "day_positions", "frozen_counts", "adjustments",
    "corrections", "deleted_days", "referenced_names", "day_audits", "deliveries", "live_usage",
    "chain_entries", "chain_salts", "replays",
    "replay_positions", "replayed_counts", "replayed_rejects", "leases", "job_runs", "outbox",
    "alert_messages", "alert_contacts", "signals",
)  # fmt: skip
# What cannot be counted or judged again.
IRRECOVERABLE = (
    *("offsets", "buckets", "rejects", "events", "gaps", "tokens", "callers", "overrides"),
    *("days", "corrections", "chain_entries"),
)

FROZEN = "the day is closed: its rows cannot be changed"
KEPT = "corrections are never changed: book another one"
SIGNED = "entries of the chain are never changed"
YOUNG = "a day is deleted when it is closed, and 62 days after its end at the earliest"
DELETED = "a deleted day stays deleted"
DELETED_AGE_S = 62 * 86_400
# Of each table of closed days: the column with the day whose rows a statement would change.
DAY_COLUMN = {"days": "id", "day_positions": "day", "frozen_counts": "day", "adjustments": "booked"}
WRITES = "insert or update or delete"
# A reason changes when a caller in it is forgotten: the salt of its digest is destroyed, and all else stays.
IS_FORGOTTEN = """
    to_jsonb(new) ->> 'salt' = '' and to_jsonb(old) ->> 'reason_digest' <> ''
    and to_jsonb(new) - array['reason', 'left_out', 'salt']
    = to_jsonb(old) - array['reason', 'left_out', 'salt']
"""
KEPT_COLUMNS = {
    "day_positions": (
        *("day", "cluster", "topic_id", "partition", "source", "topic", "target", "cut", "reason_digest"),
        *("who", "is_gone"),
    ),
    "corrections": (
        *("id", "day", "booked", "grouping", "reference", "resource", "meter", "amount", "who"),
        *("reason_digest", "at_ms"),
    ),
}

REFUSE_CLOSED_DAYS = f"""
        create function refuse_closed_days() returns trigger language plpgsql as $$
        declare
            of_old bigint;
            of_new bigint;
        begin
            if tg_op = 'TRUNCATE' then
                raise exception '{FROZEN}';
            end if;
            if tg_table_name = 'days' then
                if tg_op <> 'INSERT' and old.state = 'closed' then
                    raise exception '{FROZEN}';
                end if;
            else
                if tg_op <> 'INSERT' then
                    of_old := (to_jsonb(old) ->> tg_argv[0])::bigint;
                end if;
                if tg_op <> 'DELETE' then
                    of_new := (to_jsonb(new) ->> tg_argv[0])::bigint;
                end if;
                if tg_op = 'DELETE' and exists (select from deleted_days where day = of_old) then
                    return old;
                end if;
                if tg_op = 'UPDATE' and {IS_FORGOTTEN} then
                    return new;
                end if;
                if exists (select from days where id in (of_old, of_new) and state = 'closed') then
                    raise exception '{FROZEN}';
                end if;
            end if;
            return case tg_op when 'DELETE' then old else new end;
        end $$
        """

REFUSE_CHANGED_CORRECTIONS = f"""
        create function refuse_changed_corrections() returns trigger language plpgsql as $$
        begin
            if tg_op = 'UPDATE' and {IS_FORGOTTEN} then
                return new;
            end if;
            raise exception '{KEPT}';
        end $$
        """

REFUSE_CHANGED_ENTRIES = f"""
        create function refuse_changed_entries() returns trigger language plpgsql as $$
        begin
            raise exception '{SIGNED}';
        end $$
        """

REFUSE_EARLY_DELETION = f"""
        create function refuse_early_deletion() returns trigger language plpgsql as $$
        begin
            if tg_op <> 'INSERT' then
                raise exception '{DELETED}';
            end if;
            if not exists (
                select from days where id = new.day and state = 'closed'
                and end_s < extract(epoch from clock_timestamp()) - {DELETED_AGE_S}
            ) then
                raise exception '{YOUNG}';
            end if;
            return new;
        end $$
        """


def upgrade() -> None:
    _counts()
    _plans()
    _callers()
    _locks()
    _operators()
    _gates()
    _billing()
    _replays()
    _jobs()
    _alerts()
    for statement in _guards_of_postgresql() if _is_postgresql() else _guards_of_sqlite():
        op.execute(statement)
    _first_rows()


def downgrade() -> None:
    require_empty(*IRRECOVERABLE)
    for table in TABLES:
        op.drop_table(table)
    if _is_postgresql():
        for function in ("closed_days", "changed_corrections", "changed_entries", "early_deletion"):
            op.execute(f"drop function refuse_{function}()")


def _is_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"


def _key_names(*names: str) -> list[sa.Column[Any]]:
    return _key(NAME, names)


def _key_numbers(*names: str) -> list[sa.Column[Any]]:
    return _key(sa.BigInteger(), names)


def _key_integers(*names: str) -> list[sa.Column[Any]]:
    return _key(sa.Integer(), names)


def _key_smalls(*names: str) -> list[sa.Column[Any]]:
    return _key(sa.SmallInteger(), names)


def _key(kind: Any, names: tuple[str, ...]) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, primary_key=True, autoincrement=False) for name in names]


def _partition() -> list[sa.Column[Any]]:
    return [*_key_names("cluster", "topic_id"), *_key_numbers("partition")]


def _lock() -> list[sa.Column[Any]]:
    return _key_names("scope", "key", "resource", "policy")


def _texts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def _optional_texts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text()) for name in names]


def _numbers(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.BigInteger(), nullable=False) for name in names]


def _optional_numbers(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.BigInteger()) for name in names]


def _bytes(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.LargeBinary(), nullable=False) for name in names]


def _table(name: str, *columns: sa.Column[Any], **options: Any) -> None:
    """Creates a table whose primary key has the name that schema.py gives it."""
    key = [column.name for column in columns if column.primary_key]
    op.create_table(name, *columns, sa.PrimaryKeyConstraint(*key, name=f"pk_{name}"), **options)


def _index(
    table: str, *columns: str, name: str | None = None, unique: bool = False, where: str | None = None
) -> None:
    """Creates an index with the name that schema.py gives it, partial with `where`."""
    condition = None if where is None else sa.text(where)
    name = name or f"ix_{table}_{'_'.join(columns)}"
    op.create_index(
        name, table, [*columns], unique=unique, postgresql_where=condition, sqlite_where=condition
    )


def _counts() -> None:
    """Creates positions of partitions with their ledger, counts, and the memory of counters."""
    _table(
        "offsets",
        *_partition(),
        *_texts("source", "topic"),
        *_numbers("next"),
        *_texts("resume_token"),
        *_numbers("seen", "counted", "duplicate", "dead", "late"),
        *_texts("owner"),
        *_optional_numbers("beat_ms"),
        *_numbers("behind_ms", "behind_records"),
        *_numbers("reject_run", "rejects_accepted_to", "behind_run"),
        *_optional_numbers("hour", "hour_before"),
        *_numbers("begin", "renamed"),
        *_optional_numbers("ids_reached_ms"),
        *_numbers("ids_far_run"),
        *_optional_numbers("ids_kept_ms"),
    )
    _table("stretches", *_partition(), *_key_numbers("start"), *_numbers("plan"), *_texts("mark"))
    _table(
        "catalog",
        *_key_names("kind", "name"),
        *_numbers("number"),
        *_texts("join"),
        *_texts("meaning"),
    )
    _table(
        "buckets",
        *_key_smalls("grouping", "page"),
        *_key_integers("width_s"),
        *_key_numbers("bucket_s"),
        *_optional_numbers(*AMOUNTS),
        *_key_names("key", "resource"),
        postgresql_with={"fillfactor": 70},
        sqlite_with_rowid=False,
    )
    _table("day_counts", *_partition(), *_key_numbers("day_s"), *_numbers("requests"))
    _table("proofs", *_key_numbers("day_s"), *_numbers("requests", "at_ms", "deleted"))
    _table("changed_quarters", *_key_numbers("quarter_s"), *_partition(), *_numbers("changes"))
    _table(
        "rankings",
        *_key_smalls("grouping"),
        *_key_integers("meter", "width_s"),
        *_key_numbers("begin_s"),
        *_numbers("changes", "ranked_ms"),
        *_texts("whole", "series"),
    )
    _table(
        "rejects",
        *_partition(),
        *_key_numbers("offset"),
        *_texts("source", "topic", "reason"),
        *_bytes("sample"),
        *_numbers("at_ms"),
        *_optional_numbers("value_bytes", "kafka_ms"),
    )
    _index("rejects", "at_ms")
    _table(
        "named_callers",
        *_partition(),
        *_key_numbers("hour"),
        *_key_names("how"),
        *_key_numbers("next"),
        *_texts("callers"),
    )
    _table(
        "event_ids",
        *_partition(),
        *_key_numbers("generation", "number"),
        *_numbers("began_ms"),
        *_bytes("hashes"),
    )
    _table("secrets", *_key_names("name"), *_bytes("value"))


def _plans() -> None:
    """Creates plans, the analyzers that propose them, and the state of each judged series."""
    _table(
        "plans",
        *_key_numbers("version"),
        *_texts("digest", "body"),
        *_numbers("active", "at_ms"),
        *_texts("pending", "mark"),
    )
    _table(
        "analyzers",
        *_key_names("name"),
        *_numbers("format"),
        *_texts("release", "file", "settled", "reads"),
        *_numbers("started_ms", "beat_ms"),
        *_texts("measured", "refused", "problems"),
    )
    _table(
        "totals",
        *_key_smalls("sum"),
        *_key_numbers("window_s"),
        *_key_names("key", "resource"),
        *_numbers("used", "next", "plan"),
        *_optional_numbers("touched_s"),
        postgresql_with={"fillfactor": 50},
        sqlite_with_rowid=False,
    )
    for place in range(3):
        _table(
            f"slots_{place}",
            *_key_smalls("sum"),
            *_key_names("key", "resource"),
            *_key_numbers("slot_s"),
            *_numbers("value"),
            postgresql_with={"fillfactor": 70},
            sqlite_with_rowid=False,
        )
    _table(
        "distinct_values",
        *_key_smalls("sum"),
        *_key_names("key", "resource"),
        *_key_numbers("window_s", "value"),
        sqlite_with_rowid=False,
    )
    _index("distinct_values", "sum", "window_s")
    _table(
        "postponed",
        *_key_smalls("sum"),
        *_key_numbers("window_s"),
        *_key_names("key", "resource"),
        *_numbers("due_ms"),
        *_numbers("is_behind"),
    )
    _index("postponed", "is_behind", name="ix_postponed_behind", where="is_behind = 1")
    _index("postponed", "due_ms")
    _table(
        "refills",
        *_key_names("key"),
        *_key_smalls("sum"),
        *_key_numbers("window_s"),
        *_numbers("version"),
        sqlite_with_rowid=False,
    )
    _table("holds", *_lock(), *_numbers("since_ms", "seen_ms"))
    _index("holds", "seen_ms")
    _table(
        "notices",
        *_key_names("policy", "sum", "key", "resource"),
        *_key_numbers("window_s", "threshold"),
        *_texts("scope"),
        *_numbers("used", "limit", "until_s"),
        *_texts("detail"),
        *_numbers("at_ms"),
    )
    _index("notices", "at_ms")
    _table(
        "brakes",
        *_key_names("policy"),
        *_numbers("since_ms", "interval_ms", "locks", "requests", "paced_until_ms", "is_clearing"),
        *_optional_numbers("braked_ms", "released_ms"),
        *_texts("why"),
    )
    _table("traffic_samples", *_key_numbers("at_ms"), *_numbers("counted", "behind_ms"))


def _callers() -> None:
    """Creates facts about callers, and exceptions from policies."""
    _table(
        "callers",
        *_key_names("caller"),
        *_texts("plan", "tenant"),
        *_numbers("version"),
        *_texts("zone", "anchor", "record_plan", "record_tenant", "record_zone", "record_anchor"),
    )
    _index("callers", "version")
    _table(
        "record_facts",
        *_key_names("caller", "fact"),
        *_partition(),
        *_texts("value"),
        *_numbers("since_ms", "offset"),
        sqlite_with_rowid=False,
    )
    _table("waiting_facts", *_key_names("caller"), *_numbers("at_ms"))
    _index("waiting_facts", "at_ms")
    _table(
        "overrides",
        *_key_names("id"),
        *_texts("kind", "subject_kind", "subject", "policy"),
        *_numbers("amount", "from_ms"),
        *_optional_numbers("granted", "used_from", "used_until", "until_ms"),
        *_texts("state", "origin"),
        *_optional_numbers("due_ms"),
        *_texts("reason", "who"),
        *_numbers("at_ms", "version"),
    )
    _index("overrides", "due_ms")
    _index("overrides", "state", "subject_kind")
    _index("overrides", "subject")
    _index("overrides", "version")
    _table("directory_versions", *_key_numbers("version"), *_texts("mark"), *_numbers("wide", "at_ms"))


def _locks() -> None:
    """Creates locks, their history, and the feed that gates read."""
    _table(
        "locks",
        *_lock(),
        *_texts("kind", "action"),
        *_numbers("status"),
        *_texts("reason", "detail"),
        *_numbers("began_ms", "until_ms"),
        *_texts("on_stale"),
        *_numbers("slow_limit", "slow_ms"),
    )
    _index("locks", "until_ms")
    _table(
        "lock_history",
        *_key_names("scope", "key"),
        *_key_numbers("until_ms", "began_ms"),
        *_key_names("resource", "policy"),
        *_optional_numbers("ended_ms"),
        *_texts("cause"),
        *_texts("action", "detail"),
        *_numbers("plan"),
        *_numbers("used_began", "used_ended"),
    )
    _index(
        "lock_history",
        "scope",
        "key",
        "resource",
        "policy",
        name="ix_lock_history_open",
        where="ended_ms IS NULL",
    )
    _index("lock_history", "until_ms")
    _table(
        "disbelieved",
        *_partition(),
        *_key_numbers("logged_s", "bucket_s"),
        *_key_names("caller", "policy", "series_digest"),
        *_texts("series"),
        *_numbers("begin", "next", "requests"),
    )
    _index("disbelieved", "logged_s")
    _table("hold_offs", *_lock(), *_numbers("until_ms"), *_texts("who", "reason"), *_numbers("at_ms"))
    _index("hold_offs", "until_ms")
    _table("feed", *_key_numbers("id"), *_numbers("version"), *_texts("mark"), *_numbers("pruned_to"))
    _table("feed_versions", *_key_numbers("version"), *_texts("mark"), *_numbers("at_ms"))
    _index("feed_versions", "at_ms")
    _table(
        "lock_changes",
        *_key_numbers("version", "number"),
        *_texts("op", "scope", "key", "resource", "policy", "kind", "action"),
        *_numbers("status"),
        *_texts("reason", "detail"),
        *_numbers("began_ms", "until_ms"),
        *_texts("on_stale"),
        *_numbers("slow_limit", "slow_ms"),
    )


def _operators() -> None:
    """Creates the audit log, gaps, tokens and sessions."""
    _table("events", *_key_names("id"), *_numbers("at_ms"), *_texts("who", "act", "about", "why"))
    _index("events", "at_ms")
    _table(
        "gaps",
        *_key_names("id"),
        *_texts("cluster", "topic_id"),
        *_numbers("partition"),
        *_texts("source", "topic", "kind"),
        *_numbers("start"),
        *_optional_numbers("end", "position"),
        *_texts("why"),
        *_numbers("found_ms"),
        *_texts("found_by"),
        *_optional_numbers("accepted_to", "accepted_ms"),
        *_texts("accepted_by", "reason"),
    )
    _index(
        "gaps",
        "cluster",
        "topic_id",
        "partition",
        name="ix_gaps_open",
        unique=True,
        where="accepted_ms IS NULL",
    )
    _table(
        "tokens",
        *_key_names("name"),
        *_texts("digest", "scope"),
        *_numbers("made_ms"),
        *_optional_numbers("until_ms"),
    )
    _table("sessions", *_key_names("digest"), *_texts("token"), *_numbers("begun_ms", "seen_ms"))
    _index("sessions", "seen_ms")


def _gates() -> None:
    """Creates reports of gates, and refused requests for locks."""
    _table(
        "gates",
        *_key_names("instance"),
        *_numbers("number", "at_ms", "first_ms"),
        *_texts("told"),
        *_optional_texts("token"),
    )
    _index("gates", "at_ms")
    _table(
        "refused_requests",
        *_key_names("address", "instance", "reason"),
        *_numbers("requests", "first_ms", "last_ms"),
    )


def _billing() -> None:
    """Creates closed days, whose triggers are made behind all tables."""
    _table(
        "days",
        *_key_numbers("id"),
        *_texts("zone", "date"),
        *_numbers("begin_s", "end_s"),
        *_texts("state", "groupings", "meters"),
        *_optional_numbers("cut_ms", "closed_ms"),
        *_numbers("rows", "requests"),
        *_texts("given", "digest", "digest_before", "digest_key"),
    )
    _index("days", "end_s", name="ix_days_cut", where="state != 'open'")
    _index("days", "zone", "begin_s", unique=True)
    _table(
        "day_positions",
        *_key_numbers("day"),
        *_partition(),
        *_texts("source", "topic"),
        *_optional_numbers("target", "cut"),
        *_texts("left_out", "salt", "reason_digest", "who"),
        *_numbers("is_gone"),
    )
    _table(
        "frozen_counts",
        *_key_numbers("day"),
        *_key_smalls("grouping", "page"),
        *_key_names("reference", "resource"),
        *_optional_numbers(*AMOUNTS),
        sqlite_with_rowid=False,
    )
    _table(
        "adjustments",
        *_key_numbers("day", "booked"),
        *_key_smalls("grouping", "page"),
        *_key_names("reference", "resource"),
        *_optional_numbers(*AMOUNTS),
        sqlite_with_rowid=False,
    )
    _index("adjustments", "booked")
    _table(
        "corrections",
        *_key_numbers("id"),
        *_numbers("day", "booked"),
        *_texts("grouping", "reference", "resource", "meter"),
        *_numbers("amount"),
        *_texts("who", "reason", "salt", "reason_digest"),
        *_numbers("at_ms"),
    )
    _index("corrections", "booked")
    _index("corrections", "day")
    _table("deleted_days", *_key_numbers("day"), *_texts("content"), *_numbers("at_ms"))
    _table("referenced_names", *_key_names("reference"), *_texts("name"))
    _table(
        "day_audits",
        *_key_numbers("day"),
        *_texts("zone", "date"),
        *_numbers("at_ms"),
        *_texts("who", "digest", "result", "differences", "remarks"),
    )
    _table(
        "deliveries",
        *_key_names("destination", "zone", "date", "grouping", "kind", "meter"),
        *_texts("format", "place"),
        *_numbers("events", "amount", "known", "left_out", "left_out_amount"),
        *_texts("who"),
        *_numbers("began_ms", "acknowledged_ms"),
        *_optional_numbers("tried_ms", "finished_ms"),
    )
    _table(
        "live_usage",
        *_key_names("destination"),
        *_key_numbers("day"),
        *_key_names("grouping", "meter", "reference", "resource"),
        *_numbers("number", "acknowledged", "increment", "at_s", "is_last", "planned_ms"),
        *_texts("customer_digest"),
        sqlite_with_rowid=False,
    )
    _table(
        "chain_entries",
        *_key_numbers("number"),
        *_texts("kind", "subject", "fields"),
        *_numbers("at_ms"),
        *_texts("key", "mac"),
    )
    _index("chain_entries", "kind", "subject")
    _table("chain_salts", *_key_numbers("number"), *_bytes("salt"))


def _replays() -> None:
    """Creates replays: logs that are counted again."""
    _table(
        "replays",
        *_key_numbers("id"),
        *_texts("state", "source"),
        *_numbers("plan"),
        *_texts("mark", "parts", "files", "about", "who"),
        *_numbers("began_ms"),
        *_optional_numbers("counted_ms", "swapped_ms"),
        *_texts("swapped_by", "reason"),
        *_numbers("rows"),
        *_texts("days"),
    )
    _table(
        "replay_positions",
        *_key_numbers("replay"),
        *_partition(),
        *_texts("source", "topic"),
        *_numbers("warm", "begin", "next", "end"),
        *_texts("stretches"),
        *_numbers("seen", "counted", "duplicate", "dead", "late", "renamed", "kept"),
    )
    _table(
        "replayed_counts",
        *_key_numbers("replay"),
        *_key_smalls("grouping", "page"),
        *_key_numbers("bucket_s"),
        *_key_names("key", "resource"),
        *_optional_numbers(*AMOUNTS),
        sqlite_with_rowid=False,
    )
    _table(
        "replayed_rejects",
        *_key_numbers("replay"),
        *_partition(),
        *_key_numbers("offset"),
        *_numbers("is_added"),
        *_texts("reason"),
        *_bytes("sample"),
        *_optional_numbers("value_bytes", "kafka_ms"),
    )


def _jobs() -> None:
    """Creates leases and runs of jobs, and what the one that looks for problems has seen."""
    _table("leases", *_key_names("name"), *_texts("holder"), *_numbers("until_ms"))
    _table(
        "job_runs",
        *_key_names("job"),
        *_key_numbers("number"),
        *_numbers("scheduled_ms", "began_ms"),
        *_optional_numbers("ended_ms"),
        *_texts("owner", "outcome"),
        *_numbers("rows"),
        *_texts("error"),
        *_optional_numbers("done_ms"),
    )
    _index("job_runs", "began_ms")
    _table(
        "signals",
        *_key_names("name", "subject"),
        *_texts("severity", "what", "cure"),
        *_numbers("since_ms"),
        *_optional_numbers("over_ms"),
    )


def _alerts() -> None:
    """Creates events that wait to be routed, messages, and contacts of customers."""
    _table(
        "outbox",
        *_key_names("id"),
        *_numbers("at_ms"),
        *_texts("kind", "severity", "about", "policy", "tenant", "body"),
    )
    _table(
        "alert_messages",
        *_key_names("id"),
        *_texts("receiver", "topic", "state", "severity"),
        *_numbers("events"),
        *_texts("listed"),
        *_numbers("made_ms", "due_ms"),
        *_optional_numbers("begun_ms", "ended_ms"),
        *_numbers("tries", "status"),
        *_texts("error"),
    )
    _index("alert_messages", "receiver", "topic", "made_ms")
    _index("alert_messages", "made_ms", "id")
    _index("alert_messages", "due_ms", name="ix_alert_messages_waiting", where="ended_ms IS NULL")
    _table(
        "alert_contacts",
        *_key_names("id"),
        *_texts("subject_kind", "subject", "way", "sent_to", "secret", "who", "reason"),
        *_numbers("at_ms"),
    )
    _index("alert_contacts", "subject_kind", "subject")


def _first_rows() -> None:
    """Inserts the state of a feed without locks, the row that says since when there is a history of them, and
    the key of references.

    The mark is random: a gate that holds version 0 of another database must not take this one for it.
    """
    numbers, texts = ("id", "version", "pruned_to"), ("mark",)
    first_version = {"id": 1, "version": 0, "mark": secrets.token_hex(4), "pruned_to": 0}
    op.execute(sa.insert(_columns("feed", numbers, texts)).values(first_version))
    # Identifiers of billed usage are made with it: a backup of any time has the same one.
    key = f"decode('{secrets.token_hex(32)}', 'hex')" if _is_postgresql() else f"x'{secrets.token_hex(32)}'"
    op.execute(f"insert into secrets (name, value) values ('references', {key})")
    now_ms = (
        "(extract(epoch from clock_timestamp()) * 1000)::bigint"
        if _is_postgresql()
        else "cast(round((julianday('now') - 2440587.5) * 86400000) as integer)"
    )
    numbers = ("until_ms", "began_ms", "plan", "used_began", "used_ended")
    texts = ("scope", "key", "resource", "policy", "cause", "action", "detail")
    begin = dict.fromkeys(texts, "") | dict.fromkeys(("used_began", "used_ended"), -1)
    begin |= {"cause": "first", "plan": 0, "until_ms": FOREVER_MS, "began_ms": sa.text(now_ms)}
    op.execute(sa.insert(_columns("lock_history", numbers, texts)).values(begin))


def _columns(table: str, numbers: tuple[str, ...], texts: tuple[str, ...]) -> sa.TableClause:
    columns = [sa.column(name, sa.BigInteger()) for name in numbers]
    return sa.table(table, *columns, *(sa.column(name, sa.Text()) for name in texts))


def _guards_of_postgresql() -> list[str]:
    """Returns the statements that create the triggers of closed days.

    They refuse changes by any program and any user who may not drop the triggers themselves. Rows of a day
    that has a row in `deleted_days` may be deleted.
    """
    triggers = [
        f"create trigger {name} before {acts} on {table} for each {scope} execute function {function}"
        for name, acts, table, scope, function in (
            *(
                row
                for table, column in DAY_COLUMN.items()
                for row in (
                    ("closed_days", WRITES, table, "row", f"refuse_closed_days('{column}')"),
                    ("closed_days_kept", "truncate", table, "statement", "refuse_closed_days()"),
                )
            ),
            ("corrections_kept", "update or delete", "corrections", "row", "refuse_changed_corrections()"),
            (
                "corrections_not_truncated",
                "truncate",
                "corrections",
                "statement",
                "refuse_changed_corrections()",
            ),
            ("chain_entries_kept", "update or delete", "chain_entries", "row", "refuse_changed_entries()"),
            (
                "chain_entries_not_truncated",
                "truncate",
                "chain_entries",
                "statement",
                "refuse_changed_entries()",
            ),
            ("deleted_days_kept", WRITES, "deleted_days", "row", "refuse_early_deletion()"),
            (
                "deleted_days_not_truncated",
                "truncate",
                "deleted_days",
                "statement",
                "refuse_early_deletion()",
            ),
        )
    ]
    functions = REFUSE_CLOSED_DAYS, REFUSE_CHANGED_CORRECTIONS, REFUSE_CHANGED_ENTRIES, REFUSE_EARLY_DELETION
    return [*functions, *triggers]


def _guards_of_sqlite() -> list[str]:
    """Returns the statements that create the triggers, which refuse what those of PostgreSQL refuse."""
    rules = [
        (f"{table}_closed_{act}", act, table, _closed_condition(table, act), FROZEN)
        for table in DAY_COLUMN
        for act in ("insert", "update", "delete")
        if (table, act) != ("days", "insert")
    ]
    rules += [
        ("corrections_kept_update", "update", "corrections", f"when {_is_changed('corrections')} ", KEPT),
        ("corrections_kept_delete", "delete", "corrections", "", KEPT),
    ]
    rules += [(f"chain_entries_kept_{act}", act, "chain_entries", "", SIGNED) for act in ("update", "delete")]
    is_old = f"end_s < cast(strftime('%s', 'now') as integer) - {DELETED_AGE_S}"
    is_closed = f"exists (select 1 from days where id = new.day and state = 'closed' and {is_old})"
    rules.append(("deleted_days_old", "insert", "deleted_days", f"when not {is_closed} ", YOUNG))
    rules += [(f"deleted_days_kept_{act}", act, "deleted_days", "", DELETED) for act in ("update", "delete")]
    return [
        f"create trigger {name} before {act} on {table} {condition}"
        f"begin select raise(abort, '{sentence}'); end"
        for name, act, table, condition, sentence in rules
    ]


def _closed_condition(table: str, act: str) -> str:
    """Returns the condition under which SQLite refuses `act` on rows of this table of closed days."""
    if table == "days":
        return "when old.state = 'closed' "
    rows = {"insert": ("new",), "update": ("old", "new"), "delete": ("old",)}[act]
    days = ", ".join(f"{row}.{DAY_COLUMN[table]}" for row in rows)
    if act != "delete":
        is_closed = f"exists (select 1 from days where id in ({days}) and state = 'closed')"
        is_changed = f" and {_is_changed(table)}" if act == "update" and table in KEPT_COLUMNS else ""
        return f"when {is_closed}{is_changed} "
    is_deleted = f"exists (select 1 from deleted_days where day = {days})"
    return f"when exists (select 1 from days where id = {days} and state = 'closed') and not {is_deleted} "


def _is_changed(table: str) -> str:
    """Returns the condition of SQLite that more changes than a reason whose digest loses its salt."""
    same = " and ".join(f"new.{column} is old.{column}" for column in KEPT_COLUMNS[table])
    return f"not (new.salt = '' and old.reason_digest != '' and {same})"
