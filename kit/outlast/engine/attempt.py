"""One attempt: enter a handler, stop it when asked, and turn whatever it did into an outcome, once."""

import asyncio
import contextlib
import logging
from typing import Any, Literal

from outlast.core import faults, jsontext
from outlast.core.errors import LeaseLost, NotJSON, OutlastError, RunFailed
from outlast.core.records import Interrupt, Invocation, Outcome, Status
from outlast.engine.context import InvocationContext
from outlast.engine.handlers import AgentHandlers
from outlast.engine.threads import call
from outlast.engine.waiting import done_within
from outlast.engine.worker import Worker
from outlast.store.invocations import cancelled_outcome

logger = logging.getLogger("outlast.engine")

StopReason = Literal["cancelled", "timeout", "shutdown", "lease_lost"]

SHUTDOWN_GRACE_SECONDS = 2.0
"""How long a handler that is cancelled by a shutdown may clean up before its run is handed back."""


MAX_OUTPUT_BYTES = 64 << 20
"""Bytes of JSON text of what a run returns; a larger output fails the run."""

MAX_MESSAGE = 64 << 10
"""Characters of an error's text that are kept."""


class Attempt:
    """Owns the lease of one invocation until it is final, handed back, or lost."""

    def __init__(self, worker: Worker, invocation: Invocation, handlers: AgentHandlers) -> None:
        self.invocation = invocation
        self.suspect = invocation.suspect
        self.context: InvocationContext | None = None
        self._worker, self._handlers = worker, handlers
        self._stop: StopReason | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the attempt was asked to stop, or its handler ended."""
        self._entered = False
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.invocation.number, self.invocation.epoch

    def stop(self, reason: StopReason) -> None:
        """Ask the attempt to end. The first reason counts, except that a lost lease beats every other."""
        if self._stop is None or reason == "lease_lost":
            self._stop = reason
        if self.context is not None:
            self.context.cancelled = True
            if reason == "lease_lost":
                self.context.close("its lease is gone")
        self._wake()

    def _wake(self, _: object = None) -> None:
        if not self._over.done():
            self._over.set_result(None)

    async def run(self) -> Invocation | None:
        """Run to the end. Returns the final record, or None when the run goes on elsewhere."""
        self._watch_deadline()
        try:
            outcome = self._refused() or await self._enter()
            if outcome is not None and self._is_cut_short():
                await self._put_in_order()
            return await self._end(outcome)
        except LeaseLost:
            logger.warning(
                "invocation %s: attempt %d lost its lease; its result was discarded",
                self.invocation.id, self.invocation.attempt,
            )  # fmt: skip
            return None
        finally:
            if self._deadline is not None:
                self._deadline.cancel()
            if self.context is not None:
                self.context.close("it ended")

    def _watch_deadline(self) -> None:
        """Time out to the second; after a restart the heartbeat does, by the database's clock."""
        timeout_ms = self.invocation.timeout_ms or 0
        if timeout_ms > 0 and self.invocation.attempt == 1:
            self._deadline = asyncio.get_running_loop().call_later(timeout_ms / 1000, self.stop, "timeout")

    def _refused(self) -> Outcome | None:
        """Say how the run ends without entering a handler, where it must."""
        run, limit = self.invocation, self._worker.settings.max_crashes
        if run.cancel is not None:
            return cancelled_outcome(run.cancel)
        if limit and run.crashes >= limit:
            return Outcome.failed(
                "attempts_exhausted", f"{run.crashes} workers died while they ran this without any progress"
            )
        if run.attempt > 1 and self._handlers.recover is None:
            return Outcome.failed(
                "interrupted_without_recovery", "the worker that ran this died, and the agent has no recover handler"
            )
        return None

    def _is_cut_short(self) -> bool:
        """Say whether a handler was entered, now or in an earlier attempt, and somebody stopped the run since."""
        entered = self._entered or self.invocation.attempt > 1
        return entered and (self.invocation.cancel is not None or self._stop in ("cancelled", "timeout"))

    async def _enter(self) -> Outcome | None:
        """Call the handler; None when the attempt must not decide the outcome (shutdown, lost lease)."""
        run, store = self.invocation, self._worker.store
        last = await store.read.last_position(run.number, patient=True) if run.attempt > 1 else 0
        if self._stop is not None:
            return self._stopped()
        self.context = self._context(last)
        faults.reach("attempt.before_handler")
        self._entered = True
        handling = asyncio.ensure_future(self._handled(self.context))
        handling.add_done_callback(self._wake)
        await self._over
        if self._stop is not None and not (handling.done() and self._stop == "shutdown"):
            await self._wind_down(handling)
            return self._stopped()
        outcome = await handling
        faults.reach("attempt.after_handler")
        return outcome

    def _context(self, last: int) -> InvocationContext:
        return InvocationContext(
            self.invocation, store=self._worker.store, lease=self._worker, last_position=last,
            auth=self._worker.auth(self.invocation),
        )  # fmt: skip

    async def _put_in_order(self) -> None:
        """Have the agent close what a cancelled run leaves open in its history. Raises LeaseLost.

        Its handler may still run: it loses its context first, and what it wrote before is waited for.
        """
        if self._handlers.cancelled is None:
            return
        run, store = self.invocation, self._worker.store
        if self.context is not None:
            self.context.close("it was cancelled")
        await store.write(run.number, run.epoch)
        self.context = self._context(await store.read.last_position(run.number, patient=True))
        try:
            await call(self._handlers.cancelled, self.context)
            await self.context.barrier()
        except LeaseLost:
            raise
        except Exception:
            logger.exception("invocation %s: its history could not be put in order when it was cancelled", run.id)

    async def _wind_down(self, handling: "asyncio.Future[Outcome]") -> None:
        """Cancel the handler and give it its grace; what still runs afterwards has lost its context."""
        handling.cancel()
        grace = self._worker.settings.cancel_grace
        if self._stop in ("shutdown", "lease_lost"):
            grace = min(grace, SHUTDOWN_GRACE_SECONDS)
        if not await done_within(handling, grace):
            logger.warning("invocation %s: its handler does not stop; it goes on without it", self.invocation.id)
        elif not handling.cancelled():
            handling.exception()

    def _stopped(self) -> Outcome | None:
        if self._stop in ("cancelled", "timeout"):
            return cancelled_outcome(self._stop)
        if self._stop == "shutdown" and self._handlers.recover is None and self._entered:
            return Outcome.failed(
                "interrupted_without_recovery", "the worker was stopped, and the agent has no recover handler"
            )
        return None

    async def _handled(self, context: InvocationContext) -> Outcome:
        """The one place that turns any exception of user code into a failed run.

        LeaseLost too, for it may be about another attempt, whose context the handler kept: whether this one's lease is
        gone is for the database to say, when the run is finished.
        """
        try:
            value = await call(self._handlers.choose(context), context)
            await context.barrier()
            return _outcome(value, context)
        except asyncio.CancelledError:
            if self._stop is not None:
                raise
            return _failed("cancelled_inside", "the handler raised CancelledError on its own", context)
        except RunFailed as error:
            return _failed(error.code, str(error), context)
        except NotJSON as error:
            return _failed("output_not_serializable", str(error), context)
        except OutlastError as error:
            return _failed(error.code, str(error), context)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            logger.exception("invocation %s: the handler raised", context.invocation_id)
            return _failed("handler_error", _described(error), context)

    async def _end(self, outcome: Outcome | None) -> Invocation | None:
        run, store = self.invocation, self._worker.store
        if self.context is not None:
            with contextlib.suppress(Exception):
                await self.context.barrier()
        if outcome is None:
            if self._stop == "shutdown":
                faults.reach("drain.before_hand_back")
                await store.hand_back(run.number, run.epoch, entered=self._entered)
            return None
        if self.context is not None:
            self.context.close("it ended")
        finished = await store.finish(run.number, run.epoch, run.session_number, outcome)
        self._worker.released(finished.released)
        return run._replace(
            status=outcome.status, output=outcome.output, error=outcome.error, interrupt=outcome.interrupt,
            usage=outcome.usage, last_position=finished.last_position, finished_at=finished.finished_at,
        )  # fmt: skip


def _outcome(value: Any, context: InvocationContext) -> Outcome:
    usage = None if context.usage is None else jsontext.encode(context.usage)
    text = value.as_json() if isinstance(value, Interrupt) else jsontext.encode(value)
    if (size := len(text) + len(usage or "")) > MAX_OUTPUT_BYTES:
        raise RunFailed("output_too_large", f"an output of {size} bytes; the limit is {MAX_OUTPUT_BYTES}")
    if isinstance(value, Interrupt):
        return Outcome(Status.INTERRUPTED, interrupt=text, usage=usage)
    return Outcome(Status.COMPLETED, output=text, usage=usage)


def _failed(code: str, message: str, context: InvocationContext) -> Outcome:
    usage = None
    with contextlib.suppress(Exception):
        text = None if context.usage is None else jsontext.encode(context.usage)
        usage = None if text is None or len(text) > MAX_OUTPUT_BYTES else text
    return Outcome.failed(code, message[:MAX_MESSAGE], usage)


def _described(error: BaseException) -> str:
    """Name an exception by its class and its text, which is user code too and may raise."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - `__str__` of a user's exception
        return f"{type(error).__name__} (its text cannot be had)"
