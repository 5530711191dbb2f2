"""Waiting for an event, for a while."""

import asyncio
import contextlib


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait until `event` is set, at most `seconds`; say whether it is.

    (`asyncio.wait_for` of Python 3.11 may swallow a cancellation that comes together with the event.)
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
