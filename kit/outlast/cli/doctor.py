"""`outlast doctor`: look at everything that outlast needs, and say how to mend what is wrong."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from outlast.cli import agent_toml, checks
from outlast.cli.access import URL, store_url
from outlast.cli.checks import Finding, State
from outlast.cli.errors import FAILED, command
from outlast.cli.options import Json, StoreUrl, Url
from outlast.cli.output import clean, console, note, write_json

_SIGNS = {
    State.OK: ("✓", "green"), State.NOTE: ("-", "dim"), State.WARNING: ("!", "yellow"), State.ERROR: ("✗", "red"),
}  # fmt: skip


@command
async def doctor(
    target: Annotated[str | None, typer.Option(help="What is to be served, module:object or path.py:object.")] = None,
    host: Annotated[str, typer.Option(help="Address that is to be listened on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port that is to be listened on.")] = 8000,
    url: Url = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """Look at everything that outlast needs here, and say how to mend what is wrong.

    With --url, a server is asked instead of a port being tried. Nothing is changed. Exit code 1: there is an error.
    """
    agent_toml.set_environment()
    states = set()
    async for finding in _findings(target, host, port, url or os.environ.get(URL), store_url(store)):
        states.add(finding.state)
        write_json(asdict(finding)) if json else _print(finding)
    if State.ERROR in states:
        if not json:
            note("Something must be mended; see above.")
        raise typer.Exit(FAILED)


async def _findings(target: str | None, host: str, port: int, url: str | None, store: str) -> AsyncIterator[Finding]:
    for check in (checks.python, checks.packages, checks.adapters):
        for finding in check():
            yield finding
    for finding in checks.agents(target) if target else ():
        yield finding
    if agent_toml.there():
        # In a thread: servers are asked one after the other, and may take their time.
        for finding in await asyncio.to_thread(list, checks.tools(agent_toml.read())):
            yield finding
    async for finding in checks.store(store):
        yield finding
    for finding in checks.locks():
        yield finding
    if url is None:
        for finding in checks.port(host, port):
            yield finding
    else:
        async for finding in checks.server(url):
            yield finding


def _print(finding: Finding) -> None:
    sign, style = _SIGNS[finding.state]
    screen = console()
    screen.print(Text(f"{sign} {finding.check:<12} ", style=style), Text(clean(finding.message)), sep="")
    if finding.fix is not None:
        screen.print(Text(f"  {'':<12} fix: {clean(finding.fix)}", style="bold"))
