"""One run of an agent of the SDK: start, recover, resume. The items of the history say what is left to do.

The SDK is always given the whole history and nothing new: its run is the same whether it begins, goes on after a crash or
is resumed. Calls that are open by then are answered first, from the journal or as a person decided.
"""

import asyncio
import inspect
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from agents import Agent, MaxTurnsExceeded, RunConfig, RunContextWrapper, RunHooks, Runner, ToolApprovalItem
from agents.agent_output import AgentOutputSchema, AgentOutputSchemaBase
from agents.exceptions import AgentsException, InputGuardrailTripwireTriggered, OutputGuardrailTripwireTriggered
from agents.items import TResponseInputItem
from agents.memory import SessionSettings
from agents.tool_context import ToolContext
from openai import OpenAIError
from pydantic_core import to_jsonable_python

from outlast.adapters import approvals
from outlast.adapters.approvals import Decision, DecisionType, Question
from outlast.adapters.inputs import Messages, message_id
from outlast.adapters.journal import INTERRUPTED, Outcome, ToolCall
from outlast.adapters.outputs import output, total
from outlast.adapters.recovery import Output, Result
from outlast.adapters.run import Run
from outlast.core.errors import AgentResumeError, LeaseLost, RunFailed
from outlast.core.records import Approval, CallState
from outlast.core.resume import ResumeKind, repair, require_resume_point
from outlast.core.transcript import Role, StopReason
from outlast_openai import inside, seams, tools
from outlast_openai.config import Config
from outlast_openai.contexts import Contexts, Kept
from outlast_openai.graph import Graph
from outlast_openai.history import Conversation, OpenCall
from outlast_openai.inside import Parked
from outlast_openai.items import Item, as_text, ended, note, uses_tool
from outlast_openai.messages import Entry, from_input
from outlast_openai.observer import Observer, questions
from outlast_openai.servers import Servers

_TOO_LONG = "context_length_exceeded"


@dataclass(frozen=True, slots=True)
class Options:
    """How the user wants the SDK to run."""

    run_config: RunConfig | None
    hooks: RunHooks[Any] | None
    max_turns: int
    context_factory: Callable[[Any], Any] | None
    contexts: Contexts


class RunSession:
    """The session the SDK is given: the history of the run, to which the observer writes."""

    session_settings: SessionSettings | None = None

    def __init__(self, session_id: str, conversation: Conversation, observer: Observer) -> None:
        self.session_id = session_id
        self._conversation, self._observer = conversation, observer

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        items = self._conversation.for_model()
        kept = items if limit is None else items[max(0, len(items) - limit) :]
        return cast("list[TResponseInputItem]", kept)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        await self._observer.turn_ended(items)

    async def pop_item(self) -> TResponseInputItem | None:
        raise RunFailed("unsupported_for_agent", "a run does not take back what it stored")

    async def clear_session(self) -> None:
        raise RunFailed("unsupported_for_agent", "a run does not take back what it stored")


