"""Times as the HTTP API shows them."""

from datetime import UTC, datetime
from functools import lru_cache


def milliseconds(text: str) -> int:
    """Return milliseconds since 1970 UTC."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def shown(milliseconds: int) -> str:
    """Return a time as text, of milliseconds since 1970 UTC."""
    return f"{_second(milliseconds // 1000)}.{milliseconds % 1000:03}Z"


@lru_cache
def _second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
