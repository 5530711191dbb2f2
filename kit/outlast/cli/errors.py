"""How a command fails: one line on stderr and an exit code, no traceback."""

from typing import NoReturn

import typer

USAGE = 2
"""What was asked cannot be done as it was said."""
FAILED = 1


def fail(message: str, code: int) -> NoReturn:
    """Say what is wrong and end the command."""
    typer.echo(f"outlast: {' '.join(message.split())}", err=True)
    raise typer.Exit(code)
