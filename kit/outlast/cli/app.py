"""The command `outlast`; its commands are in `lazy`."""

import importlib.metadata
from typing import Annotated

import typer

from outlast.cli.lazy import Commands

main = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"outlast {importlib.metadata.version('outlast')}")
        raise typer.Exit


@main.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Durable agents: runs that survive the death of their server."""
