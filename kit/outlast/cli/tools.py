"""`outlast tools`: the servers of tools that agent.toml declares."""

import os
import shlex
import tempfile
from pathlib import Path
from typing import Annotated, Any

import tomlkit
import typer
from tomlkit.items import AoT

from outlast.adapters import servers
from outlast.adapters.declared import ToolServer
from outlast.cli import agent_toml
from outlast.cli.errors import FAILED, USAGE, fail
from outlast.cli.options import Json
from outlast.cli.output import say, table, write_json
from outlast.core.errors import OutlastError
from outlast.server.config import TOOLS, Config, check

main = typer.Typer(no_args_is_help=True)
adding = typer.Typer(no_args_is_help=True)
main.add_typer(adding, name="add", help="Declare a server of tools in agent.toml.")

Name = Annotated[str, typer.Argument(help="Name of the server; the names of its tools begin with it.")]


@adding.command("mcp")
def mcp(
    name: Name,
    place: Annotated[
        list[str],
        typer.Argument(
            metavar="URL|COMMAND",
            help="Where it listens (streamable HTTP), or the command that starts it (stdio): one text, or words behind --.",
        ),
    ],
    auth: Annotated[
        str, typer.Option(help="With whose credential tools are called: user, who sent the request, or app.")
    ] = "user",
    credential: Annotated[
        str | None,
        typer.Option(
            metavar="VARIABLE",
            help="The environment variable that has the service's own credential; a command gets its credential in it.",
        ),
    ] = None,
) -> None:
    """Declare an MCP server: write `[[tools]]` into agent.toml, and change nothing else there.

    The server is not asked; `outlast tools check` does that. Exit code 2: it cannot be declared so.
    """
    config = _config()
    is_url = len(place) == 1 and "://" in place[0].partition(" ")[0]
    written: dict[str, Any] = {"name": name, "type": "mcp"}
    written |= {"url": place[0]} if is_url else {"command": _words(place)}
    written |= {"auth": auth} | ({"credential": credential} if credential is not None else {})
    document = tomlkit.parse(config.path.read_text("utf-8"))
    declared = document.setdefault(TOOLS, tomlkit.aot())
    declared.append(tomlkit.item(written) if isinstance(declared, AoT) else _inline(written))
    _write(config.path, tomlkit.dumps(document))
    say(f"{config.path.name} declares {name}; `outlast tools check {name}` lists its tools.")


def _words(place: list[str]) -> list[str]:
    try:
        return shlex.split(place[0]) if len(place) == 1 else place
    except ValueError as error:
        fail(f"{place[0]}: {error}", USAGE)


def _inline(written: dict[str, Any]) -> Any:
    found = tomlkit.inline_table()
    found.update(written)
    return found


@main.command("list")
def list_(json: Json = False) -> None:
    """List the servers that agent.toml declares, without asking them."""
    found = [one.model_dump(mode="json") | {"place": one.place} for one in _config().file.tools]
    if json:
        for one in found:
            write_json(one)
    else:
        columns = ("name", "type", "place", "auth", "credential")
        table(columns, [[one[column] for column in columns] for one in found])


@main.command("check")
def check_(
    name: Annotated[str | None, typer.Argument(help="Name of a server. Default: all.")] = None,
    json: Json = False,
) -> None:
    """Ask the servers for their tools, as the service itself, and list them by the names that models know.

    Exit code 1: a server does not answer, or refuses.
    """
    config = _config()
    asked = config.file.tools if name is None else [_declared(config, name)]
    found, failures = list[dict[str, Any]](), list[str]()
    for server in asked:
        try:
            found += [
                {"server": server.name, "tool": one.name, "needs_approval": one.needs_approval,
                 "rerun_safe": one.rerun_safe, "description": one.description}
                for one in servers.tools(server, config.folder)
            ]  # fmt: skip
        except OutlastError as error:
            failures.append(str(error))
    if json:
        for row in found:
            write_json(row)
    else:
        columns = ("server", "tool", "needs_approval", "description")
        table(columns, [[row[column] for column in columns] for row in found])
    if failures:
        fail("; ".join(failures), FAILED)


@main.command("remove")
def remove(name: Name) -> None:
    """Take a server out of agent.toml, and change nothing else there."""
    config = _config()
    _declared(config, name)
    document = tomlkit.parse(config.path.read_text("utf-8"))
    declared: Any = document[TOOLS]
    del declared[[one["name"] for one in declared].index(name)]
    if not declared:
        del document[TOOLS]
    _write(config.path, tomlkit.dumps(document))
    say(f"{config.path.name} does not declare {name} any more.")


def _config() -> Config:
    try:
        return agent_toml.read()
    except OutlastError as error:
        fail(str(error), USAGE)


def _declared(config: Config, name: str) -> ToolServer:
    for one in config.file.tools:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in config.file.tools) or "none"
    fail(f"{config.path.name} declares no server {name!r}; it has {known}", USAGE)


def _write(path: Path, text: str) -> None:
    """Replace a file as a whole, with what can be read as what it is."""
    try:
        check(text, path.name)
    except OutlastError as error:
        fail(str(error), USAGE)
    path = path.resolve()
    number, made = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with open(number, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(made, path.stat().st_mode & 0o777)
        os.replace(made, path)
    except OSError as error:
        Path(made).unlink(missing_ok=True)
        fail(f"{path} cannot be written: {error.strerror}", USAGE)
