"""The tables. Times are milliseconds since 1970 UTC by the database's clock; JSON is ASCII text, never `jsonb`."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData()

_Number = BigInteger().with_variant(Integer(), "sqlite")
"""Identity columns: SQLite gives row ids only to INTEGER."""

_Ordered = Text().with_variant(Text(collation="C"), "postgresql")
"""Text in the order of its code points, whatever the locale of the database, so that what begins alike stands together."""

_NO = text("false")
_OPEN = text("status IN ('queued', 'running')")
_STOPPING = text("status IN ('queued', 'running') AND cancel IS NOT NULL")
_CHILD = text("parent_number IS NOT NULL")
_EXPIRES = text("expires_at IS NOT NULL")
_LISTED = text("number > 0")
"""Holds for every row. A query that says it literally may use the index for lists; a look for one id, which does
not, cannot take it for the index of ids and read all of a principal's rows."""

workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("lock_file", Text),
    Column("claims", Text, nullable=False, server_default=text("'[]'")),
    Column("started_at", BigInteger, nullable=False),
)
"""One row a live worker. It is the fence: a batch of writes holds it shared, a takeover deletes it. `claims` has the
agents whose queued runs it takes by itself."""

beats = Table(
    "beats",
    metadata,
    Column("worker_id", Text, ForeignKey("workers.id", ondelete="CASCADE"), primary_key=True),
    Column("counter", BigInteger, nullable=False),
    Column("stalled", Boolean, nullable=False, server_default=_NO),
    Column("at", BigInteger, nullable=False),
)
"""Apart from `workers`, so that a beat never waits for a batch."""

