"""How a command fails: one line on stderr and an exit code, no traceback."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, NoReturn, ParamSpec

import typer

from outlast.core.errors import InvalidRequest, NotJSON, OutlastError

USAGE = 2
"""What was asked cannot be done as it was said."""
FAILED = 1
WAITS = 3
"""The run waits for a person."""
STOPPED = 130
"""By Ctrl-C."""

_ADVICE = {
    "server_unreachable": "is it running? `outlast serve` starts one, --url says where it is",
    "session_active": "wait for its run, or stop it by `outlast invocations cancel`",
    "session_has_children": "--force deletes them too",
    "session_exists": "choose another id",
    "unsupported_for_agent": "what is kept as checkpoints is not items",
}
"""What to do, by the code of an error whose text does not say it."""

P = ParamSpec("P")


def fail(message: str, code: int) -> NoReturn:
    """Say what is wrong and end the command."""
    typer.echo(f"outlast: {' '.join(message.split())}", err=True)
    raise typer.Exit(code)


def fail_with(error: OutlastError) -> NoReturn:
    """End the command for an error: as wrong usage where what was given is wrong."""
    advice = _ADVICE.get(error.code)
    usage = isinstance(error, InvalidRequest | NotJSON)
    fail(f"{error}; {advice}" if advice else str(error), USAGE if usage else FAILED)


def command(work: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a command of a coroutine function."""

    @wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            asyncio.run(work(*args, **kwargs))
        except OutlastError as error:
            fail_with(error)
        except KeyboardInterrupt:
            raise typer.Exit(STOPPED) from None
        except BrokenPipeError:
            # Whoever reads has enough; the interpreter must not try to write the rest at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(FAILED) from None
        except OSError as error:
            fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), FAILED)

    return run
