"""Tools with which a model remembers: typed functions that every adapter takes as they are."""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec

from outlast.adapters.run import CURRENT_RUN
from outlast.core.errors import Conflict, InvalidRequest, NotFound
from outlast.sessions.memory import MemoryStore

P = ParamSpec("P")

FOUND = 10
LISTED = 100


def _told(tool: Callable[P, Awaitable[str]]) -> Callable[P, Awaitable[str]]:
    """Tell the model what it asked wrongly, as the answer."""

    @wraps(tool)
    async def answered(*args: P.args, **kwargs: P.kwargs) -> str:
        try:
            return await tool(*args, **kwargs)
        except (Conflict, InvalidRequest, NotFound) as error:
            return f"Not done: {error}"

    return answered


@_told
async def remember(path: str, content: str) -> str:
    """Keep something for later conversations. `path` names it, such as "profile/food"; what was there is replaced."""
    memory, actor = await _of_this_run()
    await memory.put(path, content, actor_id=actor)
    return f"Kept at {path}."


@_told
async def recall(query: str) -> str:
    """Look for what was kept in earlier conversations, by words that may be in it."""
    memory, actor = await _of_this_run()
    found = await memory.search(query, actor_id=actor, limit=FOUND + 1)
    shown = [f"{one.memory.path}:\n{one.memory.content}" for one in found[:FOUND]]
    if len(found) > FOUND:
        shown.append(f"These are the {FOUND} best; more was found. Rarer words find something else.")
    return "\n\n".join(shown) or "Nothing is known about that."


@_told
async def forget(path: str) -> str:
    """Remove what was kept at a path."""
    memory, actor = await _of_this_run()
    await memory.delete(path, actor_id=actor)
    return f"Forgot {path}."


@_told
async def list_memories(path_prefix: str = "") -> str:
    """List the paths at which something was kept, all or those that begin so."""
    memory, actor = await _of_this_run()
    found = await memory.list(path_prefix=path_prefix, actor_id=actor, limit=LISTED + 1)
    shown = [one.path for one in found[:LISTED]]
    if len(found) > LISTED:
        shown.append(f"These are the first {LISTED}; there are more. A longer `path_prefix` lists fewer.")
    return "\n".join(shown) or "Nothing was kept."


MEMORY_TOOLS = (remember, recall, forget, list_memories)
"""Pass them to an agent among its tools. They work for the actor of the session that a run belongs to."""


async def _of_this_run() -> tuple[MemoryStore, str]:
    run = CURRENT_RUN.get()
    if run is None:
        raise LookupError("the memory tools work inside a durable run")
    context = run.context
    session = None
    if context.session_id is not None:
        session = await context.store.read.session(context.principal, context.session_id)
    actor = context.principal if session is None else session.actor_id
    return MemoryStore(context.store, principal=context.principal), actor
