"""Checkpoints of sessions for code that is not in a run: a framework's own tools, and imports."""

from collections.abc import Callable, Collection, Mapping

from outlast.adapters.history import Checkpoint, History
from outlast.core import ids
from outlast.sessions.session import StoreSource
from outlast.store.store import Store
from outlast.store.threads import Known, Loaded, Loading, Thread, Writes

__all__ = ["Known", "Loaded", "Loading", "Source", "Threads", "Writes"]

Source = Store | StoreSource
"""A store, or what gives one."""


class Threads:
    """The checkpoints of one principal's sessions, of which a new one belongs to `agent`. A thread is a session.

    Changes raise SessionBusy while a run has the session, and InvalidRequest for a name that no session can have.
    """

    def __init__(self, source: Source, *, agent: str, principal: str = "local") -> None:
        self._source, self._agent, self._principal = source, agent, principal

    async def ids(self) -> list[str]:
        """Return the threads that have checkpoints, the newest first."""
        return await (await self._store()).read.checkpointed(self._principal)

    async def history(self, id: str) -> History | None:
        """Return what a thread's checkpoints are read by, or None when there is no such thread."""
        return await History.of_session(await self._store(), self._principal, id)

    async def reading(self, id: str) -> History:
        """Return what a thread's checkpoints are read by; a thread that there is not has none."""
        found = await self.history(id)
        return found if found is not None else History.of_none(await self._store(), self._principal, id)

    async def put(self, id: str, checkpoint: Checkpoint, known: Known | None = None) -> Known | None:
        """Store a checkpoint, and go on from it; parts of the `known` one may be left out.

        Return None, and store it not, when the namespace does not go on from that any more.
        """
        digests = await (await self._store()).threads.put(self._thread(id), checkpoint, known)
        return None if digests is None else Known(checkpoint.id, digests)

    async def put_writes(self, id: str, writes: Writes) -> None:
        """Store pending writes of a checkpoint."""
        await (await self._store()).threads.put_writes(self._thread(id), writes)

    async def load(self, id: str, loading: Loading) -> Loaded:
        """Take over checkpoints from elsewhere; those that are there stay. Raises Conflict too."""
        return await (await self._store()).threads.load(self._thread(id), loading)

    async def clear(self, id: str) -> None:
        """Remove every checkpoint of a thread; the session stays."""
        await (await self._store()).threads.clear(self._principal, id)

    async def copy(self, id: str, new_id: str) -> None:
        """Copy every checkpoint of a thread."""
        self._thread(new_id)
        await (await self._store()).threads.copy(self._thread(id), new_id)

    async def prune(self, id: str, ancestors: Callable[[str], int]) -> None:
        """Keep of each namespace where it goes on, and as many ancestors as its metadata (JSON text) asks for."""
        await (await self._store()).threads.prune(self._principal, id, ancestors)

    async def forget(self, labels: Mapping[str, Collection[str]]) -> None:
        """Remove the checkpoints whose metadata has one of these values at one of these keys."""
        await (await self._store()).threads.forget(self._principal, labels)

    def _thread(self, id: str) -> Thread:
        return Thread(self._principal, ids.session_id(id), self._agent)

    async def _store(self) -> Store:
        return self._source if isinstance(self._source, Store) else await self._source.store()
