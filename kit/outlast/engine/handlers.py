"""What an agent is to the engine: a few functions that take a context."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from outlast.engine.context import InvocationContext

Handler = Callable[[InvocationContext], Any]
"""`async def` or `def`. The return value is the run's output (JSON), or an `Interrupt`."""


@dataclass(frozen=True, slots=True)
class AgentHandlers:
    """The functions of one agent. Without `recover`, a run whose worker dies ends `failed`."""

    invoke: Handler
    recover: Handler | None = None
    resume: Handler | None = None
    cancelled: Handler | None = None
    """Called when a run was cancelled or timed out and its handler has ended or lost its context: to put its history in
    order before the run is final. What it raises is logged."""
    leaving: Callable[[], Awaitable[None]] | None = None
    """Called when the worker leaves and its runs have ended or were handed back: to close what is kept between runs.
    It may be cut off, and what it raises is logged."""
    config_keys: frozenset[str] = frozenset()
    """Keys a request's `config` may have."""

    def choose(self, context: InvocationContext) -> Handler:
        """Return the function that this attempt enters."""
        if context.is_recovery:
            assert self.recover is not None
            return self.recover
        if context.kind == "resume" and self.resume is not None:
            return self.resume
        return self.invoke
