"""The Model Context Protocol, by its official package: what a connection to a server of tools can do."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from outlast.adapters.declared import Answer, ListedTool, Lost, Refused, ToolServer
from outlast.core import jsontext

try:
    import httpx2
    from mcp import Client, MCPError
    from mcp.client.stdio import StdioServerParameters
    from mcp.client.streamable_http import streamable_http_client
    from mcp_types import CONNECTION_CLOSED, CallToolResult, TextContent
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS
except ImportError as error:
    raise ImportError("tools of MCP servers need the package mcp: pip install 'outlast[mcp]'") from error

CONNECT_SECONDS, READ_SECONDS = 30.0, 300.0
"""As the package has them; a server that works longer has to tell of its progress."""


class Connection:
    """An open connection, as `declared.Connection` says."""

    def __init__(self, client: Client, refusals: list[int]) -> None:
        self._client, self._refusals = client, refusals

    async def tools(self) -> list[ListedTool]:
        """List what the server has."""
        found: list[ListedTool] = []
        cursor = None
        while True:
            page = await self._client.list_tools(cursor=cursor, cache_mode="refresh")
            found += [ListedTool(one.name, one.description or one.title or "", one.input_schema) for one in page.tools]
            if (cursor := page.next_cursor) is None:
                return found

    async def call(self, name: str, arguments: Mapping[str, Any], meta: Mapping[str, Any]) -> Answer:
        """Call a tool. Raise Lost or Refused; what else goes wrong is the answer."""
        del self._refusals[:]
        try:
            result = await self._client.call_tool(name, dict(arguments), meta={**meta} or None)  # type: ignore[arg-type]  # any keys
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise Lost(str(error)) from error
            if self._refusals:
                raise Refused(f"it answers with status {self._refusals[-1]}") from error
            return Answer(str(error), failed=True)
        return Answer(_text(result), failed=bool(result.is_error))

    async def look(self) -> None:
        """Ask for nothing; raise when there is no answer."""
        session = self._client.session
        if self._client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            await session.send_discover(self._client.protocol_version)
        else:
            await session.send_ping()


@asynccontextmanager
async def connected(server: ToolServer, credential: str | None, folder: Path) -> AsyncIterator[Connection]:
    """Connect with a credential, in the task that also leaves. Raise Refused, or whatever a transport raises."""
    refusals: list[int] = []

    async def note(response: httpx2.Response) -> None:
        if response.status_code in (401, 403):
            refusals.append(response.status_code)

    async with AsyncExitStack() as stack:
        if server.url is None:
            program, *arguments = server.command or ()
            # Beside what every program needs it gets its credential, and no other variable of the service.
            given = {server.credential: credential} if server.credential and credential else {}
            place: Any = StdioServerParameters(command=program, args=arguments, env=given, cwd=folder)
        else:
            headers = {} if credential is None else {"authorization": f"Bearer {credential}"}
            timeout = httpx2.Timeout(CONNECT_SECONDS, read=READ_SECONDS)
            http = httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks={"response": [note]})
            place = streamable_http_client(server.url, http_client=await stack.enter_async_context(http))
        try:
            client = await stack.enter_async_context(Client(place))
        except Exception as error:
            if refusals:
                raise Refused(f"it answers with status {refusals[-1]}") from error
            raise
        yield Connection(client, refusals)


def _text(result: CallToolResult) -> str:
    """Return what a model is told. What is no text is named only."""
    told = [one.text if isinstance(one, TextContent) else f"[{one.type}]" for one in result.content]
    if not told and result.structured_content is not None:
        return jsontext.encode(result.structured_content)
    return "\n".join(told)
