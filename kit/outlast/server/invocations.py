"""`/api/invocations`: plain Starlette routes with hand checks, for they are the hot path."""

import re
from collections.abc import Sequence
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from outlast.core import ids, jsontext
from outlast.core.errors import InvalidRequest, NotFound
from outlast.core.records import Invocation, Status
from outlast.engine import RequestAuth
from outlast.server import body, parameters
from outlast.server.answers import JSON, Methods, json_answer, route
from outlast.server.presence import present
from outlast.server.principal import caller
from outlast.server.problems import RETRY_AFTER_SECONDS
from outlast.server.runtime import Runtime, Serving
from outlast.server.streams import EventStream
from outlast.store.reading import plenty
from outlast.wires.native import accept, project

EVENTS_PAGE_BYTES = 4 << 20

_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?([0-9]{1,9})\"?\s*(?:$|[,;])")


class ServingAgents(Serving, Protocol):
    """What these routes need of their server besides."""

    def agent_names(self) -> Sequence[str]: ...


class Invocations:
    """The endpoints of one server."""

    def __init__(self, server: ServingAgents) -> None:
        self._server = server

    def routes(self) -> list[BaseRoute]:
        root = f"{self._server.prefix}/api/invocations"
        one = f"{root}/{{id}}"
        return [
            route(root, {"POST": self.post, "GET": self.list, "HEAD": self.list}),
            route(one, {"GET": self.get, "HEAD": self.get, "DELETE": self.delete}),
            route(f"{one}/events", {"GET": self.events}),
            route(f"{one}/cancel", {"POST": self.cancel}),
            # Whatever else begins like this is answered here: no redirect, and no page of the app around.
            Route(f"{root}/{{rest:path}}", Methods({}, "there is nothing at this path"), include_in_schema=False),
        ]

    async def post(self, request: Request) -> Response:
        """Accept a request and answer in the mode it asks for."""
        runtime = self._server.runtime()
        auth = caller(request)
        cursor = _cursor(request)
        ask = accept.message(
            jsontext.parse(await body.read(request, runtime.settings.max_body_bytes)),
            idempotency_key=request.headers.get("idempotency-key"),
            principal=auth.principal,
            agents=self._server.agent_names(),
        )
        return await self.answer(request, runtime, ask, auth, cursor)

    async def answer(
        self, request: Request, runtime: Runtime, ask: accept.Ask, auth: RequestAuth, cursor: int
    ) -> Response:
        """Store what is asked and answer: the stream, the object, or where to find it."""
        if ask.stream and cursor:
            await _check_cursor(runtime, ask, cursor)
        # Without a credential there is nothing to remember for the attempt.
        invocation = await runtime.engine.accept(ask.request, auth=auth if auth.credential else None)
        base = self._base(request)
        if ask.stream:
            return await self._stream(request, runtime, invocation, cursor)
        if ask.background:
            return _accepted(invocation, base)
        with present(request):
            final = await runtime.engine.wait(invocation, _patience(request, runtime.settings.sync_wait))
        return _object(final, base) if final.status.final else _accepted(final, base)

    async def get(self, request: Request) -> Response:
        return _object(await self._find(request), self._base(request))

    async def list(self, request: Request) -> Response:
        """Newest first; `cursor` is the `next_cursor` of the page before."""
        query = parameters.query(request, ("session_id", "status", "agent", "cursor", "limit"), labels="metadata")
        limit = parameters.limit(query.get("limit"))
        found = await self._server.runtime().store.read.listed(
            caller(request).principal,
            session_id=None if "session_id" not in query else ids.session_id(query["session_id"]),
            status=_status(query.get("status")),
            agent=parameters.name(query, "agent"),
            metadata=parameters.labelled(query, "metadata"),
            before=parameters.position(query.get("cursor")) if query.get("cursor") else None,
            limit=limit + 1,
        )
        shown = found[:limit]
        cursor = shown[-1].number if len(found) > limit or plenty(shown) else None
        return json_answer(project.invocations(shown, self._base(request), cursor))

    async def events(self, request: Request) -> Response:
        """Stream the log from a position on, or give a page of it as JSON."""
        cursor = _cursor(request)
        runtime = self._server.runtime()
        invocation = await self._find(request)
        if _prefersjson_answer(request.headers.get("accept", "")):
            return await _page(request, runtime, invocation, cursor)
        return await self._stream(request, runtime, invocation, cursor)

    async def cancel(self, request: Request) -> Response:
        runtime = self._server.runtime()
        cancelled = await runtime.engine.cancel(caller(request).principal, _id(request))
        return _object(cancelled, self._base(request), 200 if cancelled.status.final else 202)

    async def delete(self, request: Request) -> Response:
        runtime = self._server.runtime()
        await runtime.engine.delete(caller(request).principal, _id(request))
        return Response(status_code=204)

    async def _find(self, request: Request) -> Invocation:
        return await self._server.runtime().engine.get(caller(request).principal, _id(request))

    async def _stream(self, request: Request, runtime: Runtime, invocation: Invocation, cursor: int) -> Response:
        base = self._base(request)
        return EventStream(
            await runtime.engine.follow(invocation, after=cursor),
            runtime.streams,
            keep_alive=runtime.settings.keep_alive,
            render_end=lambda final: project.end(final, base),
        )

    def _base(self, request: Request) -> str:
        root: str = request.scope.get("root_path", "")
        return root.rstrip("/") + self._server.prefix


