"""An MCP server with one tool, over stdio or, with a port, over HTTP; it notes each execution in a file."""

import asyncio
import os
import sys
from pathlib import Path

from mcp.server import MCPServer

from outlast.testing.effects import EffectsLog

folder = Path(sys.argv[1])
shop = MCPServer("shop")


@shop.tool()
async def pay(x: int) -> str:
    """Pay."""
    EffectsLog(folder / "effects").append(f"pay {x}")
    while (folder / "hold").exists():
        await asyncio.sleep(0.01)
    return f"paid {x}"


if __name__ == "__main__":
    (folder / f"server-{os.getpid()}").touch()
    if len(sys.argv) > 2:
        asyncio.run(shop.run_streamable_http_async(port=int(sys.argv[2])))
    else:
        shop.run()
