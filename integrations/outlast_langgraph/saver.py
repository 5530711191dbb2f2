"""Checkpointers that write under the lease of the run they work for, and go on from its head, never from "latest".

A zombie cannot write past its lease, and a worker whose clock is wrong cannot make its checkpoint the newest one: the
head of a namespace is a row of its own, moved in the transaction that stores the checkpoint.
"""

import asyncio
import json
from abc import abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar
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
from langgraph.checkpoint.serde.base import SerializerProtocol

from outlast.adapters import history as stored
from outlast.adapters import open_store
from outlast.adapters.history import History, thread_name
from outlast.adapters.run import Run
from outlast.adapters.threads import Known, Source, Threads, Writes
from outlast.core.portal import portal
from outlast_langgraph.frames import Frames, refuse_pickle
from outlast_langgraph.observer import Observer
from outlast_langgraph.remembering import Memories, Memory

T = TypeVar("T")

RESUME, INTERRUPT, RETURN = "__resume__", "__interrupt__", "__return__"
"""Channels of pending writes, by their names in the store."""

OBSERVER: ContextVar[Observer | None] = ContextVar("outlast_langgraph_observer", default=None)
"""Set while a graph runs for a run."""

RUN_KEY = "__outlast_run"
"""Names the observer in a config: some threads of LangGraph call a checkpointer without the context of the run."""

OBSERVERS: WeakValueDictionary[str, Observer] = WeakValueDictionary()

HISTORY: ContextVar[History | None] = ContextVar("outlast_langgraph_history", default=None)
"""Set while a graph's state is read without a run."""


@contextmanager
def reading(history: History) -> Iterator[History]:
    """Surround what reads the state of a graph without a run."""
    token = HISTORY.set(history)
    try:
        yield history
    finally:
        HISTORY.reset(token)


