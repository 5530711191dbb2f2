"""The agents that a conversation may be in, and what about them cannot be made durable."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agents import (
    Agent,
    ApplyPatchTool,
    ComputerTool,
    CustomTool,
    Handoff,
    ProgrammaticToolCallingTool,
    RunConfig,
    ShellTool,
)
from agents.mcp import MCPServer

from outlast_openai import seams

_NO_CALL_ID = (ComputerTool, ProgrammaticToolCallingTool)


class CannotBeDurable(TypeError):
    """An agent has something of which outlast cannot promise that it runs at most once."""


class Graph:
    """The agents that can be reached by handoffs, by name. Raises CannotBeDurable."""

    def __init__(self, root: Agent[Any]) -> None:
        self.root = root
        self.agents: dict[str, Agent[Any]] = {}
        self.servers: list[MCPServer] = []
        """The MCP servers of all agents, also of those that are tools."""
        for agent in _reachable(root, []):
            if agent.name in self.agents:
                raise CannotBeDurable(
                    f"two agents are named {agent.name!r}: a session notes by its name which agent it is in; rename one"
                )
            self.agents[agent.name] = agent
        for agent in self.agents.values():
            _check_tools(agent)
        for agent in _all(self.agents.values()):
            for server in agent.mcp_servers:
                _check_server(agent, server)
                if not any(server is one for one in self.servers):
                    self.servers.append(server)

    def narrows(self, source: str, target: str, config: RunConfig | None) -> bool:
        """Say whether an agent that is handed over to may see less, or other things, than the history."""
        if config is not None and config.handoff_input_filter is not None:
            return True
        nests = config is not None and config.nest_handoff_history
        for one in self.at(source).handoffs:
            if isinstance(one, Handoff) and one.agent_name == target:
                if one.input_filter is not None:
                    return True
                nests = nests if one.nest_handoff_history is None else one.nest_handoff_history
        return nests

    def at(self, name: str | None) -> Agent[Any]:
        """Return the agent of a name, or the first one for a name that is not there any more."""
        return self.agents.get(name or "", self.root)

    def is_handoff(self, agent: str | None, tool_name: str) -> bool:
        """Say whether a call of an agent hands over to another."""
        return tool_name in {
            one.tool_name if isinstance(one, Handoff) else Handoff.default_tool_name(one)
            for one in self.at(agent).handoffs
        }

    def stops_at(self, agent: str | None, tool_names: Sequence[str]) -> int | None:
        """Return which of the calls of a response has the agent's last word as its result, or None where none has.

        A function of the user that decides so is given what tools returned, which is not kept.
        """
        behaviour = self.at(agent).tool_use_behavior
        if any(self.is_handoff(agent, name) for name in tool_names):
            return None
        if behaviour == "stop_on_first_tool":
            return 0 if tool_names else None
        stops = behaviour.get("stop_at_tool_names", []) if isinstance(behaviour, dict) else []
        return next((place for place, name in enumerate(tool_names) if name in stops), None)


def _reachable(agent: Agent[Any], known: list[Agent[Any]]) -> list[Agent[Any]]:
    """Return each agent once; agents cannot be hashed."""
    if any(agent is one for one in known):
        return known
    known.append(agent)
    for next_agent in _targets(agent):
        _reachable(next_agent, known)
    return known


def _all(agents: Iterable[Agent[Any]]) -> list[Agent[Any]]:
    """Return these agents, those that are tools of them, and those that are reached from there."""
    known: list[Agent[Any]] = []
    for agent in agents:
        _reachable(agent, known)
    for agent in known:  # it grows
        for inner in seams.agents_in_tools(agent):
            _reachable(inner, known)
    return known


def _check_server(agent: Agent[Any], server: MCPServer) -> None:
    if getattr(server, "max_retry_attempts", 0):
        raise CannotBeDurable(
            f"{agent.name}: the MCP server {server.name!r} has max_retry_attempts: a call whose answer was lost would be "
            "sent again; leave it out, outlast connects again by itself"
        )


def _targets(agent: Agent[Any]) -> Iterator[Agent[Any]]:
    for one in agent.handoffs:
        target = one if isinstance(one, Agent) else seams.target_of(one)
        if target is None:
            raise CannotBeDurable(
                f"{agent.name}: the agent behind the handoff {one.tool_name!r} cannot be found before it is called, and so not "  # type: ignore[union-attr]
                "after a crash; make it with `handoff(agent)`"
            )
        yield target


def _check_tools(agent: Agent[Any]) -> None:
    for tool in agent.tools:
        if isinstance(tool, _NO_CALL_ID):
            raise CannotBeDurable(
                f"{agent.name}: the SDK does not say for which call a {type(tool).__name__} runs, so that outlast cannot keep it "
                "from running twice; do the work in a function tool"
            )
        if isinstance(tool, ShellTool) and tool.executor is None:
            raise CannotBeDurable(
                f"{agent.name}: a shell at the provider has results of its own; take one with an executor"
            )
        if isinstance(tool, CustomTool | ShellTool | ApplyPatchTool) and tool.needs_approval is not False:
            raise CannotBeDurable(
                f"{agent.name}: approvals are for function tools; make {tool.name!r} one, or leave needs_approval out"
            )
