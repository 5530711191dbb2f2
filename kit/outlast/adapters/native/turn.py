"""One run of the native agent: start, recover, resume. The items of the history say what is left to do."""

import asyncio
import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from outlast.adapters.events import Message as EventMessage
from outlast.adapters.inputs import InputMessage, Messages
from outlast.adapters.items import Items
from outlast.adapters.journal import Outcome, ToolCall
from outlast.adapters.native.model import (
    CallDelta,
    Model,
    ProviderError,
    ReasoningDelta,
    Stopped,
    TextDelta,
)
from outlast.adapters.native.tools import Tool, ToolError
from outlast.adapters.outputs import output, total
from outlast.adapters.recovery import Output, Result
from outlast.adapters.run import Run
from outlast.core import jsontext
from outlast.core.errors import AgentResumeError, InvalidRequest, LeaseLost, RunFailed
from outlast.core.resume import (
    CONTINUE_TEXT,
    RETRY_TEXT,
    ResumeKind,
    require_resume_point,
)
from outlast.core.transcript import CallRequest, Message, Role, StopReason

RETRY_SECONDS = 0.5
"""Before a failed model call is repeated for the first time; doubled each time."""

LONGEST_RESULT = 1_000_000
"""Characters of a tool's result; it is stored several times, and no model would read more."""

_ID = re.compile(r"[\x21-\x7e]{1,128}")
_NUDGES = {ResumeKind.RETRY_RESPONSE: RETRY_TEXT, ResumeKind.CONTINUE_RESPONSE: CONTINUE_TEXT}


_WHOLE = frozenset({StopReason.STOP, StopReason.TOOL_CALLS, StopReason.PAUSED})
"""After any other end the last call may be cut in a place where it still looks whole, so that none is run."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a run that does not end by itself."""

    model_calls: int = 50
    """Calls of the model in one attempt."""
    pauses: int = 5
    """Pauses of the provider in a row."""
    retries: int = 2
    """Further tries of a failed model call that has said nothing yet."""


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


