"""A model without a network: it says what a script tells it, and decides from the conversation where it is.

It keeps no state of its own, so it goes on correctly in another process after a crash. `Script` belongs to no framework:
`ScriptedModel` makes a model of the native agent of it, `outlast_langgraph.testing` a LangChain chat model.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlast.adapters.native import CallDelta, Delta, Stopped, TextDelta, ToolSpec
from outlast.core.transcript import Message, Role, StopReason

History = Sequence[Mapping[str, Any]]
"""Messages as `{"role", "content", …}`, oldest first."""


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call a scripted model asks for."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    """The provider's call id; None for `call_<n>`, the same ones in every turn, as some providers do."""


@dataclass(frozen=True, slots=True)
class Say:
    """One answer of a scripted model. Raises ValueError for a stop reason that there is not."""

    text: str = ""
    calls: Sequence[ScriptedCall] = ()
    stop_reason: str | None = None
    """How the answer ends, in the neutral words; None for `tool_calls` where there are calls, else `stop`."""

    def __post_init__(self) -> None:
        if self.stop_reason is not None and self.stop_reason not in set(StopReason):
            raise ValueError(f"`stop_reason` is one of {', '.join(StopReason)}; {self.stop_reason!r} is none")

    def call_ids(self) -> list[str]:
        return [call.id or f"call_{number}" for number, call in enumerate(self.calls, start=1)]

    def pieces(self) -> list[str]:
        """Return the text in the pieces it is streamed in."""
        return re.findall(r"\S+\s*", self.text)


class Script:
    """Answers for one turn: the n-th is given when the model has spoken n times since the last user message.

    After the last one it is repeated. `on_call` sees every conversation the model is called with.
    """

    def __init__(
        self, *answers: Say | str, delay_seconds: float = 0, on_call: Callable[[History], None] | None = None
    ) -> None:
        if not answers:
            raise ValueError("a script needs at least one answer")
        self.answers = [Say(answer) if isinstance(answer, str) else answer for answer in answers]
        self.delay_seconds = delay_seconds
        """Time between two pieces of text."""
        self._on_call = on_call

    def answer(self, history: History) -> Say:
        """Return what the model says next."""
        if self._on_call is not None:
            self._on_call(history)
        spoken = 0
        for message in reversed(history):
            if message["role"] == "user":
                break
            spoken += message["role"] == "assistant"
        return self.answers[min(spoken, len(self.answers) - 1)]


class ScriptedModel:
    """A model for `outlast.Agent` that says what its script tells it."""

    name = "scripted"

    def __init__(self, script: Script | Say | str, *more: Say | str) -> None:
        self._script = script if isinstance(script, Script) else Script(script, *more)

    async def stream(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> AsyncGenerator[Delta, None]:
        answer = self._script.answer([_seen(message) for message in messages])
        for piece in answer.pieces():
            yield TextDelta(piece)
            await asyncio.sleep(self._script.delay_seconds)
        for index, (call, id) in enumerate(zip(answer.calls, answer.call_ids(), strict=True)):
            yield CallDelta(index, json.dumps(dict(call.arguments)), id, call.name)
        reason = answer.stop_reason or ("tool_calls" if answer.calls else "stop")
        yield Stopped(StopReason(reason), {"input_tokens": 1, "output_tokens": 1})


def _seen(message: Message) -> dict[str, Any]:
    """Return a message as a provider gets it."""
    role = "user" if message.role is Role.INTERNAL else message.role.value
    return {**message.as_json(), "role": role}
