"""What other workers, and the next life of this one, do about a worker that died."""

import asyncio
import os
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outlast.core import jsontext
from outlast.core.records import Request, Status
from outlast.engine import AgentHandlers, Engine, EngineSettings, InvocationContext
from outlast.store import Store, workers
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import HoldAt, KillHarness
from outlast.testing.postgres import PostgresServer

Make = Callable[..., Request]


def id_of(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


async def play(context: InvocationContext, effects: str) -> Any:
    """Do what the input says, and leave a line for each entry into the handler."""
    log = EffectsLog(effects)
    log.append(f"{context.input['name']} {context.attempt}")
    for step in context.input.get("steps", ()):
        await context.emit({"step": step})
        if step == "die":
            os._exit(9)
        if step == "die once" and context.attempt == 1:
            os._exit(9)
        if step == "die twice" and context.attempt <= 2:
            os._exit(9)
        if step == "wait":
            await asyncio.Event().wait()
        if step == "progress":
            await context.once(f"effect {context.attempt}", lambda: None)
    return context.attempt


async def serve(
    url: str, folder: str, effects: str, requests: list[dict[str, Any]], until: list[str], recovers: bool = True,
    cancel: list[str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """One worker: accept the requests, in order, and leave when the runs named in `until` are final."""
    handler = partial(play, effects=effects)
    store = await Store.open(url)
    settings = EngineSettings(beat=0.05, dead_after=0.5, poll=0.05, drain_timeout=0.0, state_dir=Path(folder) / "locks")
    engine = Engine(store, {"a": AgentHandlers(handler, handler if recovers else None)}, settings)
    await engine.start()
    for request in requests:
        await engine.accept(
            Request.of(
                principal="local",
                id=id_of(request["name"]),
                session_id=request.get("session"),
                agent="a",
                input=request,
            )
        )
    for name in cancel or ():
        await engine.cancel("local", id_of(name))
    found = {name: await engine.wait(await engine.get("local", id_of(name))) for name in until}
    await engine.stop()
    await store.close()
    return {
        name: {
            "status": run.status,
            "attempt": run.attempt,
            "crashes": run.crashes,
            "code": run.error and jsontext.decode(run.error)["code"],
            "finished_at": run.finished_at,
        }
        for name, run in found.items()
    }


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__, "alembic.command"]) as started:
        yield started


@pytest.fixture
def lives(harness: KillHarness, store_url: str, tmp_path: Path) -> Callable[..., Any]:
    """Restart a worker until it leaves by itself; returns what it found and how often it was started."""

    def live(
        requests: list[dict[str, Any]], *, until: list[str] | None = None, **options: Any
    ) -> tuple[dict[str, Any], int]:
        arguments = {
            "url": store_url, "folder": str(tmp_path), "effects": str(tmp_path / "effects"), "requests": requests,
            "until": [request["name"] for request in requests] if until is None else until, **options,
        }  # fmt: skip
        for number in range(1, 20):
            ended = harness.run(serve, arguments)
            if ended.exit_code == 0:
                assert ended.result is not None
                return ended.result, number
        raise AssertionError("the worker dies again and again")

    return live


def entries(tmp_path: Path) -> list[str]:
    return EffectsLog(str(tmp_path / "effects")).read()


def test_a_run_that_kills_its_worker_each_time_is_given_up(lives: Callable[..., Any], tmp_path: Path) -> None:
    # BR-04
    poison = {"name": "poison", "session": "s1", "steps": ["die"]}
    behind = {"name": "behind", "session": "s1"}
    found, started = lives([poison, behind, {"name": "ok", "session": "s2"}])
    assert found["poison"]["code"] == "attempts_exhausted"
    assert (found["poison"]["crashes"], started) == (5, 6)
    assert (found["behind"]["status"], found["behind"]["crashes"]) == ("completed", 0)
    assert found["ok"]["status"] == "completed"
    assert found["ok"]["crashes"] <= 1
    assert [line for line in entries(tmp_path) if line.startswith("poison")] == [f"poison {n}" for n in range(1, 6)]


def test_a_poison_run_does_not_take_its_neighbours_along(lives: Callable[..., Any]) -> None:
    neighbours = [{"name": f"neighbour {n}"} for n in range(4)]
    found, _ = lives([*neighbours, {"name": "poison", "steps": ["die"]}])
    assert all(found[n["name"]]["crashes"] <= 1 for n in neighbours)
    assert all(found[n["name"]]["status"] == "completed" for n in neighbours)
    assert found["poison"]["code"] == "attempts_exhausted"


def test_progress_is_not_charged(lives: Callable[..., Any]) -> None:
    found, started = lives([{"name": "slow but sure", "steps": ["progress", "die once"]}])
    assert found["slow but sure"] | {"finished_at": None} == {
        "status": "completed", "attempt": 2, "crashes": 0, "code": None, "finished_at": None,
    }  # fmt: skip
    assert started == 2


def test_everything_accepted_before_a_crash_ends_in_order(lives: Callable[..., Any], tmp_path: Path) -> None:
    # BR-05, BR-25
    head = {"name": "u1", "session": "s1", "steps": ["die once"]}
    rest = [{"name": name, "session": "s1"} for name in ("u2", "u3")]
    found, _ = lives([head, *rest, {"name": "u4", "session": "s2"}])
    assert {run["status"] for run in found.values()} == {"completed"}
    assert found["u1"]["attempt"] == 2
    s1 = [line for line in entries(tmp_path) if not line.startswith("u4")]
    assert s1[-3:] == ["u1 2", "u2 1", "u3 1"]


def test_a_head_that_dies_twice_lets_its_session_go_on(lives: Callable[..., Any], tmp_path: Path) -> None:
    # BR-25
    head = {"name": "u1", "session": "s1", "steps": ["progress", "die twice"]}
    found, started = lives([head, *({"name": f"u{number}", "session": "s1"} for number in range(2, 6))])
    assert started == 3
    assert {run["status"] for run in found.values()} == {"completed"}
    assert entries(tmp_path) == ["u1 1", "u1 2", "u1 3", "u2 1", "u3 1", "u4 1", "u5 1"]


def test_without_a_recover_handler_a_lost_run_fails_and_its_session_goes_on(lives: Callable[..., Any]) -> None:
    head = {"name": "lost", "session": "s", "steps": ["die once"]}
    found, _ = lives([head, {"name": "next", "session": "s"}], recovers=False)
    assert found["lost"]["code"] == "interrupted_without_recovery"
    assert found["next"]["status"] == "completed"


def test_a_run_cancelled_after_its_worker_died_is_not_entered_again(
    harness: KillHarness, store_url: str, tmp_path: Path
) -> None:
    # BR-46
    arguments: dict[str, Any] = {
        "url": store_url, "folder": str(tmp_path), "effects": str(tmp_path / "effects"),
        "requests": [{"name": "u1", "session": "s", "steps": ["die"]}], "until": ["u1"],
    }  # fmt: skip
    assert harness.run(serve, arguments).exit_code == 9

    async def cancel() -> None:
        store = await Store.open(store_url)
        await store.cancel("local", id_of("u1"))
        await store.close()

    asyncio.run(cancel())
    requests = [*arguments["requests"], {"name": "u2", "session": "s"}]
    found = harness.run(serve, {**arguments, "requests": requests, "until": ["u1", "u2"]}).result
    assert found is not None
    assert (found["u1"]["code"], found["u2"]["status"]) == ("cancelled", "completed")
    assert entries(tmp_path) == ["u1 1", "u2 1"]


@pytest.mark.parametrize("round_", range(3))
def test_two_workers_that_notice_the_same_death_make_one_attempt(
    harness: KillHarness, store_url: str, tmp_path: Path, round_: int
) -> None:
    # BR-06
    arguments: dict[str, Any] = {
        "url": store_url, "folder": str(tmp_path), "effects": str(tmp_path / "effects"),
        "requests": [{"name": "u1", "session": "s", "steps": ["die once"]}], "until": ["u1"],
    }  # fmt: skip
    assert harness.run(serve, arguments).exit_code == 9
    arguments["requests"] = []
    observers = [harness.start(serve, arguments, hold=HoldAt("takeover.begin")) for _ in range(2)]
    for observer in observers:
        observer.wait_held()
    for observer in observers:
        observer.release()
    found = [observer.wait().result for observer in observers]
    assert all(result is not None and result["u1"]["attempt"] == 2 for result in found)
    assert entries(tmp_path) == ["u1 1", "u1 2"]


async def load(url: str, folder: str, effects: str, seed: int, count: int, sessions: int) -> int:
    """A worker and its clients: post every invocation, some of them more than once, and wait for all."""
    dice = random.Random(seed)
    handler = partial(play, effects=effects)
    store = await Store.open(url)
    settings = EngineSettings(beat=0.2, dead_after=5.0, poll=0.1, state_dir=Path(folder) / "locks")
    engine = Engine(store, {"a": AgentHandlers(handler, handler)}, settings)
    await engine.start()

    async def client(numbers: list[int]) -> int:
        done = 0
        for number in numbers:
            request = Request.of(
                principal="local", id=id_of(f"load {number}"), session_id=f"s{number % sessions}", agent="a",
                input={"name": str(number)},
            )  # fmt: skip
            runs = [await engine.accept(request) for _ in range(dice.choice((1, 1, 2)))]
            done += all([(await engine.wait(run)).status is Status.COMPLETED for run in runs])
        return done

    numbers = list(range(count))
    dice.shuffle(numbers)
    done = await asyncio.gather(*(client(numbers[n::8]) for n in range(8)))
    await engine.stop()
    await store.close()
    return sum(done)


def test_a_thousand_invocations_run_once_each_and_in_order_on_three_workers(
    harness: KillHarness, store_url: str, tmp_path: Path
) -> None:
    count, sessions = 1000, 50
    arguments = {"url": store_url, "folder": str(tmp_path), "effects": str(tmp_path / "effects"), "count": count}
    workers = [
        harness.start(load, {**arguments, "seed": seed, "sessions": sessions}, timeout_seconds=180) for seed in range(3)
    ]
    assert [worker.wait().result for worker in workers] == [count] * 3
    lines = entries(tmp_path)
    assert sorted(lines, key=lambda line: int(line.split()[0])) == [f"{n} 1" for n in range(count)]
    asyncio.run(check_order(store_url, lines, sessions))


async def check_order(url: str, lines: list[str], sessions: int) -> None:
    """The order of entries in a session is the order in which its invocations were accepted."""
    store = await Store.open(url)
    for session in range(sessions):
        listed = await store.read.listed(
            "local", session_id=f"s{session}", status=None, agent=None, metadata={}, before=None, limit=1000
        )
        accepted = [jsontext.decode(run.input)["name"] for run in reversed(listed)]
        assert [line.split()[0] for line in lines if int(line.split()[0]) % sessions == session] == accepted
    await store.close()


@pytest.mark.postgres
@pytest.mark.anyio
async def test_workers_whose_transactions_stay_open_hold_up_neither_beats_nor_what_is_taken_from_others(
    postgres_server: PostgresServer, make_request: Make, quick: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three dead workers left a transaction, a fourth a run that goes on and one that does not stop when asked."""
    monkeypatch.setattr(workers, "LOCK_TIMEOUT_MS", 1000)
    settings = replace(quick, dead_after=2.5, cancel_grace=0.0)
    store = await Store.open(postgres_server.create_database())
    for name in ("frozen 1", "frozen 2", "frozen 3", "dead"):
        await store.register(id=name, host="elsewhere", pid=1, lock_file=None)
        store.worker = name
        runs = [(await store.accept(make_request(), lease=True)).invocation for _ in range(2)]
        await store.cancel("local", runs[1].id)
    connection = store.connect()
    connection.begin()
    handlers = AgentHandlers(lambda context: None, lambda context: context.attempt)
    engine = Engine(store, {"a": handlers}, settings)
    await engine.start()
    try:
        async with asyncio.timeout(60):
            while not all([(await engine.get("local", run.id)).status.final for run in runs]):
                for frozen in ("frozen 1", "frozen 2", "frozen 3"):
                    connection.send(workers.FENCE, me=frozen).rows()  # often, for an idle transaction is ended
                assert engine.connected
                await asyncio.sleep(0.02)
        assert [row.id for row in await store.read.workers()][:3] == ["frozen 1", "frozen 2", "frozen 3"]
    finally:
        connection.rollback()
        connection.close()
        await engine.stop()
        await store.close()
