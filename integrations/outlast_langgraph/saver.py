"""Checkpointers that write under the lease of the run they work for, and go on from its head, never from "latest".

A zombie cannot write past its lease, and a worker whose clock is wrong cannot make its checkpoint the newest one: the
head of a namespace is a row of its own, moved in the transaction that stores the checkpoint.
"""

import asyncio
import json
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, cast
from weakref import WeakValueDictionary

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_serializable_checkpoint_metadata,
)

from outlast.adapters import history as stored
from outlast.adapters.history import History
from outlast.adapters.run import Run
from outlast_langgraph.observer import Observer

RESUME, INTERRUPT = "__resume__", "__interrupt__"
"""Channels of pending writes, by their names in the store."""

OBSERVER: ContextVar[Observer | None] = ContextVar("outlast_langgraph_observer", default=None)
"""Set while a graph runs for a run."""

RUN_KEY = "__outlast_run"
"""Names the observer in a config: some threads of LangGraph call a checkpointer without the context of the run."""

OBSERVERS: WeakValueDictionary[str, Observer] = WeakValueDictionary()

HISTORY: ContextVar[History | None] = ContextVar("outlast_langgraph_history", default=None)
"""Set while a graph's state is read without a run."""


class Stopped(BaseException):
    """Carries an error of the durable layer past the error handling of graphs and tools; `cause` is the error."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _found(config: RunnableConfig | None) -> Observer | None:
    return OBSERVER.get() or OBSERVERS.get((config or {}).get("configurable", {}).get(RUN_KEY, ""))


def _observer(config: RunnableConfig | None) -> Observer:
    found = _found(config)
    if found is None:
        raise RuntimeError("this graph belongs to a LangGraphAgent: its state is written by the agent's runs only")
    return found


def _history(config: RunnableConfig | None) -> History:
    observer = _found(config)
    found = observer.run.history if observer is not None else HISTORY.get()
    if found is None:
        raise RuntimeError("this graph belongs to a LangGraphAgent: read its state through the agent")
    return found


def _namespace(config: RunnableConfig, history: History) -> str:
    """Name where a checkpoint belongs; a graph that chose a thread of its own must not meet the main one."""
    configurable = config["configurable"]
    namespace, thread = configurable.get("checkpoint_ns", ""), str(configurable["thread_id"])
    return namespace if thread == history.thread else f"{thread}\x1f{namespace}"


class RunSaver(BaseCheckpointSaver[Any]):
    """What both checkpointers have in common: async methods that write for a run, and sync ones for its threads."""

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        observer = _observer(config)
        try:
            return await self._put(observer, config, checkpoint, metadata, new_versions)
        except Exception as error:
            raise Stopped(error) from error

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        observer = _observer(config)
        try:
            await self._put_writes(observer, config, writes, task_id, task_path)
        except Exception as error:
            raise Stopped(error) from error

    @abstractmethod
    async def _put(
        self,
        observer: Observer,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig: ...

    @abstractmethod
    async def _put_writes(
        self,
        observer: Observer,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> None: ...

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return _observer(config).run.blocking(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        async def gathered() -> list[CheckpointTuple]:
            return [found async for found in self.alist(config, filter=filter, before=before, limit=limit)]

        yield from _observer(config).run.blocking(gathered())

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return _observer(config).run.blocking(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        _observer(config).run.blocking(self.aput_writes(config, writes, task_id, task_path))

    def _note(self, config: RunnableConfig, namespace: str, found: CheckpointTuple | None) -> CheckpointTuple | None:
        if found is not None and (observer := _found(config)) is not None:
            observer.loaded(namespace, found.checkpoint["channel_values"])
        return found


class StoreSaver(RunSaver):
    """Keeps checkpoints in the store of the run, in the transaction of what they make true."""

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        history = _history(config)
        namespace = _namespace(config, history)
        found = await history.checkpoint(namespace, get_checkpoint_id(config))
        return None if found is None else self._note(config, namespace, self._tuple(config, found))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        history = _history(config)
        base = config or cast(RunnableConfig, {"configurable": {"thread_id": history.thread}})
        namespace = _namespace(base, history) if "checkpoint_ns" in base["configurable"] else None
        below = get_checkpoint_id(before) if before is not None else None
        wanted = get_checkpoint_id(base)
        for found in await history.checkpoints(namespace, before=below, limit=None if filter or wanted else limit):
            metadata = json.loads(found.metadata)
            if wanted is not None and found.id != wanted:
                continue
            if any(metadata.get(key) != value for key, value in (filter or {}).items()):
                continue
            yield self._tuple(base, found)

    def _tuple(self, config: RunnableConfig, found: stored.Checkpoint) -> CheckpointTuple:
        thread = config["configurable"]["thread_id"]
        namespace = found.namespace.rpartition("\x1f")[2]

        def named(id: str) -> RunnableConfig:
            return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": id}}

        return CheckpointTuple(
            named(found.id),
            self.serde.loads_typed((found.type, found.body)),
            json.loads(found.metadata),
            named(found.parent) if found.parent is not None else None,
            [
                (write.task_id, write.channel, self.serde.loads_typed((write.type, write.body)))
                for write in found.writes
            ],
        )

    async def _put(
        self,
        observer: Observer,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        history = observer.run.history
        namespace = _namespace(config, history)
        type_, body = self.serde.dumps_typed(checkpoint)
        record = stored.Checkpoint(
            history.scope, namespace, checkpoint["id"], get_checkpoint_id(config), type_, body,
            json.dumps(get_serializable_checkpoint_metadata(config, metadata)),
        )  # fmt: skip
        seen = observer.observe(namespace, checkpoint["channel_values"])
        await observer.run.commit_head(
            namespace, record.id, checkpoint=record, calls=seen.calls, closed=seen.closed, events=seen.events
        )
        return _at(config, record.id)

    async def _put_writes(
        self,
        observer: Observer,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> None:
        pending = []
        for index, (channel, value) in enumerate(writes):
            type_, body = self.serde.dumps_typed(value)
            place = WRITES_IDX_MAP.get(channel, index)
            pending.append(stored.PendingWrite(task_id, place, channel, type_, body, task_path))
        await observer.run.commit_writes(
            _namespace(config, observer.run.history),
            config["configurable"]["checkpoint_id"],
            pending,
            replace=all(channel in WRITES_IDX_MAP for channel, _ in writes),
            uses=_uses(observer, writes, task_id),
        )


class GuardedSaver(RunSaver):
    """Keeps checkpoints in the user's own checkpointer; which of them counts is decided by the store of the run.

    The head moves after the checkpointer stored a checkpoint. A crash between the two leaves a checkpoint nobody
    follows. Between the check of the lease and a pending write is a gap that only `StoreSaver` closes.
    """

    def __init__(self, inner: BaseCheckpointSaver[Any]) -> None:
        super().__init__(serde=inner.serde)
        self.inner = inner
        self._is_sync = False

    @property
    def config_specs(self) -> Any:
        return self.inner.config_specs

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self.inner.get_next_version(current, channel)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        history = _history(config)
        namespace = _namespace(config, history)
        if get_checkpoint_id(config) is None and (head := await history.head(namespace)) is not None:
            config = {**config, "configurable": {**config["configurable"], "checkpoint_id": head}}
        return self._note(config, namespace, await self._ask("get_tuple", config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        if not self._is_sync:
            async for found in self.inner.alist(config, filter=filter, before=before, limit=limit):
                yield found
            return
        listing = self.inner.list(config, filter=filter, before=before, limit=limit)
        for found in await asyncio.to_thread(lambda: [*listing]):
            yield found

    async def _put(
        self,
        observer: Observer,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        await observer.run.assured()
        namespace = _namespace(config, observer.run.history)
        at: RunnableConfig = await self._ask("put", config, checkpoint, metadata, new_versions)
        seen = observer.observe(namespace, checkpoint["channel_values"])
        await observer.run.commit_head(
            namespace, checkpoint["id"], calls=seen.calls, closed=seen.closed, events=seen.events
        )
        return at

    async def _put_writes(
        self,
        observer: Observer,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> None:
        await observer.run.assured()
        await self._ask("put_writes", config, writes, task_id, task_path)
        if uses := _uses(observer, writes, task_id):
            await observer.run.commit_writes("", "", [], replace=False, uses=uses)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        """Call the checkpointer in its async form, or in a thread when it has none (two official ones have none)."""
        if not self._is_sync:
            try:
                return await getattr(self.inner, f"a{method}")(*arguments)
            except NotImplementedError:
                self._is_sync = True
        return await asyncio.to_thread(getattr(self.inner, method), *arguments)


def _uses(observer: Observer, writes: Sequence[tuple[str, Any]], task_id: str) -> list[str]:
    """Say that the answers of this run were handed over, and that a task has asked again since."""
    if not observer.answering:
        return []
    channels = {channel for channel, _ in writes}
    found = [answers_key(observer.run)] if RESUME in channels else []
    return found + ([asked_key(observer.run, task_id)] if INTERRUPT in channels else [])


def answers_key(run: Run) -> str:
    """Name the note that the answers of a run were handed over; a recovery must not give them to a later question."""
    return f"answers:{run.context.invocation_id}"


def asked_key(run: Run, task_id: str) -> str:
    """Name the note that a task asked something after the answers of this run."""
    return f"asked:{run.context.invocation_id}:{task_id}"


def _at(config: RunnableConfig, checkpoint_id: str) -> RunnableConfig:
    configurable = config["configurable"]
    return {
        "configurable": {
            "thread_id": configurable["thread_id"],
            "checkpoint_ns": configurable.get("checkpoint_ns", ""),
            "checkpoint_id": checkpoint_id,
        }
    }
