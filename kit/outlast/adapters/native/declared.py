"""Tools of declared servers, for the native agent."""

from typing import Any

from outlast.adapters.native.model import ToolSpec
from outlast.adapters.native.tools import Tool, ToolError
from outlast.adapters.servers import ServerTool, ToolFailed
from outlast.core import jsontext
from outlast.core.errors import NotJSON


class DeclaredTool(Tool):
    """A tool that a server runs; it checks the arguments, too."""

    def __init__(self, served: ServerTool) -> None:
        self.name, self._served = served.name, served
        self.spec = ToolSpec(served.name, served.description, served.schema)

    async def run(self, arguments: str) -> str:
        try:
            return await self._served.call(self.check(arguments))
        except ToolFailed as error:
            raise ToolError(str(error)) from None

    def check(self, arguments: str) -> dict[str, Any]:
        try:
            found = jsontext.decode(arguments or "{}")
        except (NotJSON, ValueError):
            found = None
        if not isinstance(found, dict):
            raise ToolError("the arguments do not fit: they are no JSON object")
        return found

    async def asks(self, arguments: str) -> bool:
        return self._served.needs_approval


tool = DeclaredTool
