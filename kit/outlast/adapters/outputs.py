"""What agents return, whatever the framework."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def output(
    *,
    text: str,
    messages: Sequence[Mapping[str, Any]],
    usage: Mapping[str, Any],
    stop_reason: str,
    **more: Any,
) -> dict[str, Any]:
    """Make the output of a run; `more` holds what one framework has beyond the others, such as `state`."""
    kept = {key: value for key, value in more.items() if value is not None}
    return {"text": text, "messages": list(messages), "usage": dict(usage), "stop_reason": stop_reason, **kept}


def total(usages: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Add up the token counts of several model calls."""
    sums: dict[str, int] = {}
    for usage in usages:
        for key, count in usage.items():
            if isinstance(count, int) and not isinstance(count, bool):
                sums[key] = sums.get(key, 0) + count
    return sums
