"""Reading server-sent events, as our server writes them: LF frames of ASCII."""

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple


class Frame(NamedTuple):
    """One event; `position` is None for what is not stored."""

    name: str | None
    position: int | None
    data: Any


async def frames(lines: AsyncIterator[str]) -> AsyncIterator[Frame]:
    """Give the complete frames of a stream; one that was cut in the middle is none."""
    name, position, data = None, None, list[str]()
    async for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "id":
            position = int(value)
        elif field == "data":
            data.append(value)
        elif not line:
            if data:
                yield Frame(name, position, json.loads("\n".join(data)))
            name, position, data = None, None, []
