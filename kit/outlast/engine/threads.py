"""Blocking user code runs in a daemon thread of its own: a body that never returns cannot keep the process alive.

(The threads of `concurrent.futures` are joined at exit, so one stuck tool would stop every deploy.)
"""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """Run `function` in a new thread with the caller's context variables and return its result.

    A cancelled caller stops waiting; the thread goes on to its end and its result is dropped.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = context.run(function)
        except BaseException as caught:  # noqa: BLE001 - it goes to the caller's task
            error = caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(_settle, future, result, error)

    threading.Thread(target=run, name="outlast-body", daemon=True).start()
    result: T = await future
    return result


def _settle(future: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if isinstance(error, StopIteration):
        future.set_exception(RuntimeError("StopIteration left the function"))
    elif error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call user code: `async def` on the loop, `def` in a thread that sees the same context variables."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return await function(*arguments)
    result = await in_thread(lambda: function(*arguments))
    return await result if inspect.isawaitable(result) else result
