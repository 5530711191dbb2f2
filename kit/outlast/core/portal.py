"""One event loop in a thread of its own, for programs without asyncio."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


class Portal:
    """Runs coroutines for threads. The thread is a daemon: it never keeps a process alive."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="outlast-portal", daemon=True).start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. Blocks."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

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


@cache
def portal() -> Portal:
    """Return the portal of this process."""
    return Portal()
