"""A project of a template: files that all have in common, those of its framework, and those of its server."""

import json
import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

TEMPLATES = "outlast_templates"
_CACHES = ("__pycache__", ".ruff_cache")
"""Found beside templates that were compiled, as pip does, or checked."""
NAME, MODEL, SERVER = "my-agent", '"gpt-5-mini"', 'server = "outlast"'
EXISTING = "from my_module import my_object as agent"
"""What stands in the templates where a project has its own: each template runs, and is read and checked, as it is."""


class Framework(StrEnum):
    """What the agent is made with."""

    LANGGRAPH = "langgraph"
    OPENAI = "openai"
    NATIVE = "native"


class Server(StrEnum):
    """Whose app it is: that of outlast, or the user's own with a server installed in it."""

    OUTLAST = "outlast"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class Choices:
    """What was chosen for a project."""

    name: str
    framework: Framework
    server: Server = Server.OUTLAST
    model: str | None = None


def render(choices: Choices, folder: Path) -> None:
    """Write a project into a folder that is there and empty."""
    layers = ["common", choices.framework, *(["custom"] if choices.server is Server.CUSTOM else [])]
    for layer in layers:
        _copy(files(TEMPLATES) / layer, folder, _replacements(choices))


def render_around(module: str, attribute: str, choices: Choices, folder: Path) -> None:
    """Write what serves an agent that is there, `attribute` of `module`, into a folder that is there and empty."""
    alias = attribute if attribute == "agent" else f"{attribute} as agent"
    replacements = {**_replacements(choices), EXISTING: f"from {module} import {alias}"}
    for layer in ["existing", *(["existing_custom"] if choices.server is Server.CUSTOM else [])]:
        _copy(files(TEMPLATES) / layer, folder, replacements)
    _write(files(TEMPLATES) / "common" / "agent.toml", folder, replacements)


def name_of(folder: str) -> str:
    """Return what a project in a folder of this name is called: what packages and agents may be called too."""
    plain = unicodedata.normalize("NFKD", folder).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")[:60].strip("-") or NAME


def _replacements(choices: Choices) -> dict[str, str]:
    found = {NAME: choices.name, SERVER: f'server = "{choices.server}"'}
    if choices.model is not None:
        found[MODEL] = json.dumps(choices.model)
    return found


def _copy(source: Traversable, folder: Path, replacements: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for one in source.iterdir():
        if one.is_dir():
            if one.name not in _CACHES:
                _copy(one, folder / one.name, replacements)
        else:
            _write(one, folder, replacements)


def _write(file: Traversable, folder: Path, replacements: dict[str, str]) -> None:
    text = file.read_text("utf-8")
    for word, own in replacements.items():
        text = text.replace(word, own)
    (folder / file.name).write_text(text, "utf-8")
