"""One run of the native agent: start, recover, resume. The items of the history say what is left to do."""

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.adapters import approvals
from outlast.adapters.approvals import Decision, DecisionType
from outlast.adapters.inputs import InputMessage, Messages, message_id
from outlast.adapters.items import Items
from outlast.adapters.journal import INTERRUPTED, Outcome, ToolCall
from outlast.adapters.native.asking import ask
from outlast.adapters.native.hooks import AllHooks
from outlast.adapters.native.model import Model
from outlast.adapters.native.tools import Tool, ToolError
from outlast.adapters.outputs import output, total
from outlast.adapters.recovery import Output, Result
from outlast.adapters.run import Run
from outlast.core import jsontext
from outlast.core.errors import AgentResumeError, InvalidRequest, LeaseLost, NotJSON, RunFailed
from outlast.core.records import Approval, ApprovalStatus, StoredItem
from outlast.core.resume import ResumeKind, for_model, repair, require_resume_point
from outlast.core.transcript import Message, Role, StopReason
from outlast.store.grouped import Part

logger = logging.getLogger("outlast.adapters")

LONGEST_RESULT = 1_000_000
"""Characters of a tool's result; it is stored several times, and no model would read more."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a run that does not end by itself."""

    model_calls: int = 50
    """Calls of the model in one attempt."""
    pauses: int = 5
    """Pauses of the provider in a row."""
    retries: int = 2
    """Further tries of a failed model call that has said nothing yet."""


