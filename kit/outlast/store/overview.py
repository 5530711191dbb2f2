"""What a store holds, for people who look after it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import BigInteger, Connection, func, literal_column, select, text

from outlast.core.records import ApprovalStatus, Status
from outlast.store.statements import now
from outlast.store.tables import approvals, beats, invocations, memories, sessions, workers
from outlast.store.url import StoreURL
from outlast.store.workers import WorkerRow


@dataclass(frozen=True, slots=True)
class Overview:
    """How much there is of what. Times are milliseconds since 1970 UTC by the database's clock."""

    version: str
    """The database's."""
    bytes: int
    """On disk, of everything."""
    invocations: Mapping[Status, int]
    oldest_unfinished: int | None
    """When the oldest run that is not final was accepted."""
    sessions: int
    memories: int
    open_approvals: int
    workers: int
    now: int


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker, how many runs it holds, and how long ago it beat, by the database's clock."""

    row: WorkerRow
    running: int
    silent_ms: int


def read(connection: Connection, url: StoreURL) -> Overview:
    """Count. On a very large database this takes a while."""
    by_status = select(invocations.c.status, func.count(), func.min(invocations.c.created_at)).group_by(
        invocations.c.status
    )
    found = {Status(status): (count, oldest) for status, count, oldest in connection.execute(by_status)}
    unfinished = [oldest for status, (_, oldest) in found.items() if not status.final]
    waiting = select(func.count()).select_from(approvals).where(approvals.c.status == ApprovalStatus.OPEN)
    return Overview(
        version=_version(connection, url),
        bytes=_bytes(connection, url),
        invocations={status: found.get(status, (0, 0))[0] for status in Status},
        oldest_unfinished=min(unfinished, default=None),
        sessions=connection.execute(select(func.count()).select_from(sessions)).scalar_one(),
        memories=connection.execute(select(func.count()).select_from(memories)).scalar_one(),
        open_approvals=connection.execute(waiting).scalar_one(),
        workers=connection.execute(select(func.count()).select_from(workers)).scalar_one(),
        now=connection.execute(select(literal_column(now(url.dialect)))).scalar_one(),
    )


def working(connection: Connection, url: StoreURL) -> Sequence[WorkerState]:
    """Read the workers with what they hold."""
    held = (
        select(func.count())
        .select_from(invocations)
        .where(invocations.c.holder == workers.c.id, invocations.c.status == literal_column("'running'"))
        .scalar_subquery()
    )
    columns = (
        workers.c.id, workers.c.host, workers.c.pid, workers.c.lock_file, workers.c.claims, workers.c.started_at,
        beats.c.counter, beats.c.stalled, beats.c.at,
    )  # fmt: skip
    query = (
        select(held, literal_column(now(url.dialect)), *columns)
        .join(beats, beats.c.worker_id == workers.c.id)
        .order_by(workers.c.started_at, workers.c.id)
    )
    return [
        WorkerState(row := WorkerRow(*rest), running, max(0, at - row.beat_at))
        for running, at, *rest in connection.execute(query)
    ]


def old(connection: Connection, url: StoreURL, status: Status, age_ms: int) -> int:
    """Count the invocations that became `status` more than `age_ms` ago."""
    long_ago = invocations.c.finished_at < literal_column(now(url.dialect), BigInteger) - age_ms
    query = select(func.count()).where(long_ago, invocations.c.status == status)
    return int(connection.execute(query).scalar_one())


def _version(connection: Connection, url: StoreURL) -> str:
    asked = (
        "SELECT 'SQLite ' || sqlite_version()"
        if url.is_sqlite
        else "SELECT 'PostgreSQL ' || current_setting('server_version')"
    )
    return str(connection.execute(text(asked)).scalar_one())


def _bytes(connection: Connection, url: StoreURL) -> int:
    if url.path is not None:
        files = [url.path, url.path.with_name(f"{url.path.name}-wal")]
        return sum(file.stat().st_size for file in files if file.exists())
    size = text(
        "SELECT COALESCE(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c "
        "WHERE c.relnamespace = to_regnamespace(:schema) AND c.relkind = 'r'"
    )
    return int(connection.execute(size, {"schema": f'"{url.schema}"'}).scalar_one())
