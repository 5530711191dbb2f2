"""The messages of histories that this process loaded or stored, so that they need not be loaded and serialised again.

Messages can be changed by whoever holds them. So each is remembered with what it said, and counts only while it says
the same. That is a quarter of the cost of serialising it, and a tenth of loading it.
"""

import marshal
import threading
from collections import OrderedDict
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage

from outlast.adapters.history import Payload, digest_of

MOST = 10_000
"""Messages that are remembered, of all histories together."""


class _Remembered(NamedTuple):
    value: BaseMessage
    said: bytes
    digest: bytes


class Memory:
    """What is remembered of one history."""

    def __init__(self) -> None:
        self._by_id: dict[int, _Remembered] = {}
        self._loaded: dict[bytes, _Remembered] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def digest(self, value: Any) -> bytes | None:
        """Return the digest of a message that says what it said when it was remembered."""
        found = self._by_id.get(id(value))
        return None if found is None or _said(value) != found.said else found.digest

    def recall(self, digest: bytes) -> BaseMessage | None:
        """Return a message that was loaded, and that nobody changed since."""
        found = self._loaded.get(digest)
        return None if found is None or _said(found.value) != found.said else found.value

    def note_loaded(self, digest: bytes, value: Any) -> None:
        """Remember what a part was loaded as."""
        if (found := self._note(digest, value)) is not None:
            self._loaded[digest] = found

    def note_dumped(self, value: Any, payload: Payload) -> None:
        """Remember what a message was serialised as. It is not what is loaded from that: a tuple becomes a list."""
        if isinstance(value, BaseMessage):
            self._note(digest_of(payload.content), value)

    def _note(self, digest: bytes, value: Any) -> _Remembered | None:
        if not isinstance(value, BaseMessage) or (said := _said(value)) is None:
            return None
        if len(self) >= MOST:
            self._by_id.clear()
            self._loaded.clear()
        found = self._by_id[id(value)] = _Remembered(value, said, digest)
        return found


def _said(message: BaseMessage) -> bytes | None:
    try:
        # Version 2 has no references, which would make it depend on who else holds a value. It takes exact built-in
        # types only.
        return marshal.dumps((message.__dict__, message.__pydantic_extra__), 2)
    except ValueError:
        return None


class Memories:
    """Memories by history. Those that were not used for longest are forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: OrderedDict[object, Memory] = OrderedDict()

    def of(self, key: object) -> Memory:
        with self._lock:
            found = self._of.setdefault(key, Memory())
            self._of.move_to_end(key)
            while len(self._of) > 1 and sum(map(len, self._of.values())) > MOST:
                self._of.popitem(last=False)
        return found
