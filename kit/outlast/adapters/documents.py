"""JSON objects that agents keep by namespace and key, for frameworks that have a store of their own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.adapters.run import CURRENT_RUN, Run
from outlast.core import jsontext
from outlast.core.errors import InvalidRequest
from outlast.sessions.session import StoreSource
from outlast.store import documents
from outlast.store.documents import Place, StoredDocument
from outlast.store.grouped import Part
from outlast.store.store import Store

MAX_VALUE = 1 << 20
"""Characters of a value as JSON."""
MAX_NAME_BYTES = 2500
"""Bytes of principal, namespace and key as JSON: PostgreSQL's index takes no more."""
MAX_TEXT = 65_536
"""Characters that are searched."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document. Times are milliseconds since 1970 UTC; a `score` has what was found by its words."""

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any]
    created_at: int
    updated_at: int
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of a document: without a value it is removed. It is found by the words of `text`."""

    namespace: Sequence[str]
    key: str
    value: Mapping[str, Any] | None
    ttl_seconds: float | None = None
    text: str = ""


Filter = Callable[[dict[str, Any]], bool]


class Documents:
    """The documents of the principal whose run this is; outside of runs, those of `principal` in a store.

    In a run on the same store, or without a `source`, changes are stored under the lease of the run.
    """

    def __init__(self, source: StoreSource | None, *, principal: str = "local") -> None:
        self._source, self._principal = source, principal

    async def get(
        self, names: Sequence[tuple[Sequence[str], str]], *, refresh: Sequence[bool]
    ) -> list[Document | None]:
        """Return documents in the order asked for; those to be refreshed live on as long as they were given at first."""
        store, principal, _ = await self._here()
        places = [_place(principal, namespace, key) for namespace, key in names]
        found = await store.read.documents(places)
        await _refresh(store, [one for one, wanted in zip(found, refresh, strict=True) if one is not None and wanted])
        return [None if one is None else _document(one) for one in found]

    async def change(self, changes: Sequence[Change]) -> None:
        """Do all changes, or none. Raise InvalidRequest, NotJSON, and in a run LeaseLost."""
        store, principal, run = await self._here()
        parts = [part for one in changes for part in _parts(store, principal, one, in_run=run is not None)]
        if run is not None:
            await run.context.write(parts=parts)
        else:
            await store.documents.change(parts)

    async def search(
        self,
        prefix: Sequence[str],
        *,
        text: str = "",
        keep: Filter | None = None,
        offset: int = 0,
        limit: int = 10,
        refresh: bool = False,
    ) -> list[Document]:
        """Return documents in and below a namespace: the best for a text first, then the others, the newest first."""
        store, principal, _ = await self._here()
        kept = None if keep is None else (lambda value: keep(jsontext.decode(value)))
        found = await store.read.found_documents(
            principal, prefix, text=text[:MAX_TEXT], keep=kept, offset=offset, limit=limit
        )
        if refresh:
            await _refresh(store, found)
        return [_document(one) for one in found]

    async def namespaces(self, prefix: Sequence[str] = ()) -> list[tuple[str, ...]]:
        """Return every namespace that has documents, from `prefix` on, in order."""
        store, principal, _ = await self._here()
        return sorted(map(tuple, await store.read.namespaces(principal, prefix)))

    async def _here(self) -> tuple[Store, str, Run | None]:
        run = CURRENT_RUN.get()
        own = None if self._source is None else await self._source.store()
        if run is not None and (own is None or own.url == run.context.store.url):
            return run.context.store, run.context.principal, run
        if own is None:
            raise LookupError("this store works inside a durable run; outside of one, make one with a store")
        return own, self._principal, None


def _parts(store: Store, principal: str, change: Change, *, in_run: bool) -> list[Part]:
    place = _place(principal, change.namespace, change.key)
    dialect = store.url.dialect
    if change.value is None:
        return documents.delete(place, dialect=dialect, in_run=in_run)
    value = jsontext.encode(dict(change.value))
    if len(value) > MAX_VALUE:
        raise InvalidRequest(f"the value has {len(value)} characters as JSON; the limit is {MAX_VALUE}", field="value")
    ttl_ms = None if change.ttl_seconds is None else round(change.ttl_seconds * 1000)
    return documents.put(
        place, value, ttl_ms=ttl_ms, text=change.text[:MAX_TEXT], dialect=dialect, in_run=in_run
    )  # fmt: skip


async def _refresh(store: Store, found: Sequence[StoredDocument]) -> None:
    if numbers := [one.number for one in found if one.ttl_ms is not None]:
        await store.documents.touch(numbers)


def _place(principal: str, namespace: Sequence[str], key: str) -> Place:
    place = Place(principal, jsontext.encode(list(namespace)), jsontext.encode(key))
    if sum(len(part.encode()) for part in place) > MAX_NAME_BYTES:
        raise InvalidRequest(f"namespace and key have more than {MAX_NAME_BYTES} bytes together", field="namespace")
    return place


def _document(stored: StoredDocument) -> Document:
    return Document(
        tuple(jsontext.decode(stored.namespace)), jsontext.decode(stored.key), jsontext.decode(stored.value),
        stored.created_at, stored.updated_at, stored.score,
    )  # fmt: skip
