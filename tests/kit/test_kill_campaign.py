"""SIGKILL at every durable boundary, on both databases: whatever was accepted ends right, and no effect happens twice."""

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.core.errors import Gone, OutcomeUnknown
from outlast.core.records import Invocation, Request, Status
from outlast.engine import AgentHandlers, Engine, EngineSettings, InvocationContext
from outlast.store import Store
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import FaultNotReached, KillAt, KillHarness

IDS = [str(uuid.uuid5(uuid.NAMESPACE_OID, f"run {number}")) for number in range(6)]
FIRST, SECOND, ALONE, CANCELLED, DELETED, LATER = IDS
SESSIONS = {FIRST: "s", SECOND: "s", CANCELLED: "s", LATER: "s"}


async def work(context: InvocationContext, effects: EffectsLog) -> dict[str, Any]:
    """Two side effects and some events; knows when it cannot know."""
    outcomes = {}
    for name in ("pay", "mail"):
        await context.emit({"type": "before", "name": name})
        try:
            outcomes[name] = await context.once(
                name, lambda name=name: effects.append(f"{context.invocation_id} {name}")
            )
        except OutcomeUnknown:
            outcomes[name] = "unknown"
    await context.emit({"type": "after", "attempt": context.attempt})
    return outcomes


def engine_on(store: Store, effects: str, folder: str, *, lingers: str | None = None) -> Engine:
    """The run named by `lingers` is under way until its worker leaves."""

    async def handler(context: InvocationContext) -> dict[str, Any]:
        if context.invocation_id == lingers:
            await context.emit({"type": "under way"})
            await asyncio.Event().wait()
        return await work(context, EffectsLog(effects))

    settings = EngineSettings(
        beat=0.05, dead_after=0.5, poll=0.05, drain_timeout=0.0, state_dir=Path(folder) / "locks", max_crashes=0
    )
    return Engine(store, {"a": AgentHandlers(handler, handler)}, settings)


def request(id: str) -> Request:
    return Request.of(principal="local", id=id, session_id=SESSIONS.get(id), agent="a", input=id)


async def live(url: str, effects: str, folder: str) -> list[str]:
    """One life of a worker: accept, run, cancel, delete, and leave with work undone."""
    store = await Store.open(url)
    engine = engine_on(store, effects, folder, lingers=LATER)
    await engine.start()
    first = await engine.accept(request(FIRST))
    await engine.accept(request(SECOND))
    await engine.accept(request(CANCELLED))
    await engine.cancel("local", CANCELLED)
    alone = await engine.accept(request(ALONE))
    deleted = await engine.accept(request(DELETED))
    for run in (first, alone, deleted):
        await engine.wait(run)
    await engine.delete("local", DELETED)
    later = await engine.accept(request(LATER))
    with await engine.follow(later, after=0) as follower:
        await follower.next(20)
    await engine.stop()
    await store.close()
    return ["left"]


async def come_back(url: str, effects: str, folder: str) -> dict[str, Any]:
    """The next life: the client repeats everything it sent, and everything ends."""
    store = await Store.open(url)
    engine = engine_on(store, effects, folder)
    await engine.start()
    found: dict[str, Any] = {}
    for id in IDS:
        try:
            run = await asyncio.wait_for(engine.wait(await engine.accept(request(id))), 20)
        except Gone:
            found[id] = "gone"
            continue
        found[id] = await report(store, run)
    await engine.stop()
    await store.close()
    return found


async def report(store: Store, run: Invocation) -> dict[str, Any]:
    events = await store.read.events(run.number, after=0, limit=1000)
    return {
        "status": run.status,
        "attempt": run.attempt,
        "output": run.output and json.loads(run.output),
        "error": run.error and json.loads(run.error)["code"],
        "positions": [event.position for event in events],
        "last_position": run.last_position,
    }


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__, "alembic.command"]) as started:
        yield started


def places(traced: list[KillAt], every: bool) -> list[KillAt]:
    """Each point at its first and last time, or at every time."""
    times: dict[str, list[KillAt]] = {}
    for place in traced:
        times.setdefault(place.point, []).append(place)
    chosen = traced if every else [place for found in times.values() for place in (found[0], found[-1])]
    return list({(place.point, place.nth): place for place in chosen}.values())


def check(found: dict[str, Any], effects: EffectsLog) -> None:
    lines = effects.read()
    assert len(lines) == len(set(lines)), "a side effect happened twice"
    for id, run in found.items():
        if run == "gone":
            assert id == DELETED
            continue
        assert run["positions"] == list(range(1, len(run["positions"]) + 1))
        assert run["last_position"] == len(run["positions"])
        if run["error"] is not None:
            assert (id, run["error"]) == (CANCELLED, "cancelled")
            continue
        assert run["status"] == Status.COMPLETED
        for name, outcome in run["output"].items():
            assert outcome == "unknown" or f"{id} {name}" in lines, f"{name} is reported done and was not"


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_kill_at_any_boundary_loses_nothing_and_repeats_nothing(
    harness: KillHarness, tmp_path: Path, fresh_url: Any, every: bool
) -> None:
    arguments = {"url": fresh_url(), "effects": str(tmp_path / "trace"), "folder": str(tmp_path)}
    chosen = places(harness.trace(live, arguments), every)
    assert len({place.point for place in chosen}) >= 25
    for index, place in enumerate(chosen):
        arguments = {"url": fresh_url(), "effects": str(tmp_path / f"effects{index}"), "folder": str(tmp_path)}
        try:
            harness.run(live, arguments, kill=place)
        except FaultNotReached:
            assert place.nth > 1, place
        found = harness.run(come_back, arguments).result
        assert found is not None
        try:
            check(found, EffectsLog(arguments["effects"]))
        except AssertionError as error:
            raise AssertionError(f"killed at {place}: {error}") from error


@pytest.mark.parametrize(
    "point", ["takeover.begin", "takeover.before_commit", "takeover.after_commit", "claim.after_commit"]
)
def test_a_recovering_worker_may_die_too(harness: KillHarness, store_url: str, tmp_path: Path, point: str) -> None:
    arguments = {"url": store_url, "effects": str(tmp_path / "effects"), "folder": str(tmp_path)}
    harness.run(live, arguments, kill=KillAt("journal.started.after_commit"))
    harness.run(come_back, arguments, kill=KillAt(point))
    found = harness.run(come_back, arguments).result
    assert found is not None
    check(found, EffectsLog(arguments["effects"]))
