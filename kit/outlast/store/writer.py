"""One writer thread and one connection a process: what waits together commits together.

Every operation carries its own key, so a batch whose commit has an unknown outcome is simply sent again.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from outlast.core import faults
from outlast.core.errors import NotFound, OutlastError, StoreError, StoreUnavailable
from outlast.store import grouped
from outlast.store.grouped import Accept, Finish, Operation, Write
from outlast.store.statements import Again, Connection, DatabaseError, Lost, Refused

logger = logging.getLogger("outlast.store")

BATCH_LIMIT = 512
"""Operations in one transaction."""

BATCH_BYTES = 4 << 20
"""Bytes in one transaction, about: the operation that goes beyond it is the last of its batch."""

AGAIN_LIMIT = 50
AGAIN_SECONDS = 0.005
FIRST_RETRY_SECONDS = 0.05
LONGEST_RETRY_SECONDS = 1.0

SOON_SECONDS = 0.005
"""How long what is written soon may wait for a write to go with."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Call(Generic[T]):
    """A transaction of its own. `function` may run more than once, so it must find its own earlier effect."""

    point: str
    function: Callable[[Connection], T]


def seen_once(remove: Callable[[Connection], None]) -> Callable[[Connection], None]:
    """Make a removal repeatable: what it removed, or tried to, may be gone when it is run again."""
    seen = False

    def repeatable(connection: Connection) -> None:
        nonlocal seen
        try:
            remove(connection)
        except NotFound:
            if not seen:
                raise
        seen = True

    return repeatable


class Answer(asyncio.Future[T]):
    """A future that cannot be cancelled: a task that awaits a write learns its outcome first, and then is cancelled."""

    def cancel(self, msg: Any | None = None) -> bool:
        return False


def pass_on(stored: "asyncio.Future[None]", written: "asyncio.Future[Any]") -> None:
    """Tell whoever awaits a part of a write how the whole of it went."""
    if (error := written.exception()) is None:
        stored.set_result(None)
    else:
        stored.set_exception(error)
        stored.exception()  # whoever wrote may be gone; then it is no news to the log


class _Stop:
    pass


_Item = tuple[Operation | Call[Any], "asyncio.Future[Any]"]
_Result = tuple[Operation | Call[Any], "asyncio.Future[Any]", Any]


