"""The first schema."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "checkpoint_writes",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("checkpoint_id", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("task_path", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "namespace", "checkpoint_id", "task_id", "position"),
    )
    op.create_table(
        "checkpoints",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("parent", sa.Text(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "namespace", "id"),
    )
    op.create_table(
        "checkpoint_parts",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "digest"),
    )
    op.create_table(
        "events",
        sa.Column("invocation_number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("invocation_number", "position"),
    )
    op.create_table(
        "heads",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("invocation_number", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "namespace"),
    )
    op.create_table(
        "approvals",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("session_number", sa.BigInteger(), nullable=True),
        sa.Column("invocation_number", sa.BigInteger(), nullable=False),
        sa.Column("newest_run", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("call_id", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("arguments", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=True),
        sa.Column("decided_by", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("decided_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("scope", "key", name="approvals_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("approvals_listed", "approvals", ["principal", "status", "number"], unique=False)
    op.create_index("approvals_of_invocation", "approvals", ["invocation_number"], unique=False)
    op.create_table(
        "journal",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("invocation_number", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("call_id", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("arguments", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("started_position", sa.BigInteger(), nullable=True),
        sa.Column("finished_position", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "key"),
    )
    op.create_index("journal_of_invocation", "journal", ["invocation_number"], unique=False)
    op.create_table(
        "sessions",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("actor_id", sa.Text(), nullable=False),
        sa.Column("parent_number", sa.BigInteger(), nullable=True),
        sa.Column("root_number", sa.BigInteger(), nullable=True),
        sa.Column("forked_from", sa.Text(), nullable=True),
        sa.Column("labels", sa.Text(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("last_item", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_activity", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["parent_number"], ["sessions.number"]),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("principal", "id", name="sessions_key"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "sessions_children",
        "sessions",
        ["parent_number"],
        unique=False,
        sqlite_where=sa.text("parent_number IS NOT NULL"),
        postgresql_where=sa.text("parent_number IS NOT NULL"),
    )
    op.create_index(
        "sessions_listed",
        "sessions",
        ["principal", "number"],
        unique=False,
        sqlite_where=sa.text("number > 0"),
        postgresql_where=sa.text("number > 0"),
    )
    op.create_table(
        "items",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("invocation_number", sa.BigInteger(), nullable=True),
        sa.Column("item", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "position"),
        sa.UniqueConstraint("scope", "id", name="items_key"),
    )
    op.create_table(
        "memories",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("actor_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=False),
        sa.Column("path", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=False),
        sa.Column("recent_keys", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("principal", "actor_id", "path", "session_id", name="memories_key"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "memories_of_session",
        "memories",
        ["principal", "session_id"],
        unique=False,
        sqlite_where=sa.text("session_id <> ''"),
        postgresql_where=sa.text("session_id <> ''"),
    )
    _create_words("memory_words", "memories")
    op.create_table(
        "documents",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("ttl_ms", sa.BigInteger(), nullable=True),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("principal", "namespace", "key", name="documents_key"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "documents_expiry",
        "documents",
        ["expires_at"],
        unique=False,
        sqlite_where=sa.text("expires_at IS NOT NULL"),
        postgresql_where=sa.text("expires_at IS NOT NULL"),
    )
    _create_words("document_words", "documents")
    op.create_table(
        "tombstones",
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("principal", "id"),
    )
    op.create_index("tombstones_expiry", "tombstones", ["expires_at"], unique=False)
    op.create_table(
        "workers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("lock_file", sa.Text(), nullable=True),
        sa.Column("claims", sa.Text(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "beats",
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("counter", sa.BigInteger(), nullable=False),
        sa.Column("stalled", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["worker_id"], ["workers.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("worker_id"),
    )
    op.create_table(
        "invocations",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session_number", sa.BigInteger(), nullable=True),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("timeout_ms", sa.BigInteger(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("ready", sa.Boolean(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("crashes", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("progress", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("suspect", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("cancel", sa.Text(), nullable=True),
        sa.Column("last_position", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("interrupt", sa.Text(), nullable=True),
        sa.Column("usage", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_number"],
            ["sessions.number"],
        ),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("principal", "id", name="invocations_key"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "invocations_claim",
        "invocations",
        ["number"],
        unique=False,
        sqlite_where=sa.text("status = 'queued' AND ready"),
        postgresql_where=sa.text("status = 'queued' AND ready"),
    )
    op.create_index(
        "invocations_finished",
        "invocations",
        ["finished_at"],
        unique=False,
        sqlite_where=sa.text("finished_at IS NOT NULL"),
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
    op.create_index(
        "invocations_stopping",
        "invocations",
        ["number"],
        unique=False,
        sqlite_where=sa.text("status IN ('queued', 'running') AND cancel IS NOT NULL"),
        postgresql_where=sa.text("status IN ('queued', 'running') AND cancel IS NOT NULL"),
    )
    op.create_index(
        "invocations_held",
        "invocations",
        ["holder"],
        unique=False,
        sqlite_where=sa.text("status = 'running'"),
        postgresql_where=sa.text("status = 'running'"),
    )
    op.create_index(
        "invocations_listed",
        "invocations",
        ["principal", "number"],
        unique=False,
        sqlite_where=sa.text("number > 0"),
        postgresql_where=sa.text("number > 0"),
    )
    op.create_index("invocations_of_session", "invocations", ["session_number", "number"], unique=False)
    op.create_index(
        "invocations_open",
        "invocations",
        ["session_number", "number"],
        unique=False,
        sqlite_where=sa.text("status IN ('queued', 'running')"),
        postgresql_where=sa.text("status IN ('queued', 'running')"),
    )


def _create_words(name: str, rows: str) -> None:
    """What is searched. On PostgreSQL without the text search parser, which knows no CJK in some locales."""
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"CREATE VIRTUAL TABLE {name} USING fts5(owner, words, grams, tokenize = 'porter unicode61')")
        return
    op.create_table(
        name,
        sa.Column("number", sa.BigInteger(), sa.ForeignKey(f"{rows}.number", ondelete="CASCADE"), primary_key=True),
        sa.Column("words", postgresql.TSVECTOR(), nullable=False),
    )
    # Without the list of what is not yet in the index: a search would read all of it for each word that it looks for.
    op.create_index(f"{name}_found", name, ["words"], postgresql_using="gin", postgresql_with={"fastupdate": False})
