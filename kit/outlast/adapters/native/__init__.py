"""The native agent: a model, tools, and a loop that survives its process. It uses nothing but the adapters' seam."""

from outlast.adapters.native.agent import Agent
from outlast.adapters.native.hooks import Hooks, JsonlRecorder
from outlast.adapters.native.model import (
    CallDelta,
    Delta,
    Model,
    ProviderError,
    ProviderRateLimited,
    ProviderRefused,
    ProviderTimeout,
    ProviderUnavailable,
    ReasoningDelta,
    Stopped,
    TextDelta,
    ToolSpec,
)
from outlast.adapters.native.tools import Tool, ToolSetupError
from outlast.adapters.native.turn import Limits

__all__ = [
    "Agent",
    "CallDelta",
    "Delta",
    "Hooks",
    "JsonlRecorder",
    "Limits",
    "Model",
    "ProviderError",
    "ProviderRateLimited",
    "ProviderRefused",
    "ProviderTimeout",
    "ProviderUnavailable",
    "ReasoningDelta",
    "Stopped",
    "TextDelta",
    "Tool",
    "ToolSetupError",
    "ToolSpec",
]