class NativeTurn:
    """What the native agent does for one run: of new messages, of decisions, or, with neither, of a resume."""

    def __init__(
        self,
        run: Run,
        input: Messages | Sequence[Decision] | None,
        *,
        model: Model,
        tools: Mapping[str, Tool],
        instructions: str | None,
        limits: Limits,
        hooks: AllHooks,
    ) -> None:
        self._run, self._input = run, input
        self._model, self._tools, self._instructions, self._limits = model, tools, instructions, limits
        self._hooks = hooks
        self._loaded: Items | None = None

    # What the history says ------------------------------------------------------------------------------------------

    async def has_input(self) -> bool:
        if isinstance(self._input, Messages):
            stored = (await self._items()).stored
            return any(one.id == self._id_of(0) and one.invocation_number == self._number for one in stored)
        decided = await self._run.history.approvals([one.id for one in self._input or ()])
        return any(row.decided_by == self._number for row in decided.values())

    async def result(self) -> Result | None:
        items = await self._items()
        last = items.stored[-1] if items.stored else None
        if last is None or last.invocation_number != self._number or self._is_given(last) or not self._is_over(items):
            return None
        return self._result(items)

    def _is_given(self, one: StoredItem) -> bool:
        """Say whether an item is a message of this run's input, which may be one of an assistant."""
        given = self._input.messages if isinstance(self._input, Messages) else ()
        return one.id in {self._id_of(index) for index in range(len(given))}

    def _is_over(self, items: Items) -> bool:
        """An answer without calls is the end, also one that a later resume would go on from; only a pause is not."""
        last = items.messages[-1]
        return last.role is Role.ASSISTANT and not last.calls and last.stop is not StopReason.PAUSED

    # Start, go on, resume -------------------------------------------------------------------------------------------

    async def start(self) -> Result:
        items = await self._items()
        if isinstance(self._input, Messages):
            await self._add(items, self._input)
        else:
            await self._decide(items, self._input or ())
        await self._leave_open(items)
        return await self._go(items)

    async def _add(self, items: Items, input: Messages) -> None:
        """Store new messages, and before them an answer to each call that an earlier run left open."""
        approvals.refuse_waiting(self._waiting(items), self._number)
        given = [(self._id_of(index), _given(message)) for index, message in enumerate(input.messages)]
        items.refuse_known(id for id, _ in given)
        await self._hooks.on_message(self._run.context)
        closing = [(_new_id(), await self._closed(items, call)) for call in self._open(items)]
        await self._append([*closing, *given], self._closing(items))

    async def _decide(self, items: Items, decisions: Sequence[Decision]) -> None:
        opened = self._open(items)
        for one, call in ((one, call) for one in decisions for call in opened if call.key == one.id):
            if one.type is DecisionType.EDIT and (tool := self._tools.get(call.name)) is not None:
                try:
                    tool.check(_text(one.arguments))
                except ToolError as error:
                    raise RunFailed("invalid_input", f"the decision about {call.name!r}: {error}") from None
        waiting = {call.key: call.arguments for call in opened}
        await approvals.decide(self._run.context, self._run.history, decisions, waiting)
        items.decided((await self._run.history.approvals([call.key for call in opened])).values())

    async def go_on(self) -> Result:
        items = await self._items()
        opened = await self._leave_open(items)
        self._run.events.resume(ResumeKind.RECOVER_TOOLS if opened else ResumeKind.CALL_MODEL)
        return await self._go(items)

    async def resume(self) -> Result:
        items = await self._items()
        if any(one.invocation_number == self._number for one in items.stored):
            # A later attempt: what its history ends with is its own, also what it asked a person.
            return await self.go_on()
        point = require_resume_point(items.messages)
        if point.kind is ResumeKind.AWAIT_APPROVAL:
            raise AgentResumeError("awaiting_approval")
        self._run.events.resume(point.kind)
        if not await self._leave_open(items):
            await self._append([(_new_id(), message) for message in repair(items.messages)])
        return await self._go(items)

    async def _leave_open(self, items: Items) -> list[ToolCall]:
        """Have the journal answer the calls that this attempt found open and did not ask for, and return them.

        Only what a person has agreed to runs, when its journal knows that it never began.
        """
        opened, journal = self._open(items), self._run.journal
        for call in opened:
            if call.key not in items.approvals or not await journal.has(call):
                journal.dead.add(call.key)
        return opened

    async def close(self, answer: Outcome) -> None:
        """Answer every open call, and let nobody decide any more."""
        items = await self._items()
        closing = [(_new_id(), await self._closed(items, call, answer)) for call in self._open(items)]
        await self._append(closing, self._closing(items))

    def _closing(self, items: Items) -> list[Part]:
        return [approvals.close(self._run.history.scope)] if self._waiting(items) else []

    # The loop -------------------------------------------------------------------------------------------------------

    async def _go(self, items: Items) -> Result:
        pauses = 0
        for _ in range(self._limits.model_calls):
            await self._answer_calls(items)
            if waiting := self._waiting(items):
                self._count(items)
                asked = next(message for message in reversed(items.messages) if message.calls)
                return approvals.interrupt(waiting, asked.text, _told(items))
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
        """Have the model answer, and store its answer with the calls it asks for and what a person has to decide."""
        context, system = self._run.context, [Message(Role.SYSTEM, self._instructions)] if self._instructions else []
        told, said = await ask(
            context, self._run.events, self._model, [*system, *for_model(items.messages)],
            [tool.spec for tool in self._tools.values()], retries=self._limits.retries,
        )  # fmt: skip
        asking = [at for at, call in enumerate(said.calls) if await self._needs_approval(call.name, call.arguments)]
        parts = items.append([(told.message_id, said)], number=self._number)
        opened = self._open(items)
        asked = [approvals.Question.about(opened[index]) for index in asking]
        questions, requested = approvals.ask(self._run.history.scope, asked) if asked else ([], [])
        finished = self._run.events.finished_message(told, stop_reason=said.stop.value, stored=True, usage=said.usage)
        await context.write(
            events=[finished, *requested], parts=[*parts, *self._run.journal.pending(opened), *questions], progress=True
        )
        if asking:
            items.decided((await self._run.history.approvals([call.key for call in opened])).values())
        return said

    async def _needs_approval(self, name: str, arguments: str) -> bool:
        tool = self._tools.get(name)
        if tool is None or not await tool.asks(arguments):
            return False
        if self._run.context.session_id is None:
            raise RunFailed(
                "approval_needs_session",
                f"the tool {name!r} needs an approval, which comes by another run of the session; give this run "
                "a session_id",
            )
        return True

    # Tools ----------------------------------------------------------------------------------------------------------

    def _open(self, items: Items) -> list[ToolCall]:
        """Return the calls of the last answer that have no result."""
        return [ToolCall(key, call.id, call.name, _parsed(call.arguments)) for key, call in items.open_calls().items()]

    def _waiting(self, items: Items) -> list[Approval]:
        """Return what a person has to decide about the open calls."""
        opened = items.open_calls()
        return [row for row in items.approvals.values() if row.status is ApprovalStatus.OPEN and row.key in opened]

    async def _answer_calls(self, items: Items) -> None:
        """Answer the open calls side by side, all but those that wait for a person, and store the results.

        When one cannot be stored, the others come to their end all the same.
        """
        waiting = {row.key for row in self._waiting(items)}
        calls = [call for call in self._open(items) if call.key not in waiting]
        found = await asyncio.gather(*(self._answered(items, call) for call in calls), return_exceptions=True)
        messages = [one for one in found if isinstance(one, Message)]
        if failure := next((one for one in found if isinstance(one, BaseException)), None):
            raise failure
        await self._append([(_new_id(), message) for message in messages])

    async def _answered(self, items: Items, call: ToolCall) -> Message:
        """Run a call, unless a person or its journal says how it is answered."""
        row = items.approvals.get(call.key)
        if row is not None and (answer := approvals.answer_to(row)) is not None:
            return _result_of(call, await self._run.journal.decided(call, answer))
        call, edited = approvals.as_decided(row, call)
        journal = self._run.journal
        if call.key in journal.dead and await self._needs_approval(call.name, _text(call.arguments)):
            # Also where the tool may run again: nobody agreed to it, or it may have run since.
            return _result_of(call, await journal.close(call, proven=True))
        outcome = await journal.start(call)
        if outcome is None:
            with journal.body(call):
                outcome = await self._body(call)
            await journal.done(call, outcome)
        return _result_of(call, outcome, edited)

    async def _body(self, call: ToolCall) -> Outcome:
        tool = self._tools.get(call.name)
        if tool is None:
            return Outcome("error", f"there is no tool {call.name!r}")
        try:
            return _within_bounds(await tool.run(_text(call.arguments)))
        except ToolError as error:
            return Outcome("error", str(error))
        except LeaseLost:
            raise
        except (Exception, SystemExit) as error:  # the model is told, and no tool ends the server
            logger.info("the tool %r raised", call.name, exc_info=error)
            return Outcome("error", f"{type(error).__name__}: {error}")

    async def _closed(self, items: Items, call: ToolCall, otherwise: Outcome = INTERRUPTED) -> Message:
        """Answer a call that an earlier run left open, without running it."""
        row = items.approvals.get(call.key)
        if (answer := approvals.answer_when_closed(row)) is not None:
            return _result_of(call, await self._run.journal.decided(call, answer))
        return _result_of(call, await self._run.journal.close(call, proven=True, otherwise=otherwise))

    # Small things ---------------------------------------------------------------------------------------------------

    @property
    def _number(self) -> int:
        return self._run.context.lease[0]

    async def _items(self) -> Items:
        if self._loaded is None:
            self._loaded = await self._run.history.items()
        return self._loaded

    async def _append(self, messages: Sequence[tuple[str, Message]], parts: Sequence[Part] = ()) -> None:
        if messages or parts:
            items = await self._items()
            stored = items.append(messages, number=self._number)
            await self._run.context.write(parts=[*stored, *parts], progress=True)

    def _id_of(self, index: int) -> str:
        return message_id(self._input, index, invocation_id=self._run.context.invocation_id)

    def _result(self, items: Items) -> Output:
        """The run's output: what was said in this run, and after a resume since the last message of a user."""
        last = items.messages[-1]
        return output(
            text=last.text,
            messages=_told(items),
            usage=self._count(items),
            stop_reason=last.stop.value,
        )

    def _count(self, items: Items) -> dict[str, int]:
        """Add up what the run used, for its record."""
        usage = total(one.usage for one in _since_user(items))
        self._run.context.usage = usage or None
        return usage


