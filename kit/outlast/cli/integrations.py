"""Commands of integrations: `outlast NAME …` for an entry point that has a module `commands` with a typer app `main`.

Nothing of an integration is imported before one of its commands is asked for: frameworks take seconds.
"""

import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
from typing import Any

import typer
from typer.core import TyperGroup

from outlast.cli.errors import FAILED, fail
from outlast.core.errors import OutlastError
from outlast.core.integrations import INTEGRATIONS

COMMANDS = "commands"


class Integration(TyperGroup):
    """The commands of one integration, imported when they are needed."""

    def __init__(self, name: str, module: str) -> None:
        super().__init__(name=name, help=f"Commands for {name}.", no_args_is_help=True)
        self._module = module

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self._loaded())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self._loaded().get(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OutlastError as error:
            fail(str(error), FAILED)

    def _loaded(self) -> dict[str, Any]:
        try:
            main: typer.Typer = importlib.import_module(f"{self._module}.{COMMANDS}").main
        except ModuleNotFoundError as error:
            fail(str(error), FAILED)
        return dict(typer.main.get_group(main).commands)


def modules() -> dict[str, str]:
    """Return the integrations that have commands, by name. Looks for the files only."""
    return {
        point.name: point.module
        for point in importlib.metadata.entry_points(group=INTEGRATIONS)
        if _has_commands(point.module)
    }


def _has_commands(module: str) -> bool:
    package = importlib.util.find_spec(module.partition(".")[0])
    if package is None or package.submodule_search_locations is None or "." in module:
        return False
    return importlib.machinery.PathFinder.find_spec(COMMANDS, list(package.submodule_search_locations)) is not None
