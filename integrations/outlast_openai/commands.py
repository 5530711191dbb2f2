"""`outlast openai …`."""

import asyncio
from typing import Annotated

import typer

from outlast.adapters import open_store
from outlast_openai.importing import MESSAGES, Report, import_sessions

main = typer.Typer(no_args_is_help=True)


@main.callback()
def group() -> None:
    """Commands for agents of the OpenAI Agents SDK."""


@main.command("import-sessions")
def import_(
    source: Annotated[str, typer.Argument(help="An SQLite file, or a database URL, that sessions of the SDK filled.")],
    agent: Annotated[str, typer.Option(help="The agent whose sessions they become.")],
    store: Annotated[str, typer.Option(envvar="OUTLAST_STORE", help="Store URL to import into.")],
    principal: Annotated[str, typer.Option(help="Who owns the sessions.")] = "local",
    session: Annotated[list[str] | None, typer.Option(help="Import this one only; may be given again.")] = None,
    messages_table: Annotated[str, typer.Option(help="The table of the items, where it has another name.")] = MESSAGES,
) -> None:
    """Make sessions of those that an SQLiteSession or SQLAlchemySession kept. Their database is only read."""

    async def work() -> Report:
        async with open_store(store) as opened:
            return await import_sessions(
                source, opened, agent=agent, principal=principal, only=session or (), messages_table=messages_table
            )

    report = asyncio.run(work())
    typer.echo(f"sessions  {report.sessions} new, {report.known_sessions} known")
    typer.echo(f"items     {report.items} new")
    for name, reason in report.refused.items():
        typer.echo(f"left out  {name!r}: {reason}", err=True)
    if report.refused:
        raise typer.Exit(1)
