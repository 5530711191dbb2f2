"""A conversation with an agent in this process: `run`, `stream`, `resume`, each durable like a server's runs."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol, runtime_checkable

from outlast.adapters.local import Agent, LocalStore, open_store
from outlast.core import ids, jsontext
from outlast.core.errors import AgentResumeError, Conflict, InvalidRequest, NotFound, RunFailed, SessionBusy
from outlast.core.portal import Blocking, blocking, iterating, portal
from outlast.core.records import Invocation, Kind, OnActive, Request, Status
from outlast.core.reply import Reply, ended, reply_of
from outlast.core.resume import ResumePoint
from outlast.engine import locks
from outlast.engine.engine import Engine
from outlast.store.store import Store
from outlast.store.workers import WorkerRow

PRINCIPAL = "local"
LOOK_AGAIN_SECONDS = 0.05


@runtime_checkable
class Resumable(Protocol):
    """An agent that can tell what was said in a session of its, and how it was interrupted. Adapters are."""

    async def require_session_resume_point(self, store: Store, principal: str, session_id: str) -> ResumePoint:
        """Return how a session was interrupted; reads only. Raise AgentResumeError when nothing can be resumed."""
        ...

    async def require_resumable(self, store: Store, principal: str, session_id: str) -> None:
        """Raise AgentResumeError, of which the agent hears, when resuming a session would do nothing."""
        ...

    def session_messages(
        self, store: Store, principal: str, session_id: str, *, after: int = 0
    ) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        """Give the messages of a session behind a place, oldest first, in the neutral form; reads only."""
        ...


class States(Protocol):
    """The states of one session, as clients get them: objects with a `checkpoint_id`."""

    async def state(self, checkpoint_id: str | None = None) -> dict[str, Any]:
        """Return the state, now or at a checkpoint. Raises NotFound."""
        ...

    def history(self, *, before: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """Give the states there were before a checkpoint, the newest first. Raises NotFound."""
        ...

    async def update(self, values: Any, *, as_node: str | None, checkpoint_id: str | None) -> dict[str, Any]:
        """Change the state, or go on from the one at a checkpoint, changed, and return it.

        Raises InvalidRequest, NotFound, SessionBusy and Conflict.
        """
        ...

    async def fork(self, new_id: str | None, *, checkpoint_id: str | None) -> str:
        """Copy the session, up to a checkpoint or whole, and return the id of the copy. Raises as `update` does."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """An agent that keeps states of its sessions, now and before, and not items."""

    def session_states(self, store: Store, principal: str, session_id: str) -> States:
        """Return the states of a session."""
        ...


class ResumableAgent(Agent, Resumable, Protocol):
    """An agent that knows how its histories were interrupted."""


class ChatSession:
    """One conversation. Get it from `agent.session(id)`."""

    def __init__(self, agent: ResumableAgent, id: str, store: LocalStore | str | None) -> None:
        self.id = ids.session_id(id)
        self._agent = agent
        self._local = store if isinstance(store, LocalStore) else open_store(*([store] if store else []))

    @property
    def sync(self) -> "SyncChatSession":
        """The same methods for code without asyncio."""
        return SyncChatSession(self)

    async def run(
        self, message: Any, *, id: str | None = None, wait: float = 0, config: Mapping[str, Any] | None = None
    ) -> Reply:
        """Run the agent on a message and return its reply. `config` has settings that the agent declared.

        Raises SessionBusy when the session is running and stays so for `wait` seconds, and RunFailed when the run
        failed. The same `id`, a UUID, again returns the same run.
        """
        return reply_of(await self._ended(self.stream(message, id=id, wait=wait, config=config)))

    async def stream(
        self, message: Any, *, id: str | None = None, wait: float = 0, config: Mapping[str, Any] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Run the agent on a message and give its events; the last one, `agent.run.finished`, has the reply.

        Leaving the iteration early does not stop the run.
        """
        id = None if id is None else ids.invocation_id(id)
        engine = await self._local.engine(self._agent)
        if id is None or not await _is_over(engine, id):
            id = id or str(uuid.uuid4())
            if (dead := await self._free(engine, wait, keep=id)) is not None:
                await self._adopt(engine, dead)
        invocation = await self._accept(engine, Kind.MESSAGE, message, id, wait, config)
        async for event in _followed(engine, invocation, 0):
            yield event

    async def resume(
        self, *, agent: ResumableAgent | None = None, wait: float = 0, config: Mapping[str, Any] | None = None
    ) -> Reply:
        """Go on where the session was interrupted and return the reply.

        `agent` goes on in place of this session's own: one of the same name with another model or other tools. A run
        whose process died goes on itself. Raises AgentResumeError when there is nothing to resume, SessionBusy and
        RunFailed as `run` does.
        """
        return reply_of(await self._ended(self.stream_resume(agent=agent, wait=wait, config=config)))

    async def stream_resume(
        self, *, agent: ResumableAgent | None = None, wait: float = 0, config: Mapping[str, Any] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Go on where the session was interrupted and give the events from there."""
        agent = agent or self._agent
        if agent.name != self._agent.name:
            raise InvalidRequest(
                f"this session belongs to the agent {self._agent.name!r}, not to {agent.name!r}", field="agent"
            )
        engine = await self._local.engine(agent)
        after, run = 0, await self._free(engine, wait)
        if run is not None:
            after = await engine.store.read.last_position(run.number)
            await self._adopt(engine, run)
        else:
            await agent.require_resumable(engine.store, PRINCIPAL, self.id)
            run = await self._accept(engine, Kind.RESUME, None, str(uuid.uuid4()), wait, config)
        async for event in _followed(engine, run, after):
            yield event

    async def resume_point(self) -> ResumePoint | None:
        """Return how the session was interrupted, or None. Reads only: it starts nothing and writes nothing.

        Raises SessionBusy while a living worker has a run of it.
        """
        store = await self._local.store()
        if await self._is_running(store):
            # A takeover may happen between two reads.
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
            if await self._is_running(store):
                raise SessionBusy(f"session {self.id!r} is running")
        try:
            return await self._agent.require_session_resume_point(store, PRINCIPAL, self.id)
        except AgentResumeError:
            return None

    async def messages(self) -> list[dict[str, Any]]:
        """Return the messages of the session, oldest first. Reads only."""
        found = self._agent.session_messages(await self._local.store(), PRINCIPAL, self.id)
        return [message async for _, message in found]

    async def cancel(self) -> bool:
        """Ask the run of this session to stop; say whether there was one. What it did so far is kept."""
        engine = await self._local.engine(self._agent)
        found = await self._unfinished(engine.store)
        if found is not None:
            await engine.cancel(PRINCIPAL, found.id)
        return found is not None

    async def _accept(
        self, engine: Engine, kind: Kind, input: Any, id: str, wait: float, config: Mapping[str, Any] | None
    ) -> Invocation:
        request = Request.of(
            principal=PRINCIPAL, id=id, session_id=self.id, agent=self._agent.name, input=input, kind=kind,
            on_active=OnActive.REJECT, config=config,
        )  # fmt: skip
        give_up = asyncio.get_running_loop().time() + wait
        while True:
            try:
                return await engine.accept(request)
            except Conflict as error:
                if error.code != "session_active":
                    raise
                if asyncio.get_running_loop().time() >= give_up:
                    raise SessionBusy(f"session {self.id!r} is running") from error
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def _adopt(self, engine: Engine, dead: Invocation) -> None:
        if not await engine.adopt(dead):
            raise SessionBusy(f"another process goes on with session {self.id!r}")

    async def _free(self, engine: Engine, wait: float, *, keep: str | None = None) -> Invocation | None:
        """Return the run of the session whose process died, if there is one; None when the session is free.

        With `keep`, only the run of that id is returned: the user goes on without another one, which is ended, or, when
        it never began, started and waited for. One that was cancelled is ended. Raises SessionBusy while a living worker
        has a run.
        """
        held, give_up = 0, asyncio.get_running_loop().time() + wait
        while (found := await self._unfinished(engine.store)) is not None:
            if found.agent != self._agent.name:
                return None  # whoever asks for a run is told so
            if await self._is_left(engine.store, found):
                if found.cancel is None and keep in (None, found.id):
                    return found
                if found.attempt or found.cancel is not None:
                    await engine.wait(await engine.cancel(PRINCIPAL, found.id), engine.settings.cancel_grace)
                else:
                    await engine.adopt(found)
                continue
            # A takeover may happen between two reads; who is held is held when looked at again.
            held = held + 1 if await self._is_held(engine.store, found) else 0
            if held > 1 and found.id == keep:
                return None
            if held > 1 and asyncio.get_running_loop().time() >= give_up:
                raise SessionBusy(f"session {self.id!r} is running")
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
        return None

    async def _is_running(self, store: Store) -> bool:
        run = await self._unfinished(store)
        return run is not None and await self._is_held(store, run)

    async def _is_held(self, store: Store, run: Invocation) -> bool:
        """Say whether a worker that lives, or may live, has a run, or will take it from the queue."""
        if run.status is Status.QUEUED:
            return not await self._is_left(store, run)
        return any(worker.id == run.holder and _may_live(worker) for worker in await store.read.workers())

    async def _is_left(self, store: Store, run: Invocation) -> bool:
        """Say whether a queued run waits for somebody who goes on with it.

        One that began waits for workers that take runs by themselves; one that did not, also for whoever accepted it.
        """
        if run.status is not Status.QUEUED or self._local.will_run(run.number):
            return False
        takers = [
            worker
            for worker in await store.read.workers()
            if worker.takes(run.agent)
            or (run.attempt == 0 and worker.id != store.worker and worker.may_have_accepted(run.agent))
        ]
        return not any(_may_live(worker) for worker in takers)

    async def _unfinished(self, store: Store) -> Invocation | None:
        """Return the oldest run of the session that is not final."""
        return await store.read.unfinished(PRINCIPAL, self.id)

    async def _ended(self, events: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
        end: dict[str, Any] = {}
        async for event in events:
            end = event
        return end


class SyncChatSession(Blocking[ChatSession]):
    """A conversation for code without asyncio; every method blocks."""

    run = blocking(ChatSession.run)
    stream = iterating(ChatSession.stream)
    resume = blocking(ChatSession.resume)
    stream_resume = iterating(ChatSession.stream_resume)
    resume_point = blocking(ChatSession.resume_point)
    messages = blocking(ChatSession.messages)
    cancel = blocking(ChatSession.cancel)

    def close(self) -> None:
        """Close the session's store for code without asyncio."""
        portal().call(self._wrapped._local.close())


async def _is_over(engine: Engine, id: str) -> bool:
    """Say whether there is such a run, and it is final: then it is told again, whatever the session does now."""
    try:
        return (await engine.get(PRINCIPAL, id)).status.final
    except NotFound:
        return False


def _may_live(worker: WorkerRow) -> bool:
    here = worker.host == locks.host_id() and worker.lock_file is not None
    return not (here and locks.is_free(worker.lock_file or ""))


async def _take_up(engine: Engine, run: Invocation) -> None:
    """Go on with a run whose worker was lost while it was followed: a worker in process claims nothing by itself."""
    if not engine.runs(run.number):
        with contextlib.suppress(NotFound):
            found = await engine.get(run.principal, run.id)
            if found.status is Status.QUEUED and found.attempt > 0:
                await engine.adopt(found)


async def _followed(engine: Engine, invocation: Invocation, after: int) -> AsyncIterator[dict[str, Any]]:
    with await engine.follow(invocation, after=after) as follower:
        while not follower.done:
            entries = await follower.next(timeout=1.0)
            for entry in entries:
                yield jsontext.decode(entry.text)
            if not entries and not follower.done and not follower.closed:
                await _take_up(engine, invocation)
            if follower.closed and not follower.done:
                raise RunFailed("store_closed", "the store was closed while the run was going on")
        assert follower.final is not None
        final = follower.final
        yield ended(
            final.id,
            final.status.value,
            **{
                name: None if (text := getattr(final, name)) is None else jsontext.decode(text)
                for name in ("output", "error", "interrupt", "usage")
            },
        )
