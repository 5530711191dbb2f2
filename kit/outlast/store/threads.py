"""Checkpoints outside of runs: every change locks its session's row first, and is refused while a run has the session.

Whoever changes a history here is no attempt: the rows it leaves have invocation 0.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from outlast.core import jsontext
from outlast.core.errors import Conflict, SessionBusy
from outlast.store import checkpoints, parts
from outlast.store.checkpoints import ANYHOW, Checkpoint, PendingWrite
from outlast.store.grouped import Part
from outlast.store.statements import Connection, Rows, Statement, query
from outlast.store.writer import SOON_SECONDS, Answer, pass_on

Submit = Callable[[str, Callable[[Connection], Any]], "asyncio.Future[Any]"]

ROWS_AT_ONCE = 500


class Thread(NamedTuple):
    """Names a session, and the agent it belongs to when it is new."""

    principal: str
    id: str
    agent: str


class Known(NamedTuple):
    """A checkpoint that a namespace goes on from, as somebody remembers it, with the digests of all its parts."""

    id: str
    digests: frozenset[bytes]


class Writes(NamedTuple):
    """Pending writes of a checkpoint."""

    namespace: str
    checkpoint_id: str
    writes: Sequence[PendingWrite]
    replace: bool


class Loading:
    """Checkpoints of one thread that are to be taken over, in the form of their rows: what they share is in it once."""

    def __init__(self) -> None:
        self.heads: dict[str, str] = {}
        """Where each namespace goes on: its newest checkpoint."""
        self.shared: list[Part] = []
        self.rows: dict[tuple[str, str], list[Part]] = {}
        self.writes: list[Part] = []
        self._known: set[bytes] = set()

    def add(self, checkpoint: Checkpoint) -> None:
        """Take a checkpoint with its pending writes."""
        namespace, id = checkpoint.namespace, checkpoint.id
        self.rows[namespace, id] = self._rest(checkpoints.put("", checkpoint, stored=self._known, condition=ANYHOW))
        self.writes += self._rest(
            checkpoints.put_writes(
                "", namespace, id, checkpoint.writes, replace=False, stored=self._known, condition=ANYHOW
            )
        )
        self.heads[namespace] = max(id, self.heads.get(namespace, ""))

    def _rest(self, made: list[Part]) -> list[Part]:
        """Put what is shared aside."""
        shared = [part for part in made if "digest" in part.parameters]
        self.shared += shared
        self._known |= checkpoints.digests(shared)
        return [part for part in made if "digest" not in part.parameters]


class Loaded(NamedTuple):
    """What an import found and did. `moved` are the namespaces that go on from an imported checkpoint now."""

    created: bool
    stored: int
    known: int
    moved: int


class ThreadChanges:
    """The writing verbs. Each future resolves after its commit, and raises SessionBusy while a run has the session."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._held: dict[Thread, list[tuple[Writes, asyncio.Future[None]]]] = {}

    def put(
        self, thread: Thread, checkpoint: Checkpoint, known: Known | None = None
    ) -> "asyncio.Future[frozenset[bytes] | None]":
        """Store a checkpoint and make it the head of its namespace. The session is made when there is none.

        Return the digests of all its parts. With `known`, some of them may be left out: those of the checkpoint that the
        namespace goes on from. If it goes on from another one, return None, and store it not.
        """
        return self._together(thread, checkpoint, known)

    def put_writes(self, thread: Thread, writes: Writes) -> "asyncio.Future[None]":
        """Store pending writes of a checkpoint, with the next checkpoint of the thread, or alone after a moment."""
        stored: asyncio.Future[None] = Answer()
        if thread not in self._held:
            self._held[thread] = []
            asyncio.get_running_loop().call_later(SOON_SECONDS, self._send_held, thread)
        self._held[thread].append((writes, stored))
        return stored

    def _send_held(self, thread: Thread) -> None:
        if thread in self._held:
            self._together(thread, None, None)

    def _together(self, thread: Thread, checkpoint: Checkpoint | None, known: Known | None) -> "asyncio.Future[Any]":
        held = self._held.pop(thread, [])
        writes = [written for written, _ in held]
        future = self._submit("thread", lambda connection: _put(connection, thread, writes, checkpoint, known))
        for _, stored in held:
            future.add_done_callback(partial(pass_on, stored))
        return future

    def load(self, thread: Thread, loading: Loading) -> "asyncio.Future[Loaded]":
        """Take over checkpoints with their writes from elsewhere.

        What is there stays. A namespace that went on since, in a run, keeps its head. The future raises Conflict
        (`session_of_other_agent`) too.
        """
        return self._submit("thread", lambda connection: _load(connection, thread, loading))

    def clear(self, principal: str, id: str) -> "asyncio.Future[None]":
        """Remove every checkpoint of a session; without one, do nothing."""
        return self._submit("thread", lambda connection: _clear(connection, principal, id))

    def copy(self, source: Thread, target_id: str) -> "asyncio.Future[None]":
        """Copy every checkpoint of a session into another, which is made when there is none."""
        return self._submit("thread", lambda connection: _copy(connection, source, target_id))

    def prune(self, principal: str, id: str, ancestors: Callable[[str], int]) -> "asyncio.Future[None]":
        """Keep of each namespace the head, with as many of its ancestors as are needed by its metadata."""
        return self._submit("thread", lambda connection: _prune(connection, principal, id, ancestors))

    def forget(self, principal: str, labels: Mapping[str, Collection[str]]) -> "asyncio.Future[None]":
        """Remove the checkpoints, in all sessions, whose metadata has one of these values at one of these keys."""
        return self._submit("thread", lambda connection: _forget(connection, principal, labels))


