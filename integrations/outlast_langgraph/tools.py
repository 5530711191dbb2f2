"""Every tool call of a graph goes through the journal: by the outermost wrapper of its ToolNode, or where tools run.

The first knows the model answer that asked for the call. The second sees every other tool that runs in a run, wherever
it is called and with or without a call id, and knows it by its place in the run; see `places`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import ToolException
from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt.tool_node import ToolCallRequest

from outlast.adapters.journal import Outcome, Result, ToolCall
from outlast.adapters.run import CURRENT_RUN, Run
from outlast.core.jsontext import fingerprint
from outlast_langgraph import places
from outlast_langgraph.messages import decoded, encoded, if_json, messages_of, told, tool_calls
from outlast_langgraph.observer import Observer
from outlast_langgraph.saver import Stopped

_GUARDED: ContextVar[ToolCall | None] = ContextVar("outlast_langgraph_guarded", default=None)
"""Set while the wrapper of a ToolNode runs a body: the call whose tool is the journal's already."""

T = TypeVar("T")

Body = Callable[[], Any]
AsyncBody = Callable[[], Awaitable[Any]]


class ToolCancelled(RuntimeError):
    """A tool ended itself with CancelledError though nobody had cancelled the run."""


def call_of(request: ToolCallRequest, messages_key: str, run: Run) -> ToolCall:
    """Name a call by the model answer that holds it."""
    asked = request.tool_call
    for message in reversed(messages_of(request.state, messages_key)):
        if isinstance(message, AIMessage) and any(call["id"] == asked["id"] for call in message.tool_calls):
            return _chosen(message, asked, run)
    namespace = request.runtime.config.get("metadata", {}).get("langgraph_checkpoint_ns", "?")
    return ToolCall(f"task:{namespace}:{asked['id']}", asked["id"], asked["name"], asked["args"])


def _chosen(message: AIMessage, asked: Any, run: Run) -> ToolCall:
    calls = tool_calls(message)
    for call, held in zip(calls, message.tool_calls, strict=True):
        if held is asked:
            return call
    alike = [
        call
        for call in calls
        if call.call_id == asked["id"] and call.name == asked["name"] and call.arguments == asked["args"]
    ]
    return run.journal.choose(alike or [call for call in calls if call.call_id == asked["id"]])


Answered = Callable[[ToolCall, Outcome], Any]
"""Gives the answer of a call in the form its caller expects."""

Again = Callable[[], Awaitable[bool]]
"""Says whether a call may be entered again that a dead attempt had started."""


async def guarded(
    run: Run,
    call: ToolCall,
    body: AsyncBody,
    *,
    before: Mapping[str, Any],
    answered: Answered | None = None,
    again: Again | None = None,
) -> Any:
    """Run a body once, or answer the call from the journal. `before` is noted first."""
    await _durably(run.journal.note(before))
    if (answer := await _durably(run.journal.start(call, again=again))) is not None:
        return (answered or value_of)(call, answer)
    try:
        with run.journal.body(call):
            value = await body()
    except GraphBubbleUp:
        await _durably(run.journal.waiting(call))
        raise
    except asyncio.CancelledError as error:
        raise await _cancelled(run, call, error) from error
    except Exception as error:
        await _durably(run.journal.failed(call, error))
        raise
    await _durably(run.journal.done(call, outcome_of(value)))
    return value


def guarded_in_thread(
    run: Run,
    call: ToolCall,
    body: Body,
    *,
    before: Mapping[str, Any],
    answered: Answered | None = None,
    again: Again | None = None,
) -> Any:
    """The same for a tool that is called synchronously."""
    if before:
        run.blocking(_durably(run.journal.note(before)))
    if (answer := run.blocking(_durably(run.journal.start(call, again=again)))) is not None:
        return (answered or value_of)(call, answer)
    try:
        with run.journal.body(call):
            value = body()
    except GraphBubbleUp:
        run.blocking(_durably(run.journal.waiting(call)))
        raise
    except Exception as error:
        run.blocking(_durably(run.journal.failed(call, error)))
        raise
    run.blocking(_durably(run.journal.done(call, outcome_of(value))))
    return value


@contextmanager
def of_call(call: ToolCall | None) -> Iterator[None]:
    """Surround what runs the tool of a call that the journal has; None for the tool's own code, whose tools are others."""
    token = _GUARDED.set(call)
    try:
        yield
    finally:
        _GUARDED.reset(token)


def call_under_way(call_id: str | None) -> ToolCall | None:
    """Return the call that the journal has and whose tool begins, if there is one."""
    found = _GUARDED.get()
    return found if found is not None and found.call_id == call_id else None


