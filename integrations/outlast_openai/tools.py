"""Runs a call that a person agreed to: the SDK does not, for its run is over by then."""

from typing import Any

from agents import Agent, FunctionTool, RunConfig, RunContextWrapper, RunHooks
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall

from outlast.adapters.journal import Outcome, ToolCall
from outlast.adapters.run import Run
from outlast.core import jsontext
from outlast.core.errors import LeaseLost
from outlast_openai import seams
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
) -> Outcome:
    """Run the tool of a started call and return its outcome; whatever it raises is told to the model."""
    arguments = call.arguments if isinstance(call.arguments, str) else jsontext.encode(call.arguments)
    asked = ResponseFunctionToolCall.model_validate({**item, "arguments": arguments})
    wrapper = RunContextWrapper(context)
    tool = await _find(agent, call.name, wrapper)
    if tool is None:
        return Outcome("error", f"there is no tool {call.name!r}")
    given: ToolContext[Any] = ToolContext.from_agent_context(
        wrapper, asked.call_id, tool_call=asked, agent=agent, run_config=config
    )
    if seams.is_agent(tool):
        run.journal.name(None)
    heard = [one for one in (hooks, agent.hooks) if one is not None]
    try:
        for one in heard:
            await one.on_tool_start(given, agent, tool)
        result = await seams.invoke(tool, given, agent, arguments)
        for one in heard:
            await one.on_tool_end(given, agent, tool, result)
    except LeaseLost:
        raise
    except Exception as error:  # noqa: BLE001 - the model is told
        text = f"{type(error).__name__}: {error}"
        return Outcome("error", text, text)
    return outcome_of(asked, result)


async def _find(agent: Agent[Any], name: str, context: RunContextWrapper[Any]) -> FunctionTool | None:
    for tool in await agent.get_all_tools(context):
        if isinstance(tool, FunctionTool) and tool.name == name:
            return tool
    return None
