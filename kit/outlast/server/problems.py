"""Every error as `application/problem+json`. Nothing internal leaks: no traceback, no SQL, no path."""

import http
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from outlast.core import jsontext
from outlast.core.errors import (
    AgentResumeError,
    Conflict,
    Gone,
    InvalidHistory,
    InvalidRequest,
    NotFound,
    NotJSON,
    OutlastError,
    StoreUnavailable,
)  # fmt: skip

logger = logging.getLogger("outlast.server")

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 1

_INVALID = {"invalid_json": 400, "invalid_cursor": 400, "id_mismatch": 400, "body_too_large": 413}
"""The codes of wrong requests that are not answered 422."""

Endpoint = Callable[[Request], Awaitable[Response]]


def problem(status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    """Return the answer to a request that cannot be done."""
    body = {
        "type": "about:blank",
        "title": _status(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        **more,
    }
    return Response(jsontext.encode(body), status, headers, MEDIA_TYPE)


def answered(endpoint: Endpoint) -> Endpoint:
    """Turn whatever an endpoint raises into a problem, whoever's app it is in."""

    async def guarded(request: Request) -> Response:
        try:
            return await endpoint(request)
        except OutlastError as error:
            return of(error)
        except ClientDisconnect:
            return problem(400, "client_disconnected", "the client left before its request was complete")
        except HTTPException:
            raise
        except Exception:
            logger.exception("a request failed")
            return internal()

    return guarded


def of(error: OutlastError) -> Response:
    """Return the problem that an error of ours means to a client."""
    match error:
        case InvalidRequest():
            more: dict[str, Any] = {} if error.field is None else {"field": error.field}
            return problem(_INVALID.get(error.code, 422), error.code, str(error), **more)
        case NotJSON():
            return problem(422, error.code, str(error))
        case NotFound():
            return problem(404, error.code, str(error))
        case Gone():
            return problem(410, error.code, str(error))
        case AgentResumeError():
            return problem(409, f"resume_{error.reason}", str(error))
        case Conflict() | InvalidHistory():
            return problem(409, error.code, str(error))
        case StoreUnavailable():
            return problem(503, error.code, str(error), headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
        case _:
            logger.error("a request failed: %s", error)
            return internal()


def internal() -> Response:
    """Return the problem that says nothing; the log says more."""
    return problem(500, "internal_error", "the server failed to answer; its log says why")


async def on_http_exception(_request: Request, error: HTTPException) -> Response:
    """Answer 404 and 405 of the router, and what a user's own routes raise."""
    status = _status(error.status_code)
    detail = error.detail if isinstance(error.detail, str) else status.phrase
    more: dict[str, Any] = {} if isinstance(error.detail, str) else {"errors": error.detail}
    if error.status_code in (204, 304):
        return Response(status_code=error.status_code, headers=error.headers)
    return problem(error.status_code, status.name.lower(), detail, headers=error.headers, **more)


async def on_validation_error(_request: Request, error: RequestValidationError) -> Response:
    """Answer what FastAPI refuses on the routes that it checks."""
    errors: Sequence[Any] = error.errors()
    shown = [{"loc": [str(part) for part in one["loc"]], "msg": one["msg"], "type": one["type"]} for one in errors]
    first = f"{'.'.join(shown[0]['loc'])}: {shown[0]['msg']}" if shown else "the request is not valid"
    return problem(422, "invalid_request", first, errors=shown)


async def on_exception(_request: Request, _error: Exception) -> Response:
    """Answer 500; Starlette raises the exception on, so that the web server logs it."""
    return internal()


def _status(code: int) -> http.HTTPStatus:
    try:
        return http.HTTPStatus(code)
    except ValueError:
        return http.HTTPStatus.INTERNAL_SERVER_ERROR if code >= 500 else http.HTTPStatus.BAD_REQUEST
