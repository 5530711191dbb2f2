"""`outlast deploy`: the files that deploy a project, rendered from `agent.toml` and never overwritten unseen."""

import difflib
import json as json_text
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from enum import StrEnum
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from outlast.cli import agent_toml
from outlast.cli.errors import FAILED, USAGE, fail
from outlast.cli.options import Json, Yes, confirm
from outlast.cli.output import note, say, write_json
from outlast.cli.rendering import NAME, TEMPLATES, name_of
from outlast.core.errors import OutlastError
from outlast.server import Config
from outlast.server.runtime import LEAVE_SECONDS

PRE_STOP_SECONDS = 5
"""As in the template for Kubernetes."""
MARGIN_SECONDS = 5
SECRET, COMMAND = "MY_SECRET", '"MY_COMMAND"'


class Platform(StrEnum):
    """What a project is deployed to."""

    COMPOSE = "compose"
    KUBERNETES = "kubernetes"


def deploy(
    to: Annotated[Platform, typer.Option("--to", help="What to deploy to.")], yes: Yes = False, json: Json = False
) -> None:
    """Render the files that deploy the project of agent.toml: to read, to commit, and to apply by the tools of the platform.

    Secrets stand in them by name only. A file that would change is shown as a difference, and changed when you agree.
    """
    try:
        config = agent_toml.read()
        rendered = dict(render(config, to))
    except OutlastError as error:
        fail(str(error), USAGE)
    try:
        changed = _changes(config.folder, rendered, json)
        if overwritten := [name for name in changed if (config.folder / name).exists()]:
            confirm(f"Overwrite {', '.join(overwritten)}?", yes)
        _write(config.folder, {name: rendered[name] for name in changed})
    except (OSError, UnicodeDecodeError) as error:
        fail(str(error), FAILED)
    if not json:
        say(f"{', '.join(changed)} written" if changed else f"{', '.join(rendered)}: nothing changes")
        if not (config.folder / "Dockerfile").exists():
            note("There is no Dockerfile here that makes the image; `outlast init` shows one.")


def render(config: Config, to: Platform) -> Iterator[tuple[str, str]]:
    """Give the files for a platform, by their path in the project. Raise NoProject where it is not said what to serve."""
    agent, chosen = config.file.agent, config.file.deploy
    if agent.target is None:
        raise agent_toml.NoProject(f'{config.path.name} has no target: add target = "main:app" to [agent]')
    name = name_of(agent.name or config.folder.name)
    grace = math.ceil(agent.drain_timeout + LEAVE_SECONDS) + MARGIN_SECONDS
    processes = chosen.workers if to is Platform.COMPOSE else 1
    words = {
        COMMAND: ", ".join(map(json_text.dumps, _command(agent.target, processes, config.custom))),
        "MY_GRACE": str(grace + (PRE_STOP_SECONDS if to is Platform.KUBERNETES else 0)),
        "MY_WORKERS": str(chosen.workers),
        "MY_PORT": str(chosen.port),
        '"MY_IMAGE"': json_text.dumps(chosen.image or f"{name}:latest"),
        NAME: name,
    }
    for path, text in _texts(files(TEMPLATES) / "deploy" / to):
        yield path, _filled(text, words, chosen.secrets)


def _command(target: str, workers: int, custom: bool) -> list[str]:
    serve = ["uvicorn", target, "--timeout-keep-alive", "75"] if custom else ["outlast", "serve", "--insecure"]
    many = ["--workers", str(workers)] if workers > 1 else []
    return [*serve, "--host", "0.0.0.0", "--port", "8000", *many]


def _texts(folder: Traversable, below: str = "") -> Iterator[tuple[str, str]]:
    for one in sorted(folder.iterdir(), key=lambda one: one.name):
        if one.is_dir():
            yield from _texts(one, f"{below}{one.name}/")
        else:
            yield f"{below}{one.name}", one.read_text("utf-8")


def _filled(text: str, words: Mapping[str, str], secrets: tuple[str, ...]) -> str:
    """Put values in the place of words, and a line for each secret in that of the one that names it."""
    lines = []
    for line in text.splitlines(keepends=True):
        lines += [line.replace(SECRET, one) for one in secrets] if SECRET in line else [line]
    # In one go: what is put in is not looked at again.
    return re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], "".join(lines))


def _changes(folder: Path, rendered: Mapping[str, str], json: bool) -> list[str]:
    """Show what would change, and return the names of the files."""
    changed = []
    for name, text in rendered.items():
        path = folder / name
        before = path.read_text("utf-8") if path.exists() else None
        lines = difflib.unified_diff(
            (before or "").splitlines(keepends=True), text.splitlines(keepends=True), name, name
        )
        difference = "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
        if before != text:
            changed.append(name)
        if json:
            kind = "new" if before is None else "changed" if before != text else "same"
            write_json({"file": name, "change": kind, "diff": difference})
        elif before is not None and difference:
            say(difference.rstrip("\n"))
    return changed


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write the files, each whole or not at all, and none before all could be written beside their places."""
    staged: list[tuple[str, Path]] = []
    try:
        for name, text in texts.items():
            (path := folder / name).parent.mkdir(parents=True, exist_ok=True)
            descriptor, aside = tempfile.mkstemp(prefix=".outlast-deploy-", dir=path.parent)
            staged.append((aside, path))
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            Path(aside).chmod(0o644)
        while staged:
            os.replace(*staged[0])
            staged.pop(0)
    finally:
        for aside, _ in staged:
            Path(aside).unlink(missing_ok=True)
