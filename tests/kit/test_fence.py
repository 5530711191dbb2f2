"""A worker that was taken for dead stores nothing any more, wherever it was frozen."""

import asyncio
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outlast.core import faults
from outlast.core.errors import LeaseLost
from outlast.core.records import Outcome, Request, Status
from outlast.engine import AgentHandlers, Engine, EngineSettings, InvocationContext
from outlast.store import Store, invocations, workers
from outlast.store.statements import Again, Connection
from outlast.store.writer import Call
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import HoldAt, KillHarness, StopAt
from outlast.testing.postgres import PostgresServer
from outlast.testing.proxy import Cut, FaultProxy

pytestmark = pytest.mark.anyio

Make = Callable[..., Request]
RUN = str(uuid.uuid5(uuid.NAMESPACE_OID, "the run"))


async def emit_twice(context: InvocationContext) -> int:
    await context.emit({"attempt": context.attempt, "n": 1})
    await context.emit({"attempt": context.attempt, "n": 2})
    return context.attempt


async def worker(url: str, folder: str, seen: str) -> Any:
    """Run the one run to its end and say what this worker's own handler learnt."""
    log = EffectsLog(seen)

    async def handler(context: InvocationContext) -> int:
        try:
            return await emit_twice(context)
        except LeaseLost:
            log.append(f"attempt {context.attempt} lost its lease")
            raise

    store = await Store.open(url)
    settings = EngineSettings(beat=0.05, dead_after=0.5, poll=0.05, state_dir=Path(folder) / "locks")
    engine = Engine(store, {"a": AgentHandlers(handler, handler)}, settings)
    await engine.start()
    run = await engine.accept(Request.of(principal="local", id=RUN, session_id="s", agent="a", input=1))
    final = await engine.wait(run)
    events = await store.read.events(run.number, after=0, limit=10)
    after = await engine.wait(
        await engine.accept(Request.of(principal="local", id=str(uuid.uuid4()), session_id="s", agent="a", input=2))
    )
    await engine.stop()
    await store.close()
    return {
        "final": [final.status, final.output, final.attempt],
        "events": [[event.position, json.loads(event.text)] for event in events],
        "after": after.status,
    }


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__, "alembic.command"]) as started:
        yield started


def check_that_the_zombie_stored_nothing(heir: Any, woken: Any) -> None:
    assert heir["final"] == woken["final"] == ["completed", "2", 2]
    attempts = [event["attempt"] for _, event in heir["events"]]
    assert [position for position, _ in heir["events"]] == list(range(1, len(attempts) + 1))
    assert attempts == sorted(attempts) and attempts[-2:] == [2, 2]
    assert woken["events"] == heir["events"]
    assert heir["after"] == woken["after"] == "completed"


async def bury_everyone(url: str) -> None:
    store = await Store.open(url)
    for row in await store.read.workers():
        await store._writer.submit(Call("takeover", partial(workers.take_over, id=row.id, counter=None)))
    await store.close()


@pytest.mark.parametrize(("point", "nth"), [("events.begin", 2), ("finish.begin", 1)])
def test_a_worker_taken_for_dead_while_it_lives_stores_nothing(
    harness: KillHarness, store_url: str, tmp_path: Path, point: str, nth: int
) -> None:
    arguments = {"url": store_url, "folder": str(tmp_path), "seen": str(tmp_path / "seen")}
    zombie = harness.start(worker, arguments, hold=HoldAt(point, nth=nth))
    zombie.wait_held()
    asyncio.run(bury_everyone(store_url))
    heir = harness.run(worker, arguments).result
    zombie.release()
    check_that_the_zombie_stored_nothing(heir, zombie.wait().result)


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("point", "nth"),
    [("events.begin", 2), ("events.before_commit", 2), ("finish.begin", 1), ("finish.before_commit", 1)],
)
def test_a_frozen_worker_that_wakes_after_the_takeover_stores_nothing(
    harness: KillHarness, postgres_server: PostgresServer, tmp_path: Path, point: str, nth: int
) -> None:
    """Frozen as a whole, also inside a transaction. (On SQLite that holds the file until the process is gone.)"""
    url = postgres_server.create_database()
    arguments = {"url": url, "folder": str(tmp_path), "seen": str(tmp_path / "seen")}
    zombie = harness.start(worker, arguments, hold=StopAt(point, nth=nth))
    zombie.wait_held()
    heir = harness.run(worker, arguments).result
    zombie.release()
    check_that_the_zombie_stored_nothing(heir, zombie.wait().result)