_INSERT = Statement(
    """
    INSERT INTO {p}sessions (principal, id, agent, actor_id, created_at, last_activity)
    VALUES (:principal, :id, :agent, :principal, {now}, {now}) ON CONFLICT (principal, id) DO NOTHING
    """
)
_INSERT_COPY = Statement(
    """
    INSERT INTO {p}sessions (principal, id, agent, actor_id, forked_from, created_at, last_activity)
    SELECT s.principal, CAST(:new AS text), s.agent, s.actor_id, s.id, {now}, {now}
    FROM {p}sessions s WHERE s.principal = :principal AND s.id = :id
    ON CONFLICT (principal, id) DO NOTHING
    """
)
_TOUCH = Statement(
    "UPDATE {p}sessions SET last_activity = {now} WHERE principal = :principal AND id = :id RETURNING number, agent"
)
_LOCK = Statement("SELECT number, agent FROM {p}sessions WHERE principal = :principal AND id = :id {update}")
_STATE = Statement(
    """
    SELECT (SELECT v.id FROM {p}invocations v WHERE v.session_number = s.number AND v.status IN ('queued', 'running') LIMIT 1),
        (SELECT h.checkpoint FROM {p}heads h WHERE h.scope = 's' || CAST(s.number AS text) AND h.namespace = :namespace)
    FROM {p}sessions s WHERE s.principal = :principal AND s.id = :id
    """
)
"""A run that is not final, and from which checkpoint a namespace goes on."""
_HEAD = Statement(
    """
    INSERT INTO {p}heads (scope, namespace, checkpoint, invocation_number, epoch)
    VALUES (:scope, :namespace, :checkpoint, 0, 0)
    ON CONFLICT (scope, namespace) DO UPDATE SET checkpoint = excluded.checkpoint,
        invocation_number = excluded.invocation_number, epoch = excluded.epoch
    """
)
_HEADS = Statement("SELECT namespace, checkpoint, invocation_number FROM {p}heads WHERE scope = :scope")
_IDS = Statement("SELECT namespace, id, parent, metadata FROM {p}checkpoints WHERE scope = :scope")
_CLEAR = [
    Statement(f"DELETE FROM {{p}}{table} WHERE scope = :scope")
    for table in ("checkpoint_parts", "checkpoint_writes", "checkpoints", "heads")
]
_COPY = [
    Statement(
        f"INSERT INTO {{p}}{table} (scope, {columns}) SELECT CAST(:new AS text), {columns} FROM {{p}}{table} "
        f"WHERE scope = :scope ON CONFLICT ({key}) DO NOTHING"
    )
    for table, columns, key in (
        ("checkpoint_parts", "digest, content", "scope, digest"),
        (
            "checkpoint_writes",
            "namespace, checkpoint_id, task_id, position, channel, body, task_path",
            "scope, namespace, checkpoint_id, task_id, position",
        ),
        ("checkpoints", "namespace, id, parent, body, metadata, created_at", "scope, namespace, id"),
    )
]
_ROWS = {"n": "text", "i": "text"}
_DELETE = [
    Statement(
        f"DELETE FROM {{p}}{table} WHERE scope = :scope AND (namespace, {id}) IN (SELECT i.n, i.i FROM {{rows}} i)",
        _ROWS,
    )
    for table, id in (("checkpoints", "id"), ("checkpoint_writes", "checkpoint_id"))
]
_DELETE_HEAD = Statement("DELETE FROM {p}heads WHERE scope = :scope AND namespace = :namespace")
_BODIES = Statement(
    """
    SELECT body FROM {p}checkpoints WHERE scope = :scope
    UNION ALL SELECT body FROM {p}checkpoint_writes WHERE scope = :scope
    """
)
_PARTS = Statement("SELECT digest FROM {p}checkpoint_parts WHERE scope = :scope")
_PART = Statement("SELECT content FROM {p}checkpoint_parts WHERE scope = :scope AND digest = :digest")
_DELETE_PART = Statement("DELETE FROM {p}checkpoint_parts WHERE scope = :scope AND digest = :digest")
_LABELLED = Statement(
    """
    SELECT s.id, c.namespace, c.id, c.metadata FROM {p}sessions s
    JOIN {p}checkpoints c ON c.scope = 's' || CAST(s.number AS text)
    WHERE s.principal = :principal ORDER BY s.number
    """
)


