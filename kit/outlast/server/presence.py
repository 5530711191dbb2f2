"""Notice that a client left while its answer is waited for: what waits holds the request, and a run may take hours."""

import asyncio
import contextlib
from collections.abc import Iterator

from starlette.requests import ClientDisconnect, Request

UNWATCHED_SECONDS = 1.0
"""Most answers leave sooner, and watching costs a task."""


@contextlib.contextmanager
def present(request: Request) -> Iterator[None]:
    """End what is awaited inside, with ClientDisconnect, when the client leaves. The body must have been read."""
    loop, waiting = asyncio.get_running_loop(), asyncio.current_task()
    assert waiting is not None
    watches: list[asyncio.Task[None]] = []
    left = False

    async def watch() -> None:
        nonlocal left
        while (await request.receive())["type"] != "http.disconnect":
            pass
        left = True
        waiting.cancel()

    timer = loop.call_later(UNWATCHED_SECONDS, lambda: watches.append(loop.create_task(watch())))
    try:
        yield
    except asyncio.CancelledError:
        if left and waiting.uncancel() == 0:
            raise ClientDisconnect from None
        raise
    finally:
        timer.cancel()
        for task in watches:
            task.cancel()
