"""What an adapter may read of a history: its tool journal, its checkpoints, and from which of them it goes on."""

from outlast.adapters.items import Items
from outlast.core.records import Call
from outlast.store.checkpoints import Checkpoint, PendingWrite
from outlast.store.store import Store

__all__ = ["Checkpoint", "History", "PendingWrite"]


class History:
    """Reads of one history. `thread` names it to the framework, `scope` to the store."""

    def __init__(self, store: Store, *, scope: str, thread: str) -> None:
        self.scope, self.thread = scope, thread
        self._store = store

    @classmethod
    async def of_session(cls, store: Store, principal: str, session_id: str) -> "History | None":
        """Return the history of a session, or None when nothing ever ran in it."""
        number = await store.read.session_number(principal, session_id)
        if number is None:
            return None
        return cls(store, scope=f"s{number}", thread=thread_name(principal, session_id))

    async def items(self) -> Items:
        """Read the messages of a history that is kept as items."""
        return await Items.load(self._store, self.scope)

    async def calls(self) -> list[Call]:
        return await self._store.read.calls(self.scope)

    async def call(self, key: str) -> Call | None:
        return await self._store.read.call(self.scope, key)

    async def head(self, namespace: str) -> str | None:
        """Return the id of the checkpoint from which a namespace goes on."""
        return await self._store.read.head(self.scope, namespace)

    async def checkpoint(self, namespace: str, id: str | None = None) -> Checkpoint | None:
        """Return a checkpoint; without an id, the head."""
        return await self._store.read.checkpoint(self.scope, namespace, id)

    async def checkpoints(
        self, namespace: str | None, *, before: str | None = None, limit: int | None = None
    ) -> list[Checkpoint]:
        return await self._store.read.checkpoints(self.scope, namespace=namespace, before=before, limit=limit)


def thread_name(principal: str, name: str) -> str:
    """Name a history towards a framework: session ids of different principals must not meet.

    A session id holds no control character, so the two forms cannot be equal.
    """
    return name if principal == "local" else f"{principal}\x1f{name}"