class NativeTurn:
    """What the native agent does for one run."""

    def __init__(
        self,
        run: Run,
        input: Messages | None,
        *,
        model: Model,
        tools: Mapping[str, Tool],
        instructions: str | None,
        limits: Limits,
    ) -> None:
        self._run, self._input = run, input
        self._model, self._tools, self._instructions, self._limits = model, tools, instructions, limits
        self._loaded: Items | None = None

    # What the history says ------------------------------------------------------------------------------------------

    async def has_input(self) -> bool:
        number = self._run.context.lease[0]
        return any(one.id == self._id_of(0) and one.invocation_number == number for one in (await self._items()).stored)

    async def result(self) -> Result | None:
        items = await self._items()
        last = items.stored[-1] if items.stored else None
        if last is None or last.invocation_number != self._run.context.lease[0] or not self._is_over(items):
            return None
        return self._result(items)

    def _is_over(self, items: Items) -> bool:
        """An answer without calls is the end, also one that a later resume would go on from; only a pause is not."""
        last = items.messages[-1]
        return last.role is Role.ASSISTANT and not last.calls and last.stop is not StopReason.PAUSED

    # Start, go on, resume -------------------------------------------------------------------------------------------

    async def start(self) -> Result:
        items = await self._items()
        if self._input is None:
            raise AgentResumeError("empty")
        closing = [(_new_id(), await self._closed(call)) for call in self._open(items)]
        given = [(self._id_of(index), _given(message)) for index, message in enumerate(self._input.messages)]
        if known := next((id for id, _ in given if items.has(id)), None):
            raise RunFailed("invalid_input", f"the history has a message with the id {known!r} already")
        await self._append([*closing, *given])
        return await self._go(items)

    async def go_on(self) -> Result:
        items = await self._items()
        opened = self._open(items)
        self._run.journal.dead.update(call.key for call in opened)
        self._run.events.resume(ResumeKind.RECOVER_TOOLS if opened else ResumeKind.CALL_MODEL)
        return await self._go(items)

    async def resume(self) -> Result:
        items = await self._items()
        point = require_resume_point(items.messages)
        if point.kind is ResumeKind.AWAIT_APPROVAL:
            raise AgentResumeError("awaiting_approval")
        self._run.events.resume(point.kind)
        self._run.journal.dead.update(call.key for call in self._open(items))
        if (text := _NUDGES.get(point.kind)) is not None:
            await self._append([(_new_id(), Message(Role.INTERNAL, text))])
        return await self._go(items)

    # The loop -------------------------------------------------------------------------------------------------------

    async def _go(self, items: Items) -> Result:
        pauses = 0
        for _ in range(self._limits.model_calls):
            if opened := self._open(items):
                await self._append([(_new_id(), message) for message in await self._answers(opened)])
            answer = await self._call_model(items)
            if self._is_over(items):
                return self._result(items)
            pauses = pauses + 1 if answer.stop is StopReason.PAUSED else 0
            if pauses > self._limits.pauses:
                raise RunFailed("pause_limit", f"the provider paused {pauses} times in a row")
        raise RunFailed(
            "step_limit", f"the run called the model {self._limits.model_calls} times without coming to an end"
        )

    async def _call_model(self, items: Items) -> Message:
        """Have the model answer, and store its answer with the calls it asks for."""
        message = self._run.events.start_message(model=self._model.name)
        answer = await self._streamed(items, message)
        stopped = answer.stopped
        assert stopped is not None
        said = Message(
            Role.ASSISTANT,
            answer.text,
            _calls(answer) if stopped.reason in _WHOLE else (),
            stop=stopped.reason,
            reasoning=answer.reasoning,
            model=self._model.name,
            usage=stopped.usage,
        )
        finished = self._run.events.finished_message(
            message, stop_reason=said.stop.value, stored=True, usage=said.usage
        )
        parts = items.append([(message.message_id, said)], number=self._run.context.lease[0])
        await self._run.context.write(
            events=[finished], parts=[*parts, *self._run.journal.pending(self._open(items))], progress=True
        )
        return said

    async def _streamed(self, items: Items, message: EventMessage) -> _Answer:
        tries = 0
        while True:
            answer = _Answer()
            try:
                await self._run.context.assured()
                await self._take(items, message, answer)
                if answer.stopped is None:
                    raise ProviderError("the answer of the provider was cut before its end")
                return answer
            except ProviderError as error:
                if not error.retryable or not answer.empty or tries >= self._limits.retries:
                    cut = self._run.events.finished_message(message, stop_reason=StopReason.ERROR, stored=False)
                    self._run.events.post(cut)
                    raise
                tries += 1
                await asyncio.sleep(RETRY_SECONDS * 2 ** (tries - 1))

    async def _take(self, items: Items, message: EventMessage, answer: _Answer) -> None:
        events, specs = self._run.events, [tool.spec for tool in self._tools.values()]
        system = [Message(Role.SYSTEM, self._instructions)] if self._instructions else []
        async with aclosing(self._model.stream([*system, *items.messages], specs)) as deltas:
            async for delta in deltas:
                match delta:
                    case TextDelta(text):
                        answer.text += text
                        events.delta(message, "text", "text", text)
                    case ReasoningDelta(text):
                        answer.reasoning += text
                        events.delta(message, "reasoning", "reasoning", text)
                    case CallDelta(index):
                        before = answer.calls.get(index)
                        call = delta if before is None else _joined(before, delta)
                        answer.calls[index] = call
                        events.delta(message, index, "tool_call", delta.arguments, call_id=call.id, name=call.name)
                    case Stopped():
                        answer.stopped = delta

    # Tools ----------------------------------------------------------------------------------------------------------

    def _open(self, items: Items) -> list[ToolCall]:
        """Return the calls of the last answer that have no result, keyed by that answer's item."""
        asked = max((index for index, one in enumerate(items.messages) if one.role is Role.ASSISTANT), default=None)
        if asked is None:
            return []
        answered = [one.call_id for one in items.messages[asked + 1 :] if one.role is Role.TOOL]
        left: list[ToolCall] = []
        for index, call in enumerate(items.messages[asked].calls):
            if call.id in answered:
                answered.remove(call.id)
                continue
            left.append(
                ToolCall.of(
                    items.stored[asked].id, index, call_id=call.id, name=call.name, arguments=_parsed(call.arguments)
                )
            )
        return left

    async def _answers(self, calls: Sequence[ToolCall]) -> list[Message]:
        """Run calls side by side; when one cannot be stored, the others come to their end all the same."""
        found = await asyncio.gather(*map(self._answered, calls), return_exceptions=True)
        messages = [one for one in found if isinstance(one, Message)]
        if failure := next((one for one in found if isinstance(one, BaseException)), None):
            raise failure
        return messages

    async def _answered(self, call: ToolCall) -> Message:
        """Run a call, unless its journal says how it is answered."""
        journal = self._run.journal
        outcome = await journal.start(call)
        if outcome is None:
            with journal.body(call):
                outcome = await self._body(call)
            await journal.done(call, outcome)
        return _result_of(call, outcome)

    async def _body(self, call: ToolCall) -> Outcome:
        tool = self._tools.get(call.name)
        if tool is None:
            return Outcome("error", f"there is no tool {call.name!r}")
        try:
            text = call.arguments if isinstance(call.arguments, str) else jsontext.encode(call.arguments)
            return _within_bounds(await tool.run(text))
        except asyncio.CancelledError as error:
            # Tools raise it by themselves, too: an inner timeout, a client that was closed.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return Outcome("error", f"CancelledError: {error}")
        except ToolError as error:
            return Outcome("error", str(error))
        except LeaseLost:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the model is told, and no tool ends the server
            return Outcome("error", f"{type(error).__name__}: {error}")

    async def _closed(self, call: ToolCall) -> Message:
        return _result_of(call, await self._run.journal.close(call, proven=True))

    # Small things ---------------------------------------------------------------------------------------------------

    async def _items(self) -> Items:
        if self._loaded is None:
            self._loaded = await self._run.history.items()
        return self._loaded

    async def _append(self, messages: Sequence[tuple[str, Message]]) -> None:
        if messages:
            items = await self._items()
            parts = items.append(messages, number=self._run.context.lease[0])
            await self._run.context.write(parts=parts, progress=True)

    def _id_of(self, index: int) -> str:
        """Name an input message: what the user named it, else by the run, so that it is stored once."""
        if self._input is not None and (id := self._input.messages[index].id) is not None:
            if not _ID.fullmatch(id):
                raise RunFailed("invalid_input", "a message id is 1 to 128 visible ASCII characters")
            return id
        return f"{self._run.context.invocation_id}:input:{index}"

    def _result(self, items: Items) -> Output:
        """The run's output: what was said in this run, and after a resume since the last message of a user."""
        mine = [index for index, one in enumerate(items.messages) if one.role is Role.USER]
        said = items.messages[mine[-1] + 1 :] if mine else items.messages
        last = items.messages[-1]
        usage = total(one.usage for one in said)
        self._run.context.usage = usage or None
        return output(
            text=last.text,
            messages=[one.as_json() for one in said],
            usage=usage,
            stop_reason=last.stop.value,
        )


