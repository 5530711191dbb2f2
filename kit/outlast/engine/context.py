"""What a handler gets: who asked for what, a log to emit to, and side effects that happen once."""

import asyncio
import hashlib
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from outlast.core import faults, ids, jsontext
from outlast.core.errors import EffectFailed, InvalidRequest, LeaseLost, NotJSON, OutcomeUnknown
from outlast.core.records import Call, CallState, Invocation, Kind
from outlast.engine.auth import RequestAuth
from outlast.engine.threads import call
from outlast.store import journal
from outlast.store.grouped import Part
from outlast.store.statements import Row
from outlast.store.store import Store
from outlast.store.writer import SOON_SECONDS, Answer, pass_on

MAX_EVENT_BYTES = 16 << 20
"""Bytes of JSON text; a larger event is refused by `emit`."""

SOON_LIMIT = 500
"""Events that wait at most."""

SOON_BYTES = 8192
"""A larger event does not wait, so that what waits is no more than a batch of the writer."""

Event = tuple[int, int, str]


class Lease(Protocol):
    """What a context needs of the worker that runs it."""

    async def assured(self) -> None:
        """Wait until the worker's last beat is young enough to start something that must not run twice."""

    def committed(self, number: int, events: Sequence[Event]) -> None:
        """Events were committed."""

    def progressed(self, number: int) -> None:
        """The attempt stored something a next attempt can build on."""


