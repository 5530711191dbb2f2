"""Durable agents: turn the agent you have into a service that survives its own death."""

from outlast.core.errors import (
    AgentResumeError,
    EffectFailed,
    LeaseLost,
    OutcomeUnknown,
    OutlastError,
    RunFailed,
)
from outlast.core.records import Interrupt
from outlast.engine import AgentHandlers, EngineSettings, InvocationContext
from outlast.server import AgentLike, DurableAgentServer
from outlast.store import Store

__all__ = [
    "AgentHandlers",
    "AgentLike",
    "AgentResumeError",
    "DurableAgentServer",
    "EffectFailed",
    "EngineSettings",
    "Interrupt",
    "InvocationContext",
    "LeaseLost",
    "OutcomeUnknown",
    "OutlastError",
    "RunFailed",
    "Store",
]
