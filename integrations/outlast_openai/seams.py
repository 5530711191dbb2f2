"""The only place that touches private names of the SDK.

`check` looks for every such name when an agent is made, so that another SDK fails then, and not in a run.
"""

import uuid
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any

from agents import (
    Agent,
    ApplyPatchTool,
    FunctionTool,
    Handoff,
    LocalShellTool,
    RunContextWrapper,
    RunState,
    ShellTool,
    agent_tool_state,
)
from agents.models.chatcmpl_stream_handler import ChatCmplStreamHandler
from agents.result import RunResult, RunResultStreaming
from agents.run_internal import tool_execution
from agents.tool import invoke_function_tool
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall

_FUNCTIONS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (tool_execution, ("_execute_tool_input_guardrails", "_execute_tool_output_guardrails", "function_needs_approval")),
    (
        agent_tool_state,
        ("get_agent_tool_state_scope", "peek_agent_tool_run_result", "record_agent_tool_resume_state",
         "set_agent_tool_state_scope"),
    ),
)  # fmt: skip
PINNED_FIELDS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (FunctionTool, ("_is_agent_tool", "_agent_instance")),
    (Handoff, ("_agent_ref",)),
)


class UnknownSDK(ImportError):
    """This version of the SDK does not have what the adapter builds on."""


def check() -> None:
    """Raise UnknownSDK when the installed SDK lacks a name this module uses."""
    missing = [name for owner, names in _FUNCTIONS for name in names if not hasattr(owner, name)]
    for owner, names in PINNED_FIELDS:
        missing += [f"{owner.__name__}.{name}" for name in names if name not in owner.__dataclass_fields__]
    if missing:
        raise UnknownSDK(f"this version of openai-agents lacks {', '.join(missing)}; outlast works with 0.24")


def target_of(handoff: Handoff[Any, Any]) -> Agent[Any] | None:
    """Return the agent a handoff leads to, or None where only calling it would tell."""
    found = handoff._agent_ref() if handoff._agent_ref is not None else None
    return found if isinstance(found, Agent) else None


def agents_in_tools(agent: Agent[Any]) -> Iterator[Agent[Any]]:
    """Give the agents that an agent has as tools."""
    for tool in agent.tools:
        if isinstance(tool, FunctionTool) and tool._is_agent_tool and isinstance(tool._agent_instance, Agent):
            yield tool._agent_instance


def is_agent(tool: Any) -> bool:
    """Say whether a tool is an agent, which has tools of its own."""
    return isinstance(tool, FunctionTool) and tool._is_agent_tool


Finishes = list[tuple[object, str]]
"""Responses of Chat Completions, as the SDK makes them up, each with the `finish_reason` of which the SDK says nothing."""

_FINISHES: ContextVar[Finishes | None] = ContextVar("outlast_finishes", default=None)
_handle_stream = ChatCmplStreamHandler.handle_stream


def listen(finishes: Finishes) -> None:
    """Have the SDK's runs that begin in this context note why Chat Completions stopped."""
    _FINISHES.set(finishes)


async def _noting_stream(
    response: object, stream: AsyncIterator[Any], *more: Any, **options: Any
) -> AsyncIterator[Any]:
    """Read a stream as the SDK does; where nobody listens, it is just that."""
    finishes = _FINISHES.get()
    if finishes is None:
        noted = stream
    else:
        finishes.append((response, ""))
        noted = _noted(finishes, len(finishes) - 1, response, stream)
    async for event in _handle_stream(response, noted, *more, **options):  # type: ignore[arg-type]  # it only iterates
        yield event


async def _noted(finishes: Finishes, place: int, response: object, stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for chunk in stream:
        for choice in chunk.choices:
            if choice.index == 0 and choice.finish_reason is not None:
                finishes[place] = response, choice.finish_reason
        yield chunk


def tap() -> None:
    """Put the note-taking into the SDK's class, once; a model of the user has no place for it, and stays as it is."""
    ChatCmplStreamHandler.handle_stream = staticmethod(_noting_stream)  # type: ignore[method-assign]


CALL_TYPES: dict[type, str] = {
    ShellTool: "shell_call",
    LocalShellTool: "local_shell_call",
    ApplyPatchTool: "apply_patch_call",
}
"""Tools that the SDK runs one call after the other, without saying for which, each with the type of its calls."""


def call_type(tool: Any) -> str | None:
    """Return the type of the calls of a tool that are told apart by their order, or None for tools with call ids."""
    return next((type for kind, type in CALL_TYPES.items() if isinstance(tool, kind)), None)


def agent_in(tool: FunctionTool) -> Agent[Any]:
    """Return the agent that a tool is."""
    found = tool._agent_instance
    assert isinstance(found, Agent)
    return found


def inner_result(context: ToolContext[Any]) -> RunResult | RunResultStreaming | None:
    """Return where the agent that was called as a tool stopped to wait for a person, or None when it does not wait."""
    if context.tool_call is None:
        return None
    scope = agent_tool_state.get_agent_tool_state_scope(context)
    found = agent_tool_state.peek_agent_tool_run_result(context.tool_call, scope_id=scope)
    return found if isinstance(found, RunResult | RunResultStreaming) and found.interruptions else None


def resume_inner(context: ToolContext[Any], state: RunState[Any, Any]) -> None:
    """Have the agent go on from a state when its tool is called with this context."""
    assert context.tool_call is not None
    scope = agent_tool_state.get_agent_tool_state_scope(context)
    agent_tool_state.record_agent_tool_resume_state(context.tool_call, state, scope_id=scope)


def alone(context: ToolContext[Any]) -> None:
    """Keep a call apart from all that look like it: the SDK finds where agents wait by what their calls look like."""
    agent_tool_state.set_agent_tool_state_scope(context, uuid.uuid4().hex)


async def needs_approval(tool: FunctionTool, context: RunContextWrapper[Any], call: ResponseFunctionToolCall) -> bool:
    """Say, as the SDK would, whether a person decides about a call."""
    found = await tool_execution.function_needs_approval(tool, context, call)
    return found.outcome != "invoke"


async def invoke(
    tool: FunctionTool, context: ToolContext[Any], agent: Agent[Any], arguments: str, *, goes_on: bool = False
) -> Any:
    """Run a tool as the SDK would in a turn, with its guardrails, and return what the model is told.

    One that `goes_on` was let in before; one that stops for a person again has no result to guard.
    """
    if not goes_on:
        rejected = await tool_execution._execute_tool_input_guardrails(
            func_tool=tool, tool_context=context, agent=agent, tool_input_guardrail_results=[]
        )
        if rejected is not None:
            return rejected
    result = await invoke_function_tool(function_tool=tool, context=context, arguments=arguments)
    if inner_result(context) is not None:
        return result
    guarded = await tool_execution._execute_tool_output_guardrails(
        func_tool=tool, tool_context=context, agent=agent, real_result=result, tool_output_guardrail_results=[]
    )
    return guarded.output