class Writer:
    """The thread that owns the write connection. `me` is the worker whose leases it may write under."""

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self.me: str | None = None
        self._connection = connection
        self._loop = loop
        self._queue: SimpleQueue[_Item | _Stop] = SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outlast-writer", daemon=True)
        self._thread.start()

    def submit(self, operation: Operation | Call[Any]) -> "asyncio.Future[Any]":
        """Queue an operation; the future resolves after its commit. Call from the loop's thread only."""
        future: asyncio.Future[Any] = Answer(loop=self._loop)
        if self._closing.is_set():
            future.set_exception(StoreUnavailable("the store is closed"))
        else:
            self._queue.put((operation, future))
        return future

    async def close(self) -> None:
        """Write what waits, then stop. While the database is away, what waits fails with StoreUnavailable."""
        self._closing.set()
        self._queue.put(_Stop())
        await self._loop.run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        stopped = False
        while not stopped:
            items, stopped = self._take()
            while items:
                items = self._round_or_errors(items)
        self._connection.close()

    def _take(self) -> tuple[list[_Item], bool]:
        items: list[_Item] = []
        room = BATCH_BYTES
        next_ = self._queue.get()
        while True:
            if isinstance(next_, _Stop):
                return items, True
            items.append(next_)
            if len(items) >= BATCH_LIMIT or self._queue.empty():
                return items, False
            room -= _size(next_[0])
            if room <= 0:
                return items, False
            next_ = self._queue.get()

    def _round_or_errors(self, items: list[_Item]) -> list[_Item]:
        """Do a round; whatever goes wrong in it, everybody gets an answer and the thread goes on."""
        try:
            return self._round(items)
        except BaseException:  # a thread that ends, by SystemExit too, would leave every later write waiting
            logger.exception("a round of writes failed")
            self._connection.rollback()
            error = StoreError("the store operation failed; see the log")
            self._deliver_soon([(operation, future, error) for operation, future in items])
            return []

    def _round(self, items: list[_Item]) -> list[_Item]:
        """Do one transaction of grouped operations, then every call; return what must wait for the next round."""
        futures = {id(item): future for item, future in items}
        operations = [operation for operation, _ in items if not isinstance(operation, Call)]
        now, later = grouped.separable(operations)
        if now:
            self._deliver_soon([(done, futures[id(done)], answer) for done, answer in self._together(now)])
        for operation, future in items:
            if isinstance(operation, Call):
                self._deliver_soon([(operation, future, self._call(operation))])
        return [(waiting, futures[id(waiting)]) for waiting in later]

    def _together(self, operations: Sequence[Operation]) -> list[tuple[Operation, Any]]:
        """Perform operations in one transaction; if the batch is refused, each alone."""
        answers = self._attempt(lambda: grouped.perform(self._connection, self.me, operations), len(operations) == 1)
        if isinstance(answers, StoreUnavailable):
            return [(operation, answers) for operation in operations]
        if isinstance(answers, list):
            done = list(zip(operations, answers, strict=True))
            if len(operations) == 1:
                return [(operation, _unanswered() if answer is None else answer) for operation, answer in done]
            return [
                pair
                for operation, answer in done
                for pair in (self._together([operation]) if answer is None else [(operation, answer)])
            ]
        if len(operations) == 1:
            return [(operations[0], answers)]
        return [pair for operation in operations for pair in self._together([operation])]

    def _call(self, call: Call[T]) -> T | OutlastError:
        def perform() -> T:
            faults.reach(f"{call.point}.begin")
            self._connection.begin()
            value = call.function(self._connection)
            grouped.connection_reach(self._connection, [call.point])
            self._connection.commit()
            faults.reach(f"{call.point}.after_commit")
            return value

        return self._attempt(perform, alone=True)

    def _attempt(self, perform: Callable[[], T], alone: bool) -> T | OutlastError:
        """Run a transaction until its outcome is known. A refused one comes back as an error."""
        tries = losses = 0
        while True:
            try:
                return perform()
            except OutlastError as error:
                self._connection.rollback()
                return error
            except Lost as error:
                losses += 1
                if losses == 1:
                    logger.warning("the database cannot write (%s); trying again", error)
                if not self._may_go_on(losses) or not self._reconnect():
                    return StoreUnavailable("the database is not reachable and the store is closing")
            except Again:
                self._connection.rollback()
                tries += 1
                if not alone or tries > AGAIN_LIMIT:
                    return StoreError("the database refused the statement; see the log")
                time.sleep(AGAIN_SECONDS * tries)
            except Refused as error:
                self._connection.rollback()
                if alone:
                    logger.error("the database refused a statement: %s", error)
                return StoreError("the database refused the statement; see the log")
            except Exception:
                self._connection.rollback()
                logger.exception("a store operation failed")
                return StoreError("the store operation failed; see the log")

    def _may_go_on(self, losses: int) -> bool:
        """Wait longer after each loss; False when the store is closing and the database does not come back."""
        if losses == 1:
            return True
        return not self._closing.wait(min(FIRST_RETRY_SECONDS * 2 ** min(losses, 8), LONGEST_RETRY_SECONDS))

    def _reconnect(self) -> bool:
        wait = FIRST_RETRY_SECONDS
        while True:
            try:
                self._connection.reconnect()
                return True
            except DatabaseError:
                pass
            if self._closing.wait(wait):
                return False
            wait = min(wait * 2, LONGEST_RETRY_SECONDS)

    def _deliver_soon(self, results: Sequence[_Result]) -> None:
        try:
            self._loop.call_soon_threadsafe(_deliver, results)
        except RuntimeError:
            logger.warning("%d committed store operations had nobody to tell: the loop is closed", len(results))


def _size(operation: Operation | Call[Any]) -> int:
    """Return about how many bytes an operation brings."""
    try:
        return 0 if isinstance(operation, Call) else grouped.size(operation)
    except Exception:  # noqa: BLE001 - it fails again where it has an answer
        return 0


def _unanswered() -> StoreError:
    return StoreError("the store could not answer; repeat the request with the same id")


def _deliver(results: Sequence[_Result]) -> None:
    """Tell followers first, in order of commit, then whoever awaits the write. What was told before, is left alone."""
    for operation, future, answer in results:
        if isinstance(operation, Write) and operation.told is not None and not future.done():
            try:
                operation.told(not isinstance(answer, OutlastError))
            except Exception:
                logger.exception("telling of a commit failed; whoever awaits it is told all the same")
    for _, future, answer in results:
        if future.done():
            continue
        if isinstance(answer, OutlastError):
            future.set_exception(answer)
        else:
            future.set_result(answer)


__all__ = ["Accept", "Call", "Finish", "Write", "Writer"]
