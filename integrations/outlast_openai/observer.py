"""Watches one run of the SDK: each response, each start of a tool and each result is durable before the SDK goes on.

The order: `on_llm_end` stores a response that asks for tools, with a journal row a call; `on_tool_start` is durable before
the body; `on_tool_end` stores the result in the journal while others still run; the end of the turn stores the results
behind the calls, in their order, and where a handoff leads. A response without calls is stored at the end of its turn:
until then an output guardrail may throw it away.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from agents import Agent, FunctionTool, ModelResponse, RunHooks
from agents.items import ItemHelpers, TResponseInputItem
from agents.tool_context import ToolContext
from agents.usage import Usage

from outlast.adapters import approvals
from outlast.adapters.approvals import Question
from outlast.adapters.events import Event, Message
from outlast.adapters.journal import Outcome, ToolCall, finished
from outlast.adapters.outputs import total
from outlast.adapters.run import Run
from outlast.core import faults, jsontext
from outlast.core.errors import NotJSON, RunFailed
from outlast.core.transcript import AWAITS, StopReason
from outlast_openai import inside, seams
from outlast_openai.config import Config
from outlast_openai.contexts import Kept
from outlast_openai.graph import Graph
from outlast_openai.history import Conversation
from outlast_openai.items import Item, arguments_of, ended, is_call, is_output, name_of, note
from outlast_openai.messages import stop_of_response

P = ParamSpec("P")
T = TypeVar("T")

_TERMINAL = {"response.completed", "response.incomplete", "response.failed"}
_UNSENT = {StopReason.REFUSED, StopReason.CONTENT_FILTER}
"""What stopped so is kept for people; no model sees it again."""
_REASONING = {"response.reasoning_summary_text.delta", "response.reasoning_text.delta"}


@dataclass(slots=True)
class Response:
    """What a model said, from its first event to where it is stored."""

    message: Message
    agent: Agent[Any]
    items: list[Item] = field(default_factory=list)
    stop: StopReason = StopReason.UNKNOWN
    usage: dict[str, int] = field(default_factory=dict)
    id: str | None = None
    made: object = None
    """What the SDK made of its beginning."""
    terminal: Any = None
    over: bool = False
    """Its end was told."""

    @property
    def key(self) -> str:
        return self.message.message_id

    def contents(self, items: Sequence[Item], **more: Any) -> list[tuple[str, Item]]:
        """Return its rows: a note with what its items do not say, then the items."""
        said = {
            "agent": self.agent.name, "stop": self.stop.value, "usage": self.usage, "model": model_name(self.agent),
            "response_id": self.id, **more,
        }  # fmt: skip
        head = note(response={name: value for name, value in said.items() if value})
        if awaited := [f"{self.key}:{place}:result" for place, item in enumerate(items) if is_call(item)]:
            head[AWAITS] = awaited
        return [(self.key, head), *((f"{self.key}:{place}", item) for place, item in enumerate(items))]


def at_the_border(method: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Keep the error of a hook: the SDK would show it as one of a tool."""

    @wraps(method)
    async def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except Exception as error:
            observer: Any = args[0]
            observer.failure = observer.failure or error
            raise

    return called


