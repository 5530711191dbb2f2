"""`outlast init`: make a project of a template, whole or not at all."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import typer

from outlast.cli import target as targets
from outlast.cli.errors import FAILED, STOPPED, USAGE, fail
from outlast.cli.output import note, say
from outlast.cli.rendering import NAME, TEMPLATES, Choices, Framework, Server, name_of, render, render_around
from outlast.core.errors import OutlastError

ADDED = ("runtime", "agent.toml", "tests/test_runtime.py")
LONGEST_NAME = 255
"""Bytes that file systems take."""
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

Word = TypeVar("Word", Framework, Server)


def init(
    folder: Annotated[
        str | None, typer.Argument(metavar="NAME", help=f"Folder to make, or an empty one. Default: {NAME}.")
    ] = None,
    framework: Annotated[
        Framework | None, typer.Option(help="What the agent is made with. Default: langgraph.")
    ] = None,
    server: Annotated[
        Server | None, typer.Option(help="The app of outlast, or an own app with it inside. Default: outlast.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model at its provider.")] = None,
    existing: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:OBJECT",
            help="An agent of the current folder to make a service of; adds runtime/, agent.toml and a test.",
        ),
    ] = None,
    no_install: Annotated[bool, typer.Option("--no-install", help="Do not install what the project needs.")] = False,
) -> None:
    """Make a project: an agent with tools, the service around it, tests that need no key.

    What is not given is asked for on a terminal. What the project needs is installed by pip beside outlast.
    """
    if importlib.util.find_spec(TEMPLATES) is None:
        fail("the templates are not installed: pip install outlast", FAILED)
    if existing is not None:
        if folder is not None or framework is not None or model is not None:
            fail("--existing is for the agent of the current folder: give no NAME, --framework or --model", USAGE)
        _bring_in(existing, server or Server.OUTLAST)
        return
    asks = typer.get_text_stream("stdin").isatty()
    try:
        if folder is None:
            folder = typer.prompt("Folder", default=NAME, err=True) if asks else NAME
        place = _checked(folder)
        choices = Choices(
            name_of(place.resolve().name),
            _chosen(framework, Framework.LANGGRAPH, "Framework", asks),
            _chosen(server, Server.OUTLAST, "Server", asks),
            _model(model),
        )
        with _whole(place) as new:
            render(choices, new)
    except (KeyboardInterrupt, typer.Abort):
        _leave()
    except OSError as error:
        fail(f"{error.filename or folder}: {error.strerror or error}", FAILED)
    say(f"{place} has the project {choices.name}.")
    if not no_install:
        _install(place)
    _tell_what_is_next(place)


def _bring_in(target: str, server: Server) -> None:
    """Add what serves an agent to the folder that has it, and change nothing that is there."""
    found = re.fullmatch(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)", target)
    if found is None:
        fail(f"--existing {target!r} is not like module:object, such as app.graph:graph", USAGE)
    try:
        targets.load(target)
    except OutlastError as error:
        fail(str(error), USAGE)
    place = Path()
    if taken := [name for name in ADDED if os.path.lexists(place / name)]:
        fail(f"there is {', '.join(taken)} already, and nothing that is there is changed", USAGE)
    name = name_of(place.resolve().name)
    try:
        with _whole(place) as new:
            render_around(found[1], found[2], Choices(name, Framework.NATIVE, server), new)
    except KeyboardInterrupt:
        _leave()
    except OSError as error:
        fail(f"{error.filename or place}: {error.strerror or error}", FAILED)
    say(f"The agent {name} has a service: {', '.join(ADDED)}.")
    say("  python -m runtime.main")


def _leave() -> NoReturn:
    note("\nnothing was made")
    raise typer.Exit(STOPPED) from None


def _chosen(given: Word | None, default: Word, what: str, asks: bool) -> Word:
    if given is not None or not asks:
        return given or default
    kind = type(default)
    words = ", ".join(kind)
    while (said := typer.prompt(f"{what} ({words})", default=default.value, err=True)) not in set(kind):
        note(f"it is one of {words}")
    return kind(said)


def _model(given: str | None) -> str | None:
    if given is not None and (not given.strip() or _UNPRINTABLE.search(given)):
        fail("--model is no name of a model", USAGE)
    return given


def _checked(folder: str) -> Path:
    """Refuse, before anything is written, a name that cannot be and a place where something is."""
    place = Path(folder)
    name = place.absolute().name
    if not folder or not name or name == ".." or _UNPRINTABLE.search(folder):
        fail(f"{folder!r} is no name of a folder", USAGE)
    if "?" in str(place.absolute()):
        fail(f"{folder!r} cannot stand in the URL of a store because of its question mark; choose another name", USAGE)
    if len(os.fsencode(name)) > LONGEST_NAME:
        fail(f"the name is longer than {LONGEST_NAME} bytes", USAGE)
    if place.is_symlink():
        fail(f"{place} is a symbolic link; name the folder itself", USAGE)
    if place.is_dir():
        if any(place.iterdir()):
            fail(f"{place} is not empty, and nothing in it is changed; choose another name", USAGE)
    elif place.exists():
        fail(f"{place} is a file", USAGE)
    elif not place.absolute().parent.is_dir():
        fail(f"there is no folder {place.parent}", USAGE)
    return place


@contextmanager
def _whole(place: Path) -> Iterator[Path]:
    """Give a folder beside `place` whose files are there at the end of the block, and nowhere if it is left before."""
    existed = place.is_dir()
    # Inside one that exists: it may be the current folder of a shell, or a mount, and so not be replaced itself.
    aside = Path(tempfile.mkdtemp(prefix=".outlast-init-", dir=place if existed else place.absolute().parent))
    moved: list[Path] = []
    try:
        (new := aside / "new").mkdir()
        yield new
        if not existed:
            new.rename(place)
            return
        for one in _parts(new, place):
            moved.append(place / one.relative_to(new))
            one.rename(moved[-1])
        moved.clear()
    finally:
        for one in moved:
            shutil.rmtree(one) if one.is_dir() else one.unlink(missing_ok=True)
        shutil.rmtree(aside)


def _parts(new: Path, place: Path) -> Iterator[Path]:
    """Give what has to be moved: of a folder that is there already, what is in it."""
    for one in sorted(new.iterdir()):
        if (place / one.name).is_dir():
            yield from sorted(one.iterdir())
        else:
            yield one


def _install(place: Path) -> None:
    project = tomllib.loads((place / "pyproject.toml").read_text("utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    shown = shlex.join(["pip", "install", *needed])
    if importlib.util.find_spec("pip") is None:
        note(f"There is no pip here to install what it needs: {shown}")
        return
    note(shown)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *needed]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
    except KeyboardInterrupt:
        note(f"\nnot installed; the project is there. Later: {shown}")
        raise typer.Exit(STOPPED) from None
    if done.returncode != 0:
        fail(f"pip failed, see above; the project is there. Again: {shown}", FAILED)


def _tell_what_is_next(place: Path) -> None:
    if place.resolve() != Path.cwd():
        say(f"  cd {shlex.quote(str(place))}")
    say("  pytest                    # offline, without a key")
    say("  cp .env.example .env      # and put your key into it")
    say("  python -m runtime.main")