async def test_a_takeover_waits_for_the_batch_it_would_overtake(
    store: Store, store_url: str, make_request: Make
) -> None:
    """Between the check of the lease and its commit, the fence holds."""
    run = (await store.accept(make_request(), lease=True)).invocation
    other = await Store.open(store_url)
    await other.register(id="w2", host="here", pid=2, lock_file=None)
    other.worker = "w2"
    held, go_on = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "events.before_commit" and not held.is_set():
            held.set()
            go_on.wait()

    faults.install(hold)
    try:
        writing = store.write(run.number, 1, events=[(1, 1, "1")])
        await asyncio.get_running_loop().run_in_executor(None, held.wait)

        def take_over(connection: Connection) -> Any:
            return workers.take_over(connection, id="w1", counter=None)

        taking = other._writer.submit(Call("takeover", take_over))
        done, _ = await asyncio.wait([taking], timeout=0.3)
        assert not done, "the takeover went ahead of an open batch"
        go_on.set()
        await writing
        await taking
    finally:
        faults.install(None)
        go_on.set()
    (again,) = await other.claim(agents=["a"], room=1, suspect_room=1, per_principal=0, known=[])
    assert await other.read.last_position(again.number) == 1
    with pytest.raises(LeaseLost):
        await store.write(run.number, 1, events=[(2, 1, "2")])
    await other.close()


@pytest.mark.parametrize("by", ["takeover", "expiry"])
async def test_an_event_that_waited_for_the_end_of_its_lease_is_refused(
    store: Store, make_request: Make, by: str
) -> None:
    run = (await store.accept(make_request(), lease=True)).invocation
    loop = asyncio.get_running_loop()
    connection = await loop.run_in_executor(None, store.connect)

    def take_the_run() -> None:
        connection.begin()
        if by == "takeover":
            workers.take_over(connection, id="w1", counter=None)
        else:
            invocations.expire(connection, number=run.number, epoch=1, outcome=Outcome.failed("timeout", ""))
        connection.sync()

    await loop.run_in_executor(None, take_the_run)
    writing = store.write(run.number, 1, events=[(1, 1, "1")])
    done, _ = await asyncio.wait([writing], timeout=0.2)
    assert not done
    await loop.run_in_executor(None, connection.commit)
    with pytest.raises(LeaseLost):
        await writing
    assert await store.read.last_position(run.number) == 0
    connection.close()


@pytest.mark.postgres
async def test_a_run_of_a_frozen_worker_is_not_waited_for_longer_than_a_takeover_waits(
    postgres_server: PostgresServer, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "LOCK_TIMEOUT_MS", 100)
    store = await Store.open(postgres_server.create_database())
    await store.register(id="w1", host="here", pid=1, lock_file=None)
    store.worker = "w1"
    run = (await store.accept(make_request("s"), lease=True)).invocation
    loop = asyncio.get_running_loop()
    frozen, mine = store.connect(), store.connect()
    frozen.begin()
    frozen.send(workers.FENCE, me="w1").rows()

    def expire() -> None:
        mine.begin()
        invocations.expire(mine, number=run.number, epoch=1, outcome=Outcome.failed("timeout", ""))

    expiring = loop.run_in_executor(None, expire)
    done, _ = await asyncio.wait([expiring], timeout=4)  # less than an idle transaction may be open
    frozen.rollback()
    with pytest.raises(Again):
        await expiring
    assert done
    frozen.close()
    mine.close()
    await store.close()


async def a_whole_run(store: Store, request: Request) -> list[int]:
    """Accept, write and finish; returns the positions that are stored afterwards."""
    accepted = (await store.accept(request, lease=True)).invocation
    await store.write(accepted.number, 1, events=[(1, 1, "1"), (2, 1, "2")])
    await store.write(accepted.number, 1, events=[(3, 1, "3")])
    outcome = Outcome(Status.COMPLETED, output="1")
    await store.finish(accepted.number, 1, accepted.session_number, outcome)
    return [event.position for event in await store.read.events(accepted.number, after=0, limit=10)]


