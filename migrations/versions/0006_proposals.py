"""Analyzers and their configurations, the plan by stretch of offsets, and the meaning of meters."""

from __future__ import annotations

import hashlib
import json

import sqlalchemy as sa
from alembic import context, op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# Repeats lines of 0001: a migration is never changed, so it shares nothing with another one.
NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    for table, column in (("catalog", "meaning"), ("plans", "mark")):
        op.add_column(table, sa.Column(column, sa.Text(), server_default="", nullable=False))
    op.create_table(
        "analyzers",
        sa.Column("name", NAME, nullable=False),
        sa.Column("format", sa.BigInteger(), nullable=False),
        sa.Column("release", sa.Text(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("settled", sa.Text(), nullable=False),
        sa.Column("reads", sa.Text(), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.Column("beat_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_analyzers")),
    )
    op.create_table(
        "stretches",
        sa.Column("cluster", NAME, nullable=False),
        sa.Column("topic_id", NAME, nullable=False),
        sa.Column("partition", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("plan", sa.BigInteger(), nullable=False),
        sa.Column("mark", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "topic_id", "partition", "start", name=op.f("pk_stretches")),
    )


def downgrade() -> None:
    _rewrite_plans_in_format_2()
    op.drop_table("stretches")
    op.drop_table("analyzers")
    op.drop_column("plans", "mark")
    op.drop_column("catalog", "meaning")


def _rewrite_plans_in_format_2() -> None:
    """Without their sources: analyzers of the version before read records by their own configuration."""
    if context.is_offline_mode():
        # A script that is printed cannot read the plan: the next analyzer puts its own in force.
        op.execute("UPDATE plans SET active = 0")
        return
    db = op.get_bind()
    rewritten = sa.text("UPDATE plans SET body = :body, digest = :digest WHERE version = :version")
    for version, body in db.execute(sa.text("SELECT version, body FROM plans")).all():
        if not body.startswith("[3,"):
            continue
        _, parts = json.loads(body)
        del parts["sources"]
        text = json.dumps([2, parts], ensure_ascii=False, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()
        db.execute(rewritten, {"version": version, "body": text, "digest": digest})
