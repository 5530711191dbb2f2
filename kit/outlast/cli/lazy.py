"""Commands that are imported when they are called: `outlast --help`, and completion, must not wait for what they need."""

import importlib
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from outlast.cli import integrations


@dataclass(frozen=True, slots=True)
class Lazy:
    """A command: the module that has it, its name there, and the line that tells of it in a list."""

    module: str
    name: str
    help: str

    def load(self) -> Any:
        """Import the command."""
        found = getattr(importlib.import_module(self.module), self.name)
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        alone = typer.Typer(add_completion=False)
        alone.command()(found)
        return typer.main.get_command(alone)


OWN = {
    "init": Lazy("outlast.cli.init", "init", "Make a project of a template."),
    "serve": Lazy("outlast.cli.serve", "serve", "Serve an agent."),
    "demo": Lazy("outlast.cli.demo", "demo", "Show a run that survives its server, in well under a minute."),
    "deploy": Lazy("outlast.cli.deploy", "deploy", "Render the files that deploy a project."),
    "invoke": Lazy("outlast.cli.invoke", "invoke", "Run an agent on an input."),
    "invocations": Lazy("outlast.cli.invocations", "main", "Look after runs: list, show, events, cancel, delete."),
    "sessions": Lazy(
        "outlast.cli.sessions", "main", "Look after conversations: list, items, resume, fork, export, import."
    ),
    "approvals": Lazy("outlast.cli.approvals", "main", "See what waits for a person, and decide."),
    "memory": Lazy("outlast.cli.memory", "main", "See and change what is known about somebody."),
    "crashtest": Lazy(
        "outlast.testing.cli", "crashtest", "Kill an agent wherever a run is stored, and see that it comes back."
    ),
    "tools": Lazy("outlast.cli.tools", "main", "Declare servers of tools in agent.toml: add, list, check, remove."),
    "models": Lazy("outlast.cli.models", "main", "List the models of a provider."),
    "workers": Lazy("outlast.cli.workers", "workers", "List the workers of a store."),
    "store": Lazy("outlast.cli.store", "main", "Look after a database: migrate, status, prune, backup."),
    "config": Lazy("outlast.cli.config", "config", "Show what agent.toml and the environment say."),
    "doctor": Lazy(
        "outlast.cli.doctor", "doctor", "Look at everything that outlast needs here, and say how to mend it."
    ),
}


class Commands(TyperGroup):
    """The kit's own commands, and behind them one group for each integration that has some."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, lazy in OWN.items():
            self.add_command(TyperCommand(name, help=lazy.help))

    def list_commands(self, ctx: Any) -> list[str]:
        return [*OWN, *sorted(name for name in integrations.modules() if name not in OWN)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return what is enough for a list; `resolve_command` returns what can be called."""
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        module = integrations.modules().get(cmd_name)
        return None if module is None else integrations.Integration(cmd_name, module)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, OWN[name].load() if name in OWN else command, rest
