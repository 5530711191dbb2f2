"""Runs a call that a person agreed to: the SDK does not, for its run is over by then."""

from collections.abc import Mapping
from typing import Any

from agents import Agent, FunctionTool, RunConfig, RunContextWrapper, RunHooks
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall

from outlast.adapters.journal import Outcome, ToolCall
from outlast.adapters.run import Run
from outlast.core import jsontext
from outlast.core.errors import LeaseLost
from outlast.core.records import Approval
from outlast_openai import inside, seams
from outlast_openai.inside import Parked
from outlast_openai.items import Item
from outlast_openai.observer import outcome_of


async def body(
    run: Run,
    agent: Agent[Any],
    call: ToolCall,
    item: Item,
    *,
    context: Any,
    config: RunConfig | None,
    hooks: RunHooks[Any] | None,
    parked: Parked | None,
    decided: Mapping[str, Approval],
) -> Outcome | ToolContext[Any]:
    """Run the tool of a started call and return its outcome; whatever it raises is told to the model.

    An agent that was `parked` in it goes on as was `decided`; where one stops for a person, the context it was called with is
    returned.
    """
    wrapper = RunContextWrapper(context)
    tool = await _find(agent, call.name, wrapper)
    if tool is None:
        return Outcome("error", f"there is no function tool {call.name!r}")
    asked = _asked(call, item)
    given: ToolContext[Any] = ToolContext.from_agent_context(
        wrapper, asked.call_id, tool_call=asked, agent=agent, run_config=config
    )
    seams.alone(given)
    if seams.is_agent(tool):
        run.journal.name(None)
    heard = [one for one in (hooks, agent.hooks) if one is not None]
    try:
        if parked is not None:
            await inside.go_on(tool, given, parked, decided)
        else:
            for one in heard:
                await one.on_tool_start(given, agent, tool)
        result = await seams.invoke(tool, given, agent, asked.arguments, goes_on=parked is not None)
        if inside.stopped(given):
            return given
        for one in heard:
            await one.on_tool_end(given, agent, tool, result)
    except LeaseLost:
        raise
    except Exception as error:  # noqa: BLE001 - the model is told
        text = f"{type(error).__name__}: {error}"
        return Outcome("error", text, text)
    return outcome_of(asked, result)


async def asks(agent: Agent[Any], call: ToolCall, item: Item, context: RunContextWrapper[Any]) -> bool:
    """Say whether a person decides about a call; where a function of the user says so, it is called."""
    tool = await _find(agent, call.name, context)
    if tool is None or tool.needs_approval is False or item["type"] != "function_call":
        return False
    return await seams.needs_approval(tool, context, _asked(call, item))


def _asked(call: ToolCall, item: Item) -> ResponseFunctionToolCall:
    """Return a call in the SDK's form, with its arguments as they were decided."""
    arguments = call.arguments if isinstance(call.arguments, str) else jsontext.encode(call.arguments)
    return ResponseFunctionToolCall.model_validate({**item, "arguments": arguments})


async def _find(agent: Agent[Any], name: str, context: RunContextWrapper[Any]) -> FunctionTool | None:
    for tool in await agent.get_all_tools(context):
        if isinstance(tool, FunctionTool) and tool.name == name:
            return tool
    return None
