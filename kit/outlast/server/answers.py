"""How the API's own routes answer, whatever app they are part of."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from outlast.server.problems import Endpoint, answered, problem
from outlast.wires.native import project

T = TypeVar("T")

JSON = "application/json"
PAGE_SIZE = 8 << 20
"""Characters in a page of what may be large, about."""
NO_STORE = {"Cache-Control": "no-store"}


class Methods:
    """One path's endpoints by method, as an ASGI app; it answers 405 itself, whatever app it is part of."""

    def __init__(self, endpoints: Mapping[str, Endpoint], missing: str | None = None) -> None:
        self._endpoints = {method: answered(endpoint) for method, endpoint in endpoints.items()}
        self._missing = missing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        endpoint = self._endpoints.get(request.method)
        response = await endpoint(request) if endpoint is not None else self._refusal(request.method)
        await response(scope, receive, send)

    def _refusal(self, method: str) -> Response:
        if self._missing is not None:
            return problem(404, "not_found", self._missing)
        allowed = ", ".join(sorted(self._endpoints))
        return problem(405, "method_not_allowed", f"this path answers {allowed}", headers={"Allow": allowed})


def route(path: str, endpoints: Mapping[str, Endpoint]) -> Route:
    """Return the route of a path with its endpoints by method."""
    return Route(path, Methods(endpoints), include_in_schema=False)


def page_answer(found: Sequence[T], limit: int, show: Callable[[T], str], cursor: Callable[[T], int | str]) -> Response:
    """Return a page of a list that was asked for one more than `limit`, with the cursor of its last one if there is more."""
    shown = found[:limit]
    return json_answer(project.page([show(one) for one in shown], cursor(shown[-1]) if len(found) > limit else None))


async def page_as_read(
    found: AsyncIterator[T], limit: int, show: Callable[[T], str], cursor: Callable[[T], int | str]
) -> Response:
    """Return a page of what is read as it is taken, with not many more characters than PAGE_SIZE; at least one."""
    shown, size = list[str](), 0
    last: int | str = 0
    async for one in found:
        if len(shown) == limit or size >= PAGE_SIZE:
            return json_answer(project.page(shown, last))
        shown.append(show(one))
        size, last = size + len(shown[-1]), cursor(one)
    return json_answer(project.page(shown, None))


def json_answer(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return JSON text as an answer that no cache keeps."""
    return Response(text, status, {**NO_STORE, **(headers or {})}, JSON)
