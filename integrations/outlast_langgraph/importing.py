"""Threads of LangGraph's own checkpointers made sessions: with every checkpoint, its pending writes, and its place."""

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, CheckpointTuple

from outlast.adapters.history import Checkpoint, PendingWrite
from outlast.adapters.threads import Loading, Threads
from outlast.core import jsontext
from outlast.core.errors import OutlastError
from outlast.core.ids import session_id
from outlast_langgraph.frames import Frames, Verbatim
from outlast_langgraph.remembering import Memory


class NoSource(OutlastError):
    """There are no checkpoints where they were said to be."""

    code = "no_source"


@dataclass(slots=True)
class Report:
    """What an import did. `refused` says of threads why they were left."""

    sessions: int = 0
    known_sessions: int = 0
    checkpoints: int = 0
    known_checkpoints: int = 0
    refused: dict[str, str] = field(default_factory=dict)


async def import_threads(source: str, threads: Threads, only: Sequence[str] = ()) -> Report:
    """Import threads, all or those named, from the database of an official checkpointer. Raise NoSource.

    Repeating it adds what is new. A session that went on in outlast since keeps what it has.
    """
    report = Report()
    with _opened(source) as (saver, names):
        for name in only or names:
            try:
                session_id(name)
                loading = await asyncio.to_thread(_read, saver, name)
                if not loading.rows:
                    raise NoSource("there is no such thread")
                loaded = await threads.load(name, loading)
            except (OutlastError, NotImplementedError) as error:
                # LangGraph says so of pickled and of encrypted values.
                report.refused[name] = str(error)
                continue
            report.sessions += loaded.created
            report.known_sessions += not loaded.created
            report.checkpoints += loaded.stored
            report.known_checkpoints += loaded.known
    return report


@contextmanager
def _opened(source: str) -> Iterator[tuple[BaseCheckpointSaver[Any], list[str]]]:
    """Open a database to be read, and name its threads."""
    if source.startswith(("postgresql:", "postgres:", "postgresql+psycopg:")):
        with _postgres("postgresql:" + source.partition(":")[2]) as opened:
            yield opened
    else:
        path = Path(source.removeprefix("sqlite:///"))
        if not path.is_file():
            raise NoSource(f"there is no file {path}")
        with _sqlite(path) as opened:
            yield opened


@contextmanager
def _sqlite(path: Path) -> Iterator[tuple[BaseCheckpointSaver[Any], list[str]]]:
    from langgraph.checkpoint.sqlite import SqliteSaver

    address = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, check_same_thread=False)) as connection:
        try:
            rows = connection.execute(_THREADS).fetchall()
        except sqlite3.Error as error:
            raise NoSource(f"{path} has no checkpoints of LangGraph: {error}") from error
        yield SqliteSaver(connection, serde=Verbatim()), [name for (name,) in rows]


@contextmanager
def _postgres(url: str) -> Iterator[tuple[BaseCheckpointSaver[Any], list[str]]]:
    try:
        import psycopg
        from langgraph.checkpoint.postgres import PostgresSaver
        from psycopg.rows import dict_row
    except ModuleNotFoundError as error:
        raise NoSource(
            "reading checkpoints from PostgreSQL needs LangGraph's package: pip install langgraph-checkpoint-postgres"
        ) from error
    try:
        connection = psycopg.Connection.connect(url, autocommit=True, row_factory=dict_row)
    except psycopg.Error as error:
        raise NoSource(f"the database cannot be reached: {error}") from error
    with connection:
        try:
            rows = connection.execute(_THREADS).fetchall()
        except psycopg.Error as error:
            raise NoSource(f"the database has no checkpoints of LangGraph: {error}") from error
        yield PostgresSaver(connection, serde=Verbatim()), [row["thread_id"] for row in rows]


_THREADS = "SELECT DISTINCT thread_id FROM checkpoints ORDER BY thread_id"
"""Theirs, not ours: no method of the official checkpointers tells the threads without reading all that is in them."""


def _read(saver: BaseCheckpointSaver[Any], thread: str) -> Loading:
    loading, frames = Loading(), Frames(saver.serde, Memory())
    for found in saver.list({"configurable": {"thread_id": thread}}):
        loading.add(_checkpoint(frames, found))
    return loading


def _checkpoint(frames: Frames, found: CheckpointTuple) -> Checkpoint:
    configurable = found.config["configurable"]
    parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
    own, values = frames.to_frame(found.checkpoint)
    return Checkpoint(
        configurable.get("checkpoint_ns", ""), configurable["checkpoint_id"], parent, own, values,
        jsontext.encode(dict(found.metadata)), tuple(_writes(frames, found)),
    )  # fmt: skip


def _writes(frames: Frames, found: CheckpointTuple) -> Iterator[PendingWrite]:
    """Number the writes of each task. They come in the order of their paths, which are not told: places stand for them."""
    places: dict[str, int] = {}
    counts: dict[str, int] = {}
    for task, channel, value in found.pending_writes or ():
        place = places.setdefault(task, len(places))
        index = WRITES_IDX_MAP.get(channel)
        if index is None:
            index = counts[task] = counts.get(task, -1) + 1
        yield PendingWrite(task, index, channel, *frames.to_values(value), f"{place:06}")
