"""`outlast invoke`: run an agent on an input, and see how it goes."""

import uuid
from typing import Annotated, Any

import typer

from outlast.adapters import DurableAgent
from outlast.cli.access import PATIENCE_SECONDS as SHORT_PATIENCE_SECONDS
from outlast.cli.errors import USAGE, command, fail
from outlast.cli.options import Json, StoreUrl, Url, input_of, json_object, pairs
from outlast.cli.output import note, say, write_json
from outlast.cli.running import PATIENCE_SECONDS, Patience, Stream, Target, agent_of, hosted, show
from outlast.client import RemoteSession
from outlast.core import ids
from outlast.core.errors import InvalidRequest
from outlast.core.records import OnActive


def invoke(
    text: Annotated[str | None, typer.Argument(help="What to say; - reads it from stdin.", show_default=False)] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", help="An input that is JSON, instead of a text; - reads it from stdin."),
    ] = None,
    session: Annotated[str | None, typer.Option("--session", "-s", help="The conversation it belongs to.")] = None,
    agent: Annotated[str | None, typer.Option(help="Which agent, where there are several.")] = None,
    id: Annotated[str | None, typer.Option("--id", help="A UUID of your own: the same again is the same run.")] = None,
    config: Annotated[str | None, typer.Option(help="A JSON object of settings that the agent declares.")] = None,
    metadata: Annotated[list[str] | None, typer.Option(help="name=text for people; may be given again.")] = None,
    on_active: Annotated[
        OnActive | None, typer.Option("--on-active", help="What to do while the session has an unfinished run.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds that the run may take.")] = None,
    stream: Stream = None,
    background: Annotated[bool, typer.Option("--background", "-b", help="Return when it is stored.")] = False,
    patience: Patience = PATIENCE_SECONDS,
    url: Url = None,
    target: Target = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """Run an agent on an input.

    The agent is on a server (--url, by default http://127.0.0.1:8000), or in this process (--target).

    Exit code 0: it is completed; 1: it failed; 3: it waits for a person.
    """
    options: dict[str, Any] = {
        "config": json_object(config, "--config"), "metadata": pairs(metadata, "--metadata") or None,
        "on_active": None if on_active is None else on_active.value, "timeout": timeout,
    }  # fmt: skip
    options = {name: value for name, value in options.items() if value is not None}
    input = input_of(text, data, text_name="a text")
    if target is not None and (options or background):
        fail("--config, --metadata, --on-active, --timeout and --background need a server", USAGE)
    local = agent_of(target, agent)
    _run(input, options, session, agent, id, stream, background, patience, url, local, store, json)


@command
async def _run(
    input: Any,
    options: dict[str, Any],
    session: str | None,
    agent: str | None,
    id: str | None,
    stream: bool | None,
    background: bool,
    patience: float,
    url: str | None,
    local: tuple[DurableAgent, str] | None,
    store: str | None,
    json: bool,
) -> None:
    id = str(uuid.uuid4()) if id is None else _uuid(id)
    patience = SHORT_PATIENCE_SECONDS if background else patience
    async with hosted(url, store, local, agent=agent, patience=patience) as host:
        chat = host.session(session)
        if background and isinstance(chat, RemoteSession):
            started = await chat.start(input, id=id, **options)
            if json:
                write_json(started)
            else:
                say(started["id"])
                note(f"It is {started['status']}: outlast invocations events {started['id']} --follow")
            return
        events = chat.stream(input, id=id, **options)
        await show(events, host, json=json, stream=stream, run=id if host.remote else None)


def _uuid(text: str) -> str:
    try:
        return ids.invocation_id(text)
    except InvalidRequest as error:
        raise InvalidRequest(str(error).replace("`id`", "--id"), field="id") from None
