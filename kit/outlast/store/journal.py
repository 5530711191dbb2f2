"""The tool journal: one row a side effect, moved only by the lease that owns it.

Every function returns a part of a write, so that a row and its event are one transaction. The answer of each part is
the row as it is afterwards; the caller reads from it what happened (`read`).
"""

from outlast.core.records import Call, CallState
from outlast.store.grouped import LEASE, Part
from outlast.store.statements import Row, Statement, label

_COLUMNS = (
    "scope, key, state, invocation_number, epoch, token, call_id, name, arguments, outcome, "
    "started_position, finished_position"
)
_FROM_LEASE = " FROM {p}invocations v WHERE " + LEASE + "\n"
_FIND = Statement("SELECT " + _COLUMNS + " FROM {p}journal WHERE scope = :scope AND key = :key")
_PENDING = Statement(
    """
    INSERT INTO {p}journal (scope, key, invocation_number, epoch, token, call_id, name, arguments, state,
        created_at, updated_at)
    SELECT CAST(:scope AS text), CAST(:key AS text), v.number, v.epoch, '', CAST(:call_id AS text),
        CAST(:name AS text), CAST(:arguments AS text), 'pending', {now}, {now}
    """
    + _FROM_LEASE
    + "ON CONFLICT (scope, key) DO NOTHING"
)
_STARTED = Statement(
    """
    INSERT INTO {p}journal (scope, key, invocation_number, epoch, token, call_id, name, arguments, state,
        started_position, created_at, updated_at)
    SELECT CAST(:scope AS text), CAST(:key AS text), v.number, v.epoch, CAST(:token AS text),
        CAST(:call_id AS text), CAST(:name AS text), CAST(:arguments AS text), 'started',
        CAST(:position AS bigint), {now}, {now}
    """
    + _FROM_LEASE
    + """
    ON CONFLICT (scope, key) DO UPDATE SET state = 'started', invocation_number = excluded.invocation_number,
        epoch = excluded.epoch, token = excluded.token, updated_at = excluded.updated_at,
        started_position = COALESCE(journal.started_position, excluded.started_position),
        arguments = COALESCE(journal.arguments, excluded.arguments)
    WHERE journal.state IN ('pending', 'waiting')
        OR (journal.state = 'failed'
            AND journal.invocation_number = excluded.invocation_number AND journal.epoch = excluded.epoch)
        OR (:again = 1 AND journal.state = 'started' AND NOT (
            journal.invocation_number = excluded.invocation_number AND journal.epoch = excluded.epoch))
    """
)
# Epoch 0 is nobody's: an answered call is never started again, except by a tool that may run twice.
_ANSWERED = Statement(
    """
    INSERT INTO {p}journal (scope, key, invocation_number, epoch, token, call_id, name, arguments, state, outcome,
        finished_position, created_at, updated_at)
    SELECT CAST(:scope AS text), CAST(:key AS text), v.number, 0, '', CAST(:call_id AS text), CAST(:name AS text),
        CAST(:arguments AS text), 'failed', CAST(:outcome AS text), CAST(:position AS bigint), {now}, {now}
    """
    + _FROM_LEASE
    + """
    ON CONFLICT (scope, key) DO UPDATE SET state = 'failed', outcome = excluded.outcome, epoch = 0, token = '',
        updated_at = excluded.updated_at,
        finished_position = COALESCE(journal.finished_position, excluded.finished_position)
    WHERE journal.state IN ('pending', 'started', 'waiting')
    """
)
_SETTLED = Statement(
    """
    UPDATE {p}journal SET state = :state, outcome = :outcome, updated_at = {now},
        finished_position = COALESCE(finished_position, CAST(:position AS bigint))
    WHERE scope = :scope AND key = :key AND state = 'started' AND token = :token
        AND EXISTS (SELECT 1 """
    + _FROM_LEASE
    + ")"
)


def read(row: Row) -> Call:
    """Make the record of an answered row."""
    scope, key, state, *rest = row
    return Call(scope, key, CallState(state), *rest)


def _named(call_id: str | None, name: str) -> dict[str, str | None]:
    return {"call_id": None if call_id is None else label(call_id), "name": label(name)}


def pending(*, scope: str, key: str, call_id: str | None, name: str, arguments: str | None) -> Part:
    """Note a call that the model asked for, before anything of it runs. A row that exists stays as it is."""
    parameters = {"scope": scope, "key": key, **_named(call_id, name), "arguments": arguments}
    return Part("journal.pending", _PENDING, parameters, _FIND)


def started(
    *,
    scope: str,
    key: str,
    token: str,
    call_id: str | None,
    name: str,
    arguments: str | None,
    position: int | None,
    again: bool = False,
) -> Part:
    """Claim one execution of a call. The caller may run the body only if the answered row bears its `token`.

    With `again`, a call that another attempt started, and whose outcome is unknown, may start once more.
    """
    parameters = {
        "scope": scope, "key": key, "token": token, **_named(call_id, name), "arguments": arguments,
        "position": position, "again": int(again),
    }  # fmt: skip
    return Part("journal.started", _STARTED, parameters, _FIND)


def settled(*, scope: str, key: str, token: str, state: CallState, outcome: str | None, position: int | None) -> Part:
    """Store how an execution ended: done, failed, or waiting for a person (then it may start again)."""
    parameters = {
        "scope": scope, "key": key, "token": token, "state": state, "outcome": outcome, "position": position
    }  # fmt: skip
    return Part(f"journal.{state}", _SETTLED, parameters, _FIND)


def answered(
    *,
    scope: str,
    key: str,
    call_id: str | None,
    name: str,
    arguments: str | None,
    outcome: str,
    position: int | None,
) -> Part:
    """Close a call that has no outcome, with an answer made up for it. A call that has one stays as it is."""
    parameters = {
        "scope": scope, "key": key, **_named(call_id, name), "arguments": arguments, "outcome": outcome,
        "position": position,
    }  # fmt: skip
    return Part("journal.answered", _ANSWERED, parameters, _FIND)


_SET_HEAD = Statement(
    """
    INSERT INTO {p}heads (scope, namespace, checkpoint, invocation_number, epoch)
    SELECT CAST(:scope AS text), CAST(:namespace AS text), CAST(:checkpoint AS text), v.number, v.epoch
    """
    + _FROM_LEASE
    + """
    ON CONFLICT (scope, namespace) DO UPDATE SET checkpoint = excluded.checkpoint,
        invocation_number = excluded.invocation_number, epoch = excluded.epoch
    """
)


def head(*, scope: str, namespace: str, checkpoint: str) -> Part:
    """Name the checkpoint from which a history goes on."""
    return Part("head", _SET_HEAD, {"scope": scope, "namespace": namespace, "checkpoint": checkpoint})


CALLS = Statement("SELECT " + _COLUMNS + " FROM {p}journal WHERE scope = :scope ORDER BY created_at, key")
CALL = _FIND
HEAD = Statement("SELECT checkpoint FROM {p}heads WHERE scope = :scope AND namespace = :namespace")