async def _durably(work: Awaitable[T]) -> T:
    """Await the journal; no error handling of a graph or tool may take its errors for a tool's."""
    try:
        return await work
    except Exception as error:
        raise Stopped(error) from error


async def _cancelled(run: Run, call: ToolCall, error: asyncio.CancelledError) -> BaseException:
    """Tell a cancelled run, whose call stays open, from a tool that raised CancelledError on its own."""
    task = asyncio.current_task()
    if task is None or task.cancelling():
        return error
    ended = ToolCancelled(f"the tool {call.name!r} ended with CancelledError")
    await _durably(run.journal.failed(call, ended))
    return ended


def outcome_of(value: Any) -> Outcome:
    """Return what a tool gave, with all that is needed to give it again."""
    message = value if isinstance(value, ToolMessage) else None
    result: Result = "error" if message is not None and message.status == "error" else "ok"
    return Outcome(result, told(message) if message is not None else _text(value), encoded(value))


def _text(value: Any) -> str:
    """Show what a Command or another value says to clients."""
    update = getattr(value, "update", None)
    messages = update.get("messages", []) if isinstance(update, dict) else []
    texts = [message.text for message in messages if isinstance(message, ToolMessage)]
    return "\n".join(texts) if texts else str(value)


def value_of(call: ToolCall, outcome: Outcome) -> Any:
    """Return an outcome in the framework's form."""
    if outcome.value is not None:
        return decoded(outcome.value)
    return message_of(call, outcome)


def message_of(call: ToolCall, outcome: Outcome) -> ToolMessage:
    """Return an outcome as the message a model sees."""
    if outcome.value is not None and isinstance(value := value_of(call, outcome), ToolMessage):
        return value
    return ToolMessage(
        outcome.output, name=call.name, tool_call_id=call.call_id or "", status="error" if outcome.failed else "success"
    )


TASK, LOOP = "task:", "loop:"
"""Begin the keys of calls that are known by their place, and of notes that a model said there what is not kept."""


def said_before(observer: Observer, config: RunnableConfig, call: ToolCall) -> dict[str, Any]:
    """Return what to note of models where a tool is about to begin, which may be the node that asked them."""
    task = places.namespace(config)
    place = places.task(observer.steady, task)
    notes, is_lost = observer.answers.before_tool(place, task, call)
    if is_lost:
        notes[f"{LOOP}{places.checkpoint(config, place)}:{place}"] = None
    return notes


class Called:
    """A tool that runs past the journal of a ToolNode: called by a node of the user's own, a task, or another tool."""

    def __init__(
        self, observer: Observer, name: str, call_id: str | None, arguments: Any, config: RunnableConfig
    ) -> None:
        self._observer, self._config = observer, config
        shown = if_json(arguments, repr(arguments))
        place = observer.place(config)
        what = f"{call_id or ''}:{name}:{fingerprint(shown)}"
        self.call = ToolCall(f"{TASK}{place.name}:{what}:{place.order(what)}", call_id, name, shown)
        observer.told.add(call_id)

    async def run(self, body: AsyncBody) -> Any:
        """Run the tool once, or give what the journal has in its place."""
        await _durably(self._observer.stored())
        return await guarded(
            self._observer.run, self.call, body, before=self._said(), answered=plainly, again=self._again
        )

    def run_in_thread(self, body: Body) -> Any:
        run = self._observer.run
        run.blocking(_durably(self._observer.stored()))
        return guarded_in_thread(run, self.call, body, before=self._said(), answered=plainly, again=self._again)

    async def _again(self) -> bool:
        return await has_inner_state(self._observer.run, self.call, self._config)

    def _said(self) -> dict[str, Any]:
        return said_before(self._observer, self._config, self.call)


async def has_inner_state(run: Run, call: ToolCall, config: RunnableConfig) -> bool:
    """Say whether a graph that the tool of a call runs has a state to go on from."""
    namespace = places.inner(config, call)
    return namespace is not None and await run.history.head(namespace) is not None


def plainly(call: ToolCall, outcome: Outcome) -> Any:
    """Return an outcome as the tool itself would: where it raised, this raises."""
    if outcome.value is None and outcome.result == "error":
        raise ToolException(outcome.output)
    return value_of(call, outcome) if outcome.value is not None or call.call_id else outcome.output


def current_run() -> Run | None:
    """Return the run this code works for; without one, guarded graphs behave as before."""
    return CURRENT_RUN.get()
