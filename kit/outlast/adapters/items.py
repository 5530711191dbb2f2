"""A history that is kept as items: read once, then appended to under the lease of the run that has it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Self

from outlast.core import jsontext
from outlast.core.errors import InvalidHistory, OutlastError, RunFailed
from outlast.core.records import Approval, ApprovalStatus, StoredItem
from outlast.core.transcript import CallRequest, Message, last_answer, open_calls
from outlast.store import items
from outlast.store.grouped import Part
from outlast.store.store import Store

PAGE = 500


class StoredItems:
    """The items of one history, in order, whatever they are."""

    def __init__(self, scope: str, last: int) -> None:
        self._scope, self._last = scope, last
        self.stored: list[StoredItem] = []

    @classmethod
    async def load(cls, store: Store, scope: str) -> Self:
        """Read a history as it is committed, page by page: a long one holds the event loop for no longer than a page."""
        items = cls(scope, await store.read.last_item(scope))
        while page := await store.read.items(
            scope,
            after=items.stored[-1].position if items.stored else None,
            newest_first=False,
            limit=PAGE,
            patient=True,
        ):
            items._take(page)
        return items

    def _take(self, page: Sequence[StoredItem]) -> None:
        """Take in what was read."""
        self.stored += page

    def refuse_known(self, ids: Iterable[str]) -> None:
        """Raise RunFailed for an id that is in the history, or twice among these: the store keeps the first only."""
        known = {one.id for one in self.stored}
        for id in ids:
            if id in known:
                raise RunFailed("invalid_input", f"the history has a message with the id {id!r} already")
            known.add(id)

    def add(self, contents: Sequence[tuple[str, Any]], *, number: int) -> list[Part]:
        """Return the parts of a write that stores items at the end, and count them in. `number` is the run's."""
        texts = [(id, jsontext.encode(content)) for id, content in contents]
        parts = items.append(self._scope, self._last, texts)
        for id, text in texts:
            self._last += 1
            self.stored.append(StoredItem(self._last, id, text, 0, number))
        return parts


class Items(StoredItems):
    """The messages of one history, in order, each with the id of its item."""

    def __init__(self, scope: str, last: int) -> None:
        super().__init__(scope, last)
        self.messages: list[Message] = []
        self.approvals: dict[str, Approval] = {}
        """What is known of decisions about the open calls, by the calls' keys."""

    @classmethod
    async def load(cls, store: Store, scope: str) -> Self:
        """Read a history as it is committed."""
        items = await super().load(store, scope)
        if opened := items.open_calls():
            items.decided(await store.read.approvals(scope, list(opened)))
        return items

    def _take(self, page: Sequence[StoredItem]) -> None:
        super()._take(page)
        self.messages += [message_of(one) for one in page]

    def open_calls(self) -> dict[str, CallRequest]:
        """Return the calls of the last answer that have no result, by their keys."""
        last = last_answer(self.messages)
        if last is None:
            return {}
        return {key_of(self.stored[last].id, place): call for place, call in open_calls(self.messages).items()}

    def decided(self, approvals: Iterable[Approval]) -> None:
        """Take in what is known of decisions about the open calls."""
        last = last_answer(self.messages)
        if last is None:
            return
        self.approvals = {row.key: row for row in approvals}
        self.messages[last] = replace(
            self.messages[last],
            calls=tuple(
                replace(call, awaits_approval=self._is_open(key_of(self.stored[last].id, place)))
                for place, call in enumerate(self.messages[last].calls)
            ),
        )

    def _is_open(self, key: str) -> bool:
        row = self.approvals.get(key)
        return row is not None and row.status is ApprovalStatus.OPEN

    def append(self, messages: Sequence[tuple[str, Message]], *, number: int) -> list[Part]:
        """Return the parts of a write that stores messages at the end, and count them in. `number` is the run's.

        Raises RunFailed for an id that is known.
        """
        self.refuse_known(id for id, _ in messages)
        parts = self.add([(id, message.as_json()) for id, message in messages], number=number)
        self.messages += [message for _, message in messages]
        return parts


def key_of(item_id: str, place: int) -> str:
    """Name a call by the item of the answer that asked for it and its place there: providers use their ids again."""
    return f"{item_id}:{place}"


def message_of(stored: StoredItem) -> Message:
    """Return an item as a message. Raise InvalidHistory for one that is none."""
    try:
        return Message.of_json(jsontext.decode(stored.item))
    except OutlastError as error:
        raise InvalidHistory(f"the item {stored.id!r} of this session is no message: {error}") from error
