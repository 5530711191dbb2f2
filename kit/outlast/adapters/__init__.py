"""The seam between agent frameworks and the kit, built once for all of them."""

from outlast.adapters.journal import CurrentToolCall, current_tool_call
from outlast.adapters.journaled import journaled
from outlast.adapters.local import LocalStore, open_store
from outlast.adapters.memory import MEMORY_TOOLS
from outlast.adapters.protocol import AgentAdapter, DurableAgent
from outlast.adapters.session import ChatSession, SyncChatSession
from outlast.core.reply import Reply

__all__ = [
    "MEMORY_TOOLS",
    "AgentAdapter",
    "ChatSession",
    "CurrentToolCall",
    "DurableAgent",
    "LocalStore",
    "Reply",
    "SyncChatSession",
    "current_tool_call",
    "journaled",
    "open_store",
]
