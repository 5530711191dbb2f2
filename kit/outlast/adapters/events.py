"""Writing the `agent.*` events of a run: ids are minted once, text is gathered, what died is superseded.

A message's events are `started`, then its parts (each started, delta, finished), then `finished`. Its `logical_id` names
the answer of the n-th model call of the run, whichever attempt gave it; its `message_id` is new in each attempt.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlast.core import jsontext
from outlast.core.errors import LeaseLost
from outlast.core.resume import ResumeKind
from outlast.engine.context import InvocationContext
from outlast.store.store import Store

COALESCE_SECONDS = 0.015
"""Text is gathered for so long before it is stored."""

PAGE = 500

Event = dict[str, Any]


@dataclass(slots=True)
class LogSummary:
    """What the earlier attempts of a run left in its log."""

    messages: int = 0
    """Model answers that were finished and kept."""
    open_messages: dict[str, None] = field(default_factory=dict)
    open_parts: dict[str, None] = field(default_factory=dict)
    open_calls: dict[str, None] = field(default_factory=dict)

    def add(self, event: Mapping[str, Any]) -> None:
        """Take the next event of the log."""
        match event.get("type"):
            case "agent.message.started":
                self.open_messages[event["message_id"]] = None
            case "agent.message.finished":
                self.open_messages.pop(event["message_id"], None)
                self.messages += 1
            case "agent.part.started":
                self.open_parts[event["part_id"]] = None
            case "agent.part.finished":
                self.open_parts.pop(event["part_id"], None)
            case "agent.tool.started":
                self.open_calls[event["call_id"]] = None
            case "agent.tool.finished":
                self.open_calls.pop(event["call_id"], None)
            case "agent.attempt.superseded":
                for name in event["message_ids"]:
                    self.open_messages.pop(name, None)
                for name in event["part_ids"]:
                    self.open_parts.pop(name, None)


async def summarise(store: Store, number: int) -> LogSummary:
    """Read what a run has in its log."""
    summary, after = LogSummary(), 0
    while page := await store.read.events(number, after=after, limit=PAGE):
        after = page[-1].position
        for entry in page:
            if '"type":"agent.' in entry.text:
                _add(summary, jsontext.decode(entry.text))
    return summary


def _add(summary: LogSummary, event: Any) -> None:
    # A handler may emit such types itself, and badly; that must not stop a recovery.
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        summary.add(event)


class Message:
    """One model answer while it is streamed."""

    def __init__(self, message_id: str, path: Sequence[str]) -> None:
        self.message_id = message_id
        self.path = tuple(path)
        self.parts: dict[object, Part] = {}

    def text(self) -> str:
        return "".join(part.text for part in self.parts.values() if part.kind == "text")


class Part:
    """One part of a message while it is streamed."""

    def __init__(self, part_id: str, kind: str, call_id: str | None = None) -> None:
        self.part_id, self.kind, self.call_id = part_id, kind, call_id
        self.text = ""
        self.finished = False


class EventWriter:
    """Writes the events of one attempt. Every method is called on the context's loop."""

    def __init__(self, context: InvocationContext, summary: LogSummary | None = None) -> None:
        self._context = context
        self._summary = summary or LogSummary()
        self._ordinal = self._summary.messages
        self._gathered: list[tuple[str, str]] = []
        self._timer: asyncio.TimerHandle | None = None

    def post(self, event: Any) -> int:
        """Store an event behind everything gathered so far, without waiting for it, with the next write or soon."""
        self.flush()
        return self._context.post(event)

    def flush(self) -> None:
        """Hand gathered text over to be stored; call it before any event that must come behind that text."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gathered, self._gathered = self._gathered, []
        for part_id, text in _joined(gathered):
            self._context.post({"type": "agent.part.delta", "part_id": part_id, "delta": text})

    def supersede(self) -> None:
        """Withdraw what the dead attempt left unfinished."""
        left = self._summary
        if left.open_messages or left.open_parts or left.open_calls:
            self.post(
                {
                    "type": "agent.attempt.superseded", "dead_attempt": self._context.attempt - 1,
                    "message_ids": list(left.open_messages), "part_ids": list(left.open_parts),
                    "call_ids_open": list(left.open_calls),
                }
            )  # fmt: skip

    def resume(self, kind: ResumeKind) -> None:
        """Tell that the run goes on at a resume point."""
        self.post({"type": "agent.resume", "kind": kind.value})

    def start_message(self, path: Sequence[str] = (), *, model: str | None = None) -> Message:
        """Open a model answer."""
        self._ordinal += 1
        logical = f"{self._context.invocation_id}:{self._ordinal}"
        message = Message(f"{logical}.a{self._context.attempt}", path)
        event = {
            "type": "agent.message.started", "message_id": message.message_id, "role": "assistant",
            "logical_id": logical, "path": list(path),
        }  # fmt: skip
        self.post(event | ({"model": model} if model else {}))
        return message

    def delta(
        self,
        message: Message,
        key: object,
        kind: str,
        text: str,
        *,
        call_id: str | None = None,
        name: str | None = None,
    ) -> None:
        """Append to a part of a message; the part is opened by its first delta."""
        part = message.parts.get(key)
        if part is None:
            part = self._start_part(message, key, kind, call_id=call_id, name=name)
        if not text:
            return
        part.text += text
        self._gathered.append((part.part_id, text))
        if self._timer is None:
            self._timer = self._context.loop.call_later(COALESCE_SECONDS, self._flush_late)

    def _start_part(self, message: Message, key: object, kind: str, *, call_id: str | None, name: str | None) -> Part:
        index = len(message.parts)
        part = message.parts[key] = Part(f"{message.message_id}.p{index}", kind, call_id)
        event = {
            "type": "agent.part.started", "message_id": message.message_id, "part_id": part.part_id, "kind": kind,
            "index": index,
        }  # fmt: skip
        self.post(event | ({"call_id": call_id, "name": name} if kind == "tool_call" else {}))
        return part

    def finish_part(self, part: Part, **fields: Any) -> None:
        """Close a part."""
        if not part.finished:
            part.finished = True
            self.post({"type": "agent.part.finished", "part_id": part.part_id, **fields})

    def finished_message(
        self, message: Message, *, stop_reason: str, stored: bool, usage: Mapping[str, Any] | None = None
    ) -> Event:
        """Close what is open of a message and return its last event, to be stored with what makes it true."""
        for part in message.parts.values():
            self.finish_part(part)
        self.flush()
        event: Event = {
            "type": "agent.message.finished", "message_id": message.message_id, "stop_reason": stop_reason,
            "stored": stored,
        }  # fmt: skip
        return event | ({"usage": dict(usage)} if usage else {})

    def _flush_late(self) -> None:
        # The attempt may have ended meanwhile; then nobody may hear of this text.
        with contextlib.suppress(LeaseLost):
            self.flush()


def _joined(gathered: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Join neighbours that belong to the same part."""
    joined: list[tuple[str, str]] = []
    for part_id, text in gathered:
        if joined and joined[-1][0] == part_id:
            joined[-1] = (part_id, joined[-1][1] + text)
        else:
            joined.append((part_id, text))
    return joined
