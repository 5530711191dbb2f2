"""What a user's own code may do around the runs of the native agent."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

from outlast.adapters.history import History
from outlast.core import jsontext
from outlast.core.reply import Reply
from outlast.core.transcript import Role
from outlast.engine.context import InvocationContext

logger = logging.getLogger("outlast.adapters")

PAGE = 50


class Hooks:
    """Code around each run; override what you need, by `async def` or by `def`. What a hook raises fails the run.

    Both run on the event loop, so that a `def` must not block. After a crash the next attempt calls them again: what they
    do outside must bear being done twice. `context.input_message` is None where a run has no new message: on a resume,
    and when it brings decisions.
    """

    def on_message(self, context: InvocationContext) -> Awaitable[None] | None:
        """A message came in and is about to be stored. Not called by a resume."""
        return None

    def before_run(self, context: InvocationContext) -> Awaitable[None] | None:
        """A run begins, or goes on after a crash."""
        return None

    def after_run(self, context: InvocationContext, reply: Reply) -> Awaitable[None] | None:
        """A run came to its end, or to a person who has to decide; `reply` is what its caller gets."""
        return None

    def on_error(self, context: InvocationContext | None, error: Exception) -> Awaitable[None] | None:
        """A run fails with `error`, also when this raises; that is logged.

        `context` is None where the run did not begin: there was nothing to resume.
        """
        return None


class AllHooks:
    """Several hooks, called in their order."""

    def __init__(self, hooks: Sequence[Hooks]) -> None:
        self._hooks = tuple(hooks)
        for hook in self._hooks:
            if not isinstance(hook, Hooks):
                raise TypeError(f"a hook is an instance of a class of outlast.Hooks; {hook!r} is none")

    async def on_message(self, context: InvocationContext) -> None:
        for hook in self._hooks:
            await _done(hook.on_message(context))

    async def before_run(self, context: InvocationContext) -> None:
        for hook in self._hooks:
            await _done(hook.before_run(context))

    async def after_run(self, context: InvocationContext, reply: Reply) -> None:
        for hook in self._hooks:
            await _done(hook.after_run(context, reply))

    async def on_error(self, context: InvocationContext | None, error: Exception) -> None:
        """Tell every hook. What one raises must neither hide the error nor keep it from the others."""
        for hook in self._hooks:
            try:
                await _done(hook.on_error(context, error))
            except Exception:
                logger.exception("the hook %r raised when it was told of an error", type(hook).__name__)


async def _done(returned: Awaitable[None] | None) -> None:
    """Wait for what a hook returned, where it was `async def`."""
    if isinstance(returned, Awaitable):
        await returned


class JsonlRecorder(Hooks):
    """Writes each turn as a line of JSON: from the last message of a user on, also when it was resumed.

    A line has `session_id`, `invocation_id`, `messages`, `stop_reason`, `usage` and `interrupt`. A crash right behind it
    may leave the same turn twice, under the same `invocation_id`. Raises OSError when the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    async def after_run(self, context: InvocationContext, reply: Reply) -> None:
        line = {
            "session_id": context.session_id, "invocation_id": context.invocation_id,
            "messages": await _last_turn(context), "stop_reason": reply.stop_reason,
            "usage": None if reply.usage is None else dict(reply.usage), "interrupt": reply.interrupt,
        }  # fmt: skip
        await asyncio.to_thread(self._write, jsontext.encode(line).encode("ascii") + b"\n")

    def _write(self, line: bytes) -> None:
        # One write of a file opened so is whole, whoever else writes to it.
        with open(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), "wb", buffering=0) as file:
            file.write(line)


async def _last_turn(context: InvocationContext) -> list[Any]:
    """Read a history back to the last message of a user."""
    history, found = History.of_run(context), list[Any]()
    async for item in history.newest_items(PAGE):
        found.append(item)
        if item.get("role") == Role.USER:
            break
    return found[::-1]
