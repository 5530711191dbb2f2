"""One call of a model: its deltas become events at once, and an answer when it ends; it is repeated while it said nothing."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from outlast.adapters.events import EventWriter
from outlast.adapters.events import Message as EventMessage
from outlast.adapters.native.model import (
    CallDelta,
    Model,
    ProviderError,
    ReasoningDelta,
    Stopped,
    TextDelta,
    ToolSpec,
)
from outlast.core.transcript import CallRequest, Message, Role, StopReason
from outlast.engine.context import InvocationContext

RETRY_SECONDS = 0.5
"""Before a failed model call is repeated for the first time; doubled each time."""

_WHOLE = frozenset({StopReason.STOP, StopReason.TOOL_CALLS, StopReason.PAUSED})
"""After any other end the last call may be cut in a place where it still looks whole, so that none is run."""


@dataclass(slots=True)
class _Answer:
    """What a model said so far."""

    text: str = ""
    reasoning: str = ""
    calls: dict[int, CallDelta] = field(default_factory=dict)
    stopped: Stopped | None = None

    @property
    def empty(self) -> bool:
        return not (self.text or self.reasoning or self.calls or self.stopped)


async def ask(
    context: InvocationContext,
    events: EventWriter,
    model: Model,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    *,
    retries: int,
) -> tuple[EventMessage, Message]:
    """Have a model answer. Return the answer, and its events, of which the last is left to who stores the answer.

    Raises ProviderError, after up to `retries` further tries while nothing was said.
    """
    told, tries = events.start_message(model=model.name), 0
    while True:
        answer = _Answer()
        try:
            await context.assured()
            await _take(events, model, messages, tools, told, answer)
            if answer.stopped is None:
                raise ProviderError("the answer of the provider was cut before its end")
            return told, _said(model, answer, answer.stopped)
        except ProviderError as error:
            if not error.retryable or not answer.empty or tries >= retries:
                events.post(events.finished_message(told, stop_reason=StopReason.ERROR, stored=False))
                raise
            tries += 1
            await asyncio.sleep(RETRY_SECONDS * 2 ** (tries - 1))


async def _take(
    events: EventWriter,
    model: Model,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    told: EventMessage,
    answer: _Answer,
) -> None:
    async with aclosing(model.stream(messages, tools)) as deltas:
        async for delta in deltas:
            match delta:
                case TextDelta(text):
                    answer.text += text
                    events.delta(told, "text", "text", text)
                case ReasoningDelta(text):
                    answer.reasoning += text
                    events.delta(told, "reasoning", "reasoning", text)
                case CallDelta(index):
                    before = answer.calls.get(index)
                    call = delta if before is None else _joined(before, delta)
                    answer.calls[index] = call
                    events.delta(told, index, "tool_call", delta.arguments, call_id=call.id, name=call.name)
                case Stopped():
                    answer.stopped = delta


def _said(model: Model, answer: _Answer, stopped: Stopped) -> Message:
    return Message(
        Role.ASSISTANT,
        answer.text,
        _calls(answer) if stopped.reason in _WHOLE else (),
        stop=stopped.reason,
        reasoning=answer.reasoning,
        model=model.name,
        usage=stopped.usage,
    )


def _calls(answer: _Answer) -> tuple[CallRequest, ...]:
    """Return the calls, each under an id of its own: some providers use one twice, or none at all."""
    calls: list[CallRequest] = []
    for index, one in sorted(answer.calls.items()):
        taken = {call.id for call in calls}
        id = one.id or f"call-{index}"
        while id in taken:
            id = f"{id}-{index}"
        calls.append(CallRequest(id, one.name or "", one.arguments))
    return tuple(calls)


def _joined(before: CallDelta, delta: CallDelta) -> CallDelta:
    return CallDelta(delta.index, before.arguments + delta.arguments, before.id or delta.id, before.name or delta.name)
