"""Read a request's body up to a limit; what is beyond it is not kept."""

from starlette.requests import Request

from outlast.core.errors import InvalidRequest


async def read(request: Request, limit: int) -> bytes:
    """Return the body. Raise InvalidRequest (`body_too_large`) as soon as it is known to be larger than `limit`."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
    return b"".join(chunks)


def _too_large(limit: int) -> InvalidRequest:
    return InvalidRequest(f"the body is larger than {limit} bytes", code="body_too_large")