class Observer(RunHooks[Any]):
    """The hooks of one run of the SDK; the user's own are called too."""

    def __init__(
        self,
        run: Run,
        graph: Graph,
        conversation: Conversation,
        context: Kept,
        *,
        hooks: RunHooks[Any] | None,
        config: Config,
    ) -> None:
        self.failure: Exception | None = None
        """What went wrong in outlast's own part, or in the user's hooks."""
        self.response: Response | None = None
        self.finishes: seams.Finishes = []
        self._run, self._graph, self._conversation, self._context = run, graph, conversation, context
        self._hooks: RunHooks[Any] = hooks or RunHooks()
        self._config = config
        execution = None if config.run_config is None else config.run_config.tool_execution
        self._guarded_first = execution is not None and execution.pre_approval_tool_input_guardrails
        """Whether a guardrail may answer a call before a person is asked."""
        self._calls: dict[str, ToolCall] = {}
        self._native: dict[str, list[ToolCall]] = {}
        """The calls of tools of which the SDK says their kind only, by that: it runs those of a kind one after the other."""
        self._agents: dict[str, ToolContext[Any]] = {}
        """The contexts of the agents that were called as tools, by the calls' keys."""
        self._next_agent: str | None = None
        self._narrows = False
        """Whether what the next agent sees is not the history."""
        self._deferred: tuple[list[Event], list[tuple[str, Item]], list[Any]] | None = None
        self._usages: list[dict[str, int]] = []
        self._seen = asyncio.Event()

    # What the SDK calls ---------------------------------------------------------------------------------------------

    @at_the_border
    async def on_llm_start(self, context: Any, agent: Any, system_prompt: str | None, input_items: list[Any]) -> None:
        self._config.began()
        await self.settle(self._config.model_input(input_items))
        await self._hooks.on_llm_start(context, agent, system_prompt, input_items)
        await self._run.assured()
        self._seen.clear()
        self.response = Response(self._run.events.start_message(model=model_name(agent)), agent)

    @at_the_border
    async def on_llm_end(self, context: Any, agent: Any, response: ModelResponse) -> None:
        said = self.response
        assert said is not None
        # The SDK gives its events through a queue: what was said comes before that it was said.
        await self._seen.wait()
        said.items = [dict(item) for item in response.to_input_items()]
        said.id, said.usage = response.response_id, _usage(response)
        calls = any(is_call(item) for item in said.items)
        said.stop = stop_of_response("completed", finish=self._finish(said), refused=_refused(said.items), calls=calls)
        _complete(self._run, said)
        if said.stop is StopReason.TOOL_CALLS:
            await self._store_calls(said)
        await self._hooks.on_llm_end(context, agent, response)

    # Called in the task of the tool and awaited in another: what the first part puts into the context, the body finds.
    def on_tool_start(self, context: Any, agent: Any, tool: Any) -> Coroutine[Any, Any, None]:
        call = self._call_of(context, tool)
        if call is not None:
            self._run.journal.name(None if seams.is_agent(tool) else call)
        return self._tool_starts(context, agent, tool, call)

    @at_the_border
    async def _tool_starts(self, context: Any, agent: Any, tool: Any, call: ToolCall | None) -> None:
        await self._hooks.on_tool_start(context, agent, tool)
        if call is None and seams.call_type(tool) is not None:
            # Models may call it by a name of their own, and the SDK lets them.
            raise RuntimeError(f"the SDK does not say for which call {tool.name!r} runs")
        if call is not None:
            if await self._run.journal.start(call) is not None:
                raise RuntimeError(f"the call {call.key} of {call.name!r} was answered before")
            self._run.journal.enter(call)
            if seams.is_agent(tool):
                self._agents[call.key] = context

    def _call_of(self, context: Any, tool: Any) -> ToolCall | None:
        """Return the call for which a tool runs; of a handoff the SDK tells none."""
        kind = seams.call_type(tool)
        if kind is not None:
            return next(iter(self._native.get(kind, ())), None)
        return self._calls.get(context.tool_call_id) if isinstance(context, ToolContext) else None

    @at_the_border
    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: object) -> None:
        call = self._call_of(context, tool)
        if call is not None:
            faults.reach("tool.after_body")
            kind = seams.call_type(tool)
            if kind is not None:
                self._native[kind].pop(0)
            asked = context.tool_call if isinstance(context, ToolContext) else None
            await self._run.journal.done(call, outcome_of(asked, result), self._kept())
        await self._hooks.on_tool_end(context, agent, tool, result)

    @at_the_border
    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        self._next_agent = to_agent.name
        self._narrows = self._graph.narrows(from_agent.name, to_agent.name, self._config.run_config)
        await self._hooks.on_handoff(context, from_agent, to_agent)

    @at_the_border
    async def on_agent_start(self, context: Any, agent: Any) -> None:
        self._config.begin(agent)
        await self._hooks.on_agent_start(context, agent)

    @at_the_border
    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        await self._hooks.on_agent_end(context, agent, output)

    def stopped(self) -> dict[str, ToolContext[Any]]:
        """Return the contexts of the agents in tools that stopped for a person, by the keys of their calls."""
        return {key: context for key, context in self._agents.items() if inside.stopped(context)}

    # What streams ---------------------------------------------------------------------------------------------------

    def take(self, event: Any) -> None:
        """Take the next event of the SDK's stream."""
        if event.type == "raw_response_event" and self.response is not None:
            self._raw(self.response, event.data)

    def _raw(self, said: Response, event: Any) -> None:
        events, message = self._run.events, said.message
        if event.type == "response.created":
            said.made = event.response
        match event.type:
            case "response.created" if message.parts:
                # The SDK tries once more, from the beginning.
                events.post(events.finished_message(message, stop_reason=StopReason.ERROR.value, stored=False))
                said.message = events.start_message(model=model_name(said.agent))
            case "response.output_text.delta":
                events.delta(message, ("text", event.output_index), "text", event.delta)
            case "response.refusal.delta":
                events.delta(message, ("refusal", event.output_index), "refusal", event.delta)
            case kind if kind in _REASONING:
                events.delta(message, ("reasoning", event.output_index), "reasoning", event.delta)
            case "response.output_item.added" if event.item.type in ("function_call", "custom_tool_call"):
                key = ("call", event.output_index)
                events.delta(message, key, "tool_call", "", call_id=event.item.call_id, name=event.item.name)
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
                if ("call", event.output_index) in message.parts:
                    events.delta(message, ("call", event.output_index), "tool_call", event.delta)
            case kind if kind in _TERMINAL:
                said.terminal = event.response
                self._seen.set()

    def release(self) -> None:
        """Let nobody wait for events any more."""
        self._seen.set()

    def end(self) -> None:
        """Close what is not going to be stored any more."""
        self.release()
        said = self.response
        if said is not None and not said.over:
            said.over = True
            stop = said.stop if said.items else StopReason.INTERRUPTED
            self._run.events.post(
                self._run.events.finished_message(said.message, stop_reason=stop.value, stored=False)
            )  # fmt: skip
        self._run.events.flush()

    # What is stored -------------------------------------------------------------------------------------------------

    async def _store_calls(self, said: Response) -> None:
        """Store a response that asks for tools, before any of them starts."""
        contents = said.contents(said.items)
        parts = self._append(contents)
        open_calls = self._conversation.open_calls().values()
        opened = [one.call for one in open_calls]
        self._native = {
            kind: [one.call for one in open_calls if one.item["type"] == kind] for kind in seams.CALL_TYPES.values()
        }
        self._calls = {call.call_id or "": call for call in opened}
        # A handoff runs code of the user before anybody hears of it: that it did not run can never be proven.
        journalled = [call for call in opened if not self._graph.is_handoff(said.agent.name, call.name)]
        waiting = [Question.about(call) for call in opened if self._waits(call, said)]
        asking, asked = questions(self._run, self._conversation, waiting)
        await self._write([*self._finished(said), *asked], [*parts, *self._run.journal.pending(journalled), *asking])
        if asking:
            await self._conversation.read_decisions(self._run.history)

    def _waits(self, call: ToolCall, said: Response) -> bool:
        """Say whether a call certainly waits for a person; where a function decides, the SDK asks it, and tells later."""
        if self._guarded_first:
            return False
        return any(
            isinstance(tool, FunctionTool) and tool.name == call.name and tool.needs_approval is True
            for tool in said.agent.tools
        )

    @at_the_border
    async def turn_ended(self, items: Sequence[TResponseInputItem]) -> None:
        """Store what the SDK keeps of a turn and the history does not have yet, and where a handoff leads."""
        given: list[Item] = [dict(item) for item in items]
        said, contents, events, parts = self.response, list[tuple[str, Item]](), list[Event](), list[Any]()
        kept = [item for item in given if not is_output(item)]
        if said is not None and kept and not said.over:
            contents += said.contents([], unsent=kept) if said.stop in _UNSENT else said.contents(kept)
            events += self._finished(said)
        elif said is not None:
            new = [item for item in kept if not is_call(item) and all(_bare(item) != _bare(one) for one in said.items)]
            contents += [(f"{said.key}:more:{place}", item) for place, item in enumerate(new)]
        results = {item["call_id"]: item for item in given if is_output(item)}
        open_calls = self._conversation.open_calls()
        handoffs = [key for key, one in open_calls.items() if self._graph.is_handoff(one.agent, one.call.name)]
        for key, opened in open_calls.items():
            item = results.get(opened.call.call_id or "")
            if item is None and self._narrows:
                # A filter of the next agent's input took it away; the history keeps it.
                if key not in handoffs:
                    contents.append(opened.result(await self._run.journal.close(opened.call, proven=True)))
                elif key == handoffs[0]:
                    contents.append(opened.result(Outcome("ok", jsontext.encode({"assistant": self._next_agent}))))
            if item is None:
                continue
            contents.append((f"{key}:result", item))
            if not self._run.journal.told(opened.call):
                outcome = Outcome("ok", _json(item["output"]), item["output"])
                parts.append(self._run.journal.closed(opened.call, outcome))
                events.append(finished(opened.call, outcome, origin="executed"))
        if self._next_agent is not None and said is not None:
            contents.append((f"{said.key}:agent", note(agent=self._next_agent)))
            self._next_agent = None
        if self._narrows:
            # Not before what the next agent sees is known: a crash in between leaves the handoff open.
            self._narrows, self._deferred = False, (events, contents, parts)
        elif contents:
            await self._write(events, [*self._append(contents), *parts])

    async def settle(self, view: Sequence[Any] | None) -> None:
        """Store a handoff that waits for it, with what the agent behind it is sent, if the SDK came that far."""
        if self._narrows:
            # Its filter left nothing to store, so that the SDK stored nothing.
            await self.turn_ended([])
        if self._deferred is None or self.response is None:
            return
        (events, contents, parts), self._deferred = self._deferred, None
        if view is not None:
            contents.append((f"{self.response.key}:view", note(view=[dict(item) for item in view])))
        await self._write(events, [*self._append(contents), *parts])

    async def store_cut(self) -> bool:
        """Store a response that the SDK throws away: refused, or cut off. Return whether there was one."""
        said = self.response
        if said is None or said.over:
            return False
        status = getattr(said.terminal, "status", None)
        if status == "incomplete":
            reason = getattr(said.terminal.incomplete_details, "reason", None)
            said.stop = stop_of_response(status, reason, refused=False, calls=False)
            said.id = said.terminal.id
            output = ModelResponse(output=said.terminal.output, usage=Usage(), response_id=None).to_input_items()
            said.items = [dict(item) for item in output if item.get("role") == "assistant"]
        elif self._finish(said) == "length":
            said.stop = StopReason.MAX_OUTPUT
        elif said.stop not in _UNSENT:
            return False
        contents = (
            said.contents(said.items) if said.stop is StopReason.MAX_OUTPUT else said.contents([], unsent=said.items)
        )
        await self._write(self._finished(said), self._append(contents))
        return True

    async def store_full(self) -> bool:
        """Store that the conversation is too long. Return False for an error that came from elsewhere than the model."""
        said = self.response
        if said is None or said.over:
            return False
        said.stop = StopReason.CONTEXT_FULL
        await self._write(self._finished(said), self._append(said.contents([])))
        return True

    def _finish(self, said: Response) -> str | None:
        """Return why a response of Chat Completions stopped, "" where it did not say so, and None for other responses."""
        found = (finish for made, finish in reversed(self.finishes) if made is said.made)
        return next(found, None)

    async def store_end(self, text: str) -> None:
        """Note that the run is over where its items do not say so: a tool's result was the answer."""
        key = self.response.key if self.response is not None else self._run.context.invocation_id
        await self._write([], self._append([(f"{key}:end", ended(text))]))

    def _finished(self, said: Response) -> list[Event]:
        said.over = True
        told = self._run.events.finished_message(
            said.message, stop_reason=said.stop.value, stored=True, usage=said.usage
        )  # fmt: skip
        if not said.usage:
            return [told]
        self._usages.append(said.usage)
        model = model_name(said.agent)
        return [told, {"type": "agent.usage", "model": model, **said.usage, "total": total(self._usages)}]

    def _append(self, contents: Sequence[tuple[str, Item]]) -> list[Any]:
        return self._conversation.append(contents, number=self._run.context.lease[0])

    def _kept(self) -> list[Any]:
        return self._conversation.keep(self._context, number=self._run.context.lease[0])

    async def _write(self, events: Sequence[Event], parts: Sequence[Any]) -> None:
        await self._run.context.write(events=events, parts=[*parts, *self._kept()], progress=True)


