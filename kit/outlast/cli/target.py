"""From `module:object` or `path.py:object` to a server."""

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from outlast.cli import agent_toml
from outlast.core.errors import OutlastError
from outlast.server import Config, DurableAgentServer, NotAnAgent


class BadTarget(OutlastError):
    """There is no such thing to serve; the message is for people, on one line."""

    code = "bad_target"


def load(target: str, config: Config | None = None) -> DurableAgentServer:
    """Import a target and return its server, made around it when it is an agent. Raise OutlastError.

    It is looked for from the folder of its agent.toml where it comes from one, else from the current folder. The
    variables of `.env` are set before.
    """
    if config is None:
        agent_toml.set_environment()
    place, separator, name = target.rpartition(":")
    if not separator or not place or not name:
        raise BadTarget(f"{target!r} is no target; use module:object or path.py:object, e.g. main:app")
    folder = Path.cwd() if config is None else config.folder
    try:
        module = _file(folder / place) if place.endswith(".py") else _module(place, folder)
    except BadTarget:
        raise
    except SystemExit as error:
        raise BadTarget(f"{place} ended while it was imported: {error}") from error
    except Exception as error:
        raise BadTarget(f"importing {place} failed: {type(error).__name__}: {error}{_where(error)}") from error
    if not hasattr(module, name):
        raise BadTarget(f"{place} has no {name!r}{_suggestion(module)}")
    found = getattr(module, name)
    try:
        server = found if isinstance(found, DurableAgentServer) else DurableAgentServer(found, config=config)
    except NotAnAgent as error:
        raise BadTarget(f"{target} is no DurableAgentServer, and {error}{_remedy(place, name, found)}") from error
    if config is not None and server.config is None:
        server.configure(config)
    server.check()
    return server


def _remedy(place: str, name: str, found: object) -> str:
    if not _is_asgi(found):
        return ""
    folder, file = os.path.split(place)
    module = file.removesuffix(".py") if file.endswith(".py") else place
    option = f"--app-dir {folder} " if folder else ""
    return f". A plain ASGI app is run by `uvicorn {option}{module}:{name}`, also when a server is installed in it"


def _is_asgi(found: object) -> bool:
    """Whether an object looks like an ASGI app: it is called with scope, receive and send, and awaited."""
    function = found if inspect.isroutine(found) else getattr(found, "__call__", None)  # noqa: B004 - its signature
    if isinstance(found, type) or not inspect.iscoroutinefunction(function):
        return False
    return len(inspect.signature(function).parameters) == 3


def _file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise BadTarget(f"there is no file {path}")
    _importable(path.parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise BadTarget(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _module(name: str, folder: Path) -> ModuleType:
    _importable(folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise BadTarget(f"there is no module {name!r} here or installed; try path/to/file.py:object") from error
        raise


def _importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _where(error: BaseException) -> str:
    """Name the line that raised, relative to the current folder."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:
        return ""
    return f" ({os.path.relpath(frames[-1].filename)}:{frames[-1].lineno})"


def _suggestion(module: ModuleType) -> str:
    names = sorted(name for name, value in vars(module).items() if isinstance(value, DurableAgentServer))
    return f"; it has {', '.join(names)}" if names else ""
