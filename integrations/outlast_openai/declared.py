"""Tools of declared servers, for agents of the SDK."""

from typing import Any

from agents import FunctionTool

from outlast.adapters.servers import ServerTool, ToolFailed
from outlast.core import jsontext


def tool(served: ServerTool) -> FunctionTool:
    """Return a function tool. What fails is told to the model, and ends no run."""

    async def call(context: Any, arguments: str) -> str:
        try:
            given = jsontext.decode(arguments or "{}")
        except ValueError:
            given = None
        if not isinstance(given, dict):
            return "tool_failed: the arguments are no JSON object"
        try:
            return await served.call(given)
        except ToolFailed as error:
            return str(error)

    return FunctionTool(
        name=served.name, description=served.description, params_json_schema=dict(served.schema), on_invoke_tool=call,
        strict_json_schema=False, needs_approval=served.needs_approval,
    )  # fmt: skip
