"""`outlast invocations`: look after runs."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from outlast.cli.access import opened
from outlast.cli.errors import command
from outlast.cli.live import event_line
from outlast.cli.options import InvocationId, Json, Limit, StoreUrl, Url, Yes, confirm, pairs
from outlast.cli.output import at, brief, fields, key, listed, moment, say, text_in, write_json
from outlast.core.records import Status

main = typer.Typer(no_args_is_help=True, add_completion=False)

_COLUMNS = {
    "ID": key("id"),
    "STATUS": key("status"),
    "SESSION": key("session_id"),
    "AGENT": key("agent"),
    "ATTEMPT": key("attempt"),
    "CREATED": at("created_at"),
}


@main.callback()
def group() -> None:
    """Look after runs."""


@main.command("list")
@command
async def list_(
    session: Annotated[str | None, typer.Option(help="Runs of this session only.")] = None,
    status: Annotated[Status | None, typer.Option(help="Runs with this status only.")] = None,
    agent: Annotated[str | None, typer.Option(help="Runs of this agent only.")] = None,
    metadata: Annotated[list[str] | None, typer.Option(help="name=text that they have; may be given again.")] = None,
    limit: Limit = 50,
    url: Url = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """List runs, the newest first."""
    labels = pairs(metadata, "--metadata")
    async with opened(url, store) as asked:
        found = asked.invocations(session_id=session, status=status, agent=agent, metadata=labels)
        await listed(found, _COLUMNS, json=json, limit=limit)


@main.command()
@command
async def show(id: InvocationId, url: Url = None, store: StoreUrl = None, json: Json = False) -> None:
    """Show a run: where it is, and what it ended with."""
    async with opened(url, store) as asked:
        _print(await asked.get(id), json)


@main.command()
@command
async def events(
    id: InvocationId,
    after: Annotated[int, typer.Option(min=0, help="The position of the last event that is known.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run is final.")] = False,
    url: Url = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """Print the log of a run."""
    async with opened(url, store) as asked:
        async for entry in asked.events(id, after=after, follow=follow):
            if json:
                write_json(entry)
            else:
                say(f"{entry['position']:>6}  {moment(entry['at'])}  {event_line(entry['event'])}")


@main.command()
@command
async def cancel(id: InvocationId, url: Url = None, store: StoreUrl = None, json: Json = False) -> None:
    """Stop a run; what it did so far is kept. One that runs stops when its worker hears of it."""
    async with opened(url, store, writes=True) as asked:
        found = await asked.cancel(id)
    if json:
        write_json(found)
    elif Status(found["status"]).final:
        say(f"{found['id']} is {_ended(found)}")
    else:
        say(f"{found['id']} was asked to stop")


@main.command()
@command
async def delete(
    id: InvocationId, yes: Yes = False, url: Url = None, store: StoreUrl = None, json: Json = False
) -> None:
    """Delete a final run with its log. Its id stays known, so that a repeated request does not run again."""
    confirm(f"Delete the run {id} and its log?", yes)
    async with opened(url, store, writes=True) as asked:
        await asked.delete(id)
    write_json({"deleted": id}) if json else say(f"{id} is deleted")


def _ended(run: Mapping[str, Any]) -> str:
    error = run.get("error")
    return run["status"] if error is None else f"{run['status']} ({error['code']})"


def _print(run: Mapping[str, Any], json: bool) -> None:
    if json:
        write_json(run)
        return
    output, error = run.get("output"), run.get("error")
    text = text_in(output)
    fields(
        {
            "id": run["id"], "status": run["status"], "kind": run["kind"], "session": run["session_id"],
            "agent": run["agent"], "attempt": run["attempt"], "created": moment(run["created_at"]),
            "started": moment(run["started_at"]), "finished": moment(run["finished_at"]),
            "error": None if error is None else f"{error['code']}: {error['message']}",
            "output": text if text or output is None else brief(output, 2000),
            "waits for": brief(run["interrupt"], 2000) if "interrupt" in run else None,
            "usage": brief(run["usage"]) if run["usage"] else None,
            "metadata": brief(run["metadata"]) if run["metadata"] else None,
        }
    )  # fmt: skip
