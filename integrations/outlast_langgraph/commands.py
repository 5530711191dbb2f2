"""`outlast langgraph …`."""

import asyncio
from typing import Annotated

import typer

from outlast.adapters import open_store
from outlast.adapters.threads import Threads
from outlast_langgraph.importing import Report, import_threads

main = typer.Typer(no_args_is_help=True)


@main.callback()
def group() -> None:
    """Commands for graphs of LangGraph."""


@main.command("import-checkpoints")
def import_checkpoints(
    source: Annotated[
        str, typer.Argument(help="An SQLite file, or postgresql://…, that an official checkpointer filled.")
    ],
    agent: Annotated[str, typer.Option(help="The agent whose sessions the threads become.")],
    store: Annotated[str, typer.Option(envvar="OUTLAST_STORE", help="Store URL to import into.")],
    principal: Annotated[str, typer.Option(help="Who owns the sessions.")] = "local",
    thread: Annotated[list[str] | None, typer.Option(help="Import this thread only; may be given again.")] = None,
) -> None:
    """Make sessions of the threads in a database of LangGraph's own checkpointers. It is only read."""

    async def work() -> Report:
        async with open_store(store) as opened:
            threads = Threads(opened, agent=agent, principal=principal)
            return await import_threads(source, threads, thread or ())

    report = asyncio.run(work())
    typer.echo(f"sessions     {report.sessions} new, {report.known_sessions} known")
    typer.echo(f"checkpoints  {report.checkpoints} new, {report.known_checkpoints} known")
    for name, reason in report.refused.items():
        typer.echo(f"left out     {name!r}: {reason}", err=True)
    if report.refused:
        raise typer.Exit(1)