class InvocationContext:
    """One attempt of one invocation. Everything that writes raises LeaseLost once the attempt is over."""

    def __init__(
        self, invocation: Invocation, *, store: Store, lease: Lease, last_position: int, auth: RequestAuth
    ) -> None:
        self.invocation_id = invocation.id
        self.session_id = invocation.session_id
        self.agent = invocation.agent
        self.principal = invocation.principal
        self.attempt = invocation.attempt
        self.is_recovery = invocation.attempt > 1
        self.kind: Kind = invocation.kind
        self.input: Any = jsontext.decode(invocation.input)
        self.config: Mapping[str, Any] = jsontext.decode(invocation.config)
        self.metadata: Mapping[str, str] = jsontext.decode(invocation.metadata)
        self.request_auth = auth
        self.usage: Mapping[str, Any] | None = None
        """Set it to have it stored with the invocation."""
        self.scope = f"i{invocation.number}" if invocation.session_number is None else f"s{invocation.session_number}"
        """Names the history this run belongs to in the tool journal."""
        self._number, self._epoch = invocation.number, invocation.epoch
        self._store, self._lease = store, lease
        self._position = last_position
        self._behind: set[asyncio.Future[Any]] = set()
        self._soon: list[Event] = []
        self._soon_parts: list[tuple[Sequence[Part], asyncio.Future[None]]] = []
        self._soon_timer: asyncio.TimerHandle | None = None
        self._failure: BaseException | None = None
        self._once: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._closed: str | None = None
        self.cancelled = False
        """Becomes True when somebody asked the run to stop; code in threads should look at it."""

    @property
    def input_message(self) -> Any:
        """The input, or None where it has no new message: on a resume, and when it brings answers (`{"resume": …}`)."""
        answers = isinstance(self.input, Mapping) and set(self.input) == {"resume"}
        return None if answers or self.kind is Kind.RESUME else self.input

    @property
    def last_position(self) -> int:
        """The position of the newest event of this invocation, committed or on its way."""
        return self._position

    @property
    def store(self) -> Store:
        """The store this attempt writes to, for adapters that read a history."""
        return self._store

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop this attempt runs on; every method but `emit_from_thread` is called there."""
        return self._loop

    @property
    def lease(self) -> tuple[int, int]:
        """The (number, epoch) every write of this attempt names."""
        return self._number, self._epoch

    async def emit(self, event: Any) -> int:
        """Append any JSON value to the invocation's log and return its position, once it is committed.

        Positions follow the order of calls. Raises NotJSON for what JSON cannot hold or what is larger than 16 MiB
        (nothing is stored then), and LeaseLost when the attempt is over.
        """
        position, future = self._append([event], ())
        await future
        return position

    def emit_from_thread(self, event: Any) -> int:
        """The same as `emit`, for code that runs in a thread; blocks until the event is committed."""
        if threading.get_ident() == self._thread:
            raise RuntimeError("emit_from_thread would block the event loop for ever here; use `await context.emit(…)`")
        return asyncio.run_coroutine_threadsafe(self.emit(event), self._loop).result()

    def post(self, event: Any) -> int:
        """Append an event without waiting: it goes with the next write, or after a moment; `barrier` waits for it."""
        self._check()
        text = _event_text(event)
        self._position += 1
        self._soon.append((self._position, self.attempt, text))
        if len(self._soon) >= SOON_LIMIT or len(text) > SOON_BYTES:
            self._send_soon()
        else:
            self._wait_a_moment()
        return self._position

    def write_soon(self, parts: Sequence[Part]) -> "asyncio.Future[None]":
        """Store journal parts with the next write, or alone after a moment, so never after what is written later."""
        self._check()
        stored: asyncio.Future[None] = Answer(loop=self._loop)
        self._soon_parts.append((parts, stored))
        self._wait_a_moment()
        return stored

    @property
    def waiting(self) -> list[Part]:
        """The parts that go with the next write."""
        return [part for parts, _ in self._soon_parts for part in parts]

    async def barrier(self) -> None:
        """Wait until everything posted is committed. Raises what went wrong with it."""
        self._send_soon()
        while self._behind:
            await asyncio.wait(self._behind)
        if self._failure is not None:
            raise self._failure

    async def write(
        self, *, events: Sequence[Any] = (), parts: Sequence[Part] = (), progress: bool = False
    ) -> list[list[Row]]:
        """Store events and journal parts in one transaction; return the rows each part answered."""
        _, future = self._append(events, parts, progress)
        answer: list[list[Row]] = await future
        if progress:
            self._lease.progressed(self._number)
        return answer[: len(parts)]

    def next_position(self) -> int:
        """The position that the next event gets."""
        return self._position + 1

    async def assured(self) -> None:
        """Wait until it is safe to start something that must not run twice. Raises LeaseLost."""
        await self._lease.assured()
        self._check()

    async def once(self, key: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a side effect of this invocation at most once, over all attempts, and return its JSON outcome.

        `function` may be `async def` or `def` (then it runs in a thread). When an earlier attempt finished it, its
        stored outcome is returned. Raises OutcomeUnknown when an earlier attempt died between its start and its
        outcome, and EffectFailed when it raised there. An exception of `function` in this attempt goes out as it is.
        Raises InvalidRequest (`invalid_key`) unless the key has 1 to 512 characters and no control character.
        """
        _check_key(key)
        return await self.once_in(f"i{self._number}", key, function, *arguments)

    async def once_in(self, scope: str, key: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """The same for an effect of a history (`scope`), which later runs of its session know, too."""
        if (running := self._once.get((scope, key))) is not None:
            await asyncio.wait([running])
            return await self.once_in(scope, key, function, *arguments)
        running = self._once[scope, key] = self._loop.create_future()
        try:
            return await self._once_started(scope, key, function, arguments)
        finally:
            del self._once[scope, key]
            running.set_result(None)

    async def _once_started(
        self, scope: str, key: str, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Any:
        await self.assured()
        token = uuid.uuid4().hex
        row = await self.journal(
            journal.started(scope=scope, key=key, token=token, call_id=None, name=key, arguments=None, position=None)
        )
        if row.token != token:
            return _earlier(key, row)

        async def settle(state: CallState, outcome: Any) -> None:
            part = journal.settled(
                scope=scope, key=key, token=token, state=state, outcome=jsontext.encode(outcome), position=None
            )
            await self.write(parts=[part], progress=True)

        try:
            faults.enter(f"{scope}:{key}", key, repeatable=False)
            value = await call(function, *arguments)
            faults.reach("tool.after_body")
            jsontext.encode(value)
        except Exception as error:
            await settle(CallState.FAILED, {"type": type(error).__name__, "message": str(error)})
            raise
        await settle(CallState.DONE, value)
        return value

    async def journal(self, part: Part, *, events: Sequence[Any] = (), progress: bool = False) -> Call:
        """Store one journal part, with events, and return the row as it is afterwards. Raises LeaseLost."""
        ((row, *_),) = await self.write(events=events, parts=[part], progress=progress)
        return journal.read(row)

    def idempotency_key(self, key: str) -> str:
        """Return a key that is the same in every attempt of this invocation, to hand to other services."""
        text = jsontext.encode([self.principal, self.invocation_id, key])
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    def close(self, reason: str) -> None:
        """End the context: whatever still runs in the handler's name can store nothing more."""
        self._send_soon()
        self._closed = self._closed or reason

    def _check(self) -> None:
        if self._closed is not None:
            raise LeaseLost(f"this attempt of invocation {self.invocation_id} is over: {self._closed}")

    def _append(
        self, events: Sequence[Any], parts: Sequence[Part], progress: bool = False
    ) -> tuple[int, "asyncio.Future[Any]"]:
        self._check()
        newest, attempt = self._position, self.attempt
        new = [(position, attempt, _event_text(event)) for position, event in enumerate(events, newest + 1)]
        waiting, waiting_parts, stored = len(self._soon), self.waiting, [stored for _, stored in self._soon_parts]
        numbered = [*self._soon, *new]
        self._forget_soon()
        before, last = newest - waiting, newest + len(new)
        self._position = last

        def told(stored: bool) -> None:
            if stored:
                self._lease.committed(self._number, numbered)
            elif self._position == last:
                # The positions of refused events go to the next ones, so that the log has no gap.
                self._position = before

        future = self._store.write(
            self._number, self._epoch, events=numbered, parts=[*parts, *waiting_parts], progress=progress,
            told=told if numbered else None,
        )  # fmt: skip
        if waiting or stored:
            self._behind.add(future)
            future.add_done_callback(self._arrived)
        for one in stored:
            future.add_done_callback(partial(pass_on, one))
        return last, future

    def _wait_a_moment(self) -> None:
        if self._soon_timer is None:
            self._soon_timer = self._loop.call_later(SOON_SECONDS, self._send_soon)

    def _forget_soon(self) -> None:
        if self._soon_timer is not None:
            self._soon_timer.cancel()
            self._soon_timer = None
        self._soon, self._soon_parts = [], []

    def _send_soon(self) -> None:
        if self._soon or self._soon_parts:
            self._append((), ())

    def _arrived(self, future: "asyncio.Future[Any]") -> None:
        self._behind.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            self._failure = self._failure or error


def _event_text(event: Any) -> str:
    text = jsontext.encode(event)
    if len(text) > MAX_EVENT_BYTES:
        raise NotJSON(f"an event of {len(text)} bytes; the limit is {MAX_EVENT_BYTES}")
    return text


def _check_key(key: str) -> None:
    """Refuse on every database what one of them cannot hold in its index."""
    try:
        ids.session_id(key)
    except InvalidRequest:
        raise InvalidRequest(
            f"a key of `once` has 1 to {ids.MAX_SESSION_ID} characters and no control character", code="invalid_key"
        ) from None


def _earlier(key: str, row: Call) -> Any:
    if row.state is CallState.DONE and row.outcome is not None:
        return jsontext.decode(row.outcome)
    if row.state is CallState.FAILED and row.outcome is not None:
        outcome = jsontext.decode(row.outcome)
        raise EffectFailed(key, outcome["type"], outcome["message"])
    raise OutcomeUnknown(key)
