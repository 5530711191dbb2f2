"""The engine: accepts, orders, claims, runs, recovers, cancels and drains. One a process and event loop.

Everything that decides who may run what is in the database; this class keeps only what a restart may forget.
"""

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from outlast.core import faults, jsontext
from outlast.core.errors import InvalidRequest, LeaseLost, NotFound, OutlastError, StoreError, StoreUnavailable
from outlast.core.records import Invocation, OnActive, Outcome, Request, Status
from outlast.engine import locks
from outlast.engine.attempt import SHUTDOWN_GRACE_SECONDS, Attempt, StopReason
from outlast.engine.auth import RequestAuth
from outlast.engine.context import Event
from outlast.engine.counts import Counts
from outlast.engine.follow import Follower, Topic, Topics
from outlast.engine.handlers import AgentHandlers
from outlast.engine.heartbeat import Heartbeat, LoopWatch
from outlast.engine.settings import EngineSettings
from outlast.engine.waiting import done_within, set_within
from outlast.store.grouped import Accepted
from outlast.store.hints import Hints
from outlast.store.invocations import Cancelled, Stopping
from outlast.store.store import Store
from outlast.store.workers import Lost

logger = logging.getLogger("outlast.engine")

REMEMBERED = 4096
"""Ended leases, and credentials, kept in memory."""

FINAL_SECONDS = 2.0
"""How long a final record is kept in memory and answered from it: it may be large, and another worker may delete it."""

HINT_SECONDS = 0.02
"""Hints to other processes are gathered for so long."""

HINT_NUMBERS = 400
"""Run numbers in one hint; a notification of PostgreSQL holds 8,000 bytes."""

CLAIM_BATCH = 16
"""Runs claimed at once; the rest of the room stays free for what is accepted meanwhile."""

RETENTION_EVERY_SECONDS = 60.0
RETENTION_BATCH = 200


T = TypeVar("T")
K = TypeVar("K")


class Draining(StoreUnavailable):
    """This worker is shutting down; the same request is welcome on another one."""

    code = "draining"