sessions = Table(
    "sessions",
    metadata,
    Column("number", _Number, primary_key=True, autoincrement=True),
    Column("principal", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("actor_id", Text, nullable=False),
    Column("parent_number", BigInteger, ForeignKey("sessions.number")),
    Column("root_number", BigInteger),
    Column("forked_from", Text),
    Column("labels", Text, nullable=False, server_default=text("'{}'")),
    Column("last_item", BigInteger, nullable=False, server_default=text("0")),
    Column("created_at", BigInteger, nullable=False),
    Column("last_activity", BigInteger, nullable=False),
    UniqueConstraint("principal", "id", name="sessions_key"),
    Index("sessions_children", "parent_number", sqlite_where=_CHILD, postgresql_where=_CHILD),
    Index("sessions_listed", "principal", "number", sqlite_where=_LISTED, postgresql_where=_LISTED),
    sqlite_autoincrement=True,
)
"""`last_item` is the highest position that was ever given out, so that a position never means two items."""

items = Table(
    "items",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False),
    Column("invocation_number", BigInteger),
    Column("item", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    UniqueConstraint("scope", "id", name="items_key"),
)
"""The history of a session, or of a run without one; scopes are those of `journal`."""

invocations = Table(
    "invocations",
    metadata,
    Column("number", _Number, primary_key=True, autoincrement=True),
    Column("principal", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("session_number", BigInteger, ForeignKey("sessions.number")),
    Column("agent", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("input", Text, nullable=False),
    Column("config", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("timeout_ms", BigInteger),
    Column("status", Text, nullable=False),
    Column("ready", Boolean, nullable=False),
    Column("holder", Text),
    Column("epoch", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("crashes", Integer, nullable=False, server_default=text("0")),
    Column("progress", Boolean, nullable=False, server_default=_NO),
    Column("suspect", Boolean, nullable=False, server_default=_NO),
    Column("cancel", Text),
    Column("last_position", BigInteger, nullable=False, server_default=text("0")),
    Column("output", Text),
    Column("error", Text),
    Column("interrupt", Text),
    Column("usage", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger),
    UniqueConstraint("principal", "id", name="invocations_key"),
    Index("invocations_claim", "number", sqlite_where=text("status = 'queued' AND ready"),
          postgresql_where=text("status = 'queued' AND ready")),
    Index("invocations_open", "session_number", "number", sqlite_where=_OPEN, postgresql_where=_OPEN),
    Index("invocations_held", "holder", sqlite_where=text("status = 'running'"),
          postgresql_where=text("status = 'running'")),
    Index("invocations_stopping", "number", sqlite_where=_STOPPING, postgresql_where=_STOPPING),
    Index("invocations_finished", "finished_at", sqlite_where=text("finished_at IS NOT NULL"),
          postgresql_where=text("finished_at IS NOT NULL")),
    Index("invocations_listed", "principal", "number", sqlite_where=_LISTED, postgresql_where=_LISTED),
    Index("invocations_of_session", "session_number", "number"),
    sqlite_autoincrement=True,
)  # fmt: skip

events = Table(
    "events",
    metadata,
    Column("invocation_number", BigInteger, primary_key=True, autoincrement=False),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt", Integer, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("event", Text, nullable=False),
)
"""No foreign key: the fence of the insert reads the invocation anyway, and PostgreSQL would check it a second time."""

journal = Table(
    "journal",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("invocation_number", BigInteger, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("token", Text, nullable=False),
    Column("call_id", Text),
    Column("name", Text, nullable=False),
    Column("arguments", Text),
    Column("state", Text, nullable=False),
    Column("outcome", Text),
    Column("started_position", BigInteger),
    Column("finished_position", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Index("journal_of_invocation", "invocation_number"),
)
"""Scope is `s<session number>` or `i<invocation number>`; the key is unique in it."""

approvals = Table(
    "approvals",
    metadata,
    Column("number", _Number, primary_key=True, autoincrement=True),
    Column("principal", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("session_number", BigInteger),
    Column("invocation_number", BigInteger, nullable=False),
    Column("newest_run", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("call_id", Text),
    Column("name", Text, nullable=False),
    Column("arguments", Text, nullable=False),
    Column("details", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("decision", Text),
    Column("decided_by", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("decided_at", BigInteger),
    UniqueConstraint("scope", "key", name="approvals_key"),
    Index("approvals_listed", "principal", "status", "number"),
    Index("approvals_of_invocation", "invocation_number"),
    sqlite_autoincrement=True,
)
"""What a person has to decide or to answer. `key` names it in its history; `newest_run` is the newest run that had been
accepted when it was asked, so that a later run is told from one that was waiting already. It is kept as long as its session."""

heads = Table(
    "heads",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("namespace", Text, primary_key=True),
    Column("checkpoint", Text, nullable=False),
    Column("invocation_number", BigInteger, nullable=False),
    Column("epoch", Integer, nullable=False),
)
"""From which checkpoint a history goes on; written under the fence, so that a zombie's fork is never followed."""

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("namespace", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("parent", Text),
    Column("body", LargeBinary, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)
"""Checkpoints of a framework's state; `body` is as `parts` packs it."""

checkpoint_writes = Table(
    "checkpoint_writes",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("namespace", Text, primary_key=True),
    Column("checkpoint_id", Text, primary_key=True),
    Column("task_id", Text, primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("channel", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("task_path", Text, nullable=False),
)

checkpoint_parts = Table(
    "checkpoint_parts",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("digest", LargeBinary, primary_key=True),
    Column("content", LargeBinary, nullable=False),
)
"""What checkpoints and their writes have in common, each once in a history."""

memories = Table(
    "memories",
    metadata,
    Column("number", _Number, primary_key=True, autoincrement=True),
    Column("principal", Text, nullable=False),
    Column("actor_id", Text, nullable=False),
    Column("session_id", _Ordered, nullable=False),
    Column("path", _Ordered, nullable=False),
    Column("recent_keys", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("content", Text, nullable=False),
    UniqueConstraint("principal", "actor_id", "path", "session_id", name="memories_key"),
    Index("memories_of_session", "principal", "session_id", sqlite_where=text("session_id <> ''"),
          postgresql_where=text("session_id <> ''")),
    sqlite_autoincrement=True,
)  # fmt: skip
"""`session_id` is empty for what belongs to no session; `recent_keys` are those of the last changes, each with a digest of
its change; `content` is last, since SQLite reads through a long one to what is behind it. What is searched is in
`memory_words`, which is made of what each database has for full text and so is described by its migration alone."""

documents = Table(
    "documents",
    metadata,
    Column("number", _Number, primary_key=True, autoincrement=True),
    Column("principal", Text, nullable=False),
    Column("namespace", _Ordered, nullable=False),
    Column("key", Text, nullable=False),
    Column("value", Text, nullable=False),
    Column("ttl_ms", BigInteger),
    Column("expires_at", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    UniqueConstraint("principal", "namespace", "key", name="documents_key"),
    Index("documents_expiry", "expires_at", sqlite_where=_EXPIRES, postgresql_where=_EXPIRES),
    sqlite_autoincrement=True,
)
"""`namespace` is JSON text of a list; what is searched is in `document_words`, as with memories."""

tombstones = Table(
    "tombstones",
    metadata,
    Column("principal", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("expires_at", BigInteger, nullable=False),
    Index("tombstones_expiry", "expires_at"),
)
