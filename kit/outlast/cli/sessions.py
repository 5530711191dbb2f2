"""`outlast sessions`: look after conversations."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from outlast.adapters import DurableAgent
from outlast.cli.access import PATIENCE_SECONDS as SHORT_PATIENCE_SECONDS
from outlast.cli.access import opened
from outlast.cli.errors import command
from outlast.cli.options import Json, Limit, SessionId, StoreUrl, Url, Yes, confirm, file_text, pairs
from outlast.cli.output import at, brief, fields, key, listed, moment, note, say, write_json
from outlast.cli.running import PATIENCE_SECONDS, Patience, Stream, Target, agent_of, hosted
from outlast.cli.running import show as show_run
from outlast.client import RemoteSession
from outlast.core.conversations import Session, item_as_json, session_as_json
from outlast.core.resume import ResumePoint, point_as_json
from outlast.core.times import shown

main = typer.Typer(no_args_is_help=True, add_completion=False)

Agent = Annotated[str | None, typer.Option(help="Which agent of the target, where there are several.")]
Actor = Annotated[str | None, typer.Option("--actor", help="On whose behalf it is.")]
Labels = Annotated[list[str] | None, typer.Option("--label", help="A label, name=text; may be given again.")]

_COLUMNS = {
    "ID": key("id"),
    "AGENT": key("agent"),
    "ACTOR": key("actor_id"),
    "RUNNING": key("active"),
    "LAST ACTIVITY": at("last_activity"),
}
_ITEM_COLUMNS = {
    "POSITION": key("position"),
    "ID": key("id"),
    "CREATED": at("created_at"),
    "CONTENT": lambda item: brief(item["content"]),
}


@main.callback()
def group() -> None:
    """Look after conversations."""


@main.command("list")
@command
async def list_(
    agent: Annotated[str | None, typer.Option(help="Sessions of this agent only.")] = None,
    actor: Actor = None,
    parent: Annotated[str | None, typer.Option(help="Children of this session only.")] = None,
    label: Labels = None,
    limit: Limit = 50,
    url: Url = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """List sessions, the newest first."""
    labels = pairs(label, "--label")
    async with opened(url, store) as asked:
        found = asked.sessions.list(agent=agent, actor_id=actor, parent=parent, labels=labels)
        await listed((session_as_json(one) async for one in found), _COLUMNS, json=json, limit=limit)


@main.command()
@command
async def show(id: SessionId, url: Url = None, store: StoreUrl = None, json: Json = False) -> None:
    """Show a session."""
    async with opened(url, store) as asked:
        found = session_as_json(await asked.sessions.get(id))
    if json:
        write_json(found)
        return
    fields(
        {
            "id": found["id"], "agent": found["agent"], "actor": found["actor_id"], "running": found["active"],
            "parent": found["parent"], "root": found["root"] if found["parent"] else None,
            "forked from": found["forked_from"], "labels": brief(found["labels"], 2000) if found["labels"] else None,
            "created": moment(found["created_at"]), "last activity": moment(found["last_activity"]),
        }
    )  # fmt: skip


@main.command()
@command
async def items(
    id: SessionId,
    after: Annotated[int | None, typer.Option(min=0, help="The position of the last item that is known.")] = None,
    newest_first: Annotated[bool, typer.Option("--newest-first", help="The newest first.")] = False,
    limit: Limit = 50,
    url: Url = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """List the items of a session, in order. What LangGraph keeps is in checkpoints, and is no items."""
    async with opened(url, store) as asked:
        found = asked.sessions.items(id, after=after, limit=limit + 1 if limit else None, newest_first=newest_first)
        await listed((item_as_json(one) async for one in found), _ITEM_COLUMNS, json=json, limit=limit)


@main.command("resume-point")
def resume_point(
    id: SessionId,
    url: Url = None,
    target: Target = None,
    agent: Agent = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """Tell how a session was interrupted, and what resuming it would do. Its agent must be there, so a server, or --target."""
    _tell_resume_point(id, url, agent_of(target, agent), store, json)


@command
async def _tell_resume_point(
    id: str, url: str | None, local: tuple[DurableAgent, str] | None, store: str | None, json: bool
) -> None:
    async with hosted(url, store, local, patience=SHORT_PATIENCE_SECONDS) as host:
        point = await host.session(id).resume_point()
    if json:
        write_json({"point": None if point is None else point_as_json(point)})
    elif point is None:
        say("There is nothing to resume.")
    else:
        _print_point(point)


@main.command()
def resume(
    id: SessionId,
    stream: Stream = None,
    patience: Patience = PATIENCE_SECONDS,
    url: Url = None,
    target: Target = None,
    agent: Agent = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """Go on where a session was interrupted: on its server, or in this process."""
    _resume(id, stream, patience, url, agent_of(target, agent), store, json)


@command
async def _resume(
    id: str,
    stream: bool | None,
    patience: float,
    url: str | None,
    local: tuple[DurableAgent, str] | None,
    store: str | None,
    json: bool,
) -> None:
    async with hosted(url, store, local, patience=patience) as host:
        chat, run = host.session(id), str(uuid.uuid4())
        if isinstance(chat, RemoteSession):
            await show_run(chat.stream_resume(id=run), host, json=json, stream=stream, run=run)
        else:
            await show_run(chat.stream_resume(), host, json=json, stream=stream)


@main.command()
@command
async def fork(
    id: SessionId,
    new_id: Annotated[str | None, typer.Argument(metavar="[NEW]", help="Id of the copy; one is made up.")] = None,
    up_to: Annotated[str | None, typer.Option("--up-to", help="Id of the last item that is copied.")] = None,
    actor: Actor = None,
    label: Labels = None,
    url: Url = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """Copy a session. What is said in one of them later does not change the other."""
    labels = pairs(label, "--label") or None
    async with opened(url, store, writes=True) as asked:
        copy = await asked.sessions.fork(
            id, new_id or str(uuid.uuid4()), up_to_item_id=up_to, actor_id=actor, labels=labels
        )
    _told(copy, json)


@main.command()
@command
async def export(
    id: SessionId,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A new file to write to; default: stdout.")
    ] = None,
    url: Url = None,
    store: StoreUrl = None,
) -> None:
    """Write a session as lines of JSON: the session, then each item."""
    count = 0
    async with opened(url, store) as asked:
        lines = asked.sessions.export(id)
        first = await anext(lines)  # what is not there leaves no file
        with _new_file(output) as write:
            write(first)
            async for line in lines:
                write(line)
                count += 1
    if not count:
        note("It has no items: what LangGraph keeps as checkpoints is not exported.")


@contextmanager
def _new_file(path: Path | None) -> Iterator[Callable[[str], object]]:
    """Give what writes a line to a new file, which goes away when something fails; without a path, to stdout."""
    if path is None:
        yield typer.echo
        return
    with path.open("x", encoding="ascii") as file:
        try:
            yield lambda line: file.write(f"{line}\n")
        except BaseException:
            path.unlink()
            raise


@main.command("import")
@command
async def import_(
    file: Annotated[Path, typer.Argument(help="What `export` wrote; - reads it from stdin.")],
    id: Annotated[str | None, typer.Option("--id", help="Another id for it.")] = None,
    url: Url = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """Store an exported session as a new one, all or nothing."""
    lines = file_text(file)
    async with opened(url, store, writes=True) as asked:
        _told(await asked.sessions.import_(lines, id=id), json)


@main.command()
@command
async def delete(
    id: SessionId,
    force: Annotated[bool, typer.Option("--force", help="Delete its descendants too.")] = False,
    yes: Yes = False,
    url: Url = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """Delete a session with its items, its runs and the memories kept for it."""
    confirm(f"Delete the session {id!r}, its items, runs and memories{' and its descendants' if force else ''}?", yes)
    async with opened(url, store, writes=True) as asked:
        await asked.sessions.delete(id, force=force)
    write_json({"deleted": id}) if json else say(f"{id} is deleted")


def _told(session: Session, json: bool) -> None:
    write_json(session_as_json(session)) if json else say(session.id)


def _print_point(point: ResumePoint) -> None:
    fields(
        {
            "kind": point.kind, "what it does": point.description, "cause": point.cause,
            "interrupted": None if point.interrupted_at is None else moment(shown(point.interrupted_at)),
            "open calls": ", ".join(call.name for call in point.unanswered_tool_calls) or None,
            "said so far": point.partial_text, "approvals": brief(list(point.approvals), 2000) if point.approvals else None,
        }
    )  # fmt: skip
