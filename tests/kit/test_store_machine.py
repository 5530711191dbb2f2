"""Three workers drive the store at random; a dictionary says what must be true after each step."""

import asyncio
import uuid
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test

from outlast.core.errors import LeaseLost
from outlast.core.records import Invocation, Outcome, Request, Status
from outlast.store import Store, workers
from outlast.store.writer import Call

DONE = Outcome(Status.COMPLETED, output="1")


@dataclass
class Run:
    """What the model knows of one invocation."""

    request: Request
    status: Status = Status.QUEUED
    holder: str | None = None
    attempt: int = 0
    epoch: int = 0
    crashes: int = 0
    events: int = 0
    asked_to_stop: bool = False


@dataclass
class Lease:
    """What one worker believes to hold; it may be out of date."""

    worker: int
    record: Invocation
    name: str = field(default="")


class Machine(RuleBasedStateMachine):
    leases = Bundle("leases")

    def __init__(self, loop: asyncio.AbstractEventLoop, stores: list[Store]) -> None:
        super().__init__()
        self.loop, self.stores = loop, stores
        self.mark = uuid.uuid4().hex[:12]
        self.runs: dict[str, Run] = {}
        self.names = [f"{self.mark}-{index}-0" for index in range(len(stores))]
        self.lives = [0] * len(stores)
        for index in range(len(stores)):
            self.register(index)

    def run(self, awaitable: Any) -> Any:
        async def wait() -> Any:
            return await awaitable

        return self.loop.run_until_complete(wait())

    def register(self, index: int) -> None:
        self.stores[index].worker = self.names[index]
        self.run(self.stores[index].register(id=self.names[index], host="here", pid=1, lock_file=None))

    def session(self, run: Run) -> list[Run]:
        return [other for other in self.runs.values() if other.request.session_id == run.request.session_id]

    def head(self, run: Run) -> bool:
        """Whether every earlier run of its session is final."""
        earlier = self.session(run)[: self.session(run).index(run)]
        return run.request.session_id is None or all(other.status.final for other in earlier)

    def held(self, lease: Lease) -> bool:
        run = self.runs[lease.record.id]
        return run.status is Status.RUNNING and run.epoch == lease.record.epoch

    @rule(target=leases, worker=st.integers(0, 2), session=st.sampled_from([None, "s", "t"]), lease=st.booleans())
    def accept(self, worker: int, session: str | None, lease: bool) -> Lease:
        request = Request.of(
            principal=self.mark, id=str(uuid.uuid4()), session_id=session, agent=self.mark, input=len(self.runs)
        )
        record = self.run(self.stores[worker].accept(request, lease=lease)).invocation
        run = self.runs[request.id] = Run(request)
        if lease and self.head(run):
            run.status, run.holder, run.attempt, run.epoch = Status.RUNNING, self.names[worker], 1, 1
        assert (record.status, record.holder) == (run.status, run.holder)
        return Lease(worker, record, self.names[worker])

    @rule(lease=leases, worker=st.integers(0, 2))
    def accept_again(self, lease: Lease, worker: int) -> None:
        again = self.run(self.stores[worker].accept(self.runs[lease.record.id].request, lease=True))
        assert not again.created and again.invocation.number == lease.record.number

    @rule(target=leases, worker=st.integers(0, 2))
    def claim(self, worker: int) -> Any:
        mine = [run for run in self.runs.values() if run.holder == self.names[worker]]
        known = [self.number(run) for run in mine if run.status is Status.RUNNING]
        claimed = self.run(
            self.stores[worker].claim(agents=[self.mark], room=1, suspect_room=1, per_principal=0, known=known)
        )
        ready = [run for run in self.runs.values() if run.status is Status.QUEUED and self.head(run)]
        assert len(claimed) == min(1, len(ready))
        for record in claimed:
            run = self.runs[record.id]
            assert run in ready
            run.status, run.holder = Status.RUNNING, self.names[worker]
            run.attempt, run.epoch = run.attempt + 1, run.epoch + 1
            assert (record.attempt, record.epoch, record.crashes) == (run.attempt, run.epoch, run.crashes)
        return multiple(*(Lease(worker, record, self.names[worker]) for record in claimed))

    def record(self, run: Run) -> Invocation:
        found: Invocation | None = self.run(self.stores[0].read.invocation(self.mark, run.request.id))
        assert found is not None
        return found

    def number(self, run: Run) -> int:
        return self.record(run).number

    @rule(lease=leases)
    def emit(self, lease: Lease) -> None:
        run = self.runs[lease.record.id]
        event = (run.events + 1, lease.record.attempt, "1")
        writing = self.stores[lease.worker].write(lease.record.number, lease.record.epoch, events=[event])
        if self.held(lease):
            self.run(writing)
            run.events += 1
        else:
            with pytest.raises(LeaseLost):
                self.run(writing)

    @rule(lease=leases)
    def finish(self, lease: Lease) -> None:
        run, record = self.runs[lease.record.id], lease.record
        finishing = self.stores[lease.worker].finish(record.number, record.epoch, record.session_number, DONE)
        if self.held(lease):
            self.run(finishing)
            run.status = Status.COMPLETED
        elif run.status is Status.COMPLETED and (run.epoch, run.holder) == (record.epoch, self.names[lease.worker]):
            self.run(finishing)
        else:
            with pytest.raises(LeaseLost):
                self.run(finishing)

    @rule(lease=leases, entered=st.booleans())
    def hand_back(self, lease: Lease, entered: bool) -> None:
        self.run(self.stores[lease.worker].hand_back(lease.record.number, lease.record.epoch, entered=entered))
        if self.held(lease):
            run = self.runs[lease.record.id]
            run.status, run.holder, run.attempt = Status.QUEUED, None, run.attempt - (not entered)

    @rule(victim=st.integers(0, 2))
    def die_and_be_taken_over(self, victim: int) -> None:
        observer = self.stores[(victim + 1) % 3]
        call = Call("takeover", partial(workers.take_over, id=self.names[victim], counter=None))
        lost = self.run(observer._writer.submit(call))
        held = [r for r in self.runs.values() if r.status is Status.RUNNING and r.holder == self.names[victim]]
        assert sorted(found.id for found in lost) == sorted(run.request.id for run in held)
        for run in held:
            run.status, run.holder, run.crashes = Status.QUEUED, None, run.crashes + 1
        self.lives[victim] += 1
        self.names[victim] = f"{self.mark}-{victim}-{self.lives[victim]}"
        self.register(victim)

    @rule(lease=leases, worker=st.integers(0, 2))
    def cancel(self, lease: Lease, worker: int) -> None:
        run = self.runs[lease.record.id]
        self.run(self.stores[worker].cancel(self.mark, lease.record.id))
        if run.status is Status.QUEUED and not run.attempt:
            run.status, run.epoch = Status.FAILED, run.epoch + 1
        elif not run.status.final:
            run.asked_to_stop = True

    @rule(lease=leases, worker=st.integers(0, 2))
    def expire(self, lease: Lease, worker: int) -> None:
        ended = self.run(self.stores[worker].expire(lease.record.number, lease.record.epoch, "cancelled"))
        run = self.runs[lease.record.id]
        stopping = run.status is Status.QUEUED and run.asked_to_stop and run.epoch == lease.record.epoch
        assert (ended is not None) == (stopping or self.held(lease))
        if ended is not None:
            run.status, run.epoch = Status.FAILED, run.epoch + 1

    @invariant()
    def the_store_agrees_with_the_model(self) -> None:
        found = self.run(
            self.stores[0].read.listed(
                self.mark, session_id=None, status=None, agent=None, metadata={}, before=None, limit=1000
            )
        )
        assert {record.id for record in found} == set(self.runs)
        for record in found:
            run = self.runs[record.id]
            assert (record.status, record.attempt) == (run.status, run.attempt), record
            if run.status is Status.RUNNING:
                assert (record.holder, record.cancel is not None) == (run.holder, run.asked_to_stop)
            events = self.run(self.stores[0].read.events(record.number, after=0, limit=1000))
            assert [event.position for event in events] == list(range(1, run.events + 1))
            if record.status.final:
                assert record.last_position == run.events
        for session in ("s", "t"):
            running = [r for r in found if r.session_id == session and r.status is Status.RUNNING]
            assert len(running) <= 1


@pytest.mark.parametrize("examples", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_three_workers_and_the_model_never_disagree(store_url: str, examples: int) -> None:
    loop = asyncio.new_event_loop()

    async def opened() -> list[Store]:
        return [await Store.open(store_url) for _ in range(3)]

    async def closed(stores: list[Store]) -> None:
        for store in stores:
            await store.close()

    stores = loop.run_until_complete(opened())
    try:
        run_state_machine_as_test(
            lambda: Machine(loop, stores),  # type: ignore[arg-type]  # a factory is documented to do
            settings=settings(
                max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
            ),
        )
    finally:
        loop.run_until_complete(closed(stores))
        loop.close()
