"""Every tool call of a graph goes through the journal: by the outermost wrapper of its ToolNode, or by a callback.

The wrapper can answer a call without running anything. The callback, the backstop for tools that a node of the user's
own calls, can only note the start and refuse a second one; the node is then not entered at all (see `turn`).
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt.tool_node import ToolCallRequest

from outlast.adapters.journal import Outcome, Result, ToolCall
from outlast.adapters.run import CURRENT_RUN, Run
from outlast.core.errors import RunFailed
from outlast_langgraph.messages import if_json, messages_of, told, tool_calls
from outlast_langgraph.saver import Stopped

_SERDE = JsonPlusSerializer()

_GUARDED: ContextVar[dict[str, Any] | None] = ContextVar("outlast_langgraph_guarded", default=None)
"""Set while the wrapper runs a body: its first tool is the journal's already."""

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


async def guarded(run: Run, call: ToolCall, body: AsyncBody) -> Any:
    """Run a body once, or answer the call from the journal."""
    if (answer := await _start(run, call)) is not None:
        return answer
    token = _GUARDED.set({"call_id": call.call_id})
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
    finally:
        _GUARDED.reset(token)
    await _durably(run.journal.done(call, outcome_of(value)))
    return value


def guarded_in_thread(run: Run, call: ToolCall, body: Body) -> Any:
    """The same for a graph that was called synchronously."""
    if (answer := run.blocking(_start(run, call))) is not None:
        return answer
    token = _GUARDED.set({"call_id": call.call_id})
    try:
        with run.journal.body(call):
            value = body()
    except GraphBubbleUp:
        run.blocking(_durably(run.journal.waiting(call)))
        raise
    except Exception as error:
        run.blocking(_durably(run.journal.failed(call, error)))
        raise
    finally:
        _GUARDED.reset(token)
    run.blocking(_durably(run.journal.done(call, outcome_of(value))))
    return value


async def _durably(work: Awaitable[T]) -> T:
    """Await the journal; no error handling of a graph or tool may take its errors for a tool's."""
    try:
        return await work
    except Exception as error:
        raise Stopped(error) from error


async def _start(run: Run, call: ToolCall) -> Any:
    """Return the answer of a call in the framework's form, or None when its body may run."""
    answer = await _durably(run.journal.start(call))
    return None if answer is None else value_of(call, answer)


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
    return Outcome(result, told(message) if message is not None else _text(value), _encoded(value))


def _text(value: Any) -> str:
    """Show what a Command or another value says to clients."""
    update = getattr(value, "update", None)
    messages = update.get("messages", []) if isinstance(update, dict) else []
    texts = [message.text for message in messages if isinstance(message, ToolMessage)]
    return "\n".join(texts) if texts else str(value)


def _encoded(value: Any) -> Any:
    try:
        type_, body = _SERDE.dumps_typed(value)
    except Exception:  # noqa: BLE001 - whatever a serialiser of unknown values raises
        return None
    return [type_, base64.b64encode(body).decode("ascii")]


def value_of(call: ToolCall, outcome: Outcome) -> Any:
    """Return an outcome in the framework's form."""
    if outcome.value is not None:
        type_, body = outcome.value
        return _SERDE.loads_typed((type_, base64.b64decode(body)))
    return message_of(call, outcome)


def message_of(call: ToolCall, outcome: Outcome) -> ToolMessage:
    """Return an outcome as the message a model sees."""
    if outcome.value is not None and isinstance(value := value_of(call, outcome), ToolMessage):
        return value
    return ToolMessage(
        outcome.output, name=call.name, tool_call_id=call.call_id or "", status="error" if outcome.failed else "success"
    )


class Backstop(BaseCallbackHandler):
    """Sees every tool a graph runs, also in nodes of the user's own, and refuses one that an earlier attempt started.

    A sync handler, since errors of an async one are swallowed whenever a tool runs by its sync path; not inline, so
    that in async code it runs in a thread and may wait for the journal.
    """

    raise_error = True
    run_inline = False

    def __init__(self, run: Run, told: set[str | None]) -> None:
        self._run, self._told = run, told
        self._calls: dict[Any, ToolCall] = {}
        self._counts: dict[str, int] = {}

    def on_tool_start(self, serialized: dict[str, Any] | None, input_str: str, *, run_id: Any, **details: Any) -> None:
        call_id, guard = details.get("tool_call_id"), _GUARDED.get()
        if guard is not None and guard.get("call_id", "none") == call_id:
            guard["call_id"] = "none"
            return
        name = (serialized or {}).get("name") or details.get("name") or "tool"
        namespace = (details.get("metadata") or {}).get("langgraph_checkpoint_ns", "?")
        call = ToolCall(
            self._key(namespace, call_id, name, input_str), call_id, name, if_json(details.get("inputs"), None)
        )
        self._told.add(call_id)
        if self._run.blocking(_start(self._run, call)) is not None:
            raise Stopped(
                RunFailed(
                    "tool_would_repeat",
                    f"the tool {name!r} was started before and would run again: its node cannot be entered again",
                )
            )
        self._calls[run_id] = call

    def _key(self, namespace: str, call_id: str | None, name: str, input_str: str) -> str:
        """Key a call by its task, which is the same in every attempt, and by what it asks for, in order."""
        base = f"task:{namespace}:{call_id}" if call_id else f"task:{namespace}:{name}:{input_str}"
        if call_id:
            return base
        self._counts[base] = self._counts.get(base, 0) + 1
        return f"{base}:{self._counts[base]}"

    def on_tool_end(self, output: Any, *, run_id: Any, **details: Any) -> None:
        if (call := self._calls.pop(run_id, None)) is not None:
            self._run.blocking(_durably(self._run.journal.done(call, outcome_of(output))))

    def on_tool_error(self, error: BaseException, *, run_id: Any, **details: Any) -> None:
        call = self._calls.pop(run_id, None)
        if call is None or not isinstance(error, Exception):
            return
        if isinstance(error, GraphBubbleUp):
            self._run.blocking(_durably(self._run.journal.waiting(call)))
        else:
            self._run.blocking(_durably(self._run.journal.failed(call, error)))


def current_run() -> Run | None:
    """Return the run this code works for; without one, guarded graphs behave as before."""
    return CURRENT_RUN.get()
