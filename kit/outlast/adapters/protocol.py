"""What an adapter is to the rest of the kit, and the base that makes the engine's handlers of it."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any, Literal, Protocol

from outlast.adapters import servers
from outlast.adapters.history import History
from outlast.adapters.interruption import explained
from outlast.adapters.journal import CANCELLED
from outlast.adapters.local import LocalStore
from outlast.adapters.recovery import Result, Turn, recover_message, recover_resume
from outlast.adapters.run import CURRENT_RUN, Run
from outlast.adapters.session import ChatSession
from outlast.core.errors import AgentResumeError
from outlast.core.records import Kind
from outlast.core.resume import ResumeKind, ResumePoint
from outlast.engine.context import InvocationContext
from outlast.engine.handlers import AgentHandlers
from outlast.store.store import Store


class AgentAdapter(Protocol):
    """What a server needs of an agent."""

    name: str
    framework: str

    def handlers(self) -> AgentHandlers:
        """Return the functions the engine calls."""
        ...


class DurableAgent(ABC):
    """The base of the wrappers users hold. A framework's adapter says what a turn of it is; the rest is here."""

    framework: str
    history: Literal["items", "checkpoints"] = "items"
    """Where the framework keeps conversations: in the session's items, or in checkpoints of its own."""

    keeps_threads = False
    """Whether it keeps them in a place of the user's own, where one may be older than the session that goes on with it."""

    def __init__(self, *, name: str, rerun_safe: Collection[str] = (), config_keys: Collection[str] = ()) -> None:
        self.name = name
        self.rerun_safe = frozenset(rerun_safe)
        """Names of tools that may run again when nobody knows whether they ran."""
        self.config_keys = frozenset(config_keys)
        """Keys a request's `config` may have."""

    @abstractmethod
    def turn(self, run: Run) -> Turn:
        """Return what the framework does for one run. Raise RunFailed (`invalid_input`) for an input it cannot take."""

    @abstractmethod
    async def require_resume_point(self, history: History) -> ResumePoint:
        """Return how a history was interrupted. Reads only. Raise AgentResumeError when nothing can be resumed."""

    async def _history(self, store: Store, principal: str, session_id: str) -> History | None:
        found = await History.of_session(store, principal, session_id)
        if found is None and self.keeps_threads:
            return History.of_none(store, principal, session_id)
        return found

    async def require_session_resume_point(self, store: Store, principal: str, session_id: str) -> ResumePoint:
        """Return how a session was interrupted. Reads only. Raise AgentResumeError when nothing can be resumed."""
        history = await self._history(store, principal, session_id)
        if history is None:
            raise AgentResumeError("empty")
        return await explained(store, principal, session_id, await self.require_resume_point(history))

    async def require_resumable(self, store: Store, principal: str, session_id: str) -> None:
        """Raise AgentResumeError, of which the agent hears, when resuming a session would do nothing."""
        try:
            point = await self.require_session_resume_point(store, principal, session_id)
            if point.kind is ResumeKind.AWAIT_APPROVAL:
                raise AgentResumeError("awaiting_approval")
        except AgentResumeError as error:
            await self.resume_refused(error)
            raise

    async def session_messages(
        self, store: Store, principal: str, session_id: str, *, after: int = 0
    ) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        """Give the messages of a session behind a place, oldest first, in the neutral form, each with its place.

        Reads only.
        """
        history = await self._history(store, principal, session_id)
        if history is not None:
            async for one in self.messages(history, after=after):
                yield one

    def handlers(self) -> AgentHandlers:
        """Return the functions the engine calls."""
        return AgentHandlers(
            invoke=self._invoke,
            recover=self._recover,
            resume=self._invoke,
            cancelled=self._cancelled,
            leaving=self.leave,
            config_keys=self.config_keys,
        )

    def session(self, id: str, *, store: LocalStore | str | None = None) -> ChatSession:
        """Return a conversation with this agent in this process, without a server.

        `store` is what `open_store` returns, or its URL. Raises InvalidRequest for an id that cannot name a session.
        """
        return ChatSession(self, id, store)

    async def entered(
        self, context: InvocationContext, enter: Callable[[InvocationContext], Awaitable[Result]]
    ) -> Result:
        """Do one attempt by `enter`; a place for what an adapter does around each."""
        return await enter(context)

    async def leave(self) -> None:
        """Close what is kept open between runs; the worker leaves."""
        await servers.leave()

    async def _invoke(self, context: InvocationContext) -> Result:
        return await self.entered(context, self._start)

    async def _recover(self, context: InvocationContext) -> Result:
        return await self.entered(context, self._go_on)

    async def _start(self, context: InvocationContext) -> Result:
        turn = await self._turn(context)
        return await (turn.resume() if context.kind is Kind.RESUME else turn.start())

    async def _go_on(self, context: InvocationContext) -> Result:
        turn = await self._turn(context)
        return await (recover_resume(turn) if context.kind is Kind.RESUME else recover_message(turn))

    async def _cancelled(self, context: InvocationContext) -> None:
        turn = await self._turn(context)
        # A run that had not begun leaves what an earlier one left, and what that asked a person.
        if context.kind is Kind.RESUME or await turn.has_input():
            await turn.close(CANCELLED)

    async def resume_refused(self, error: AgentResumeError) -> None:  # noqa: B027 - most do not listen
        """Hear that a resume was refused before it became a run."""

    async def messages(self, history: History, *, after: int = 0) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        """Give the messages of a history behind a place, oldest first, in the neutral form, each with its place.

        Reads only. Places rise, and stay what they are when messages are added.
        """
        async for position, message in history.messages(after=after):
            yield position, message.as_json()

    async def _turn(self, context: InvocationContext) -> Turn:
        run = await Run.of(context, rerun_safe=self.rerun_safe)
        CURRENT_RUN.set(run)
        return self.turn(run)
