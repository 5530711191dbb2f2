"""Running an agent from the command line: on a server, or in this process, and showing how it goes."""

import asyncio
import os
import shlex
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from outlast.adapters import ChatSession, DurableAgent, open_store
from outlast.cli import target as targets
from outlast.cli.access import DEFAULT_SERVER, URL, Access, StoreClient, client
from outlast.cli.errors import USAGE, WAITS, fail
from outlast.cli.live import Live
from outlast.cli.output import brief, note, say, text_in, write_json
from outlast.client import RemoteSession
from outlast.core.errors import OutlastError
from outlast.core.records import Status
from outlast.server.settings import store_url

Target = Annotated[
    str | None,
    typer.Option("--target", help="module:object or path.py:object of an agent to run in this process, on --store."),
]
Stream = Annotated[
    bool | None,
    typer.Option("--stream/--no-stream", help="Show text and tools as they come. Default: on a terminal."),
]
Patience = Annotated[
    float, typer.Option(min=0, help="How long, in seconds, a server that cannot be reached is tried again.")
]
PATIENCE_SECONDS = 30.0
END = "agent.run.finished"


class Host:
    """What runs agents: a server, or this process."""

    def __init__(
        self,
        access: Access,
        session: Callable[[str | None], RemoteSession | ChatSession],
        *,
        remote: bool,
    ) -> None:
        self.access, self.session, self.remote = access, session, remote


def agent_of(target: str | None, name: str | None) -> tuple[DurableAgent, str] | None:
    """Load what is to run in this process, None for nothing; the other value is its store."""
    if target is None:
        return None
    try:
        server = targets.load(target)
    except OutlastError as error:
        fail(str(error), USAGE)
    agents = server.agents.by_name()
    if name is None and len(agents) > 1:
        fail(f"{target} has several agents; --agent names one of {', '.join(sorted(agents))}", USAGE)
    name = name or next(iter(agents))
    found = agents.get(name)
    if found is None:
        fail(f"{target} has no agent {name!r}; it has {', '.join(sorted(agents))}", USAGE)
    if not isinstance(found, DurableAgent) or found.name != name:
        fail(f"the agent {name!r} runs in a server only: `outlast serve {target}`, then --url", USAGE)
    return found, store_url(server.store_url)


@asynccontextmanager
async def hosted(
    url: str | None,
    store: str | None,
    local: tuple[DurableAgent, str] | None,
    *,
    agent: str | None = None,
    patience: float = PATIENCE_SECONDS,
) -> AsyncIterator[Host]:
    """Give what runs agents: a server, or this process where a target was loaded."""
    if local is None:
        if store is not None:
            fail("the store alone runs no agent: give --url, or --target with --store", USAGE)
        async with client(server_url(url), agent=agent, patience=patience) as asked:
            yield Host(asked, asked.session, remote=True)
        return
    if url is not None:
        fail("--url and --target exclude each other: a server has its agents", USAGE)
    adapter, default = local
    async with open_store(store or default) as opened:

        def session(id: str | None) -> ChatSession:
            return adapter.session(id or str(uuid.uuid4()), store=opened)

        yield Host(StoreClient(await opened.store()), session, remote=False)


def server_url(given: str | None) -> str:
    """Return the server that is meant."""
    return given or os.environ.get(URL) or DEFAULT_SERVER


async def show(
    events: AsyncIterator[Any], host: Host, *, json: bool, stream: bool | None, run: str | None = None
) -> None:
    """Follow a run to its end and print what came of it. The exit code says how it ended.

    `run` is its id where it goes on without this process.
    """
    streaming = (not json and _is_terminal()) if stream is None else stream
    live = Live() if streaming and not json else None
    end: Mapping[str, Any] = {}
    began = False
    try:
        async for event in events:
            began = True
            if isinstance(event, Mapping) and event.get("type") == END:
                end = event
            elif streaming and json:
                write_json({"event": event})
            elif live is not None:
                live.take(event)
    except BaseException as error:
        if live is not None:
            live.end_line()
        if run is not None and (began or isinstance(error, asyncio.CancelledError)):
            note(f"The run goes on without you: outlast invocations events {run} --follow")
        raise
    if live is not None:
        live.end_line()
    found = await host.access.get(end["invocation_id"])
    if json:
        write_json({"end": found} if streaming else found)
    else:
        _print(found, shown=live is not None and live.text)
    _leave(found, quiet=json)


def _is_terminal() -> bool:
    return typer.get_text_stream("stdout").isatty()


def _print(run: Mapping[str, Any], *, shown: bool) -> None:
    text = text_in(run.get("output", run.get("interrupt")))
    if text is not None:
        if text and not shown:
            say(text)
    elif "output" in run:
        say(brief(run["output"], 1_000_000))


def _leave(run: Mapping[str, Any], *, quiet: bool) -> None:
    """End the command as its run ended."""
    status = Status(run["status"])
    if status is Status.FAILED:
        fail(f"the run {run['id']} failed ({run['error']['code']}): {run['error']['message']}", 1)
    if status is Status.INTERRUPTED:
        if not quiet:
            _tell_what_waits(run["interrupt"])
        raise typer.Exit(WAITS)


def _tell_what_waits(interrupt: Mapping[str, Any]) -> None:
    for one in interrupt.get("approvals", ()):
        note(
            f"{one['name']} {brief(one['arguments'])} waits: outlast approvals decide {shlex.quote(one['id'])} approve, or reject"
        )
    for one in interrupt.get("questions", ()):
        note(
            f"{brief(one.get('value'))} waits for an answer: outlast approvals decide {shlex.quote(one['id'])} --answer JSON"
        )
    if not interrupt.get("approvals") and not interrupt.get("questions"):
        note(f"The run waits for a person: {brief(dict(interrupt))}")
