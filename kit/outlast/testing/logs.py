"""What must hold of the log of every run of an agent, however often its process died."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def check_log(events: Sequence[Mapping[str, Any]], messages: Sequence[Mapping[str, Any]]) -> None:
    """Assert that what clients saw is what the history of the run has: each message and each end of a call once."""
    withdrawn = {
        name for event in events if event["type"] == "agent.attempt.superseded" for name in event["message_ids"]
    }
    started = Counter(event["message_id"] for event in events if event["type"] == "agent.message.started")
    finished = Counter(event["message_id"] for event in events if event["type"] == "agent.message.finished")
    assert set(started.values()) | set(finished.values()) == {1}
    assert set(started) == set(finished) | withdrawn
    said = [message for message in messages if message["role"] == "assistant"]
    assert len(set(finished) - withdrawn) == len(said)
    texts: dict[str, str] = {}
    for event in events:
        if event["type"] == "agent.part.started" and event["kind"] == "text" and event["message_id"] not in withdrawn:
            texts[event["part_id"]] = ""
        if event["type"] == "agent.part.delta" and event["part_id"] in texts:
            texts[event["part_id"]] += event["delta"]
    assert [text for text in texts.values() if text] == [message["content"] for message in said if message["content"]]
    ends = Counter(event["call_id"] for event in events if event["type"] == "agent.tool.finished")
    assert sum(ends.values()) == sum(len(message.get("tool_calls", ())) for message in said)
