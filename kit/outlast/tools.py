"""`outlast.tools.load()`: the tools of the servers that agent.toml declares, in the form of a framework."""

import importlib
import importlib.metadata
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from outlast.adapters import servers
from outlast.adapters.servers import ServerTool, ToolFailed, ToolsUnavailable
from outlast.core.integrations import INTEGRATIONS
from outlast.server.config import Config

__all__ = ["ToolFailed", "Tools", "ToolsUnavailable", "load"]

NATIVE = "native"


class Tools(list[Any]):
    """Tools, with what the declaration says of them, by the names that the model knows."""

    def __init__(
        self, tools: Iterable[Any] = (), *, needs_approval: Iterable[str] = (), rerun_safe: Iterable[str] = ()
    ) -> None:
        super().__init__(tools)
        self.needs_approval = frozenset(needs_approval)
        """A person has to agree to calls of these. Tools of `outlast.Agent` and the OpenAI Agents SDK ask by themselves."""
        self.rerun_safe = frozenset(rerun_safe)
        """These may run again when nobody knows whether they ran: to be given to the adapter."""


def load(framework: str = NATIVE, config: Config | None = None) -> Tools:
    """Return the declared tools for `outlast.Agent`, or for an integration: "langgraph", "openai".

    `config` is what `Config.read` returned; without it, the agent.toml of the current folder is read, or the one that
    OUTLAST_CONFIG names. Each server is asked for its tools, with the service's own credential if it has one; it blocks for
    that long. A call is made with the credential that the server's `auth` says. Raise ToolsUnavailable for a server that
    does not answer, and BadConfig for a file that is not there or wrong.
    """
    if config is None:
        config = Config.read(Path(os.environ.get("OUTLAST_CONFIG") or "."))
    made = _maker(framework)
    found = [tool for server in config.file.tools for tool in servers.tools(server, config.folder)]
    names = [tool.name for tool in found]
    if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
        raise ToolsUnavailable(f"two declared tools are named {twice!r}; give one of their servers another name")
    return Tools(
        map(made, found),
        needs_approval=[tool.name for tool in found if tool.needs_approval],
        rerun_safe=[tool.name for tool in found if tool.rerun_safe],
    )


def _maker(framework: str) -> Callable[[ServerTool], Any]:
    """Return what makes a tool of a framework: `tool` in the module `declared` of its integration."""
    points = {point.name: point.module for point in importlib.metadata.entry_points(group=INTEGRATIONS)}
    modules = {NATIVE: "outlast.adapters.native", **points}
    if framework not in modules:
        raise ValueError(f"there is no framework {framework!r}; there is {', '.join(sorted(modules))}")
    made: Callable[[ServerTool], Any] = importlib.import_module(f"{modules[framework]}.declared").tool
    return made
