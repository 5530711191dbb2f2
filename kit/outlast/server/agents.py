"""What counts as an agent, and which agents a server has."""

import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from outlast.core.conversations import DEFAULT_AGENT
from outlast.core.errors import OutlastError
from outlast.core.integrations import INTEGRATIONS
from outlast.engine import AgentHandlers, Handler


class AgentSetupError(OutlastError):
    """The server cannot serve what it was given: no handler, two of them, or an object that is no agent."""

    code = "agent_setup"


class NotAnAgent(AgentSetupError):
    """What was given as an agent is none."""

    code = "not_an_agent"


@runtime_checkable
class AgentLike(Protocol):
    """What a server can serve. Adapters implement it."""

    @property
    def name(self) -> str | None:
        """The agent's name in the store, unless the server is given another."""

    @property
    def framework(self) -> str:
        """For people, e.g. `langgraph`."""
        ...

    def handlers(self) -> AgentHandlers:
        """Return the functions of this agent."""
        ...


ResumePointHandler = Callable[[str], Any]
"""Takes a session id and tells how that session was interrupted; `async def` or `def`."""


@dataclass(slots=True)
class Handwritten:
    """The agent that `@app.invoke` and its sisters make."""

    name: str | None = None
    framework: str = "python"
    invoke: Handler | None = None
    recover: Handler | None = None
    resume: Handler | None = None
    resume_point: ResumePointHandler | None = None

    def set(self, role: str, handler: Callable[..., Any]) -> None:
        """Take a handler. Raise AgentSetupError when there is one for this role already."""
        if not callable(handler):
            raise AgentSetupError(f"@app.{role} decorates a function, not {handler!r}; write it without parentheses")
        if getattr(self, role) is not None:
            raise AgentSetupError(f"there are two {role} handlers; a server has one (or agents={{name: agent, …}})")
        setattr(self, role, handler)

    @property
    def empty(self) -> bool:
        return not (self.invoke or self.recover or self.resume or self.resume_point)

    def handlers(self) -> AgentHandlers:
        if self.invoke is None:
            raise AgentSetupError("there is no invoke handler: decorate one with @app.invoke, or pass an agent")
        return AgentHandlers(self.invoke, self.recover, self.resume)


@dataclass(frozen=True, slots=True)
class _Bare:
    """Handlers that were passed as they are."""

    bare: AgentHandlers
    name: str | None = None
    framework: str = "python"

    def handlers(self) -> AgentHandlers:
        return self.bare


def as_agent(candidate: object) -> AgentLike:
    """Return an agent for an adapter, for handlers, or for a framework object that an installed integration knows.

    Raise NotAnAgent for anything else.
    """
    if isinstance(candidate, AgentHandlers):
        return _Bare(candidate)
    if isinstance(candidate, AgentLike):
        return candidate
    integrations = importlib.metadata.entry_points(group=INTEGRATIONS)
    for entry_point in integrations:
        if (agent := _recognised(entry_point, candidate)) is not None:
            return agent
    known = ", ".join(sorted(entry_point.name for entry_point in integrations)) or "none"
    raise NotAnAgent(
        f"an object of type {type(candidate).__module__}.{type(candidate).__qualname__} is no agent; an agent is an "
        f"adapter, AgentHandlers, or an object that an installed integration recognises (asked: {known})"
    )


def _recognised(entry_point: importlib.metadata.EntryPoint, candidate: object) -> AgentLike | None:
    """Ask one integration; one whose framework is not installed knows nothing."""
    try:
        recognise = getattr(entry_point.load(), "recognise", None)
    except ImportError:
        return None
    agent: AgentLike | None = None if recognise is None else recognise(candidate)
    return agent


class Agents:
    """The agents of one server, by name."""

    def __init__(self, agent: object | None, agents: Mapping[str, object] | None, name: str | None) -> None:
        if agent is not None and agents is not None:
            raise AgentSetupError("pass either one agent or agents={name: agent, …}, not both")
        if agents is not None and not agents:
            raise AgentSetupError("agents={} is empty")
        self.handwritten = Handwritten(name)
        self._given: dict[str, AgentLike] = {}
        if agents is not None:
            self._given = {name_: as_agent(one) for name_, one in agents.items()}
        elif agent is not None:
            found = as_agent(agent)
            self._given = {name or found.name or DEFAULT_AGENT: found}

    def by_name(self) -> Mapping[str, AgentLike]:
        """Return the agents by name, the handwritten one among them."""
        if not self._given:
            return {self.handwritten.name or DEFAULT_AGENT: self.handwritten}
        if not self.handwritten.empty:
            raise AgentSetupError("there are two invoke handlers: this server has an agent and decorated functions")
        return self._given

    def handlers(self) -> dict[str, AgentHandlers]:
        """Return each agent's functions. Raise AgentSetupError when there are none, or twice."""
        return {name: agent.handlers() for name, agent in self.by_name().items()}
