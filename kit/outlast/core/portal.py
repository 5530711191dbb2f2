"""One event loop in a thread of its own, for programs without asyncio."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class Portal:
    """Runs coroutines for threads. The thread is a daemon: it never keeps a process alive."""

    def __init__(self, name: str = "outlast-portal") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. Blocks, so that code that runs in the portal gets RuntimeError."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "a method that blocks was called in `async` code that another one runs, and would wait for itself for "
                "ever; use the `async` method there"
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, for a caller in any event loop; it is cancelled when the caller is."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Give the items of an asynchronous iterator one by one."""

        async def next_() -> tuple[bool, T | None]:
            try:
                return True, await anext(items)
            except StopAsyncIteration:
                return False, None

        while True:
            more, item = self.call(next_())
            if not more:
                return
            yield item  # type: ignore[misc]  # an item of T, which may be None


_portals: dict[int, Portal] = {}
"""By process: one that was forked has the portal of its parent without the thread, and must leave its connections alone."""
_lock = threading.Lock()
if sys.platform != "win32":
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def portal() -> Portal:
    """Return the portal of this process."""
    with _lock:
        if (process := os.getpid()) not in _portals:
            _portals[process] = Portal()
        return _portals[process]


class Blocking(Generic[S]):
    """Base of what offers methods of an `S` to code without asyncio; they are made by `blocking` and `iterating`."""

    def __init__(self, wrapped: S) -> None:
        self._wrapped = wrapped


def blocking(method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Blocking[S], P], T]:
    """Return a method that blocks until the one of the wrapped object is done."""

    @wraps(method)
    def blocked(self: Blocking[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return portal().call(method(self._wrapped, *args, **kwargs))

    return blocked


def iterating(
    method: Callable[Concatenate[S, P], AsyncIterator[T]],
) -> Callable[Concatenate[Blocking[S], P], Iterator[T]]:
    """Return a method that gives the items of the one of the wrapped object."""

    @wraps(method)
    def iterated(self: Blocking[S], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return portal().iterate(method(self._wrapped, *args, **kwargs))

    return iterated
