"""Durable agents: turn the agent you have into a service that survives its own death."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast import tools as tools
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

# A name is imported when it is asked for: the command line, and whoever uses only a client, need not wait for a server.
_HOMES = {
    "outlast.adapters.journal": ("current_tool_call",),
    "outlast.adapters.journaled": ("journaled",),
    "outlast.adapters.local": ("open_store",),
    "outlast.adapters.native": ("Agent", "Hooks", "JsonlRecorder", "Tool"),
    "outlast.client": ("AgentClient", "SyncAgentClient"),
    "outlast.core.errors": (
        "AgentResumeError",
        "Conflict",
        "EffectFailed",
        "InvalidRequest",
        "LeaseLost",
        "NotFound",
        "OutcomeUnknown",
        "OutlastError",
        "RunFailed",
        "SessionBusy",
    ),
    "outlast.core.records": ("Interrupt",),
    "outlast.core.reply": ("Reply",),
    "outlast.core.resume": ("ResumeKind", "ResumePoint"),
    "outlast.engine": ("AgentHandlers", "EngineSettings", "InvocationContext"),
    "outlast.server": ("AgentLike", "DurableAgentServer"),
    "outlast.store": ("Store",),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "tools":
        return importlib.import_module("outlast.tools")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
