"""Waiting for a write whose outcome must be known before a cancellation goes on."""

import asyncio
from typing import TypeVar

T = TypeVar("T")


async def settled(future: "asyncio.Future[T]") -> T:
    """Await a store write; a cancellation meanwhile is delivered after its outcome is known."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        future.exception()
        raise cancelled
    return future.result()