def _told(items: Items) -> list[dict[str, Any]]:
    return [one.as_json() for one in _since_user(items)]


def _since_user(items: Items) -> list[Message]:
    users = [index for index, one in enumerate(items.messages) if one.role is Role.USER]
    return items.messages[users[-1] + 1 :] if users else items.messages


def _new_id() -> str:
    return uuid.uuid4().hex


def _parsed(arguments: str) -> Any:
    """Return the value of a call's arguments; what is no JSON, or JSON text in JSON, stays as it came: its tool refuses it.

    `_text` of it is what was asked about: text that was unpacked here would pass where it had been refused before.
    """
    try:
        value = jsontext.parse(arguments.encode())
        jsontext.encode(value)
    except (InvalidRequest, UnicodeEncodeError, NotJSON):
        return arguments
    return arguments if isinstance(value, str) else value


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else jsontext.encode(arguments)


def _within_bounds(text: str) -> Outcome:
    if len(text) > LONGEST_RESULT:
        return Outcome("error", f"the result has {len(text)} characters; a model is told at most {LONGEST_RESULT}")
    return Outcome("ok", text)


def _result_of(call: ToolCall, outcome: Outcome, preface: str = "") -> Message:
    text = outcome.output if isinstance(outcome.output, str) else jsontext.encode(outcome.output)
    return Message(Role.TOOL, preface + text, call_id=call.call_id, failed=outcome.failed)


def _given(message: InputMessage) -> Message:
    role = "system" if message.role == "developer" else message.role
    try:
        return Message.of_json({**message.fields, "role": role, "content": message.content})
    except InvalidRequest as error:
        raise RunFailed("invalid_input", f"the input is not understood: {error}") from error