class _Locked(NamedTuple):
    number: int
    agent: str
    head: str | None

    @property
    def scope(self) -> str:
        return f"s{self.number}"


def _locked(
    connection: Connection, principal: str, id: str, *, lock: Statement = _LOCK, namespace: str = ""
) -> _Locked | None:
    """Lock a session that no run has; `head` is that of the namespace. None when there is no such session."""
    # Sent together, so that the database is waited for once.
    locked = connection.send(lock, principal=principal, id=id)
    state = connection.send(_STATE, principal=principal, id=id, namespace=namespace)
    if not locked.rows():
        return None
    ((number, agent),), ((active, head),) = locked.rows(), state.rows()
    if active is not None:
        raise SessionBusy(f"invocation {active} of this session is not final; wait for it or cancel it")
    return _Locked(number, agent, head)


def _opened(connection: Connection, thread: Thread, namespace: str = "") -> _Locked:
    """Lock a session, made if it is new."""
    found = _locked(connection, thread.principal, thread.id, lock=_TOUCH, namespace=namespace)
    if found is None:
        connection.send(_INSERT, **thread._asdict())
        found = _locked(connection, thread.principal, thread.id, lock=_TOUCH, namespace=namespace)
    assert found is not None
    return found


def _send(connection: Connection, made: Sequence[Part]) -> None:
    for part in made:
        connection.send(part.statement, **part.parameters)


def _put(
    connection: Connection,
    thread: Thread,
    held: Sequence[Writes],
    checkpoint: Checkpoint | None,
    known: Known | None,
) -> frozenset[bytes] | None:
    namespace = "" if checkpoint is None else checkpoint.namespace
    locked = _opened(connection, thread, namespace)
    scope = locked.scope
    for one in held:
        _send(
            connection,
            checkpoints.put_writes(
                scope, one.namespace, one.checkpoint_id, one.writes, replace=one.replace, condition=ANYHOW
            ),
        )
    if checkpoint is None or (known is not None and known.id != locked.head):
        return None
    packed = checkpoints.pack(checkpoint)
    stored = known.digests if known is not None else ()
    _send(connection, checkpoints.put(scope, checkpoint, packed=packed, stored=stored, condition=ANYHOW))
    connection.send(_HEAD, scope=scope, namespace=namespace, checkpoint=checkpoint.id)
    return packed.needs


