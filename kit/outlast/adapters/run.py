"""One attempt as an adapter sees it."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from outlast.adapters.events import Event, EventWriter, LogSummary, summarise
from outlast.adapters.history import Checkpoint, History, PendingWrite
from outlast.adapters.journal import Outcome, ToolCall, ToolJournal
from outlast.core import faults
from outlast.core.errors import RunFailed
from outlast.engine.context import InvocationContext
from outlast.store import checkpoints, journal
from outlast.store.grouped import Part

T = TypeVar("T")


EFFECT = "effect:"
"""Begins the keys of side effects that are no tool calls."""


class Place(NamedTuple):
    """A place in the execution of a run, by a name that every attempt gives it; `counts` are those of one entry into it."""

    name: str
    counts: Counter[str]

    def order(self, what: str) -> int:
        """Count what happens at a place, from 1."""
        self.counts[what] += 1
        return self.counts[what]


class Run:
    """The context of an attempt with what adapters build on it: the history, the tool journal, the events."""

    def __init__(self, context: InvocationContext, *, summary: LogSummary, rerun_safe: Collection[str]) -> None:
        self.context = context
        self.history = History.of_run(context)
        self.events = EventWriter(context, summary)
        self.journal = ToolJournal(context, self.history, self.events, rerun_safe)
        self.stored: set[bytes] = set()
        """Digests of parts of checkpoints that this attempt read or stored. While it has the lease, nobody removes them."""
        self._heads: dict[str, Checkpoint] = {}
        self._changes = 0
        whole = Place(context.invocation_id, Counter())
        self.place: Callable[[], Place] = lambda: whole
        """Where the calling code runs, as the framework names it."""

    def effect_key(self, name: str, arguments: str) -> str:
        """Name a side effect by where it happens, what it is of, and which of its kind it is there."""
        place = self.place()
        what = f"{name}:{hashlib.sha256(arguments.encode()).hexdigest()}"
        return f"{EFFECT}{place.name}:{what}:{place.order(what)}"

    @classmethod
    async def of(cls, context: InvocationContext, *, rerun_safe: Collection[str] = ()) -> "Run":
        """Begin an attempt; in a later one, withdraw what the dead attempt left unfinished in the log."""
        summary = await summarise(context.store, context.lease[0]) if context.is_recovery else LogSummary()
        run = cls(context, summary=summary, rerun_safe=rerun_safe)
        run.events.supersede()
        return run

    async def head(self, namespace: str) -> Checkpoint | None:
        """Read where a namespace goes on. Nobody else writes there, so that it is read again only after a write."""
        if (known := self._heads.get(namespace)) is not None:
            return known
        changes = self._changes
        found = await self.history.checkpoint(namespace)
        if found is not None and changes == self._changes:
            self._heads[namespace] = found
        return found

    async def commit_head(
        self,
        namespace: str,
        checkpoint_id: str,
        *,
        checkpoint: Checkpoint | None = None,
        calls: Sequence[ToolCall] = (),
        closed: Sequence[tuple[ToolCall, Outcome]] = (),
        events: Sequence[Event] = (),
    ) -> None:
        """Make a checkpoint the one this history goes on from, with the calls, results and events it makes true.

        One transaction under the lease. Without `checkpoint` it is kept elsewhere, and was stored there before.
        """
        faults.reach("checkpoint.before_put")
        parts: list[Part] = []
        if checkpoint is not None:
            stored = self.stored | checkpoints.digests(self.context.waiting)
            parts.extend(checkpoints.put(self.history.scope, checkpoint, stored=stored))
        parts.append(journal.head(scope=self.history.scope, namespace=namespace, checkpoint=checkpoint_id))
        parts.extend(self.journal.pending(calls))
        parts.extend(self.journal.closed(call, outcome) for call, outcome in closed)
        await self._written(parts, self.context.write(parts=parts, events=events, progress=True))
        faults.reach("checkpoint.after_put")

    async def commit_writes(
        self,
        namespace: str,
        checkpoint_id: str,
        writes: Sequence[PendingWrite],
        *,
        replace: bool,
        uses: Sequence[str] = (),
    ) -> None:
        """Store pending writes of a checkpoint, under the lease, with notes of what they use up.

        They wait a moment for the checkpoint of their step, to be stored in one transaction with it.
        """
        parts = checkpoints.put_writes(
            self.history.scope, namespace, checkpoint_id, writes, replace=replace, stored=self.stored
        )
        parts.extend(map(self.journal.used, uses))
        await self._written(parts, self.context.write_soon(parts))

    async def _written(self, parts: Sequence[Part], writing: Awaitable[Any]) -> None:
        self._forget_heads()
        try:
            await writing
        finally:
            self._forget_heads()
        self.stored |= checkpoints.digests(parts)

    def _forget_heads(self) -> None:
        self._heads.clear()
        self._changes += 1

    async def assured(self) -> None:
        """Wait until this attempt certainly still owns the run. Raises LeaseLost."""
        await self.context.assured()

    @property
    def on_loop(self) -> bool:
        """Whether the calling thread is the one the run's loop runs in."""
        try:
            return asyncio.get_running_loop() is self.context.loop
        except RuntimeError:
            return False

    def blocking(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something of the run from a thread of a synchronous tool or node."""
        if self.on_loop:
            work.close()
            raise RunFailed(
                "blocking_call",
                "a tool or graph was called without `await` inside `async` code, where it cannot be made durable; "
                "use its `ainvoke`, or make the calling function a plain `def`",
            )
        return asyncio.run_coroutine_threadsafe(work, self.context.loop).result()


CURRENT_RUN: ContextVar[Run | None] = ContextVar("outlast_run", default=None)
"""The run that the code of a framework is executing for."""
