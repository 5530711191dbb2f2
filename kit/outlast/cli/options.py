"""Options that many commands have, and values that are given as text."""

from pathlib import Path
from typing import Annotated, Any

import typer

from outlast.cli.errors import USAGE, fail
from outlast.core import jsontext
from outlast.core.errors import InvalidRequest

Url = Annotated[
    str | None,
    typer.Option("--url", help="A server to ask, such as http://127.0.0.1:8000. Default: OUTLAST_URL, if that is set."),
]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store", help="A store to use without a server. Default: OUTLAST_STORE, agent.toml's, or ./.outlast/state.db."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Limit = Annotated[int, typer.Option("--limit", min=0, help="How many at most; 0 = all.")]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="Id of a session.")]
InvocationId = Annotated[str, typer.Argument(metavar="ID", help="Id of a run, a UUID.")]
STDIN = "-"


def pairs(given: list[str] | None, option: str) -> dict[str, str]:
    """Return what was given as `name=text`, any number of times."""
    found = {}
    for one in given or ():
        name, equals, text = one.partition("=")
        if not equals or not name:
            fail(f"{option} {one!r} is not like name=text", USAGE)
        found[name] = text
    return found


def json_value(text: str, option: str) -> Any:
    """Return the value of JSON text."""
    try:
        return jsontext.parse(text.encode())
    except (InvalidRequest, UnicodeEncodeError) as error:
        fail(f"{option} is no JSON: {str(error).removeprefix('the body is not JSON: ')}", USAGE)


def json_object(text: str | None, option: str) -> dict[str, Any] | None:
    """Return the object of JSON text, None for none."""
    value = None if text is None else json_value(text, option)
    if value is not None and not isinstance(value, dict):
        fail(f"{option} is no JSON object", USAGE)
    return value


def text_of(given: str) -> str:
    """Return what was given, or for `-` what comes on stdin."""
    return typer.get_text_stream("stdin").read() if given == STDIN else given


def input_of(text: str | None, data: str | None, *, text_name: str) -> Any:
    """Return the input of a run, given as text or, by `--data`, as JSON: one of the two."""
    if (text is None) is (data is None):
        fail(f"give {text_name} or --data, one of them", USAGE)
    return text_of(text) if text is not None else json_value(text_of(data or ""), "--data")


def file_text(file: Path) -> str:
    """Return the text of a file, or for `-` what comes on stdin."""
    try:
        return text_of(STDIN) if str(file) == STDIN else file.read_text("utf-8")
    except UnicodeDecodeError as error:
        fail(f"{file} is not UTF-8: {error.reason}", USAGE)


def confirm(question: str, yes: bool) -> None:
    """Ask before something is destroyed; where nobody can be asked, `--yes` must be given."""
    if yes:
        return
    if not typer.get_text_stream("stdin").isatty():
        fail(f"{question} Nobody can be asked here; add --yes to do it.", USAGE)
    if not typer.confirm(question, err=True):
        fail("nothing was changed", 1)