def _object(record: Invocation, base: str, status: int = 200) -> Response:
    return json_answer(project.invocation(record, base), status)


def _accepted(record: Invocation, base: str) -> Response:
    headers = {"Location": project.status_path(record.id, base), "Retry-After": str(RETRY_AFTER_SECONDS)}
    return json_answer(project.accepted(record, base), 202, headers)


async def _page(request: Request, runtime: Runtime, invocation: Invocation, cursor: int) -> Response:
    """A page of the log. There is a next cursor until the log is complete and was returned to its end."""
    query = parameters.query(request, ("after", "limit"))
    limit = parameters.limit(query.get("limit"))
    entries = await runtime.store.read.events(invocation.number, after=cursor, limit=limit, max_bytes=EVENTS_PAGE_BYTES)
    if not entries:
        await runtime.engine.check_cursor(invocation, cursor)
    last = entries[-1].position if entries else cursor
    complete = invocation.status.final and last >= invocation.last_position
    return json_answer(project.events(entries, None if complete else last))


async def _check_cursor(runtime: Runtime, ask: accept.Ask, cursor: int) -> None:
    """Refuse a bad cursor before anything is stored."""
    try:
        known = await runtime.engine.get(ask.request.principal, ask.request.id)
    except NotFound:
        raise InvalidRequest(
            f"the cursor {cursor} is beyond the last event: this invocation is new",
            code="invalid_cursor",
            field="after",
        ) from None
    await runtime.engine.check_cursor(known, cursor)


def _id(request: Request) -> str:
    return ids.invocation_id(request.path_params["id"])


def _cursor(request: Request) -> int:
    """The larger of the two counts: a browser that reconnects sends the header, and its URL still has the old `after`."""
    after = request.query_params.get("after") if request.scope["query_string"] else None
    return max(parameters.position(after), parameters.position(request.headers.get("last-event-id")))


def _prefersjson_answer(accepted: str) -> bool:
    return JSON in accepted and EventStream.media_type not in accepted


def _patience(request: Request, sync_wait: float | None) -> float | None:
    """Return how long to wait for the end of a run, in seconds, or None for as long as it takes."""
    asked = _WAIT.search(", ".join(request.headers.getlist("prefer")))
    if asked is None:
        return sync_wait
    return float(asked[1]) if sync_wait is None else min(float(asked[1]), sync_wait)


def _status(text: str | None) -> Status | None:
    if text is None:
        return None
    if text not in set(Status):
        raise InvalidRequest(f"`status` must be one of {', '.join(Status)}", code="invalid_parameter", field="status")
    return Status(text)
