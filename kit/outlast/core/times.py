"""Times as the HTTP API shows them."""

from datetime import datetime


def milliseconds(text: str) -> int:
    """Return milliseconds since 1970 UTC."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)
