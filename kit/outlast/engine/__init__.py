"""Accept, order, claim, lease, attempt, recover, cancel, drain: durable runs on a store, without HTTP."""

from outlast.engine.auth import RequestAuth
from outlast.engine.context import InvocationContext
from outlast.engine.engine import Draining, Engine
from outlast.engine.follow import Entry, Follower
from outlast.engine.handlers import AgentHandlers, Handler
from outlast.engine.settings import EngineSettings

__all__ = [
    "AgentHandlers",
    "Draining",
    "Engine",
    "EngineSettings",
    "Entry",
    "Follower",
    "Handler",
    "InvocationContext",
    "RequestAuth",
]