class Stopped(BaseException):
    """Carries an error of the durable layer past the error handling of graphs and tools; `cause` is the error."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def observer_of(config: RunnableConfig | None) -> Observer | None:
    """Return the observer of the run that code works for, or None outside of runs."""
    return OBSERVER.get() or OBSERVERS.get((config or {}).get("configurable", {}).get(RUN_KEY, ""))


def _observer(config: RunnableConfig | None) -> Observer:
    found = observer_of(config)
    if found is None:
        raise RuntimeError("this graph belongs to a LangGraphAgent: its state is written by the agent's runs only")
    return found


def _history(config: RunnableConfig | None) -> History:
    observer = observer_of(config)
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
        observer.steady.add(config["configurable"].get("checkpoint_ns", ""))
        try:
            return await self._put(observer, config, checkpoint, metadata, new_versions)
        except Exception as error:
            raise Stopped(error) from error

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        observer = _observer(config)
        try:
            with observer.writing():
                if any(channel == INTERRUPT for channel, _ in writes):
                    await observer.run.journal.note(observer.answers.at_question(task_id))
                await self._put_writes(observer, config, writes, task_id, task_path)
            observer.answers.returned(task_id)
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
        return self._blocking(config, self.aget_tuple(config))

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

        yield from self._blocking(config, gathered())

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._blocking(config, self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._blocking(config, self.aput_writes(config, writes, task_id, task_path))

    def _blocking(self, config: RunnableConfig | None, work: Coroutine[Any, Any, T]) -> T:
        try:
            run = _observer(config).run
        except RuntimeError:
            work.close()
            raise
        return run.blocking(work)

    def _note(self, config: RunnableConfig, namespace: str, found: CheckpointTuple | None) -> CheckpointTuple | None:
        if found is not None and (observer := observer_of(config)) is not None:
            observer.steady.add(config["configurable"].get("checkpoint_ns", ""))
            observer.loaded(namespace, found.checkpoint["channel_values"])
        return found


class StoreSaver(RunSaver):
    """Keeps checkpoints in a store, what they have in common once.

    In a run of a `LangGraphAgent` every write is in a transaction under the lease of the run. Outside of one it works
    with a `store` of its own, given as URL or as what `open_store()` returns: a thread is a session of `principal`, a
    new one belongs to `agent`, and writes raise SessionBusy while a run has the session. `serde` must not pickle.
    """

    def __init__(
        self,
        store: Source | str | None = None,
        *,
        agent: str = "agent",
        principal: str = "local",
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde)
        refuse_pickle(self.serde)
        self._memories, self._principal = Memories(), principal
        source = open_store(store) if isinstance(store, str) else store
        self._threads = None if source is None else Threads(source, agent=agent, principal=principal)

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Count on, in numbers, or in the texts that the official checkpointers of databases use."""
        if not isinstance(current, str):
            return super().get_next_version(current, channel)
        number, _, rest = current.partition(".")
        return f"{int(number) + 1:0{len(number)}}.{rest}"

    # Read -----------------------------------------------------------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        place = await self._place(config)
        if place is None:
            return None
        history, namespace = place
        observer, id = observer_of(config), get_checkpoint_id(config)
        if id is None and observer is not None and observer.run.history.key == history.key:
            found = await observer.run.head(namespace)
        else:
            found = await history.checkpoint(namespace, id)
        if found is None:
            return None
        memory = self._memory(config, history)
        if id is None and self._is_outside(config):
            memory = self._memories.of(history.thread)
            memory.known[namespace] = Known(found.id, found.needs)
        return self._note(config, namespace, await self._tuple(history, config, found, memory))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        below = get_checkpoint_id(before) if before is not None else None
        for base in [config] if config is not None else await self._every_thread():
            place = await self._place(base)
            if place is None:
                continue
            history, namespace = place
            anywhere = "checkpoint_ns" not in base["configurable"]
            async for found in history.checkpoints(None if anywhere else namespace, before=below):
                if limit is not None and limit <= 0:
                    return
                if _fits(found, get_checkpoint_id(base), filter or {}):
                    limit = None if limit is None else limit - 1
                    yield await self._tuple(history, base, found, self._memory(base, history))

    async def _every_thread(self) -> list[RunnableConfig]:
        if self._threads is None or observer_of(None) is not None:
            return [{"configurable": {"thread_id": _history(None).thread}}]
        return [{"configurable": {"thread_id": id}} for id in await self._threads.ids()]

    async def _place(self, config: RunnableConfig) -> tuple[History, str] | None:
        """Say in which history a thread is, and under which namespace; None when there is no such thread."""
        if self._is_outside(config):
            history = await self._outside().history(str(config["configurable"]["thread_id"]))
            return None if history is None else (history, config["configurable"].get("checkpoint_ns", ""))
        history = _history(config)
        return history, _namespace(config, history)

    def _memory(self, config: RunnableConfig, history: History) -> Memory:
        """Outside of runs what is loaded belongs to whoever asked: only where a graph goes on is it remembered."""
        return Memory() if self._is_outside(config) else self._memories.of(history.key)

    async def _tuple(
        self, history: History, config: RunnableConfig, found: stored.Checkpoint, memory: Memory
    ) -> CheckpointTuple:
        thread = config["configurable"]["thread_id"]
        namespace = found.namespace.rpartition("\x1f")[2]

        def named(id: str) -> RunnableConfig:
            return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": id}}

        if (observer := observer_of(config)) is not None and observer.run.history.key == history.key:
            observer.run.stored |= found.needs
        needed = [*found.values, *(value for write in found.writes for value in write.values)]
        loads = await Frames(self.serde, memory).load(history, needed)
        return CheckpointTuple(
            named(found.id),
            loads.checkpoint(found.own, found.values),
            json.loads(found.metadata),
            named(found.parent) if found.parent is not None else None,
            [(write.task_id, write.channel, loads.value(write.own, write.values)) for write in found.writes],
        )

    # Write ----------------------------------------------------------------------------------------------------------

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        if not self._is_outside(config):
            return await super().aput(config, checkpoint, metadata, new_versions)
        thread, namespace = str(config["configurable"]["thread_id"]), config["configurable"].get("checkpoint_ns", "")
        memory = self._memories.of(thread_name(self._principal, thread))
        known = memory.known.get(namespace)
        frames = Frames(self.serde, memory, known.digests if known is not None else ())
        record = _record(frames, config, namespace, checkpoint, metadata)
        at = await self._outside().put(thread, record, known)
        if at is None:
            record = _record(Frames(self.serde, Memory()), config, namespace, checkpoint, metadata)
            at = await self._outside().put(thread, record)
        assert at is not None
        memory.known[namespace] = at
        return _at(config, record.id)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        if not self._is_outside(config):
            return await super().aput_writes(config, writes, task_id, task_path)
        configurable = config["configurable"]
        pending = _pending(Frames(self.serde, Memory()), writes, task_id, task_path)
        await self._outside().put_writes(
            str(configurable["thread_id"]),
            Writes(configurable.get("checkpoint_ns", ""), configurable["checkpoint_id"], pending, _replaces(writes)),
        )

    async def _put(
        self,
        observer: Observer,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        namespace = _namespace(config, observer.run.history)
        record = _record(self._frames(observer), config, namespace, checkpoint, metadata)
        seen = observer.observe(namespace, _new(checkpoint, new_versions))
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
        await observer.run.commit_writes(
            _namespace(config, observer.run.history),
            config["configurable"]["checkpoint_id"],
            _pending(self._frames(observer), writes, task_id, task_path),
            replace=_replaces(writes),
            uses=_uses(observer, writes, task_id),
        )

    def _frames(self, observer: Observer) -> Frames:
        return Frames(self.serde, self._memories.of(observer.run.history.key), observer.run.stored)

    # Keep house, outside of runs ------------------------------------------------------------------------------------

    async def adelete_thread(self, thread_id: str) -> None:
        """Remove every checkpoint of a thread; its session stays."""
        await self._outside().clear(thread_id)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy every checkpoint of a thread, with the pending writes, to another."""
        await self._outside().copy(source_thread_id, target_thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove what runs stored, by LangGraph's run ids or ids of invocations. Reads the metadata of all threads."""
        if run_ids:
            await self._outside().forget({"run_id": set(run_ids), "invocation_id": set(run_ids)})

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep of each namespace the newest checkpoint, with those its delta channels are made of; or "delete" all."""
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"the strategy is keep_latest or delete, not {strategy!r}")
        for thread_id in thread_ids:
            if strategy == "delete":
                await self._outside().clear(thread_id)
            else:
                await self._outside().prune(thread_id, _delta_steps)

    def delete_thread(self, thread_id: str) -> None:
        portal().call(self.adelete_thread(thread_id))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        portal().call(self.acopy_thread(source_thread_id, target_thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        portal().call(self.adelete_for_runs(run_ids))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        portal().call(self.aprune(thread_ids, strategy=strategy))

    # Without a run --------------------------------------------------------------------------------------------------

    def _blocking(self, config: RunnableConfig | None, work: Coroutine[Any, Any, T]) -> T:
        return portal().call(work) if self._is_outside(config) else super()._blocking(config, work)

    def _is_outside(self, config: RunnableConfig | None) -> bool:
        return self._threads is not None and observer_of(config) is None

    def _outside(self) -> Threads:
        if self._threads is None:
            raise RuntimeError(
                "this graph belongs to a LangGraphAgent: its threads are sessions of the agent's store; to work on them "
                "outside of a run, make a StoreSaver with that store"
            )
        return self._threads


def _new(checkpoint: Checkpoint, new_versions: ChannelVersions) -> dict[str, Any]:
    """Return the values of the channels that changed."""
    return {channel: value for channel, value in checkpoint["channel_values"].items() if channel in new_versions}


def _fits(found: stored.Checkpoint, id: str | None, filter: dict[str, Any]) -> bool:
    if id is not None and found.id != id:
        return False
    metadata = json.loads(found.metadata) if filter else {}
    return all(metadata.get(key) == value for key, value in filter.items())


def _record(
    frames: Frames, config: RunnableConfig, namespace: str, checkpoint: Checkpoint, metadata: CheckpointMetadata
) -> stored.Checkpoint:
    own, values = frames.to_frame(checkpoint)
    text = json.dumps(get_serializable_checkpoint_metadata(config, metadata))
    return stored.Checkpoint(namespace, checkpoint["id"], get_checkpoint_id(config), own, values, text)


def _pending(
    frames: Frames, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> list[stored.PendingWrite]:
    return [
        stored.PendingWrite(task_id, WRITES_IDX_MAP.get(channel, index), channel, *frames.to_values(value), task_path)
        for index, (channel, value) in enumerate(writes)
    ]


def _replaces(writes: Sequence[tuple[str, Any]]) -> bool:
    return all(channel in WRITES_IDX_MAP for channel, _ in writes)


def _delta_steps(metadata: str) -> int:
    """Say how many ancestors a checkpoint's delta channels are made of, by the counters since their last snapshots."""
    counters = json.loads(metadata).get("counters_since_delta_snapshot") or {}
    return max((steps for _, steps in counters.values()), default=0)


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
        seen = observer.observe(namespace, _new(checkpoint, new_versions))
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
