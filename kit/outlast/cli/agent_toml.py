"""The `agent.toml` of the current folder, or the one that OUTLAST_CONFIG names."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.core.errors import OutlastError

if TYPE_CHECKING:
    from outlast.server import Config

FILE, PLACE = "agent.toml", "OUTLAST_CONFIG"


class NoProject(OutlastError):
    """There is no `agent.toml`, or it does not say what is asked of it."""

    code = "no_project"


def there() -> bool:
    """Whether there is one to read."""
    return bool(os.environ.get(PLACE)) or Path(FILE).is_file()


def read() -> "Config":
    """Read it. Raise OutlastError where it is not there or wrong."""
    # Here, so that commands beside a server, which only need to know that there is no file, need not import one.
    from outlast.server import Config

    if not there():
        raise NoProject(f"there is no {FILE} here, and {PLACE} names none")
    return Config.read(Path(os.environ.get(PLACE) or "."))


def set_environment() -> None:
    """Set what `.env` says: the one beside agent.toml, or that of the current folder. Raise OutlastError."""
    from outlast.server.config import load_env_file

    if there():
        read()
    else:
        load_env_file(Path())


def served() -> tuple[str, "Config"]:
    """Return what is to be served. Raise OutlastError where that is nothing, or for the user's own server to do."""
    if not there():
        raise NoProject(f"there is no {FILE} here that says what to serve; give a TARGET, e.g. main:app")
    found = read()
    target = found.file.agent.target
    if target is None:
        raise NoProject(f'{found.path.name} has no target: add target = "main:app" to [agent], or give a TARGET')
    if found.custom:
        raise NoProject(f'{found.path.name} says server = "custom": the app is yours, run it by `uvicorn {target}`')
    return target, found


def about(target: str) -> "Config | None":
    """Return what is said of a TARGET that was given: nothing by a file that is about another one.

    The variables in `.env` are set all the same. Raise OutlastError.
    """
    set_environment()
    found = read() if there() else None
    return found if found is not None and not found.custom and found.file.agent.target in (None, target) else None
