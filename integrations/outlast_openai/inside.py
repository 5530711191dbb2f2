"""An agent that is a tool, stopped before calls of its own that a person decides about.

What the SDK needs to go on inside of it is kept with the question, and used once: the call of the agent waits, and has
started again before the agent goes on. After a crash of that the journal answers, and no tool inside runs twice.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agents import Agent, FunctionTool, RunContextWrapper, RunState, ToolApprovalItem
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall

from outlast.adapters import approvals
from outlast.adapters.approvals import DecisionType, Question
from outlast.adapters.journal import ToolCall
from outlast.core.errors import RunFailed
from outlast.core.records import Approval
from outlast_openai import seams
from outlast_openai.items import Item, note, parsed

ALLOWED = [DecisionType.APPROVE, DecisionType.REJECT]
"""The SDK binds what it goes on with to the arguments it has."""


class Parked(NamedTuple):
    """What is kept of such an agent: its state for the SDK, and the calls in it that wait."""

    state: Item
    calls: tuple[ToolCall, ...]

    @classmethod
    def of(cls, key: str, kept: Item) -> "Parked":
        """Read what is kept for the call of a key."""
        calls = [
            ToolCall(f"{key}:{kept['round']}:{place}", one["call_id"], one["name"], one["arguments"])
            for place, one in enumerate(kept["calls"])
        ]
        return cls(kept["state"], tuple(calls))


def stopped(context: ToolContext[Any]) -> list[ToolApprovalItem]:
    """Return what the agent waits for that was called as a tool with this context."""
    found = seams.inner_result(context)
    return [] if found is None else list(found.interruptions)


def kept(key: str, context: ToolContext[Any], round: int) -> Item:
    """Make the note of what is kept. `round` tells the questions of one call apart that come one after the other."""
    result = seams.inner_result(context)
    assert result is not None
    calls = []
    for item in result.interruptions:
        if not isinstance(item.raw_item, ResponseFunctionToolCall):
            raise RunFailed("approval_unsupported", "the run waits for an approval that is not one of a function tool")
        arguments = parsed(item.raw_item.arguments)
        calls.append({"call_id": item.raw_item.call_id, "name": item.name or "", "arguments": arguments})
    state = _without_contexts(result.to_state().to_json(context_serializer=lambda context: {}))
    return note(parked={"key": key, "round": round, "calls": calls, "state": state})


def about(call: ToolCall) -> Question:
    """Ask about a call inside of an agent."""
    return Question(call.key, call.arguments, name=call.name, call_id=call.call_id, details={"allowed": ALLOWED})


async def go_on(tool: FunctionTool, context: ToolContext[Any], parked: Parked, decided: Mapping[str, Approval]) -> None:
    """Have the agent in a tool go on as was decided when the tool is called with this context."""
    agent = seams.agent_in(tool)
    override: RunContextWrapper[Any] = RunContextWrapper(context.context)
    state: RunState[Any, Agent[Any]] = await RunState.from_json(agent, dict(parked.state), context_override=override)
    for item, call in zip(state.get_interruptions(), parked.calls, strict=True):
        answer = approvals.answer_to(decided[call.key])
        if answer is None:
            state.approve(item)
        else:
            state.reject(item, rejection_message=str(answer.output))
    seams.resume_inner(context, state)


def _without_contexts(value: Any) -> Any:
    """Leave out what the SDK says of the user's context object: it writes mappings down whatever it is told."""
    if isinstance(value, Mapping):
        bare = {**value, "context": {}} if "context_meta" in value else value
        return {name: _without_contexts(one) for name, one in bare.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_without_contexts(one) for one in value]
    return value
