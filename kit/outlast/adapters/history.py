"""What an adapter may read of a history: its tool journal, its checkpoints, and from which of them it goes on."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from outlast.adapters.items import Items, StoredItems
from outlast.core import jsontext
from outlast.core.errors import StoreUnavailable
from outlast.core.records import Approval, Call
from outlast.engine.context import InvocationContext
from outlast.store.checkpoints import Checkpoint, PendingWrite
from outlast.store.parts import Element, Payload, Value, elements_of
from outlast.store.parts import digest as digest_of
from outlast.store.store import Store

__all__ = ["Checkpoint", "Element", "History", "Payload", "PendingWrite", "Value", "digest_of", "elements_of"]


UNDECIDED = 200
"""Questions of one history that nobody decided, of which an adapter is told."""


CHECKPOINTS_AT_ONCE = 50


class History:
    """Reads of one history. `thread` names it to the framework, `scope` to the store."""

    def __init__(self, store: Store, *, scope: str, thread: str) -> None:
        self.scope, self.thread = scope, thread
        self._store = store

    @classmethod
    def of_run(cls, context: InvocationContext) -> "History":
        """Return the history that a run belongs to: its session's, or one of its own."""
        thread = thread_name(context.principal, context.session_id or context.invocation_id)
        return cls(context.store, scope=context.scope, thread=thread)

    @classmethod
    async def of_session(cls, store: Store, principal: str, session_id: str) -> "History | None":
        """Return the history of a session, or None when nothing ever ran in it."""
        number = await store.read.session_number(principal, session_id)
        return None if number is None else cls(store, scope=f"s{number}", thread=thread_name(principal, session_id))

    @classmethod
    def of_none(cls, store: Store, principal: str, session_id: str) -> "History":
        """Return the history of a session that does not exist yet: the store has nothing of it."""
        return cls(store, scope="", thread=thread_name(principal, session_id))

    @property
    def key(self) -> tuple[int, str]:
        """Name this history in this process, for what is remembered of it."""
        return id(self._store), self.scope

    async def items(self) -> Items:
        """Read the messages of a history that is kept as items."""
        return await Items.load(self._store, self.scope)

    async def stored_items(self) -> StoredItems:
        """Read the items of a history whose framework has a form of its own for them."""
        return await StoredItems.load(self._store, self.scope)

    async def newest_items(self, page: int) -> AsyncIterator[Any]:
        """Give the contents of the items, the newest first; `page` is how many are read at once."""
        before: int | None = None
        while found := await self._store.read.items(self.scope, after=before, newest_first=True, limit=page):
            for one in found:
                yield jsontext.decode(one.item)
            before = found[-1].position

    async def calls(self) -> list[Call]:
        return await self._store.read.calls(self.scope)

    async def call(self, key: str) -> Call | None:
        return await self._store.read.call(self.scope, key)

    async def approvals(self, keys: Sequence[str]) -> dict[str, Approval]:
        """Return what was, or is, to be decided about calls, by their keys."""
        return {row.key: row for row in await self._store.read.approvals(self.scope, keys)}

    async def undecided(self) -> list[Approval]:
        """Return what nobody decided lately, open or closed, newest first."""
        return await self._store.read.undecided(self.scope, limit=UNDECIDED)

    async def head(self, namespace: str) -> str | None:
        """Return the id of the checkpoint from which a namespace goes on."""
        return await self._store.read.head(self.scope, namespace)

    async def checkpoint(self, namespace: str, id: str | None = None) -> Checkpoint | None:
        """Return a checkpoint, with digests for its parts; without an id, the head."""
        return await self._store.read.checkpoint(self.scope, namespace, id)

    async def parts(self, digests: Sequence[bytes]) -> dict[bytes, Payload]:
        """Return the payloads that checkpoints of this history name by digests. Raises StoreUnavailable."""
        found = await self._store.read.parts(self.scope, digests)
        if len(found) != len(set(digests)):
            raise StoreUnavailable("checkpoints of this session were removed while they were read; read them again")
        return {digest: Payload.of(content) for digest, content in found.items()}

    async def checkpoints(
        self, namespace: str | None, *, before: str | None = None, limit: int | None = None
    ) -> AsyncIterator[Checkpoint]:
        """Give checkpoints, with digests for their parts, the newest first, with ids below `before`."""
        behind: tuple[str, str] | None = None
        while limit is None or limit > 0:
            page = CHECKPOINTS_AT_ONCE if limit is None else min(limit, CHECKPOINTS_AT_ONCE)
            found = await self._store.read.checkpoints(
                self.scope, namespace=namespace, before=before, behind=behind, limit=page
            )
            for checkpoint in found:
                yield checkpoint
            if len(found) < page:
                return
            behind = found[-1].id, found[-1].namespace
            limit = None if limit is None else limit - page


def thread_name(principal: str, name: str) -> str:
    """Name a history towards a framework: session ids of different principals must not meet.

    A session id holds no control character, so the two forms cannot be equal.
    """
    return name if principal == "local" else f"{principal}\x1f{name}"