class Engine:
    """Runs agents on a store. `await start()`, then `accept`, `wait`, `follow`, …; finally `await stop()`."""

    def __init__(
        self, store: Store, agents: Mapping[str, AgentHandlers], settings: EngineSettings | None = None
    ) -> None:
        self.store = store
        self.agents = agents
        self.settings = settings or EngineSettings()
        self.draining = False
        self.counts = Counts()
        self._topics = Topics(store.read, self.settings.poll)
        self._attempts: dict[int, tuple[Attempt, asyncio.Task[None]]] = {}
        self._positions: dict[int, int] = {}
        """How far the logs of runs that run here are committed, where it is known for certain without reading."""
        self._ended: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._finals: dict[tuple[str, str], Invocation] = {}
        self._auth: OrderedDict[tuple[str, str], RequestAuth] = OrderedDict()
        self._reserved = 0
        self._accepting: set[asyncio.Future[Accepted]] = set()
        self._unstarted: dict[int, Invocation] = {}
        """What a worker that claims nothing by itself accepted and had no room for: nobody else may ever start it."""
        self._backlog = False
        self._kick = asyncio.Event()
        self._beat_seen = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._hinted: set[int] = set()
        self._hint_timer: asyncio.TimerHandle | None = None

    # Start and stop -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Register this worker, look for dead ones at once, and begin to claim."""
        self._loop = asyncio.get_running_loop()
        self._watch = LoopWatch(self._loop, threading.get_ident())
        await self._register()
        self._heartbeat = Heartbeat(self.store.connect, self._worker_id, self.settings, self, self._watch)
        self._heartbeat.start()
        self._hints = Hints(self.store, self._loop, self._on_hint, busy=lambda: self._topics.remote)
        self._hints.start()
        for agent, handlers in self.agents.items():
            if handlers.recover is None:
                logger.warning("the agent %r has no recover handler: a run whose worker dies will end failed", agent)
        self._tasks.append(asyncio.create_task(self._stamp()))
        for work in (self._claim, self._topics.feed, self._retain):
            self._tasks.append(asyncio.create_task(self._kept_going(work)))

    async def _register(self) -> None:
        worker = f"{socket.gethostname()[:40]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._lock = locks.taken(self.settings.state_dir, worker)
        file = None if self._lock is None else str(self._lock.path)
        claims = list(self.agents) if self.settings.claims else []
        try:
            await self.store.register(id=worker, host=locks.host_id(), pid=os.getpid(), lock_file=file, claims=claims)
        except BaseException:
            # It may be there all the same, and nobody would beat for it.
            self._release_lock()
            self.store.deregister(worker).add_done_callback(_noted)
            raise
        self.store.worker = self._worker_id = worker

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def begin_drain(self) -> None:
        """Stop claiming and accepting, and end the streams of runs that run elsewhere. Returns at once."""
        if not self.draining:
            faults.reach("drain.begin")
            self.draining = True
            logger.info(
                "stopping: nothing new is accepted; %d runs may go on for up to %g s",
                len(self._attempts),
                self.settings.drain_timeout,
            )
            self._topics.close(all=False)

    def hurry(self) -> None:
        """Hand back at once what a drain still waits for."""
        logger.info("stopping now: %d runs are handed back", len(self._attempts))
        self._stop_all("shutdown")

    async def stop(self) -> None:
        """Drain: let runs end for `drain_timeout`, hand the rest back, and leave."""
        self.begin_drain()
        await self._finish_running(self.settings.drain_timeout)
        if self._attempts:
            logger.info("%d runs are handed back; they go on as their next attempt", len(self._attempts))
        self._stop_all("shutdown")
        await self._finish_running(SHUTDOWN_GRACE_SECONDS + self.settings.accept_timeout)
        if self._accepting:  # what is leased by them goes back before this worker leaves
            await asyncio.wait(self._accepting, timeout=self.settings.accept_timeout)
        await asyncio.gather(*(self._close_agent(agent) for agent in list(self.agents)))
        self._topics.close(all=True)
        for task in self._tasks:
            task.cancel()
        # Bounded, for a task that awaits a write learns its outcome first, and the database may be away.
        await asyncio.wait(self._tasks, timeout=self.settings.accept_timeout)
        await self._loop.run_in_executor(None, self._heartbeat.close)
        await self._loop.run_in_executor(None, self._hints.close)
        leaving = self.store.deregister(self._worker_id)
        leaving.add_done_callback(_noted)
        await done_within(leaving, self.settings.accept_timeout)
        self._release_lock()

    def leave(self) -> None:
        """Give back what was running when the event loop was closed without `stop`. Blocks."""
        self._heartbeat.close()

    async def _close_agent(self, agent: str) -> None:
        """Have an agent close what it keeps open between runs."""
        leaving = self.agents[agent].leaving
        if leaving is None:
            return
        try:
            async with asyncio.timeout(self.settings.accept_timeout):
                await leaving()
        except Exception:
            logger.exception("the agent %r could not close what it had opened", agent)

    async def _finish_running(self, timeout: float | None) -> None:
        tasks = [task for _, task in self._attempts.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)

    def _stop_all(self, reason: StopReason) -> None:
        for attempt, _ in list(self._attempts.values()):
            attempt.stop(reason)

    @property
    def running(self) -> int:
        """Attempts that run in this process now."""
        return len(self._attempts)

    def runs(self, number: int) -> bool:
        """Say whether an attempt of an invocation runs in this process now."""
        return number in self._attempts

    def will_run(self, number: int) -> bool:
        """Say whether this worker accepted an invocation for which it has no room yet."""
        return number in self._unstarted

    @property
    def stalled(self) -> bool:
        """The event loop has been blocked for so long that this worker claims nothing."""
        return self._heartbeat.stalled

    @property
    def connected(self) -> bool:
        """The database confirmed a beat of this worker not long ago."""
        return time.monotonic() - self._heartbeat.confirmed_at < self.settings.dead_after

    # What clients ask -----------------------------------------------------------------------------------------------

    async def accept(self, request: Request, *, auth: RequestAuth | None = None) -> Invocation:
        """Store a request and return its invocation; the same request again returns the same invocation.

        It is durable when this returns, and readable on every worker. Raises Conflict, Gone, InvalidRequest,
        Draining, or StoreUnavailable when the database does not answer in time (then send the same id again).
        """
        if self.draining:
            raise Draining("this worker is shutting down; send the same request again")
        self._check_agent(request)
        lease = self._room() > 0 and not self.settings.per_principal
        self._backlog = self._backlog or not lease
        self._reserved += lease
        future = self.store.accept(request, lease=lease, timeout_seconds=self.settings.run_timeout)
        self._accepting.add(future)
        future.add_done_callback(lambda done: self._accepted(done, lease, auth))
        if not await done_within(future, self.settings.accept_timeout):
            raise StoreUnavailable("the database does not answer; send the same request again")
        invocation = future.result().invocation
        if request.on_active is OnActive.CANCEL and invocation.status is Status.QUEUED:
            # Not before, for a request that is refused must not end anything. A repeat goes on where this was cut off.
            for id in await self.store.read.unfinished_before(invocation):
                with contextlib.suppress(NotFound):  # it ended and was deleted meanwhile
                    await self.cancel(invocation.principal, id)
        return invocation

    def _check_agent(self, request: Request) -> None:
        agent = self.agents.get(request.agent)
        if agent is None:
            known = ", ".join(sorted(self.agents))
            raise InvalidRequest(
                f"there is no agent {request.agent!r} here; there is {known}", code="unknown_agent", field="agent"
            )
        allowed = agent.config_keys
        unknown = sorted(set(jsontext.decode(request.config)) - allowed) if request.config != "{}" else []
        if unknown:
            known = f"it declares {', '.join(sorted(allowed))}" if allowed else "it declares none"
            raise InvalidRequest(
                f"the agent {request.agent!r} does not know the config key {unknown[0]!r}; {known}",
                code="unknown_config", field="config",
            )  # fmt: skip

    def _accepted(self, future: "asyncio.Future[Accepted]", lease: bool, auth: RequestAuth | None) -> None:
        """Runs even when nobody waits for the answer any more: what was accepted must start."""
        self._reserved -= lease
        self._accepting.discard(future)
        if future.exception() is not None:
            return
        invocation = future.result().invocation
        self.counts.accepted += future.result().created
        if invocation.status.final:
            return
        if auth is not None:
            _bounded(self._auth, (invocation.principal, invocation.id), auth)
        if invocation.status is Status.RUNNING and invocation.holder == self._worker_id:
            self._lead(invocation)
        elif invocation.status is Status.QUEUED:
            if not self.settings.claims and invocation.attempt == 0:
                self._unstarted[invocation.number] = invocation
            self._kick.set()
            self._hint()

    async def get(self, principal: str, id: str) -> Invocation:
        """Return the invocation. Raises NotFound."""
        if (final := self._final(principal, id)) is not None:
            return final
        found = await self.store.read.invocation(principal, id)
        if found is None:
            raise NotFound(f"there is no invocation {id}")
        if found.status.final:
            self._remember(found)
        return found

    async def wait(self, invocation: Invocation, timeout: float | None = None) -> Invocation:
        """Return the final record, or after `timeout` seconds, or when this worker stops, the record as it is."""
        if invocation.status.final:
            return invocation
        if (final := self._final(invocation.principal, invocation.id)) is not None:
            return final
        topic = await self._topic_of(invocation)
        topic.waiting += 1
        try:
            await done_within(topic.ended, timeout)
        finally:
            topic.waiting -= 1
            self._topics.forget(topic)
        return topic.final or await self.get(invocation.principal, invocation.id)

    async def follow(self, invocation: Invocation, *, after: int) -> Follower:
        """Return a follower that begins after a position. Raises as `check_cursor` does."""
        await self.check_cursor(invocation, after)
        return Follower(self._topics, await self._topic_of(invocation), after)

    async def check_cursor(self, invocation: Invocation, after: int) -> None:
        """Raise InvalidRequest (`invalid_cursor`) for a position that no committed event has."""
        if after > 0 and after > (last := await self._committed(invocation)):
            raise InvalidRequest(
                f"the cursor {after} is beyond the last event, {last}", code="invalid_cursor", field="after"
            )

    async def _committed(self, invocation: Invocation) -> int:
        if invocation.status.final:
            return invocation.last_position
        if (known := self._positions.get(invocation.number)) is not None:
            return known
        last = await self.store.read.last_position(invocation.number)
        return max(last, self._positions.get(invocation.number, 0))

    async def _topic_of(self, invocation: Invocation) -> Topic:
        number = invocation.number
        topic = self._topics.get(number)
        if topic is None:
            # What is committed while this waits goes by, so nothing may wait between the answer and the topic.
            last = await self._committed(invocation)
            topic = self._topics.open(number, last, local=number in self._positions)
            if (final := self._final_of(invocation)) is not None:
                topic.end(final)
        return topic

    def _final_of(self, invocation: Invocation) -> Invocation | None:
        if invocation.status.final:
            return invocation
        return self._final(invocation.principal, invocation.id)

    async def cancel(self, principal: str, id: str) -> Invocation:
        """Ask an invocation to stop and return its record; one that nobody began is final at once. Raises NotFound.

        One that lost its worker is taken up here, where its agent is known, to be finished without being entered.
        """
        if (final := self._final(principal, id)) is not None:
            return final
        cancelled: Cancelled = await self._answered(self.store.cancel(principal, id))
        self._settle(cancelled)
        record = cancelled.invocation
        if record.status is Status.RUNNING:
            if (running := self._attempts.get(record.number)) is not None:
                running[0].stop("cancelled")
            else:
                self._hint(record.number)
        elif record.status is Status.QUEUED and not self.draining:
            await self.adopt(record)
        return record

    async def delete(self, principal: str, id: str) -> None:
        """Remove a final invocation; its id answers Gone for a while. Raises NotFound, Conflict (`not_final`)."""
        keep_ms = round(self.settings.idempotency_retention * 1000)
        await self._answered(self.store.delete(principal, id, keep_ms=keep_ms))
        self._finals.pop((principal, id), None)

    async def _answered(self, future: "asyncio.Future[T]") -> T:
        if not await done_within(future, self.settings.accept_timeout):
            raise StoreUnavailable("the database does not answer; try again")
        return future.result()

    # Running --------------------------------------------------------------------------------------------------------

    def _room(self) -> int:
        return self.settings.concurrency - len(self._attempts) - self._reserved

    async def _claim(self) -> None:
        """Take ready runs from the queue while there is room, until cancelled."""
        while True:
            await set_within(self._kick, self.settings.poll)
            self._kick.clear()
            while self._may_claim() and self.settings.claims and await self._claim_once():
                pass
            await self._start_accepted()

    def _may_claim(self) -> bool:
        return not self.draining and self._room() > 0 and not self._heartbeat.stalled

    async def _start_accepted(self) -> None:
        """Start what this worker accepted and did not start, as far as there is room."""
        for run in list(self._unstarted.values()):
            if not self._may_claim():
                break
            if await self.adopt(run) or not await self._is_queued(run):
                del self._unstarted[run.number]
        self._backlog = self._backlog or bool(self._unstarted)

    async def _is_queued(self, run: Invocation) -> bool:
        with contextlib.suppress(NotFound):
            return (await self.get(run.principal, run.id)).status is Status.QUEUED
        return False

    async def _claim_once(self) -> bool:
        """Claim once; say whether there may be more."""
        room = min(self._room(), CLAIM_BATCH)
        suspected = any(attempt.suspect for attempt, _ in self._attempts.values())
        self._reserved += room
        try:
            claimed = await self._begun(
                list(self.agents), room=room, suspect_room=0 if suspected else 1,
                per_principal=self.settings.per_principal,
            )  # fmt: skip
        finally:
            self._reserved -= room
        self._backlog = len(claimed) >= room or bool(self.settings.per_principal)
        return len(claimed) >= room

    def _begun(self, agents: Sequence[str], **options: int) -> "asyncio.Future[list[Invocation]]":
        """Lease queued runs. They have begun when the future resolves, also if nobody waits for it any more."""
        claiming = self.store.claim(agents=agents, known=list(self._attempts), **options)
        claiming.add_done_callback(self._claimed)
        return claiming

    def _claimed(self, claiming: "asyncio.Future[list[Invocation]]") -> None:
        if claiming.exception() is None:
            for run in claiming.result():
                self._lead(run)

    def _lead(self, run: Invocation) -> None:
        """Begin what is leased to this worker; while it drains, what it has not begun goes back and does not count."""
        if not self.draining:
            self._begin(run)
        elif run.number not in self._attempts and (run.number, run.epoch) not in self._ended:
            self.store.hand_back(run.number, run.epoch, entered=False).add_done_callback(_noted)

    async def adopt(self, invocation: Invocation) -> bool:
        """Take one queued run, also on a worker that claims none; False when it is not to be had."""
        if invocation.agent not in self.agents:
            return False
        begun = await self._answered(
            self._begun([invocation.agent], room=1, suspect_room=1, per_principal=0, only=invocation.number)
        )
        return not self.draining and invocation.number in [run.number for run in begun]

    def _begin(self, invocation: Invocation) -> bool:
        """Start an attempt for a lease of this worker, unless it was started, or ended, before."""
        key = (invocation.number, invocation.epoch)
        if invocation.holder != self._worker_id or invocation.number in self._attempts or key in self._ended:
            return False
        attempt = Attempt(self, invocation, self.agents[invocation.agent])
        task = self._loop.create_task(self._run(attempt))
        self._attempts[invocation.number] = (attempt, task)
        if invocation.attempt == 1:
            self._positions[invocation.number] = 0
            self._topics.set_local(invocation.number, True)
        self.counts.begun(invocation)
        if invocation.attempt > 1:
            logger.info("invocation %s: attempt %d begins on this worker", invocation.id, invocation.attempt)
        return True

    async def _run(self, attempt: Attempt) -> None:
        run = attempt.invocation
        final: Invocation | None = None
        try:
            final = await attempt.run()
        except StoreUnavailable:
            logger.warning("invocation %s: the store closed under it", run.id)
        except Exception:
            logger.exception("invocation %s: the attempt itself failed", run.id)
            final = await self._given_up(run)
        finally:
            del self._attempts[run.number]
            self._positions.pop(run.number, None)
            self._auth.pop((run.principal, run.id), None)
            _bounded(self._ended, attempt.key, None)
            self._topics.set_local(run.number, False)
            if self._backlog:
                self._kick.set()
        if final is not None:
            self.counts.ended[final.status] += 1
            self._settle(Cancelled(final))

    async def _given_up(self, run: Invocation) -> Invocation | None:
        """End a run whose attempt broke, so that it does not stay running for ever; keep trying while that fails."""
        outcome = Outcome.failed("internal_error", "the server failed to end this run as it should; see its log")
        while True:
            try:
                finished = await self.store.finish(run.number, run.epoch, run.session_number, outcome)
            except (LeaseLost, StoreUnavailable):
                return None
            except StoreError:
                await asyncio.sleep(self.settings.poll)
                continue
            self.released(finished.released)
            return run._replace(
                status=outcome.status, error=outcome.error, finished_at=finished.finished_at,
                last_position=finished.last_position,
            )  # fmt: skip

    def _settle(self, ended: Cancelled) -> None:
        """Make a final record known to whoever waits for it."""
        record = ended.invocation
        if record.status.final:
            self._remember(record)
            if (topic := self._topics.get(record.number)) is not None:
                topic.end(record)
            self._hint(record.number)
        self.released(ended.released)

    def _remember(self, record: Invocation) -> None:
        self._finals[record.principal, record.id] = record
        self._loop.call_later(FINAL_SECONDS, self._forget, record)

    def _forget(self, record: Invocation) -> None:
        key = record.principal, record.id
        if self._finals.get(key) is record:
            del self._finals[key]

    def _final(self, principal: str, id: str) -> Invocation | None:
        return self._finals.get((principal, id))

    # What attempts ask (see `worker.Worker`) ------------------------------------------------------------------------

    async def assured(self) -> None:
        """Wait until the last confirmed beat is young enough that nobody can have taken over."""
        margin = 2 * self.settings.beat
        while time.monotonic() - self._heartbeat.confirmed_at > self.settings.dead_after - margin:
            self._beat_seen.clear()
            await self._beat_seen.wait()

    def committed(self, number: int, events: Sequence[Event]) -> None:
        if number in self._attempts:
            if number not in self._positions:
                self._topics.set_local(number, True)
            self._positions[number] = events[-1][0]
        if (topic := self._topics.get(number)) is not None:
            topic.publish(events)
        self._hint(number)

    def progressed(self, number: int) -> None:
        if (running := self._attempts.get(number)) is not None and running[0].suspect:
            running[0].suspect = False
            self._kick.set()

    def auth(self, invocation: Invocation) -> RequestAuth:
        return self._auth.get((invocation.principal, invocation.id)) or RequestAuth(invocation.principal)

    def released(self, numbers: Sequence[int]) -> None:
        if numbers:
            self._kick.set()
            self._hint()

    # What the heartbeat's thread tells (see `heartbeat.Listener`) ---------------------------------------------------

    def beat_confirmed(self) -> None:
        self._soon(self._beat_seen.set)

    def worker_lost(self, worker: str) -> None:
        self._soon(lambda: self._fenced(worker))

    def runs_recovered(self, lost: Sequence[Lost]) -> None:
        for run in lost:
            logger.warning("invocation %s: attempt %d lost its worker and is queued again", run.id, run.attempt)
        self._soon(self._kick.set)

    def stop_asked(self, runs: Sequence[Stopping]) -> None:
        self._soon(lambda: self._stop_runs(runs))

    def run_expired(self, ended: Cancelled) -> None:
        self._soon(lambda: self._settle(ended))

    def worker_left(self) -> None:
        self._release_lock()

    def _soon(self, function: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def _stop_runs(self, runs: Sequence[Stopping]) -> None:
        for run in runs:
            running = self._attempts.get(run.number)
            if running is not None and running[0].key == (run.number, run.epoch):
                running[0].stop("timeout" if run.reason == "timeout" else "cancelled")

    def _fenced(self, worker: str) -> None:
        """Another worker took this one for dead: everything it ran is theirs now; go on under a new name."""
        if worker != self._worker_id or self.draining:
            return
        logger.warning("worker %s was taken for dead by another worker; it goes on under a new name", worker)
        self._stop_all("lease_lost")
        self._worker_id = ""
        self._tasks.append(asyncio.create_task(self._register_again()))

    async def _register_again(self) -> None:
        self._release_lock()
        registered = False
        while not registered:
            try:
                await self._register()
                registered = True
            except (OutlastError, OSError):
                logger.exception("this worker cannot register again; it tries once more")
                await asyncio.sleep(self.settings.beat)
        self._heartbeat.worker = self._worker_id
        self._kick.set()

    # Background -----------------------------------------------------------------------------------------------------

    async def _kept_going(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a loop for ever: a statement that the database refuses once must not end it."""
        while True:
            try:
                await work()
            except Exception:
                logger.exception("background work failed; it goes on")
                await asyncio.sleep(self.settings.poll)

    async def _stamp(self) -> None:
        while True:
            self._watch.touch()
            await asyncio.sleep(min(1.0, self.settings.stall_warning / 2))

    async def _retain(self) -> None:
        while True:
            for status, seconds in self.settings.retention.items():
                await self._remove_old(status, seconds)
            while await self.store.documents.remove_expired(limit=RETENTION_BATCH) == RETENTION_BATCH:
                pass
            await asyncio.sleep(RETENTION_EVERY_SECONDS)

    async def _remove_old(self, status: Status, seconds: float) -> None:
        removed = RETENTION_BATCH
        while removed == RETENTION_BATCH:
            removed = await self.store.remove_old(
                status=status, age_ms=round(seconds * 1000), limit=RETENTION_BATCH,
                keep_ms=round(self.settings.idempotency_retention * 1000),
            )  # fmt: skip

    def _hint(self, number: int | None = None) -> None:
        """Tell other processes soon, if there are any: a run changed, or (None) the queue did."""
        if not self._heartbeat.others or self.store.url.is_sqlite:
            return
        self._hinted.add(-1 if number is None else number)
        if self._hint_timer is None:
            self._hint_timer = self._loop.call_later(HINT_SECONDS, self._send_hint)

    def _send_hint(self) -> None:
        self._hint_timer = None
        numbers, self._hinted = list(self._hinted), set()
        for start in range(0, len(numbers), HINT_NUMBERS):
            future = self.store.notify(jsontext.encode(numbers[start : start + HINT_NUMBERS]))
            future.add_done_callback(_noted)

    def _on_hint(self, payload: str | None) -> None:
        numbers = None if payload is None else jsontext.decode(payload)
        if numbers is None or -1 in numbers:
            self._kick.set()
        self._topics.hint(numbers)


def _noted(done: "asyncio.Future[None]") -> None:
    """Look at the error of a write that nobody awaits, so that it is not reported as forgotten."""
    if (error := done.exception()) is not None:
        logger.warning("a write failed: %s", error)


def _bounded(remembered: OrderedDict[K, T], key: K, value: T) -> None:
    remembered[key] = value
    while len(remembered) > REMEMBERED:
        remembered.popitem(last=False)