class OpenAITurn:
    """What the SDK does for one run: of new messages, of decisions, or, with neither, of a resume."""

    def __init__(
        self,
        graph: Graph,
        run: Run,
        input: Messages | Sequence[Decision] | None,
        options: Options,
        servers: Servers,
    ) -> None:
        self._servers = servers
        self._graph, self._run, self._input, self._options = graph, run, input, options
        self._kept: Kept | None = None
        self._loaded: Conversation | None = None

    # What the history says ------------------------------------------------------------------------------------------

    async def has_input(self) -> bool:
        if isinstance(self._input, Messages):
            rows = (await self._conversation()).rows
            return any(row.id == self._id_of(0) and row.number == self._number for row in rows)
        decided = await self._run.history.approvals([one.id for one in self._input or ()])
        return any(row.decided_by == self._number for row in decided.values())

    async def result(self) -> Result | None:
        conversation = await self._conversation()
        last = conversation.rows[-1] if conversation.rows else None
        if last is None or last.number != self._number or not self._is_over(conversation):
            return None
        return self._result(conversation)

    def _is_over(self, conversation: Conversation) -> bool:
        """An answer without calls is the end, also one that a later resume would go on from."""
        last = conversation.entries[-1] if conversation.entries else None
        return last is not None and last.said and not last.calls

    # Start, go on, resume -------------------------------------------------------------------------------------------

    async def start(self) -> Result:
        conversation = await self._conversation()
        if isinstance(self._input, Messages):
            await self._add(conversation, self._input)
        else:
            await self._decide(conversation, self._input or ())
        return await self._go(conversation)

    async def _add(self, conversation: Conversation, input: Messages) -> None:
        """Store new messages, and before them an answer to each call that an earlier run left open."""
        approvals.refuse_waiting(self._waiting(conversation), self._number)
        given = [(self._id_of(index), from_input(message)) for index, message in enumerate(input.messages)]
        conversation.refuse_known(id for id, _ in given)
        closing = [await self._closed(conversation, one) for one in conversation.open_calls().values()]
        await self._append([*closing, *given], self._closing(conversation))

    async def _decide(self, conversation: Conversation, decisions: Sequence[Decision]) -> None:
        for one in decisions:
            if one.type is DecisionType.EDIT and not isinstance(one.arguments, dict):
                raise RunFailed("invalid_input", "the arguments of an edited call are an object")
        asking = [call for key in conversation.open_calls() for call in conversation.asking(key)]
        waiting = {call.key: call.arguments for call in asking}
        await approvals.decide(self._run.context, self._run.history, decisions, waiting)
        await conversation.read_decisions(self._run.history)

    async def go_on(self) -> Result:
        conversation = await self._conversation()
        opened = self._leave_dead(conversation)
        await self._ask_again(conversation)
        self._run.events.resume(ResumeKind.RECOVER_TOOLS if opened else ResumeKind.CALL_MODEL)
        return await self._go(conversation)

    async def resume(self) -> Result:
        conversation = await self._conversation()
        messages = conversation.messages
        point = require_resume_point(messages)
        if point.kind is ResumeKind.AWAIT_APPROVAL:
            raise AgentResumeError("awaiting_approval")
        self._run.events.resume(point.kind)
        if self._leave_dead(conversation):
            await self._ask_again(conversation)
        else:
            for message in repair(messages):
                said = (_new_id(), {"role": "user", "content": message.text})
                await self._append([(_new_id(), note(internal=True)), said])
        return await self._go(conversation)

    def _leave_dead(self, conversation: Conversation) -> list[str]:
        """Have the journal answer what a dead run left open, but for what a person has agreed to since."""
        opened = list(conversation.open_calls())
        self._run.journal.dead.update(key for key in opened if key not in conversation.approvals)
        return opened

    async def close(self, answer: Outcome) -> None:
        """Answer every open call, and let nobody decide any more."""
        conversation = await self._conversation()
        closing = [await self._closed(conversation, one, answer) for one in conversation.open_calls().values()]
        await self._append(closing, self._closing(conversation))

    def _closing(self, conversation: Conversation) -> list[Any]:
        return [approvals.close(self._run.history.scope)] if self._waiting(conversation) else []

    # The loop -------------------------------------------------------------------------------------------------------

    async def _go(self, conversation: Conversation) -> Result:
        lost_at = -1
        while True:
            await self._answer_calls(conversation)
            if waiting := self._waiting(conversation):
                self._count(conversation)
                asked = next(entry for entry in reversed(conversation.entries) if entry.calls)
                return approvals.interrupt(waiting, asked.message.text, _told(conversation))
            if self._is_over(conversation) or await self._stopped_at_tool(conversation):
                return self._result(conversation)
            await self._servers.ready()
            before = len(conversation.rows)
            try:
                await self._drive(conversation)
            except (RunFailed, LeaseLost):
                raise
            except Exception:
                # A server that restarts in the middle breaks the run of the SDK, and not the conversation.
                if lost_at == before or not await self._servers.ready():
                    raise
                lost_at = before
                self._leave_dead(conversation)

    async def _stopped_at_tool(self, conversation: Conversation) -> bool:
        """End the run where the SDK would have: at the result of a tool that this run stored, and that is one."""
        place = next((at for at in reversed(range(len(conversation.entries))) if conversation.entries[at].said), None)
        if place is None:
            return False
        said, answers = conversation.entries[place], conversation.entries[place + 1 :]
        calls = [row.item for row in said.calls if row.item["type"] == "function_call"]
        stop = self._graph.stops_at(said.note.get("agent"), [call["name"] for call in calls])
        if stop is None or any(entry.message.role is not Role.TOOL for entry in answers):
            return False
        found = next((one for one in answers if one.message.call_id == calls[stop]["call_id"]), None)
        if found is None or found.message.failed or found.rows[0].number != self._number:
            return False
        await self._guard(self._graph.at(said.note.get("agent")), found.message.text)
        await self._append([(f"{said.rows[0].id}:end", ended(found.message.text))])
        return True

    async def _guard(self, agent: Agent[Any], text: str) -> None:
        """Have the guardrails see an answer that the SDK does not give."""
        config = self._options.run_config
        context = RunContextWrapper((await self._context()).value)
        for guardrail in [*agent.output_guardrails, *((config and config.output_guardrails) or ())]:
            seen = await guardrail.run(context, agent, text)
            if seen.output.tripwire_triggered:
                raise RunFailed("guardrail_tripped", str(OutputGuardrailTripwireTriggered(seen)))

    async def _drive(self, conversation: Conversation) -> None:
        """Have the SDK go on from the history until it is done, fails, or needs a person."""
        spoken = sum(entry.said and entry.rows[0].number == self._number for entry in conversation.entries)
        if spoken >= self._options.max_turns:
            raise _too_many(self._options.max_turns)
        config = Config(self._options.run_config, _tool_users(conversation))
        observer = Observer(
            self._run, self._graph, conversation, await self._context(), hooks=self._options.hooks, config=config
        )
        seams.listen(observer.finishes)
        result = Runner.run_streamed(
            self._graph.at(conversation.agent),
            [],
            session=RunSession(self._run.history.thread, conversation, observer),
            hooks=observer,
            max_turns=self._options.max_turns - spoken,
            context=(await self._context()).value,
            run_config=config.run_config,
        )
        try:
            async with aclosing(cast(Any, result.stream_events())) as events:
                try:
                    async for event in events:
                        observer.take(event)
                except BaseException:
                    observer.release()
                    result.cancel()
                    raise
        except Exception as error:  # noqa: BLE001 - the SDK raises what models and tools raise
            await observer.settle(result.to_input_list(mode="normalized"))
            await self._failed(observer, error)
        else:
            if result.interruptions:
                await self._ask_for(conversation, observer, result.interruptions)
            elif not self._is_over(conversation) and not conversation.open_calls():
                await observer.store_end(as_text(result.final_output))
            # What the SDK left open it did not want to run, or runs when a person agrees.
            self._leave_dead(conversation)
            # Hooks at the end may have changed it.
            await self._append([], conversation.keep(await self._context(), number=self._number))
        finally:
            observer.end()

    async def _failed(self, observer: Observer, error: Exception) -> None:
        """Say what ended the run of the SDK; an answer that was cut off is an answer."""
        if observer.failure is not None:
            raise observer.failure
        if isinstance(error, MaxTurnsExceeded):
            raise _too_many(self._options.max_turns) from error
        if isinstance(error, InputGuardrailTripwireTriggered | OutputGuardrailTripwireTriggered):
            raise RunFailed("guardrail_tripped", str(error)) from error
        if getattr(error, "code", None) == _TOO_LONG and await observer.store_full():
            return
        if isinstance(error, OpenAIError):
            raise RunFailed("provider_error", f"{type(error).__name__}: {error}") from error
        if not (isinstance(error, AgentsException) and await observer.store_cut()):
            raise error

    async def _ask_for(
        self, conversation: Conversation, observer: Observer, interruptions: Sequence[ToolApprovalItem]
    ) -> None:
        """Note the questions about the calls that the SDK did not run, and about those inside of agents that are tools."""
        stopped = observer.stopped()
        inner = [item for context in stopped.values() for item in inside.stopped(context)]
        asking = {item.call_id for item in interruptions if item not in inner}
        direct = [key for key, one in conversation.open_calls().items() if one.call.call_id in asking]
        if not direct and not stopped:
            raise RunFailed("approval_unsupported", "the run waits for an approval that is not one of a function tool")
        await self._ask(conversation, direct, stopped)

    async def _ask(
        self, conversation: Conversation, direct: Collection[str], stopped: Mapping[str, ToolContext[Any]]
    ) -> None:
        """Ask about open calls and about what agents in others stopped for, beside what is asked already."""
        opened, parts = conversation.open_calls(), list[Any]()
        for key, context in stopped.items():
            kept = inside.kept(key, context, conversation.rounds(key))
            parts += conversation.append([(_new_id(), kept)], number=self._number)
            parts.append(self._run.journal.stopped(opened[key].call))
        asked = [Question.about(one.call) for key, one in opened.items() if key in direct or conversation.is_open(key)]
        for key in opened:
            _, *inner = conversation.asking(key)
            asked += [inside.about(call) for call in inner if key in stopped or conversation.is_open(call.key)]
        asking, events = questions(self._run, conversation, asked)
        if events:
            kept_context = conversation.keep(await self._context(), number=self._number)
            await self._run.context.write(events=events, parts=[*parts, *asking, *kept_context], progress=True)
            await conversation.read_decisions(self._run.history)

    async def _ask_again(self, conversation: Conversation) -> None:
        """Ask about calls that did not start before a crash, and of which only their tools say that a person decides."""
        unasked = [one for key, one in conversation.open_calls().items() if key not in conversation.approvals]
        pending = [one for one in unasked if await self._run.journal.state(one.call) is CallState.PENDING]
        if not pending:
            return
        await self._servers.ready()
        wrapper = RunContextWrapper((await self._context()).value)
        asking = [
            one.call.key for one in pending if await tools.asks(self._graph.at(one.agent), one.call, one.item, wrapper)
        ]
        await self._ask(conversation, asking, {})

    # Tools ----------------------------------------------------------------------------------------------------------

    def _waiting(self, conversation: Conversation) -> list[Approval]:
        """Return what a person has to decide about the open calls, and about calls inside of them."""
        asking = [call.key for key in conversation.open_calls() for call in conversation.asking(key)]
        return [conversation.approvals[key] for key in asking if conversation.is_open(key)]

    async def _answer_calls(self, conversation: Conversation) -> None:
        """Answer the open calls side by side, all but those that wait for a person, and store the results."""
        calls = [one for key, one in conversation.open_calls().items() if not conversation.waits(key)]
        found = await asyncio.gather(*(self._answered(conversation, one) for one in calls), return_exceptions=True)
        if failure := next((one for one in found if isinstance(one, BaseException)), None):
            raise failure
        ended = list(zip(calls, found, strict=True))
        if stopped := {one.call.key: end for one, end in ended if isinstance(end, ToolContext)}:
            await self._ask(conversation, (), stopped)
        await self._append([end for _, end in ended if isinstance(end, tuple)])

    async def _answered(self, conversation: Conversation, opened: OpenCall) -> tuple[str, Item] | ToolContext[Any]:
        """Run a call, unless a person or its journal says how it is answered. An agent may stop for a person in it."""
        call, journal = opened.call, self._run.journal
        row = conversation.approvals.get(call.key)
        if row is not None and (answer := approvals.answer_to(row)) is not None:
            return opened.result(await journal.decided(call, answer))
        call, edited = approvals.as_decided(row, call)
        # What was kept is used once: an agent that is let in again after a crash begins anew, and asks anew.
        parked = conversation.parked.get(call.key) if await journal.state(call) is CallState.WAITING else None
        outcome = await journal.start(call)
        if outcome is None:
            with journal.body(call):
                ended = await self._body(conversation, call, opened, parked)
            if isinstance(ended, ToolContext):
                return ended
            outcome = ended
            await journal.done(call, outcome, conversation.keep(await self._context(), number=self._number))
        return opened.result(outcome, edited)

    async def _body(
        self, conversation: Conversation, call: ToolCall, opened: OpenCall, parked: Parked | None
    ) -> Outcome | ToolContext[Any]:
        await self._servers.ready()
        return await tools.body(
            self._run, self._graph.at(opened.agent), call, opened.item, context=(await self._context()).value,
            config=self._options.run_config, hooks=self._options.hooks, parked=parked, decided=conversation.approvals,
        )  # fmt: skip

    async def _closed(
        self, conversation: Conversation, opened: OpenCall, otherwise: Outcome = INTERRUPTED
    ) -> tuple[str, Item]:
        """Answer a call that an earlier run left open, without running it."""
        row = conversation.approvals.get(opened.call.key)
        if (answer := approvals.answer_when_closed(row)) is not None:
            return opened.result(await self._run.journal.decided(opened.call, answer))
        return opened.result(await self._run.journal.close(opened.call, proven=True, otherwise=otherwise))

    # Small things ---------------------------------------------------------------------------------------------------

    @property
    def _number(self) -> int:
        return self._run.context.lease[0]

    async def _conversation(self) -> Conversation:
        if self._loaded is None:
            self._loaded = await Conversation.load(self._run.history)
        return self._loaded

    async def _context(self) -> Kept:
        """Make the context object of the user, once an attempt."""
        if self._kept is None:
            make = self._options.context_factory
            made = None if make is None else make(self._run.context)
            made = await made if inspect.isawaitable(made) else made
            self._kept = self._options.contexts.kept(made, (await self._conversation()).context)
        return self._kept

    async def _append(self, contents: Sequence[tuple[str, Item]], parts: Sequence[Any] = ()) -> None:
        if contents or parts:
            conversation = await self._conversation()
            stored = conversation.append(contents, number=self._number)
            await self._run.context.write(parts=[*stored, *parts], progress=True)

    def _id_of(self, index: int) -> str:
        return message_id(self._input, index, invocation_id=self._run.context.invocation_id)

    def _result(self, conversation: Conversation) -> Output:
        """The run's output: what was said in this run, and after a resume since the last message of a user."""
        last = conversation.entries[-1]
        said = last.message
        if said.stop is StopReason.CONTEXT_FULL:
            raise RunFailed("context_full", "the conversation is too long for the model")
        return output(
            text=said.text,
            messages=_told(conversation),
            usage=self._count(conversation),
            stop_reason=said.stop.value,
            final_output=self._structured(last),
        )

    def _structured(self, last: Entry) -> Any:
        """Return the output in JSON of an agent that has a type for it."""
        kind = self._graph.at(last.note.get("agent")).output_type
        if kind is None or kind is str or not last.items:
            return None
        schema = kind if isinstance(kind, AgentOutputSchemaBase) else AgentOutputSchema(kind, strict_json_schema=False)
        try:
            return to_jsonable_python(schema.validate_json(last.message.text))
        except AgentsException:
            return None

    def _count(self, conversation: Conversation) -> dict[str, int]:
        """Add up what the run used, for its record."""
        usage = total(entry.message.usage for entry in conversation.turn)
        self._run.context.usage = usage or None
        return usage


def _told(conversation: Conversation) -> list[Item]:
    return [entry.message.as_json() for entry in conversation.turn]


def _tool_users(conversation: Conversation) -> set[str]:
    """Name the agents that called a tool since the user spoke."""
    said = [entry for entry in conversation.turn if any(uses_tool(item) for item in entry.items)]
    return {entry.note["agent"] for entry in said if "agent" in entry.note}


def _new_id() -> str:
    return uuid.uuid4().hex


def _too_many(limit: int) -> RunFailed:
    return RunFailed("max_turns", f"the run called the model {limit} times without coming to an end")
