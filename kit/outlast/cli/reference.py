"""The page of all commands, made of the commands themselves: `python -m outlast.cli.reference > docs/cli-reference.md`."""

from collections.abc import Iterator
from enum import Enum, EnumType
from typing import Any, get_args

import typer
from pydantic_core import PydanticUndefined

from outlast.adapters.declared import ToolServer
from outlast.cli.lazy import OWN
from outlast.server.config import settings

_HEAD = """# Commands and settings

<!-- Made by `python -m outlast.cli.reference > docs/cli-reference.md`; a test compares it with the code. -->

Every command and option; [Command line](cli.md) tells what they are for.
"""


def reference() -> str:
    """Return the page as Markdown."""
    commands = (line for name, lazy in OWN.items() for line in _lines(f"outlast {name}", lazy.load()))
    return "\n".join([_HEAD, *commands, *_settings()])


def _settings() -> Iterator[str]:
    yield "## agent.toml\n"
    yield "[The file of a project](cli.md#agenttoml). Spans of time are seconds, or texts such as `90s`, `12h` and `30d`.\n"
    yield "| section | key | variable | default | |\n| --- | --- | --- | --- | --- |"
    for one in settings():
        section, _, name = one.key.partition(".")
        default = "" if one.default in (None, ()) else f"`{one.default}`"
        variable = "" if one.variable is None else f"`{one.variable}`"
        yield f"| `[{section}]` | `{name}` | {variable} | {default} | {one.description} |"
    yield "\n[Each `[[tools]]`](tools.md) is a server of tools:\n\n| key | default | |\n| --- | --- | --- |"
    for name, field in ToolServer.model_fields.items():
        default = "" if field.default in (None, PydanticUndefined) else f"`{field.default}`"
        yield f"| `{name}` | {default} | {field.description} |"
    yield ""


def _lines(path: str, command: Any) -> Iterator[str]:
    below = getattr(command, "commands", None)
    if below:
        for name, one in below.items():
            yield from _lines(f"{path} {name}", one)
        return
    yield f"## {path}\n"
    yield f"```text\n{' '.join([path, *_usage(command.params)])}\n```\n"
    yield "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n")) + "\n"
    if command.params:
        yield "| | default | |\n| --- | --- | --- |"
        yield "\n".join(map(_row, command.params)) + "\n"


def _usage(params: list[Any]) -> list[str]:
    arguments = [_name(one) if one.required else f"[{_name(one)}]" for one in params if not _is_option(one)]
    return [*arguments, *(["[OPTIONS]"] if any(map(_is_option, params)) else [])]


def _row(param: Any) -> str:
    names = [*param.opts, *param.secondary_opts] if _is_option(param) else [_name(param).replace("|", "\\|")]
    choices = [_text(one) for one in _choices(param)]
    said = [param.help or "", f"One of {', '.join(choices)}." if choices else ""]
    return f"| {', '.join(f'`{name}`' for name in names)} | {_default(param)} | {' '.join(filter(None, said))} |"


def _is_option(param: Any) -> bool:
    return bool(param.param_type_name == "option")


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name).strip("[]").upper()


def _choices(param: Any) -> list[Enum]:
    """Return the words that are accepted, none where any is."""
    annotation = param.type_descriptor.annotation
    found = next((one for one in (annotation, *get_args(annotation)) if isinstance(one, EnumType)), None)
    return [] if found is None else list(found)


def _default(param: Any) -> str:
    if param.required:
        return "required"
    return "" if param.default in (None, False, "", ()) else _text(param.default)


def _text(value: Any) -> str:
    return f"`{getattr(value, 'value', value)}`"


if __name__ == "__main__":
    typer.echo(reference(), nl=False)
