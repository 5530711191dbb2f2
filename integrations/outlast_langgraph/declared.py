"""Tools of declared servers, for graphs."""

from typing import Any

from langchain_core.tools import BaseTool, StructuredTool, ToolException

from outlast.adapters.servers import ServerTool, ToolFailed


def tool(served: ServerTool) -> BaseTool:
    """Return a tool for a ToolNode or `create_agent`. What fails is told to the model, and ends no run."""

    async def call(**arguments: Any) -> str:
        try:
            return await served.call(arguments)
        except ToolFailed as error:
            raise ToolException(str(error)) from None

    def call_in_thread(**arguments: Any) -> str:
        try:
            return served.call_from_thread(arguments)
        except ToolFailed as error:
            raise ToolException(str(error)) from None

    return StructuredTool(
        name=served.name, description=served.description, args_schema=dict(served.schema), func=call_in_thread,
        coroutine=call, handle_tool_error=True,
    )  # fmt: skip