def _new_id() -> str:
    return uuid.uuid4().hex


def _calls(answer: _Answer) -> tuple[CallRequest, ...]:
    """Return the calls, each under an id of its own: some providers use one twice, or none at all."""
    calls: list[CallRequest] = []
    for index, one in sorted(answer.calls.items()):
        taken = {call.id for call in calls}
        id = one.id if one.id and one.id not in taken else f"{one.id or 'call'}-{index}"
        calls.append(CallRequest(id, one.name or "", one.arguments))
    return tuple(calls)


def _parsed(arguments: str) -> Any:
    """Return the value of a call's arguments; what is no JSON stays text, and its tool refuses it."""
    try:
        return jsontext.parse(arguments.encode())
    except (InvalidRequest, UnicodeEncodeError):
        return arguments


def _joined(before: CallDelta, delta: CallDelta) -> CallDelta:
    return CallDelta(delta.index, before.arguments + delta.arguments, before.id or delta.id, before.name or delta.name)


def _within_bounds(text: str) -> Outcome:
    if len(text) > LONGEST_RESULT:
        return Outcome("error", f"the result has {len(text)} characters; a model is told at most {LONGEST_RESULT}")
    return Outcome("ok", text)


def _result_of(call: ToolCall, outcome: Outcome) -> Message:
    text = outcome.output if isinstance(outcome.output, str) else jsontext.encode(outcome.output)
    return Message(Role.TOOL, text, call_id=call.call_id, failed=outcome.failed)


def _given(message: InputMessage) -> Message:
    role = "system" if message.role == "developer" else message.role
    try:
        return Message.of_json({**message.fields, "role": role, "content": message.content})
    except InvalidRequest as error:
        raise RunFailed("invalid_input", f"the input is not understood: {error}") from error