@pytest.mark.postgres
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_connection_cut_at_any_message_loses_and_doubles_nothing(
    postgres_server: PostgresServer, make_request: Make, when: Any
) -> None:
    direct = postgres_server.create_database()
    with FaultProxy(postgres_server.host, postgres_server.port) as proxy:
        store = await Store.open(proxy.url(direct))
        await store.register(id="w1", host="here", pid=1, lock_file=None)
        store.worker = "w1"
        writer = max(range(len(proxy.traffic)), key=lambda index: proxy.traffic[index].to_server)
        before = proxy.traffic[writer].to_server, proxy.traffic[writer].to_client
        assert await a_whole_run(store, make_request("s")) == [1, 2, 3]
        counts = proxy.traffic[writer].to_server - before[0], proxy.traffic[writer].to_client - before[1]
        for direction, count in zip(("to_server", "to_client"), counts, strict=True):
            for nth in range(1, count + 1):
                armed = proxy.cut(Cut(direction, nth, when), open_connections=True)  # type: ignore[arg-type]
                request = make_request("s")
                assert await asyncio.wait_for(a_whole_run(store, request), 20) == [1, 2, 3], (direction, nth)
                found = await store.read.invocation("local", request.id)
                assert found is not None and (found.status, found.attempt) == (Status.COMPLETED, 1)
                assert armed.fired
        await store.close()


@pytest.mark.postgres
@pytest.mark.parametrize(("outage", "dead_after"), [(2.0, 0.5), pytest.param(20.0, 8.0, marks=pytest.mark.slow)])
async def test_a_database_outage_under_load_makes_no_mass_takeover(
    make_request: Make, tmp_path: Path, outage: float, dead_after: float
) -> None:
    # BR-50
    settings = EngineSettings(
        beat=dead_after / 4, dead_after=dead_after, poll=0.05, accept_timeout=60, state_dir=tmp_path / "locks"
    )

    async def invoke(context: InvocationContext) -> int:
        for n in range(20):
            await context.emit(n)
            await asyncio.sleep(0.01)
        return context.attempt

    with PostgresServer() as server:
        url = server.create_database()
        engines = []
        for _ in range(2):
            engine = Engine(await Store.open(url), {"a": AgentHandlers(invoke, invoke)}, settings)
            await engine.start()
            engines.append(engine)

        async def client(engine: Engine, number: int) -> Any:
            run = await engine.accept(make_request(f"s{number % 7}"))
            return await engine.wait(run)

        load = [asyncio.create_task(client(engines[n % 2], n)) for n in range(60)]
        await asyncio.wait(load, return_when=asyncio.FIRST_COMPLETED)
        server.stop(immediate=True)
        late = [asyncio.create_task(client(engines[n % 2], n)) for n in range(10)]
        await asyncio.sleep(outage)
        server.start()
        finals = await asyncio.wait_for(asyncio.gather(*load, *late), 120)
        assert {(final.status, final.attempt) for final in finals} == {(Status.COMPLETED, 1)}
        for final in finals:
            events = await engines[0].store.read.events(final.number, after=0, limit=100)
            assert [event.position for event in events] == list(range(1, 21))
        for engine in engines:
            await engine.stop()
            await engine.store.close()


@pytest.mark.postgres
async def test_a_worker_can_leave_while_the_database_is_away(make_request: Make, tmp_path: Path) -> None:
    async def invoke(context: InvocationContext) -> None:
        await asyncio.Event().wait()

    settings = EngineSettings(
        beat=0.05, dead_after=0.5, poll=0.05, drain_timeout=0, accept_timeout=0.5, state_dir=tmp_path / "locks"
    )
    with PostgresServer(fsync=False) as server:
        engine = Engine(await Store.open(server.create_database()), {"a": AgentHandlers(invoke, invoke)}, settings)
        await engine.start()
        await engine.accept(make_request())
        server.stop(immediate=True)
        async with asyncio.timeout(20):
            await engine.stop()
            await engine.store.close()
