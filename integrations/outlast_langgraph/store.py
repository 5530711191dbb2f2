"""LangGraph's long-term store, on the store of the run: given to graphs that were compiled without one.

Texts are found by their words, not by their meaning: there is no embedding. What has a word of the query comes first,
then the rest, the newest first, so that a search gives as many items as one by vectors would.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    get_text_at_path,
    validate_op_namespace,
)

from outlast.adapters import open_store
from outlast.adapters.documents import Change, Document, Documents
from outlast.adapters.run import CURRENT_RUN
from outlast.core.portal import portal
from outlast.sessions.session import StoreSource

T = TypeVar("T")


class DurableStore(BaseStore):
    """Keeps items of one principal; in a run, of the run's, and writes are under its lease.

    Outside of runs it works with a `store`, given as URL or as what `open_store()` returns. `fields` are the paths in
    an item that are searched (all texts when not given), `ttl` is LangGraph's configuration of times to live.
    """

    supports_ttl = True

    def __init__(
        self,
        store: StoreSource | str | None = None,
        *,
        principal: str = "local",
        fields: Sequence[str] | None = None,
        ttl: TTLConfig | None = None,
    ) -> None:
        source = open_store(store) if isinstance(store, str) else store
        self._documents = Documents(source, principal=principal)
        self._fields = fields
        self.ttl_config = ttl

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        return _blocking(self.abatch(list(ops)))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Do operations in one go: the reads see what was there before, and of two writes of an item the last counts."""
        found: dict[int, Result] = {}
        gets: dict[int, GetOp] = {}
        puts: dict[tuple[tuple[str, ...], str], PutOp] = {}
        for index, op in enumerate(ops):
            validate_op_namespace(op)
            found[index] = None
            match op:
                case GetOp():
                    gets[index] = op
                case SearchOp():
                    found[index] = await self._search(op)
                case ListNamespacesOp():
                    found[index] = await self._namespaces(op)
                case PutOp():
                    puts[op.namespace, op.key] = op
                case _:
                    raise ValueError(f"unknown operation: {type(op).__name__}")
        if gets:
            names, refresh = [op[:2] for op in gets.values()], [op.refresh_ttl for op in gets.values()]
            for index, one in zip(gets, await self._documents.get(names, refresh=refresh), strict=True):
                found[index] = None if one is None else Item(**_fields_of(one))
        if puts:
            await self._documents.change([self._change(op) for op in puts.values()])
        return list(found.values())

    async def _search(self, op: SearchOp) -> list[SearchItem]:
        wanted = op.filter
        found = await self._documents.search(
            op.namespace_prefix, text=op.query or "", offset=op.offset, limit=op.limit, refresh=op.refresh_ttl,
            keep=None if not wanted else (lambda value: all(_fits(value.get(key), wanted[key]) for key in wanted)),
        )  # fmt: skip
        return [SearchItem(**_fields_of(one), score=one.score) for one in found]

    async def _namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        conditions = op.match_conditions or ()
        plain = (one.path for one in conditions if one.match_type == "prefix" and "*" not in one.path)
        found = await self._documents.namespaces(next(plain, ()))
        found = [namespace for namespace in found if all(_matches(one, namespace) for one in conditions)]
        if op.max_depth is not None:
            found = sorted({namespace[: op.max_depth] for namespace in found})
        return found[op.offset : op.offset + op.limit]

    def _change(self, op: PutOp) -> Change:
        if op.value is None:
            return Change(op.namespace, op.key, None)
        seconds = None if op.ttl is None else op.ttl * 60
        return Change(op.namespace, op.key, op.value, seconds, self._text(op))

    def _text(self, op: PutOp) -> str:
        if op.index is False or op.value is None:
            return ""
        fields = self._fields if op.index is None else op.index
        if fields is None:
            return " ".join(_texts(op.value))
        return " ".join(text for field in fields for text in get_text_at_path(op.value, field))


def _blocking(work: Coroutine[Any, Any, T]) -> T:
    run = CURRENT_RUN.get()
    if run is None:
        return portal().call(work)
    if run.on_loop:
        work.close()
        raise asyncio.InvalidStateError(
            "a store was used without `await` inside `async` code, where it would stop everything else; use its `aget`, "
            "`aput`, `asearch`, or make the calling function a plain `def`"
        )
    return run.blocking(work)


def _fields_of(found: Document) -> dict[str, Any]:
    return {
        "namespace": found.namespace, "key": found.key, "value": found.value,
        "created_at": _time(found.created_at), "updated_at": _time(found.updated_at),
    }  # fmt: skip


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _texts(value: Any) -> Iterable[str]:
    """Give every text in a value, without the names of fields."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _fits(value: Any, wanted: Any) -> bool:
    """Compare as LangGraph's stores do: by equality, entries of a dict by themselves, or by operators."""
    if isinstance(wanted, dict):
        if any(key.startswith("$") for key in wanted):
            return all(_compares(value, operator, operand) for operator, operand in wanted.items())
        return isinstance(value, dict) and all(_fits(value.get(key), inner) for key, inner in wanted.items())
    if isinstance(wanted, list | tuple):
        return (
            isinstance(value, list)
            and len(value) == len(wanted)
            and all(_fits(one, other) for one, other in zip(value, wanted, strict=True))
        )
    return bool(value == wanted)


def _compares(value: Any, operator: str, operand: Any) -> bool:
    if operator in ("$eq", "$ne"):
        return bool(value == operand) is (operator == "$eq")
    if operator not in ("$gt", "$gte", "$lt", "$lte"):
        raise ValueError(f"unsupported operator: {operator}")
    try:
        one, other = float(value), float(operand)
    except (TypeError, ValueError):
        return False
    match operator:
        case "$gt":
            return one > other
        case "$gte":
            return one >= other
        case "$lt":
            return one < other
        case _:
            return one <= other


def _matches(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    path = tuple(condition.path)
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))
