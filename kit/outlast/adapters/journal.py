"""The tool journal as adapters use it: no tool runs twice by itself, whatever the framework would do.

A call is noted as pending with the model's answer, as started before its body, and with its outcome right after it. A
later attempt answers a call from its row: done gives the stored result, started the interrupted result, pending of a
dead attempt "it did not run". Only a waiting call, and a tool declared safe, may start again.
"""

import contextlib
import hashlib
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from outlast.adapters.events import Event, EventWriter
from outlast.adapters.history import History
from outlast.adapters.items import key_of
from outlast.core import faults, jsontext
from outlast.core.records import Call, CallState
from outlast.core.resume import CANCELLED_RESULT, INTERRUPTED_RESULT, NOT_RUN_RESULT
from outlast.engine.context import InvocationContext
from outlast.store import journal
from outlast.store.grouped import Part

Result = Literal["ok", "error", "denied", "unknown"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a model's answer. `key` names it in its history, `call_id` is the provider's."""

    key: str
    call_id: str | None
    name: str
    arguments: Any = None

    @classmethod
    def of(cls, message_id: str, index: int, *, call_id: str | None, name: str, arguments: Any) -> "ToolCall":
        """Key a call by the answer that asked for it and its place there."""
        return cls(key_of(message_id, index), call_id, name, arguments)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call is answered with. `value` is the framework's own form of the result, as JSON."""

    result: Result
    output: Any
    value: Any = None

    @property
    def failed(self) -> bool:
        return self.result != "ok"


INTERRUPTED = Outcome("unknown", INTERRUPTED_RESULT)
NOT_RUN = Outcome("unknown", NOT_RUN_RESULT)
CANCELLED = Outcome("unknown", CANCELLED_RESULT)


@dataclass(frozen=True, slots=True)
class CurrentToolCall:
    """The call whose body is running. `idempotency_key` is the same in every attempt; hand it to other services."""

    name: str
    call_id: str | None
    attempt: int
    idempotency_key: str


_CURRENT: ContextVar[CurrentToolCall | None] = ContextVar("outlast_tool_call", default=None)


def current_tool_call() -> CurrentToolCall:
    """Return the tool call this code runs in. Raise LookupError outside of one."""
    found = _CURRENT.get()
    if found is None:
        raise LookupError("no tool call of a durable run is under way here")
    return found


class ToolJournal:
    """The tool calls of one attempt. Every method is called on the context's loop."""

    def __init__(
        self, context: InvocationContext, history: History, events: EventWriter, rerun_safe: Collection[str] = ()
    ) -> None:
        self.dead: set[str] = set()
        """Keys of calls that had no result in the history when this attempt began."""
        self._context, self._history, self._events = context, history, events
        self._rerun_safe = frozenset(rerun_safe)
        self._rows: dict[str, Call] = {}
        self._new: set[str] = set()
        self._busy: set[str] = set()
        self._again: set[str] = set()
        self._tokens: dict[str, str] = {}

    def pending(self, calls: Sequence[ToolCall]) -> list[Part]:
        """Note calls a model asked for; the parts belong in the write that stores its answer."""
        self._new.update(call.key for call in calls)
        return [
            journal.pending(
                scope=self._history.scope, key=call.key, call_id=call.call_id, name=call.name,
                arguments=_text(call.arguments),
            )
            for call in calls
        ]  # fmt: skip

    def choose(self, calls: Sequence[ToolCall]) -> ToolCall:
        """Return the first of some calls that look alike which is not under way yet."""
        return next((call for call in calls if call.key not in self._busy), calls[0])

    async def start(self, call: ToolCall, *, again: Callable[[], Awaitable[bool]] | None = None) -> Outcome | None:
        """Return how a call is answered, or None when its body may run now; then that it started is durable.

        `again` says of a call that another attempt started whether it may be entered again, to go on inside.
        """
        self._busy.add(call.key)
        row = await self._row(call)
        answer, enters = self._answer(call, row), False
        if answer is INTERRUPTED and again is not None and row is not None and self._was_left(row):
            enters = await again()
            self._again |= {call.key} if enters else set()
        if answer is not None and not enters:
            return await self._answered(call, row, answer)
        await self._context.assured()
        self._events.flush()
        token = uuid.uuid4().hex
        first = row is None or row.started_position is None
        position = self._context.next_position() if first else None
        part = journal.started(
            scope=self._history.scope, key=call.key, token=token, call_id=call.call_id, name=call.name,
            arguments=_text(call.arguments), position=position, again=enters or call.name in self._rerun_safe,
        )  # fmt: skip
        started = self._rows[call.key] = await self._context.journal(part, events=[_started(call)] if first else [])
        if started.token != token:
            return await self._answered(call, started, INTERRUPTED)
        self._tokens[call.key] = token
        return None

    @contextlib.contextmanager
    def body(self, call: ToolCall) -> Iterator[None]:
        """Surround the body of a started call."""
        token = _CURRENT.set(self._describe(call))
        self.enter(call)
        try:
            yield
        finally:
            _CURRENT.reset(token)
        faults.reach("tool.after_body")

    def enter(self, call: ToolCall) -> None:
        """Tell tests that the body of a started call is entered, where `body` cannot surround it."""
        faults.enter(call.key, call.name, repeatable=call.key in self._again or call.name in self._rerun_safe)

    def name(self, call: ToolCall | None) -> None:
        """Name the call in the context of the caller, from which a framework is about to run its body by itself.

        None for a body that makes calls of its own, which must not take the name of this one for theirs.
        """
        _CURRENT.set(None if call is None else self._describe(call))

    async def done(self, call: ToolCall, outcome: Outcome, parts: Sequence[Part] = ()) -> None:
        """Store what a body returned, and what else it changed; a result that says it failed is a result too."""
        await self._settle(call, CallState.DONE, outcome, parts)

    async def failed(self, call: ToolCall, error: BaseException) -> None:
        """Store that a body raised. The same attempt may start it again, a later one gets this as the answer."""
        await self._settle(call, CallState.FAILED, Outcome("error", f"{type(error).__name__}: {error}"))

    async def waiting(self, call: ToolCall) -> None:
        """Store that a body stopped to wait for a person; it starts over when it is answered."""
        self._rows[call.key] = await self._context.journal(self.stopped(call))

    def stopped(self, call: ToolCall) -> Part:
        """Note that a body stopped to wait for a person; the part belongs in the write that asks, which is done next."""
        self._busy.discard(call.key)
        self._new.discard(call.key)
        self._rows.pop(call.key, None)
        return journal.settled(
            scope=self._history.scope, key=call.key, token=self._tokens.pop(call.key), state=CallState.WAITING,
            outcome=None, position=None,
        )  # fmt: skip

    async def state(self, call: ToolCall) -> CallState | None:
        """Say how far a call came, or None where no row of it says so."""
        row = await self._row(call)
        return None if row is None else row.state

    def has_raised(self, call: ToolCall) -> bool:
        """Say whether the body of a call ended in this attempt by raising, so that it may start again."""
        row = self._rows.get(call.key)
        return row is not None and row.state is CallState.FAILED and self.is_mine(row)

    async def close(self, call: ToolCall, *, proven: bool, otherwise: Outcome = INTERRUPTED) -> Outcome:
        """Answer a call without running anything, and return the answer; `otherwise` if nobody knows its outcome.

        A pending call is said not to have run only when it is `proven` that nothing could run it past this journal.
        """
        self.dead.add(call.key)
        row = await self._row(call)
        answer = self._answer(call, row, run=False)
        assert answer is not None
        unknown = answer is INTERRUPTED or (answer is NOT_RUN and not proven)
        return await self._answered(call, row, otherwise if unknown else answer)

    async def decided(self, call: ToolCall, answer: Outcome) -> Outcome:
        """Answer a call as a person decided, without running it."""
        return await self._answered(call, await self._row(call), answer, origin="approval")

    async def has(self, call: ToolCall) -> bool:
        """Say whether there is a row of a call. Histories that came from elsewhere, or were cleaned up, have none."""
        return await self._row(call) is not None

    async def rows(self) -> list[Call]:
        """Read every row of the history."""
        rows = await self._history.calls()
        self._rows.update((row.key, row) for row in rows)
        return rows

    def closed(self, call: ToolCall, outcome: Outcome) -> Part:
        """Note, in the write that stores it, a result that came past this journal."""
        return journal.answered(
            scope=self._history.scope,
            key=call.key,
            call_id=call.call_id,
            name=call.name,
            arguments=_text(call.arguments),
            outcome=_stored(outcome),
            position=None,
        )

    def used(self, key: str, note: Any = None) -> Part:
        """Note, in the write that uses it, that something which may be used once was used, with more of it as JSON."""
        return journal.answered(
            scope=self._history.scope,
            key=key,
            call_id=None,
            name=key,
            arguments=None,
            outcome=_stored(Outcome("ok", None, note)),
            position=None,
        )

    async def note(self, notes: Mapping[str, Any]) -> None:
        """Note each of some things as used, with what is noted of it."""
        if notes:
            await self._context.write(parts=[self.used(key, note) for key, note in notes.items()])

    def noted(self, row: Call) -> Any:
        """Return what was noted with something that was used."""
        return _loaded(row).value

    async def was_used(self, key: str) -> bool:
        """Say whether it was noted as used."""
        return await self._history.call(key) is not None

    def told(self, call: ToolCall) -> bool:
        """Say whether clients hear of the end of a call from this journal."""
        row = self._rows.get(call.key)
        return row is not None and row.state is not CallState.PENDING

    def is_mine(self, row: Call) -> bool:
        """Say whether this attempt made the newest entry of a row."""
        return (row.invocation_number, row.epoch) == self._context.lease

    async def _settle(self, call: ToolCall, state: CallState, outcome: Outcome, parts: Sequence[Part] = ()) -> None:
        self._busy.discard(call.key)
        self._events.flush()
        part = journal.settled(
            scope=self._history.scope, key=call.key, token=self._tokens.pop(call.key), state=state,
            outcome=_stored(outcome), position=self._context.next_position(),
        )  # fmt: skip
        event = finished(call, outcome, origin="executed")
        (row, *_), *_ = await self._context.write(events=[event], parts=[part, *parts], progress=True)
        self._rows[call.key] = journal.read(row)

    async def _row(self, call: ToolCall) -> Call | None:
        if call.key in self._rows:
            return self._rows[call.key]
        return None if call.key in self._new else await self._history.call(call.key)

    def _answer(self, call: ToolCall, row: Call | None, *, run: bool = True) -> Outcome | None:
        """Decide from its row what a call is answered with; None lets it run."""
        may_run = run and (call.key not in self.dead or call.name in self._rerun_safe)
        if row is None:
            return None if may_run else INTERRUPTED
        match row.state:
            case CallState.DONE:
                return _loaded(row)
            case CallState.FAILED:
                return None if run and self.is_mine(row) else _loaded(row)
            case CallState.WAITING:
                return None if run else INTERRUPTED
            case CallState.PENDING:
                return None if may_run else NOT_RUN
            case CallState.STARTED:
                again = run and call.name in self._rerun_safe and self._was_left(row)
                return None if again else INTERRUPTED

    def _was_left(self, row: Call) -> bool:
        """Say whether another attempt started a call, whose outcome nobody knows."""
        return row.state is CallState.STARTED and not self.is_mine(row)

    async def _answered(
        self, call: ToolCall, row: Call | None, answer: Outcome, *, origin: str = "recovery"
    ) -> Outcome:
        """Store an answer that no body gave, and tell clients of one they have not heard of."""
        if row is not None and row.state in (CallState.DONE, CallState.FAILED) and row.finished_position is not None:
            return answer
        self._events.flush()
        part = journal.answered(
            scope=self._history.scope, key=call.key, call_id=call.call_id, name=call.name,
            arguments=_text(call.arguments), outcome=_stored(answer), position=self._context.next_position(),
        )  # fmt: skip
        event = finished(call, answer, origin=origin)
        self._rows[call.key] = await self._context.journal(part, events=[event], progress=True)
        return answer

    def _describe(self, call: ToolCall) -> CurrentToolCall:
        text = jsontext.encode([self._context.principal, self._history.scope, call.key])
        key = hashlib.sha256(text.encode("ascii")).hexdigest()
        return CurrentToolCall(call.name, call.call_id, self._context.attempt, key)


def _started(call: ToolCall) -> Event:
    return {"type": "agent.tool.started", "call_id": call.call_id, "name": call.name, "input": call.arguments}


def finished(call: ToolCall, outcome: Outcome, *, origin: str) -> Event:
    """Return the event that tells how a call ended."""
    event: Event = {
        "type": "agent.tool.finished", "call_id": call.call_id, "name": call.name, "outcome": outcome.result,
        "output": outcome.output, "origin": origin,
    }  # fmt: skip
    return event | ({"error": outcome.output} if outcome.failed else {})


def _text(arguments: Any) -> str | None:
    return None if arguments is None else jsontext.encode(arguments)


def _stored(outcome: Outcome) -> str:
    return jsontext.encode({"result": outcome.result, "output": outcome.output, "value": outcome.value})


def _loaded(row: Call) -> Outcome:
    if row.outcome is None:
        return INTERRUPTED
    stored = jsontext.decode(row.outcome)
    return Outcome(stored["result"], stored["output"], stored["value"])