def questions(run: Run, conversation: Conversation, asked: Sequence[Question]) -> tuple[list[Any], list[Event]]:
    """Return what asks a person this, and nothing else; a question that is open is not told again."""
    if not asked:
        return [], []
    if run.context.session_id is None:
        raise RunFailed(
            "approval_needs_session",
            f"the tool {asked[0].name!r} needs an approval, which comes by another run of the session; give this run a "
            "session_id",
        )
    parts, events = approvals.ask(run.history.scope, asked)
    return parts, [event for event in events if event["approval_id"] not in conversation.approvals]


def outcome_of(call: Any, result: object) -> Outcome:
    """Make the journal's form of a result; `value` is what the model is told."""
    value = result if isinstance(result, str) else _json(_told(call, result))
    return Outcome("ok", value, value)


def _told(call: Any, result: object) -> Any:
    return str(result) if call is None else ItemHelpers.tool_call_output_item(call, result)["output"]


def _json(value: Any) -> Any:
    try:
        jsontext.encode(value)
    except NotJSON:
        return str(value)
    return value


def model_name(agent: Agent[Any]) -> str | None:
    """Return what people know the model of an agent by."""
    model = agent.model
    named = model if isinstance(model, str) else getattr(model, "model", None)
    return named if isinstance(named, str) else None


