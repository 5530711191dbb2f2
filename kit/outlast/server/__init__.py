"""The HTTP server: a FastAPI app whose handlers are durable."""

from outlast.server.agents import AgentLike, AgentSetupError, NotAnAgent
from outlast.server.app import DurableAgentServer

__all__ = ["AgentLike", "AgentSetupError", "DurableAgentServer", "NotAnAgent"]
