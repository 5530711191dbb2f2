"""The SDK's `Session` on the session store: for those who want the conversation kept, and nothing else."""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from typing import Any, cast

from agents import RunContextWrapper
from agents.items import TResponseInputItem
from agents.memory import SessionSettings
from agents.result import RunResultBase

from outlast.adapters.local import LocalStore, open_store
from outlast.core.errors import NotFound
from outlast.sessions import SessionItem, SessionStore
from outlast_openai.items import Item, is_note, note, with_ids_of_their_own

_COUNTS = ("requests", "input_tokens", "output_tokens", "total_tokens")
_OPENED: dict[str | None, LocalStore] = {}
"""Stores that sessions opened by themselves, one a URL: a session is made for each turn of a conversation."""


def now_ms() -> float:
    return time.time() * 1000


class StoreSession:
    """A conversation for `Runner.run(agent, "…", session=StoreSession("customer-42"))`.

    It is there for every process that uses the same store, a URL or what `open_store` returned; by default the file that
    `outlast serve` uses. Items are appended all or none. It takes no lock while the SDK runs: two runs of one session at
    the same time interleave their turns. `OpenAIAgent` does not allow that, and survives its process. While a durable run
    has the session, whatever changes it raises SessionBusy.

    With a `ttl`, turns of which nothing is younger are not returned; they stay stored.
    """

    def __init__(
        self,
        session_id: str,
        store: LocalStore | str | None = None,
        *,
        session_settings: SessionSettings | None = None,
        agent: str = "agent",
        principal: str = "local",
        ttl: timedelta | None = None,
    ) -> None:
        self.session_id = session_id
        self._ttl = ttl
        self.session_settings: SessionSettings | None = session_settings or SessionSettings()
        self._agent, self._principal = agent, principal
        self._local = store if isinstance(store, LocalStore) else _opened(store)
        self._sessions = SessionStore(self._local, principal=principal)

    # The SDK hands `wrapper` over in a run only, and only where every method takes it.

    async def get_items(
        self, limit: int | None = None, *, wrapper: RunContextWrapper[Any] | None = None
    ) -> list[TResponseInputItem]:
        """Return the items in order; with a limit, from here or from the settings, the latest ones.

        A run gets calls under ids that its own calls cannot have.
        """
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        found: list[dict[str, Any]] = []
        oldest = None if self._ttl is None else now_ms() - self._ttl.total_seconds() * 1000
        async with aclosing(self._stored()) as stored:
            async for one in stored:
                if limit is not None and len(found) >= limit:
                    break
                # What is too old goes by whole turns: a result has its call, and an answer its question.
                if oldest is not None and one.created_at <= oldest and (not found or found[-1].get("role") == "user"):
                    break
                found.append(one.content)
        found.reverse()
        return cast("list[TResponseInputItem]", found if wrapper is None else with_ids_of_their_own(found))

    async def add_items(
        self, items: list[TResponseInputItem], *, wrapper: RunContextWrapper[Any] | None = None
    ) -> None:
        """Append items, all or none. The first ones make the session."""
        if not items:
            return
        contents, key = [dict(item) for item in items], uuid.uuid4().hex
        try:
            await self._sessions.append(self.session_id, contents, key=key)
        except NotFound:
            await self._sessions.create(self.session_id, agent=self._agent)
            await self._sessions.append(self.session_id, contents, key=key)

    async def pop_item(self, *, wrapper: RunContextWrapper[Any] | None = None) -> TResponseInputItem | None:
        """Remove the last item and return it; None when there is none."""
        try:
            while (popped := await self._sessions.pop(self.session_id)) is not None and is_note(popped.content):
                pass
        except NotFound:
            return None
        return None if popped is None else cast("TResponseInputItem", popped.content)

    async def clear_session(self, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Remove all items; the session stays."""
        try:
            await self._sessions.clear(self.session_id)
        except NotFound:
            return

    async def fork(self, new_id: str | None = None, *, before_turn: int | None = None) -> "StoreSession":
        """Copy the conversation and return the copy, a session of its own.

        `before_turn` counts the messages of the user from 1: that one, and what follows it, is not copied. Raises NotFound
        for a session, or a turn, that is not there.
        """
        up_to = None
        if before_turn is not None:
            up_to = await self._last_before(before_turn)
            if up_to is None:
                made = await self._sessions.create(new_id, agent=(await self._sessions.get(self.session_id)).agent)
                return self._named(made.id)
        return self._named((await self._sessions.fork(self.session_id, new_id, up_to_item_id=up_to)).id)

    async def store_run_usage(self, result: RunResultBase) -> None:
        """Store what a run of the SDK used, behind what it said. OpenAIAgent does so by itself."""
        used = result.context_wrapper.usage
        counts = {name: getattr(used, name) for name in _COUNTS}
        await self._sessions.append(self.session_id, [note(usage=counts)])

    async def get_session_usage(self) -> dict[str, int]:
        """Return what the runs of the session used, as far as it was stored: requests, and tokens."""
        total = dict.fromkeys(_COUNTS, 0)
        try:
            async for one in self._sessions.items(self.session_id):
                for name, count in _used(one.content).items():
                    total[name] += count
        except NotFound:
            pass
        return total

    async def close(self) -> None:
        """Close the store, which other sessions on it open again when they need it."""
        await self._local.close()

    def _named(self, id: str) -> "StoreSession":
        return StoreSession(
            id, self._local, session_settings=self.session_settings, agent=self._agent, principal=self._principal,
            ttl=self._ttl,
        )  # fmt: skip

    async def _stored(self) -> AsyncGenerator[SessionItem, None]:
        """Give the items, the newest first, without notes."""
        try:
            async for one in self._sessions.items(self.session_id, newest_first=True):
                if not is_note(one.content):
                    yield one
        except NotFound:
            return

    async def _last_before(self, turn: int) -> str | None:
        """Return the item before the n-th message of the user, or None when there is none."""
        last, turns = None, 0
        async for one in self._sessions.items(self.session_id):
            turns += one.content.get("role") == "user"
            if turns == turn:
                return last
            last = one.id
        raise NotFound(f"the session {self.session_id!r} has {turns} messages of a user, not {turn}")


def _used(item: Item) -> dict[str, int]:
    """Return what a note says was used: one of ours, or that of a response."""
    if not is_note(item):
        return {}
    if "usage" in item:
        return {name: item["usage"].get(name, 0) for name in _COUNTS}
    response = item.get("response") or {}
    return {"requests": 1, **{name: response.get("usage", {}).get(name, 0) for name in _COUNTS[1:]}} if response else {}


def _opened(url: str | None) -> LocalStore:
    if url not in _OPENED:
        _OPENED[url] = open_store() if url is None else open_store(url)
    return _OPENED[url]