def _usage(response: ModelResponse) -> dict[str, int]:
    used = response.usage
    counts = {
        "input_tokens": used.input_tokens, "output_tokens": used.output_tokens, "total_tokens": used.total_tokens,
        "cached_tokens": getattr(used.input_tokens_details, "cached_tokens", 0),
        "reasoning_tokens": getattr(used.output_tokens_details, "reasoning_tokens", 0),
    }  # fmt: skip
    return {name: count for name, count in counts.items() if count}


def _refused(items: Sequence[Item]) -> bool:
    """Say whether a response has a refusal and nothing else to read."""
    parts = [part for item in items if item.get("role") == "assistant" for part in item.get("content") or ()]
    return bool(parts) and all(isinstance(part, dict) and part.get("type") == "refusal" for part in parts)


def _complete(run: Run, said: Response) -> None:
    """Tell what the stream did not: some models stream nothing."""
    events, message = run.events, said.message
    whole = "".join(
        part.get("text") or "" for item in said.items if item.get("role") == "assistant" for part in item["content"]
    )
    told = message.text()
    if whole and not told:
        events.delta(message, ("text", "whole"), "text", whole)
    parts = {part.call_id: part for part in message.parts.values() if part.kind == "tool_call"}
    for item in said.items:
        if not is_call(item):
            continue
        raw = arguments_of(item)
        if item["call_id"] not in parts:
            key = ("call", item["call_id"])
            events.delta(message, key, "tool_call", raw, call_id=item["call_id"], name=name_of(item))
            parts[item["call_id"]] = message.parts[key]
        events.finish_part(parts[item["call_id"]], raw=raw)


def _bare(item: Item) -> Item:
    return {name: value for name, value in item.items() if name not in ("id", "provider_data")}
