"""`/api/memories`: what is known about an actor. A memory is named by `path`, `actor_id` and `session_id` in the query."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from outlast.core import jsontext
from outlast.core.conversations import memory_as_json, memory_cursor, memory_place
from outlast.core.errors import InvalidRequest
from outlast.server import body, parameters
from outlast.server.answers import json_answer, page_answer, route
from outlast.server.principal import caller
from outlast.server.runtime import Serving
from outlast.sessions import Memory, MemoryStore
from outlast.wires.native import accept, project

NAME = ("path", "actor_id", "session_id")


class Memories:
    """The endpoints of one server."""

    def __init__(self, server: Serving) -> None:
        self._server = server

    def routes(self) -> list[BaseRoute]:
        root = f"{self._server.prefix}/api/memories"
        entry = {"GET": self.get, "HEAD": self.get, "PUT": self.put, "PATCH": self.update, "DELETE": self.delete}
        return [
            route(root, {"GET": self.list, "HEAD": self.list, "POST": self.add}),
            route(f"{root}/entry", entry),
            route(f"{root}/search", {"GET": self.search, "HEAD": self.search, "POST": self.search_long}),
        ]

    async def list(self, request: Request) -> Response:
        """By path; `cursor` is the `next_cursor` of the page before."""
        query = parameters.query(request, ("path", "path_prefix", "actor_id", "session_id", "cursor", "limit"))
        limit = parameters.limit(query.get("limit"))
        found = await self._store(request).list(
            query.get("path"), query.get("path_prefix", ""), actor_id=query.get("actor_id"),
            session_id=query.get("session_id"), after=_after(query.get("cursor")), limit=limit + 1,
        )  # fmt: skip
        return page_answer(found, limit, _memory, lambda one: memory_cursor(one.path, one.session_id))

    async def search(self, request: Request) -> Response:
        """The best first."""
        query = parameters.query(request, ("q", "actor_id", "session_id", "limit"))
        if "q" not in query:
            raise InvalidRequest("`q` is required: what to look for", code="invalid_parameter", field="q")
        return await self._found(request, query["q"], {**query, "limit": parameters.limit(query.get("limit", "10"))})

    async def search_long(self, request: Request) -> Response:
        """The same for a text that is too long, or too private, for a URL."""
        fields = await self._fields(request, "text", "actor_id", "session_id", "limit")
        return await self._found(request, _required(fields, "text"), fields)

    async def _found(self, request: Request, text: Any, options: Mapping[str, Any]) -> Response:
        found = await self._store(request).search(
            text, actor_id=options.get("actor_id"), session_id=options.get("session_id"), limit=options.get("limit", 10)
        )
        shown = [f'{{"score":{jsontext.encode(one.score)},"memory":{_memory(one.memory)}}}' for one in found]
        return json_answer(project.page(shown, None))

    async def add(self, request: Request) -> Response:
        fields = await self._fields(request, *NAME, "content", "key")
        options = {field: fields.get(field) for field in (*NAME[1:], "key")}
        added = await self._store(request).add(_required(fields, "path"), _required(fields, "content"), **options)
        return json_answer(_memory(added), 201)

    async def get(self, request: Request) -> Response:
        return json_answer(_memory(await self._store(request).get(**_name(request))))

    async def put(self, request: Request) -> Response:
        """Store, or with `append` add to what is there; with `key`, once."""
        fields = await self._fields(request, "content", "append", "key")
        stored = await self._store(request).put(
            content=_required(fields, "content"),
            append=fields.get("append", False),
            key=fields.get("key"),
            **_name(request),
        )
        return json_answer(_memory(stored))

    async def update(self, request: Request) -> Response:
        fields = await self._fields(request, "content", "key")
        updated = await self._store(request).update(
            content=_required(fields, "content"), key=fields.get("key"), **_name(request)
        )
        return json_answer(_memory(updated))

    async def delete(self, request: Request) -> Response:
        await self._store(request).delete(**_name(request))
        return Response(status_code=204)

    def _store(self, request: Request) -> MemoryStore:
        return MemoryStore(self._server.runtime().store, principal=caller(request).principal)

    async def _fields(self, request: Request, *known: str) -> dict[str, Any]:
        raw = await body.read(request, self._server.runtime().settings.max_body_bytes)
        return accept.fields(jsontext.parse(raw) if raw else {}, frozenset(known))


def _required(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise InvalidRequest(f"`{name}` is required", code="invalid_field", field=name)
    return fields[name]


def _name(request: Request) -> dict[str, Any]:
    query = parameters.query(request, NAME)
    return {"path": query.get("path", ""), "actor_id": query.get("actor_id"), "session_id": query.get("session_id")}


def _after(cursor: str | None) -> tuple[str, str | None] | None:
    """Return what a cursor stands for. Raise InvalidRequest for one that no page gave."""
    try:
        return memory_place(cursor) if cursor else None
    except (InvalidRequest, ValueError):
        raise InvalidRequest(
            "a cursor must be one that this server gave", code="invalid_cursor", field="cursor"
        ) from None


def _memory(memory: Memory) -> str:
    return jsontext.encode(memory_as_json(memory))
