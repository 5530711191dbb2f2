"""Durable agents: turn the agent you have into a service that survives its own death."""

from outlast.adapters.journal import current_tool_call
from outlast.adapters.journaled import journaled
from outlast.adapters.local import open_store
from outlast.adapters.native import Agent, Hooks, JsonlRecorder, Tool
from outlast.client import AgentClient, SyncAgentClient
from outlast.core.errors import (
    AgentResumeError,
    Conflict,
    EffectFailed,
    InvalidRequest,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    OutlastError,
    RunFailed,
    SessionBusy,
)
from outlast.core.records import Interrupt
from outlast.core.reply import Reply
from outlast.core.resume import ResumeKind, ResumePoint
from outlast.engine import AgentHandlers, EngineSettings, InvocationContext
from outlast.server import AgentLike, DurableAgentServer
from outlast.store import Store

__all__ = [
    "Agent",
    "AgentClient",
    "AgentHandlers",
    "AgentLike",
    "AgentResumeError",
    "Conflict",
    "DurableAgentServer",
    "EffectFailed",
    "EngineSettings",
    "Hooks",
    "Interrupt",
    "InvalidRequest",
    "InvocationContext",
    "JsonlRecorder",
    "LeaseLost",
    "NotFound",
    "OutcomeUnknown",
    "OutlastError",
    "Reply",
    "ResumeKind",
    "ResumePoint",
    "RunFailed",
    "SessionBusy",
    "Store",
    "SyncAgentClient",
    "Tool",
    "current_tool_call",
    "journaled",
    "open_store",
]
