"""The work of one run, the same for the floor and for outlast: ten small events and a small result."""

from typing import Any

EVENTS = 10


def event(number: int) -> dict[str, Any]:
    return {"type": "token", "text": f"ev-{number}"}


def result(message: str) -> dict[str, Any]:
    return {"echo": message, "events": EVENTS}
