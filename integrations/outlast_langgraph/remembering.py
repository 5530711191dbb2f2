"""The messages of histories that this process loaded or stored, so that they need not be loaded and serialised again.

Messages can be changed by whoever holds them. So each is remembered with a copy of its containers, and counts only while
it equals that. The texts in them are the same objects, so that this costs next to nothing.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage

from outlast.adapters.history import Payload, digest_of
from outlast.adapters.threads import Known

MOST = 10_000
"""Messages that are remembered, of all histories together."""


AT_ONCE = 64
"""Messages that are compared together."""

_LEAVES = (str, int, float, bool, bytes, type(None))


class _Remembered(NamedTuple):
    value: BaseMessage
    fields: tuple[Any, Any]
    digest: bytes


class Memory:
    """What is remembered of one history."""

    def __init__(self) -> None:
        self.known: dict[str, Known] = {}
        """Where namespaces go on, as far as this process knows."""
        self._by_id: dict[int, _Remembered] = {}
        self._loaded: dict[bytes, _Remembered] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def digests(self, values: Sequence[Any]) -> list[bytes | None]:
        """Return the digests of those that are messages and say what they said when they were remembered."""
        found = list(map(self._by_id.get, map(id, values)))
        changed = _changed([one for one in found if one is not None])
        return [None if one is None or one.digest in changed else one.digest for one in found]

    def recall(self, digests: Iterable[bytes]) -> dict[bytes, Any]:
        """Return the messages that were loaded, and that nobody changed since."""
        found = [one for one in map(self._loaded.get, digests) if one is not None]
        changed = _changed(found)
        return {one.digest: one.value for one in found if one.digest not in changed}

    def note_loaded(self, digest: bytes, value: Any) -> None:
        """Remember what a part was loaded as."""
        if (found := self._note(digest, value)) is not None:
            self._loaded[digest] = found

    def note_dumped(self, value: Any, payload: Payload) -> None:
        """Remember what a message was serialised as. It is not what is loaded from that: a tuple becomes a list."""
        if isinstance(value, BaseMessage):
            self._note(digest_of(payload.content), value)

    def _note(self, digest: bytes, value: Any) -> _Remembered | None:
        if not isinstance(value, BaseMessage):
            return None
        try:
            fields = _copied((value.__dict__, value.__pydantic_extra__))
        except _Unknown:
            return None
        if len(self) >= MOST:
            self._by_id.clear()
            self._loaded.clear()
        found = self._by_id[id(value)] = _Remembered(value, fields, digest)
        return found


def _changed(remembered: Sequence[_Remembered]) -> set[bytes]:
    changed: set[bytes] = set()
    for at in range(0, len(remembered), AT_ONCE):
        some = remembered[at : at + AT_ONCE]
        if not _are_same(some):
            changed.update(one.digest for one in some if not _are_same([one]))
    return changed


def _are_same(some: Sequence[_Remembered]) -> bool:
    try:
        return [(one.value.__dict__, one.value.__pydantic_extra__) for one in some] == [one.fields for one in some]
    except Exception:  # noqa: BLE001 - somebody put an object into a message that cannot be compared
        return False


class _Unknown(Exception):
    """A message holds what is no JSON."""


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind in _LEAVES:
        return value
    if kind is dict:
        return {key: _copied(inner) for key, inner in value.items()}
    if kind is list or kind is tuple:
        return kind(map(_copied, value))
    raise _Unknown


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
