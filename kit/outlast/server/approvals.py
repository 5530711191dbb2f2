"""`GET /api/approvals`: what waits for a person, over all sessions. Decisions come as an invocation of the session."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from outlast.adapters.approvals import request_of
from outlast.core import jsontext
from outlast.core.conversations import approval_as_json
from outlast.core.errors import InvalidRequest
from outlast.core.records import Approval, ApprovalStatus
from outlast.server import parameters
from outlast.server.answers import page_answer, route
from outlast.server.principal import caller
from outlast.server.runtime import Serving


class Approvals:
    """The endpoint of one server."""

    def __init__(self, server: Serving) -> None:
        self._server = server

    def routes(self) -> list[BaseRoute]:
        return [route(f"{self._server.prefix}/api/approvals", {"GET": self.list, "HEAD": self.list})]

    async def list(self, request: Request) -> Response:
        """Newest first; `cursor` is the `next_cursor` of the page before."""
        query = parameters.query(request, ("status", "session_id", "cursor", "limit"))
        limit, status = parameters.limit(query.get("limit")), query.get("status")
        if status is not None and status not in set(ApprovalStatus):
            raise InvalidRequest(
                f"`status` must be one of {', '.join(ApprovalStatus)}", code="invalid_parameter", field="status"
            )
        found = await self._server.runtime().store.read.approvals_listed(
            caller(request).principal,
            status=None if status is None else ApprovalStatus(status),
            session_id=parameters.name(query, "session_id"),
            before=parameters.position(query.get("cursor")) or None,
            limit=limit + 1,
        )
        return page_answer(found, limit, _approval, lambda row: row.number)


def _approval(row: Approval) -> str:
    return jsontext.encode(approval_as_json(request_of(row)))
