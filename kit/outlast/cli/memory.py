"""`outlast memory`: what is known about somebody."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer

from outlast.cli.access import Access, opened
from outlast.cli.errors import command
from outlast.cli.options import Json, Limit, StoreUrl, Url, Yes, confirm, text_of
from outlast.cli.output import at, brief, key, listed, say, write_json
from outlast.core.conversations import MOST_LISTED, memory_as_json

main = typer.Typer(no_args_is_help=True, add_completion=False)

MemoryPath = Annotated[str, typer.Argument(metavar="PATH", help="Where it is, such as profile/food.")]
Actor = Annotated[
    str | None, typer.Option("--actor", help="Whom it is about; default: whoever the server says you are.")
]
InSession = Annotated[str | None, typer.Option("--session", help="Those that are kept for this session only.")]

_COLUMNS = {
    "PATH": key("path"),
    "SESSION": key("session_id"),
    "UPDATED": at("updated_at"),
    "CONTENT": lambda one: brief(one["content"]),
}
_FOUND_COLUMNS = {"SCORE": lambda one: f"{one['score']:.3f}", **_COLUMNS}


@main.callback()
def group() -> None:
    """See and change what is known about somebody."""


@main.command("list")
@command
async def list_(
    prefix: Annotated[str, typer.Argument(help="Memories whose path begins so.")] = "",
    actor: Actor = None,
    session: InSession = None,
    limit: Limit = 50,
    url: Url = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """List memories, by path."""
    async with opened(url, store) as asked:
        await listed(_all(asked, prefix, actor, session, limit), _COLUMNS, json=json, limit=limit)


@main.command()
@command
async def get(
    path: MemoryPath,
    actor: Actor = None,
    session: InSession = None,
    url: Url = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """Print a memory."""
    async with opened(url, store) as asked:
        found = await asked.memory.get(path, actor_id=actor, session_id=session)
    write_json(memory_as_json(found)) if json else say(found.content)


@main.command()
@command
async def put(
    path: MemoryPath,
    content: Annotated[str, typer.Argument(help="The text; - reads it from stdin.")],
    append: Annotated[bool, typer.Option("--append", help="Put it behind what is there.")] = False,
    actor: Actor = None,
    session: InSession = None,
    url: Url = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """Store a memory, whatever was at its path."""
    text = text_of(content)
    async with opened(url, store, writes=True) as asked:
        found = await asked.memory.put(path, text, append=append, actor_id=actor, session_id=session)
    write_json(memory_as_json(found)) if json else say(f"{path} is stored")


@main.command()
@command
async def search(
    text: Annotated[str, typer.Argument(help="Words, of which a memory must have one.")],
    actor: Actor = None,
    session: InSession = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many at most.")] = 10,
    url: Url = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """Find memories by words, the best first."""

    async def found(asked: Access) -> AsyncIterator[dict[str, Any]]:
        for one in await asked.memory.search(text, actor_id=actor, session_id=session, limit=limit):
            yield {"score": one.score, **memory_as_json(one.memory)}

    async with opened(url, store) as asked:
        await listed(found(asked), _FOUND_COLUMNS, json=json)


@main.command()
@command
async def delete(
    path: MemoryPath,
    yes: Yes = False,
    actor: Actor = None,
    session: InSession = None,
    url: Url = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """Delete a memory."""
    confirm(f"Delete the memory at {path!r}?", yes)
    async with opened(url, store, writes=True) as asked:
        await asked.memory.delete(path, actor_id=actor, session_id=session)
    write_json({"deleted": path}) if json else say(f"{path} is deleted")


async def _all(
    asked: Access, prefix: str, actor: str | None, session: str | None, limit: int
) -> AsyncIterator[dict[str, Any]]:
    after: tuple[str, str | None] | None = None
    size = min(limit + 1, MOST_LISTED) if limit else MOST_LISTED
    while True:
        found = await asked.memory.list(path_prefix=prefix, actor_id=actor, session_id=session, after=after, limit=size)
        for one in found:
            yield memory_as_json(one)
        if len(found) < size:
            return
        after = found[-1].path, found[-1].session_id