def _load(connection: Connection, thread: Thread, loading: Loading) -> Loaded:
    created = connection.send(_INSERT, **thread._asdict()).count() == 1
    locked = _locked(connection, thread.principal, thread.id)
    assert locked is not None
    if locked.agent != thread.agent:
        raise Conflict(
            f"this session belongs to the agent {locked.agent!r}, not to {thread.agent!r}",
            code="session_of_other_agent",
        )
    scope = locked.scope
    there = {(namespace, id) for namespace, id, _, _ in query(connection, _IDS, scope=scope)}
    new = [made for name, made in loading.rows.items() if name not in there]
    for part in [*loading.shared, *(part for made in new for part in made), *loading.writes]:
        connection.send(part.statement, **{**part.parameters, "scope": scope})
    heads = {namespace: (id, run) for namespace, id, run in query(connection, _HEADS, scope=scope)}
    moved = 0
    for namespace, id in loading.heads.items():
        at, run = heads.get(namespace, ("", 0))
        if run == 0 and at < id:
            connection.send(_HEAD, scope=scope, namespace=namespace, checkpoint=id)
            moved += 1
    return Loaded(created, len(new), len(loading.rows) - len(new), moved)


def _clear(connection: Connection, principal: str, id: str) -> None:
    if (locked := _locked(connection, principal, id)) is None:
        return
    for statement in _CLEAR:
        connection.send(statement, scope=locked.scope)


def _copy(connection: Connection, source: Thread, target_id: str) -> None:
    if (locked := _locked(connection, source.principal, source.id)) is None:
        return
    scope = locked.scope
    connection.send(_INSERT_COPY, principal=source.principal, id=source.id, new=target_id)
    new = _opened(connection, source._replace(id=target_id)).scope
    for statement in _COPY:
        connection.send(statement, scope=scope, new=new)
    for namespace, id, _ in query(connection, _HEADS, scope=scope):
        connection.send(_HEAD, scope=new, namespace=namespace, checkpoint=id)


def _prune(connection: Connection, principal: str, id: str, ancestors: Callable[[str], int]) -> None:
    if (locked := _locked(connection, principal, id)) is None:
        return
    scope = locked.scope
    rows = {
        (namespace, id): (parent, metadata) for namespace, id, parent, metadata in query(connection, _IDS, scope=scope)
    }
    kept: set[tuple[str, str]] = set()
    for namespace, at, _ in query(connection, _HEADS, scope=scope):
        left = ancestors(rows[namespace, at][1]) if (namespace, at) in rows else 0
        while (namespace, at) in rows and left >= 0:
            kept.add((namespace, at))
            at, left = rows[namespace, at][0], left - 1
    _remove(connection, scope, rows.keys() - kept)


def _forget(connection: Connection, principal: str, labels: Mapping[str, Collection[str]]) -> None:
    doomed: dict[str, list[tuple[str, str]]] = {}
    for session, namespace, id, text in query(connection, _LABELLED, principal=principal):
        metadata = jsontext.decode(text)
        if any(metadata.get(key) in values for key, values in labels.items()):
            doomed.setdefault(session, []).append((namespace, id))
    for session, gone in doomed.items():
        if (locked := _locked(connection, principal, session)) is not None:
            _remove(connection, locked.scope, gone)


def _remove(connection: Connection, scope: str, gone: Collection[tuple[str, str]]) -> None:
    """Remove checkpoints, and the parts that no other needs; heads go back to the newest that is left."""
    listed = sorted(gone)
    for start in range(0, len(listed), ROWS_AT_ONCE):
        rows = Rows(list(_ROWS), listed[start : start + ROWS_AT_ONCE])
        for statement in _DELETE:
            connection.send(statement, scope=scope, rows=rows)
    left: dict[str, str] = {}
    for namespace, id, _, _ in query(connection, _IDS, scope=scope):
        left[namespace] = max(id, left.get(namespace, ""))
    for namespace, at, _ in query(connection, _HEADS, scope=scope):
        if (namespace, at) not in gone:
            continue
        if namespace in left:
            connection.send(_HEAD, scope=scope, namespace=namespace, checkpoint=left[namespace])
        else:
            connection.send(_DELETE_HEAD, scope=scope, namespace=namespace)
    _sweep(connection, scope)


def _sweep(connection: Connection, scope: str) -> None:
    def fetch(digests: Sequence[bytes]) -> dict[bytes, bytes]:
        sent = [(digest, connection.send(_PART, scope=scope, digest=digest)) for digest in digests]
        return {digest: answer.rows()[0][0] for digest, answer in sent}

    needed = parts.needed_by([body for (body,) in query(connection, _BODIES, scope=scope)], fetch)
    for (digest,) in query(connection, _PARTS, scope=scope):
        if digest not in needed:
            connection.send(_DELETE_PART, scope=scope, digest=digest)
