"""The thread that keeps this worker alive in the eyes of the others, and looks after them.

It has a connection of its own and needs neither the event loop nor the writer, so that neither a blocked loop nor a
busy database makes this worker look dead. A worker is dead when its counter did not change for `dead_after` seconds of
*this* process's monotonic time, in which this process itself wrote beats without an error; no wall clock decides.
"""

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from outlast.core import faults
from outlast.engine import locks
from outlast.engine.settings import EngineSettings
from outlast.store import invocations, workers
from outlast.store.invocations import Cancelled, Stopping, cancelled_outcome
from outlast.store.statements import Again, Connection, DatabaseError
from outlast.store.workers import Lost, WorkerRow

logger = logging.getLogger("outlast.engine")

SWEEP_EVERY = 15
"""Beats between two sweeps."""


class Listener(Protocol):
    """What the heartbeat tells the engine; called in the heartbeat's thread."""

    def beat_confirmed(self) -> None: ...
    def worker_lost(self, worker: str) -> None: ...
    def runs_recovered(self, lost: Sequence[Lost]) -> None: ...
    def stop_asked(self, runs: Sequence[Stopping]) -> None: ...
    def run_expired(self, ended: Cancelled) -> None: ...


@dataclass(slots=True)
class _Seen:
    counter: int
    since: float


@dataclass(slots=True)
class LoopWatch:
    """When the event loop last showed that it runs."""

    thread: int
    stamp: float = field(default_factory=time.monotonic)
    warned: bool = False

    def touch(self) -> None:
        self.stamp = time.monotonic()
        self.warned = False

    def stalled_for(self) -> float:
        return time.monotonic() - self.stamp

    def where(self) -> str:
        """Name the line the loop's thread is in."""
        frame = sys._current_frames().get(self.thread)
        if frame is None:
            return "an unknown place"
        last = traceback.extract_stack(frame)[-1]
        return f"{last.name} ({last.filename}:{last.lineno})"


