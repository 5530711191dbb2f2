"""The HTTP server: a FastAPI app whose handlers are durable."""

from outlast.server.agents import AgentLike, AgentSetupError, NotAnAgent
from outlast.server.app import DurableAgentServer
from outlast.server.config import BadConfig, Config

__all__ = ["AgentLike", "AgentSetupError", "BadConfig", "Config", "DurableAgentServer", "NotAnAgent"]
