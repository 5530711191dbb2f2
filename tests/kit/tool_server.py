"""An MCP server over stdio or, with a port, over HTTP; it notes each execution, and each process, in a folder."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

from outlast.testing.effects import EffectsLog

folder = Path(sys.argv[1])
shop = MCPServer("shop")


@shop.tool()
async def pay(x: int, context: Context[Any]) -> str:
    """Pay."""
    meta = dict(context.request_context.meta or {})
    EffectsLog(folder / "keys").append(str(meta.get("outlast/idempotency_key")))
    EffectsLog(folder / "effects").append(f"pay {x}")
    while (folder / "hold").exists():
        await asyncio.sleep(0.01)
    return f"paid {x}"


@shop.tool()
async def whose(context: Context[Any]) -> str:
    """Say with whose credential this was called, without showing it."""
    header = (context.headers or {}).get("authorization") or f"Bearer {os.environ.get('SHOP_TOKEN')}"
    return {"Bearer of-ann": "ann", "Bearer of-app": "app", "Bearer None": "nobody"}.get(header, "somebody")


@shop.tool()
async def echo_secret(context: Context[Any]) -> str:
    """Show what no server should show."""
    return f"you sent {(context.headers or {}).get('authorization')}"


@shop.tool()
async def fail() -> str:
    """Fail."""
    raise ToolError("no money")


def app() -> Any:
    """Return the HTTP app; while a file `locked` is there, whoever has no credential is sent away."""
    inner = shop.streamable_http_app()

    async def asked(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and (folder / "locked").exists():
            headers = dict(scope["headers"])
            if headers.get(b"authorization") not in (b"Bearer of-ann", b"Bearer of-app"):
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await inner(scope, receive, send)

    return asked


if __name__ == "__main__":
    (folder / f"server-{os.getpid()}").touch()
    if len(sys.argv) > 2:
        uvicorn.run(app(), port=int(sys.argv[2]), log_level="warning")
    else:
        shop.run()
