"""A run that asks and a run that decides, killed at every durable boundary: the call runs once, or is not known to have."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast import Agent, Tool, open_store
from outlast.core.records import Status
from outlast.core.resume import CANCELLED_RESULT, INTERRUPTED_RESULT, NOT_APPROVED_RESULT, ResumeKind
from outlast.sessions import SessionStore
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillAt, KillHarness
from outlast.testing.scripted import Say, ScriptedCall, ScriptedModel

ASK, DECIDE = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11", "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b12"
SAMPLE = 9
"""Every n-th point in the quick test."""


def agent(folder: str) -> Agent:
    effects = EffectsLog(Path(folder) / "effects")

    def pay(x: int) -> str:
        """Pay."""
        effects.append(f"pay {x}")
        return f"paid {x}"

    def look(x: int) -> str:
        """Look."""
        effects.append(f"look {x}")
        return "seen"

    script = ScriptedModel(Say("I will.", [ScriptedCall("look", {"x": 1}), ScriptedCall("pay", {"x": 2})]), "Done.")
    return Agent(script, tools=[look, Tool(pay, needs_approval=True)])


async def buy(url: str, folder: str) -> dict[str, Any]:
    """Ask and decide, each by its id, as a client does that does not know whether its request was accepted."""
    async with open_store(url) as store:
        chat = agent(folder).session("s", store=store)
        asked = await chat.run("buy", id=ASK)
        assert asked.interrupt is not None
        (approval,) = asked.interrupt["approvals"]
        reply = await chat.run({"resume": {"decisions": [{"id": approval["id"], "type": "approve"}]}}, id=DECIDE)
        return {"text": reply.text, "history": [item.content async for item in SessionStore(store).items("s")]}


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__], timeout_seconds=20) as harness:
        yield harness


@pytest.fixture(scope="module")
def places(harness: KillHarness, tmp_path_factory: pytest.TempPathFactory) -> list[KillAt]:
    folder = tmp_path_factory.mktemp("trace")
    return harness.trace(buy, {"url": f"sqlite:///{folder / 'state.db'}", "folder": str(folder)})


def kill_and_go_on(harness: KillHarness, folder: Path, place: KillAt, url: str | None = None) -> None:
    folder.mkdir(exist_ok=True)
    where = {"url": url or f"sqlite:///{folder / 'state.db'}", "folder": str(folder)}
    if not harness.start(buy, where, kill=place).wait().killed:
        return
    result = harness.run(buy, where).result
    assert result["text"] == "Done."
    ran = EffectsLog(folder / "effects").read()
    assert len(ran) == len(set(ran)), ran
    told = {message["tool_call_id"]: message["content"] for message in result["history"] if message["role"] == "tool"}
    assert [message["role"] for message in result["history"]] == ["user", "assistant", "tool", "tool", "assistant"]
    assert told["call_2"] == INTERRUPTED_RESULT or (told["call_2"] == "paid 2" and "pay 2" in ran)


def test_killed_here_and_there(harness: KillHarness, places: list[KillAt], tmp_path: Path) -> None:
    for number, place in enumerate(places[::SAMPLE]):
        kill_and_go_on(harness, tmp_path / str(number), place)


@pytest.mark.slow
def test_killed_everywhere(harness: KillHarness, places: list[KillAt], tmp_path: Path) -> None:
    for number, place in enumerate(places):
        kill_and_go_on(harness, tmp_path / str(number), place)


@pytest.mark.parametrize(
    "place",
    [
        KillAt("approval.asked.before_commit"),
        KillAt("approval.asked.after_commit"),
        KillAt("finish.before_commit"),
        KillAt("approval.decided.before_commit"),
        KillAt("approval.decided.after_commit"),
        KillAt("tool.after_body", 2),
    ],
    ids=str,
)
def test_killed_on_both_databases(harness: KillHarness, tmp_path: Path, store_url: str, place: KillAt) -> None:
    kill_and_go_on(harness, tmp_path, place, store_url)


async def resume(url: str, folder: str) -> list[dict[str, Any]]:
    """Resume a session where the user has spoken last, or go on with the run that does; return what it asks."""
    async with open_store(url) as store:
        await SessionStore(store).create("s")
        await SessionStore(store).append("s", [{"role": "user", "content": "buy"}], key="said")
        chat = agent(folder).session("s", store=store)
        reply = await chat.resume()
        point = await chat.resume_point()
        assert reply.interrupt is not None
        assert point is not None
        assert list(point.approvals) == reply.interrupt["approvals"]
        return list(reply.interrupt["approvals"])


@pytest.mark.parametrize(
    "place",
    [KillAt("approval.asked.after_commit"), KillAt("tool.after_body"), KillAt("finish.before_commit")],
    ids=str,
)
def test_a_resume_that_asked_and_died_still_asks(
    harness: KillHarness, tmp_path: Path, store_url: str, place: KillAt
) -> None:
    where = {"url": store_url, "folder": str(tmp_path)}
    harness.run(resume, where, kill=place)
    (approval,) = harness.run(resume, where).result
    assert approval["name"] == "pay"


async def forget(url: str, folder: str) -> list[str]:
    """Cancel the deciding run that died, delete all trace of it, and resume; return the results of the calls."""
    async with open_store(url) as store:
        engine = await store.engine(agent(folder))
        while (await engine.get("local", DECIDE)).status is not Status.QUEUED:
            await asyncio.sleep(0.05)
        assert (await engine.wait(await engine.cancel("local", DECIDE))).status is Status.FAILED
        await engine.delete("local", DECIDE)
        assert (await agent(folder).session("s", store=store).resume()).text == "Done."
        history = [item.content async for item in SessionStore(store).items("s")]
        return [message["content"] for message in history if message["role"] == "tool"]


def test_an_approved_call_that_ran_in_a_deleted_run_does_not_run_again(
    harness: KillHarness, tmp_path: Path, store_url: str
) -> None:
    where = {"url": store_url, "folder": str(tmp_path)}
    harness.run(buy, where, kill=KillAt("journal.done.after_commit", 2))
    assert harness.run(forget, where).result == ["seen", "paid 2"]
    assert EffectsLog(tmp_path / "effects").read() == ["look 1", "pay 2"]


async def stop(url: str, folder: str) -> list[str]:
    """Cancel the asking run that died, then resume; return the results of the calls."""
    async with open_store(url) as store:
        engine = await store.engine(agent(folder))
        while (await engine.get("local", ASK)).status is not Status.QUEUED:
            await asyncio.sleep(0.05)
        assert (await engine.wait(await engine.cancel("local", ASK))).status is Status.FAILED
        chat = agent(folder).session("s", store=store)
        point = await chat.resume_point()
        assert point is not None
        assert (point.kind, point.cause) == (ResumeKind.CALL_MODEL, "cancelled")
        assert (await chat.resume()).text == "Done."
        history = [item.content async for item in SessionStore(store).items("s")]
        return [message["content"] for message in history if message["role"] == "tool"]


def test_cancelling_a_run_whose_worker_died_lets_nobody_decide_any_more(
    harness: KillHarness, tmp_path: Path, store_url: str
) -> None:
    where = {"url": store_url, "folder": str(tmp_path)}
    harness.run(buy, where, kill=KillAt("tool.after_body"))
    assert harness.run(stop, where).result == [CANCELLED_RESULT, NOT_APPROVED_RESULT]
    assert EffectsLog(tmp_path / "effects").read() == ["look 1"]