class Heartbeat(threading.Thread):
    """Beats, observes, takes over, and stops what must stop. Start it, then `close` it."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        worker: str,
        settings: EngineSettings,
        listener: Listener,
        loop_watch: LoopWatch,
    ) -> None:
        super().__init__(name="outlast-heartbeat", daemon=True)
        self.worker = worker
        self.confirmed_at = time.monotonic()
        """Monotonic time of the last beat the database confirmed."""
        self.others = 0
        """Live workers beside this one."""
        self.stalled = False
        self._connect, self._settings, self._listener, self._watch = connect, settings, listener, loop_watch
        self._connection: Connection | None = None
        self._seen: dict[str, _Seen] = {}
        self._asked: dict[tuple[int, int], float] = {}
        self._host = locks.host_id()
        self._closing = threading.Event()
        self._beats = 0

    def close(self) -> None:
        """Stop beating and wait for the thread."""
        self._closing.set()
        self.join()

    def run(self) -> None:
        while True:
            self._watch_loop()
            try:
                self._round()
            except Exception:
                # Without its heartbeat a worker is dead to the others, and nobody would know why.
                logger.exception("a heartbeat failed; the next one follows")
                self._close_connection()
            if self._closing.wait(self._settings.beat):
                break
        self._close_connection()

    def _round(self) -> None:
        """One beat and one look around; a lost connection makes everything seen before worthless."""
        try:
            self._connection = self._connection or self._connect()
            self._beat(self._connection)
            self._look_around(self._connection)
        except Again:
            self._rollback()
        except DatabaseError as error:
            logger.warning("the heartbeat lost its database connection (%s)", error)
            self._seen.clear()
            self._rollback()
            self._close_connection()

    def _rollback(self) -> None:
        if self._connection is not None:
            self._connection.rollback()

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _beat(self, connection: Connection) -> None:
        worker = self.worker  # another one may be registered meanwhile
        connection.begin()
        alive = workers.beat(connection, id=worker, stalled=self.stalled)
        connection.commit()
        self._beats += 1
        if alive:
            self._forget_what_was_seen_before_a_gap()
            self.confirmed_at = time.monotonic()
            self._listener.beat_confirmed()
        else:
            self._listener.worker_lost(worker)

    def _forget_what_was_seen_before_a_gap(self) -> None:
        """While this worker could not write, the others may not have been able to either."""
        if time.monotonic() - self.confirmed_at > self._settings.dead_after / 2:
            self._seen.clear()

    def _look_around(self, connection: Connection) -> None:
        connection.begin()
        rows = workers.listed(connection)
        asked = invocations.stopping(connection)
        if self._beats % SWEEP_EVERY == 1:
            mended = invocations.sweep(connection)
            if mended:
                logger.warning("%d runs were waiting for nothing; they are ready now", mended)
        connection.commit()
        others = [row for row in rows if row.id != self.worker]
        self.others = len(others)
        dead = [(row, reason) for row in others if (reason := self._dead(row)) is not None]
        for row, reason in dead:
            self._unless_blocked(connection, partial(self._take_over, connection, row, reason))
        self._seen = {row.id: self._seen[row.id] for row in rows if row.id in self._seen}
        self._end_overdue(connection, asked)

    def _dead(self, row: WorkerRow) -> str | None:
        """Say why a worker is certainly dead, or None."""
        if row.host == self._host and row.lock_file is not None and locks.is_free(row.lock_file):
            return "its process ended"
        now = time.monotonic()
        seen = self._seen.get(row.id)
        if seen is None or seen.counter != row.counter:
            self._seen[row.id] = _Seen(row.counter, now)
            return None
        silent = now - seen.since
        return f"it did not beat for {silent:.1f} s" if silent > self._settings.dead_after else None

    def _unless_blocked(self, connection: Connection, take: Callable[[], None]) -> bool:
        """Take something from another worker. False: a transaction of its is open, so that it is left to the next
        round, but what is to be taken from others is not."""
        try:
            take()
        except Again:
            connection.rollback()
            # The wait was longer than a beat, and there may be more of them.
            self._beat(connection)
            return False
        return True

    def _take_over(self, connection: Connection, row: WorkerRow, reason: str) -> None:
        faults.reach("takeover.begin")
        connection.begin()
        counter = None if reason == "its process ended" else row.counter
        lost = workers.take_over(connection, id=row.id, counter=counter)
        connection.sync()
        faults.reach("takeover.before_commit")
        connection.commit()
        faults.reach("takeover.after_commit")
        self._seen.pop(row.id, None)
        if lost is None:
            return
        if row.lock_file is not None and row.host == self._host:
            locks.remove(row.lock_file)
        logger.warning("worker %s is dead (%s); %d of its runs are queued again", row.id, reason, len(lost))
        self._listener.runs_recovered(lost)

    def _end_overdue(self, connection: Connection, asked: Sequence[Stopping]) -> None:
        """Tell the engine what must stop, and end what did not stop in time, whoever holds it."""
        if asked:
            self._listener.stop_asked([run for run in asked if run.holder == self.worker])
        now = time.monotonic()
        self._asked = {(run.number, run.epoch): self._asked.get((run.number, run.epoch), now) for run in asked}
        patience = self._settings.cancel_grace + self._settings.dead_after
        blocked: set[str | None] = set()
        for run in asked:
            overdue = now - self._asked[run.number, run.epoch] >= patience
            take = partial(self._expire, connection, run)
            if overdue and run.holder not in blocked and not self._unless_blocked(connection, take):
                blocked.add(run.holder)

    def _expire(self, connection: Connection, run: Stopping) -> None:
        faults.reach("expire.begin")
        connection.begin()
        ended = invocations.expire(
            connection, number=run.number, epoch=run.epoch, outcome=cancelled_outcome(run.reason)
        )
        faults.reach("expire.before_commit")
        connection.commit()
        faults.reach("expire.after_commit")
        if ended is not None:
            logger.warning("invocation %s did not stop when asked; it was ended", ended.invocation.id)
            self._listener.run_expired(ended)

    def _watch_loop(self) -> None:
        blocked = self._watch.stalled_for()
        self.stalled = blocked > self._settings.stall_after
        if blocked > self._settings.stall_warning and not self._watch.warned:
            self._watch.warned = True
            logger.warning(
                "the event loop has been blocked for %.0f s in %s; use `async` calls or a `def` tool there",
                blocked,
                self._watch.where(),
            )
        if blocked > self._settings.stall_exit:
            logger.critical("the event loop has been blocked for %.0f s; the process ends", blocked)
            os._exit(70)
