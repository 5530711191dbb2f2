"""Agents of the OpenAI Agents SDK whose tools are on an MCP server that starts, dies and comes back."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents")
pytest.importorskip("mcp")

from agents import Agent, set_tracing_disabled
from agents.mcp import MCPServer, MCPServerStdio, MCPServerStreamableHttp

from outlast import RunFailed, open_store
from outlast.adapters import LocalStore
from outlast.core.resume import INTERRUPTED_RESULT
from outlast.testing._ports import free_port
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillAt, KillHarness
from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast_openai import CannotBeDurable, OpenAIAgent, StoreSession, servers
from outlast_openai.testing import ScriptModel

pytestmark = pytest.mark.anyio

set_tracing_disabled(True)

SHOP = str(Path(__file__).with_name("mcp_shop.py"))
ID = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11"


@pytest.fixture
async def local(store_url: str) -> AsyncIterator[LocalStore]:
    async with open_store(store_url) as opened:
        yield opened


def stdio(folder: Path | str, **options: Any) -> MCPServerStdio:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    params: Any = {"command": sys.executable, "args": [SHOP, str(folder)], "env": environment}
    return MCPServerStdio(params, client_session_timeout_seconds=30, **options)


def agent(server: MCPServer, *more: Any) -> OpenAIAgent:
    script = Script(Say("", [ScriptedCall("pay", {"x": 1}, "call_a")]), *more, "All is paid.")
    return OpenAIAgent(Agent(name="desk", model=ScriptModel(script), mcp_servers=[server]))


def living(folder: Path) -> list[int]:
    """Return the process ids of the servers that run."""
    found = []
    for file in folder.glob("server-*"):
        number = int(file.name.removeprefix("server-"))
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, 0)
            found.append(number)
    return found


async def gone(folder: Path) -> None:
    async with asyncio.timeout(20):
        while living(folder):
            await asyncio.sleep(0.02)


async def test_server_is_connected_once_and_closed_when_the_worker_leaves(store_url: str, tmp_path: Path) -> None:
    desk = agent(stdio(tmp_path))
    async with open_store(store_url) as local:
        for id in ("s", "t"):
            assert (await desk.session(id, store=local).run("pay")).text == "All is paid."
        assert len(living(tmp_path)) == 1
        stored: list[Any] = list(await StoreSession("s", local).get_items())
        assert "paid 1" in str(stored[2]["output"])
    await gone(tmp_path)
    assert EffectsLog(tmp_path / "effects").read() == ["pay 1", "pay 1"]


async def test_server_that_died_between_two_runs_is_started_again(local: LocalStore, tmp_path: Path) -> None:
    # BR-21
    chat = agent(stdio(tmp_path)).session("s", store=local)
    await chat.run("pay")
    for number in living(tmp_path):
        os.kill(number, signal.SIGKILL)
    assert (await chat.run("pay")).text == "All is paid."
    assert EffectsLog(tmp_path / "effects").read() == ["pay 1", "pay 1"]


async def test_server_that_dies_during_a_call_fails_the_call_and_not_the_run(local: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    chat = agent(stdio(tmp_path)).session("s", store=local)
    run = asyncio.create_task(chat.run("pay"))
    effects = EffectsLog(tmp_path / "effects")
    while not effects.read():
        await asyncio.sleep(0.01)
    (tmp_path / "hold").unlink()
    for number in living(tmp_path):
        os.kill(number, signal.SIGKILL)
    assert (await run).text == "All is paid."
    assert effects.read() == ["pay 1"]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def over_http(folder: Path, port: int) -> Iterator[None]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, SHOP, str(folder), str(port)], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        give_up = time.monotonic() + 30
        while not _listens(port):
            assert time.monotonic() < give_up
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


async def test_server_over_http_may_restart_between_two_runs(local: LocalStore, tmp_path: Path) -> None:
    # BR-21
    port = free_port()
    server = MCPServerStreamableHttp({"url": f"http://127.0.0.1:{port}/mcp"})
    chat = agent(server).session("s", store=local)
    for _ in range(3):
        with over_http(tmp_path, port):
            assert (await chat.run("pay")).text == "All is paid."
    assert EffectsLog(tmp_path / "effects").read() == ["pay 1"] * 3


async def test_server_that_cannot_be_reached_fails_the_run_and_the_next_one_finds_it(
    local: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "WAITS_SECONDS", (0.01,))
    port = free_port()
    chat = agent(MCPServerStreamableHttp({"url": f"http://127.0.0.1:{port}/mcp"})).session("s", store=local)
    with pytest.raises(RunFailed) as caught:
        await chat.run("pay")
    assert caught.value.code == "mcp_unavailable"
    monkeypatch.undo()
    with over_http(tmp_path, port):
        assert (await chat.resume()).text == "All is paid."


async def test_server_that_was_connected_before_is_left_to_its_owner(local: LocalStore, tmp_path: Path) -> None:
    async with stdio(tmp_path) as server:
        desk = agent(server)
        assert (await desk.session("s", store=local).run("pay")).text == "All is paid."
        await desk.leave()
        assert len(living(tmp_path)) == 1
    await gone(tmp_path)


def test_server_that_sends_calls_again_is_refused(tmp_path: Path) -> None:
    server = stdio(tmp_path)
    server.max_retry_attempts = 2
    with pytest.raises(CannotBeDurable, match="max_retry_attempts"):
        agent(server)


# Killed ---------------------------------------------------------------------------------------------------------------


async def scenario(url: str, folder: str) -> dict[str, Any]:
    async with open_store(url) as store:
        reply = await agent(stdio(folder)).session("s", store=store).run("pay", id=ID)
        return {"text": reply.text, "items": await StoreSession("s", store).get_items()}


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__], timeout_seconds=40) as harness:
        yield harness


def check(result: dict[str, Any], folder: Path) -> list[str]:
    assert result["text"] == "All is paid."
    assert len(EffectsLog(folder / "effects").read()) <= 1
    assert sum(item.get("role") == "user" for item in result["items"]) == 1
    outputs = [str(item["output"]) for item in result["items"] if item.get("type") == "function_call_output"]
    assert len(outputs) == 1
    return outputs


@pytest.mark.parametrize(
    "place",
    [
        KillAt("items.after_commit", 2),
        KillAt("tool.before_body"),
        KillAt("tool.after_body"),
        KillAt("finish.before_commit"),
    ],
    ids=str,
)
def test_killed_around_a_call(harness: KillHarness, store_url: str, tmp_path: Path, place: KillAt) -> None:
    where = {"url": store_url, "folder": str(tmp_path)}
    harness.run(scenario, where, kill=place)
    check(harness.run(scenario, where).result, tmp_path)


def test_killed_during_a_call(harness: KillHarness, store_url: str, tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    where = {"url": store_url, "folder": str(tmp_path)}
    child = harness.start(scenario, where)
    give_up = time.monotonic() + 30
    while not EffectsLog(tmp_path / "effects").read():
        assert time.monotonic() < give_up
        time.sleep(0.01)
    child.kill()
    (tmp_path / "hold").unlink()
    assert check(harness.run(scenario, where).result, tmp_path) == [INTERRUPTED_RESULT]


@pytest.mark.slow
def test_killed_everywhere(harness: KillHarness, tmp_path: Path) -> None:
    def where(name: str) -> dict[str, str]:
        (tmp_path / name).mkdir()
        return {"url": f"sqlite:///{tmp_path / name / 'state.db'}", "folder": str(tmp_path / name)}

    for number, place in enumerate(harness.trace(scenario, where("trace"))):
        here = where(str(number))
        if harness.start(scenario, here, kill=place).wait().killed:
            check(harness.run(scenario, here).result, tmp_path / str(number))


@pytest.mark.parametrize("inside", [False, True], ids=["tool", "inside an agent that is a tool"])
async def test_approved_tool_of_a_server_runs_once_behind_a_restart(
    store_url: str, tmp_path: Path, inside: bool
) -> None:
    def desk() -> OpenAIAgent:
        shop = stdio(tmp_path, require_approval="always")
        if not inside:
            return agent(shop)
        ask = Script(Say("", [ScriptedCall("ask", {"input": "pay"}, "call_b")]), "All is paid.")
        return OpenAIAgent(Agent(name="hall", model=ScriptModel(ask), tools=[agent(shop).agent.as_tool("ask", "Ask.")]))

    async with open_store(store_url) as local:
        reply = await desk().session("s", store=local).run("pay")
    assert reply.interrupt is not None
    (approval,) = reply.interrupt["approvals"]
    assert (approval["name"], approval["arguments"]) == ("pay", {"x": 1})
    assert not (tmp_path / "effects").exists()
    async with open_store(store_url) as local:
        decision = {"resume": {"decisions": [{"id": approval["id"], "type": "approve"}]}}
        assert (await desk().session("s", store=local).run(decision)).text == "All is paid."
    assert EffectsLog(tmp_path / "effects").read() == ["pay 1"]
