"""Cases from other projects' bug reports, through graphs; those with tests of their own elsewhere are named there."""

import asyncio
import gc
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("langchain")

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import tool
from langgraph.runtime import get_runtime
from langgraph.types import interrupt

from outlast.adapters import LocalStore, open_store
from outlast.core.errors import RunFailed, SessionBusy
from outlast.core.records import Status
from outlast.core.resume import CONTINUE_TEXT, ResumeKind
from outlast.testing._ports import free_port
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillAt, KillHarness
from outlast.testing.scripted import History, Say, Script, ScriptedCall
from outlast.testing.serving import ServerProcess
from outlast_langgraph import LangGraphAgent
from outlast_langgraph.testing import ScriptedChatModel

pytestmark = pytest.mark.anyio

ID = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11"


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__]) as harness:
        yield harness


def agent_with(tools: Any, *answers: Say | str, on_call: Callable[[History], None] | None = None, **more: Any) -> Any:
    model = ScriptedChatModel(script=Script(*answers, on_call=on_call))
    return LangGraphAgent(create_agent(model, tools, **more), name="a")


def results(messages: Any) -> list[Any]:
    return [message["content"] for message in messages if message["role"] == "tool"]


@pytest.mark.parametrize("blocking", ["no", "def", "async def"])
async def test_long_tool_runs_once_whatever_it_blocks(running: Any, make_request: Any, blocking: str) -> None:
    # BR-02, BR-03
    ran: list[int] = []

    @tool
    async def waits(x: int) -> str:
        """Wait."""
        ran.append(x)
        await asyncio.sleep(1.5) if blocking == "no" else time.sleep(1.5)  # noqa: ASYNC251 - that is the case
        return "waited"

    @tool("waits")
    def blocks(x: int) -> str:
        """Block a thread."""
        ran.append(x)
        time.sleep(1.5)
        return "waited"

    script = (Say("", [ScriptedCall("waits", {"x": 1})]), "Done.")
    agents = {"a": agent_with([blocks if blocking == "def" else waits], *script).handlers()}
    async with running(agents=agents) as engine, running(agents=agents):
        accepted = await engine.accept(make_request("s", input="go"))
        run = await engine.wait(accepted, 30)
        assert (run.status, run.attempt, ran) == ("completed", 1, [1])


async def poisoned(url: str, folder: str, message: str) -> Any:
    def die(history: History) -> None:
        EffectsLog(Path(folder) / "calls").append("called")
        if history[-1]["content"] == "poison":
            os._exit(9)

    async with open_store(url) as store:
        chat = agent_with([], "Fine.", on_call=die).session(message, store=store)
        try:
            return (await chat.run(message, id=ID if message == "poison" else None)).text
        except RunFailed as failed:
            return failed.code


def test_run_that_kills_its_process_each_time_is_given_up(harness: KillHarness, store_url: str, tmp_path: Path) -> None:
    # BR-04
    where = {"url": store_url, "folder": str(tmp_path), "message": "poison"}
    # The first one stored the input, which is progress.
    ends = [harness.start(poisoned, where).wait() for _ in range(7)]
    assert [ended.exit_code for ended in ends] == [9] * 6 + [0]
    assert ends[-1].result == "attempts_exhausted"
    assert len(EffectsLog(tmp_path / "calls").read()) == 6
    assert harness.run(poisoned, {**where, "message": "ok"}).result == "Fine."


def gated(folder: Path) -> LangGraphAgent:
    """Return an agent that pays, and is held while there is a file that says so."""
    effects = EffectsLog(folder / "effects")

    @tool
    async def pay(run: str) -> str:
        """Pay."""
        effects.append(f"pay {run}")
        while (folder / "hold").exists():
            await asyncio.sleep(0.01)
        return f"paid {run}"

    class Pays(Script):
        def answer(self, history: History) -> Say:
            said = history[-1]
            return Say("", [ScriptedCall("pay", {"run": said["content"]})]) if said["role"] == "user" else Say("Done.")

    return LangGraphAgent(create_agent(ScriptedChatModel(script=Pays("")), [pay]), name="a")


served = gated(Path(os.environ["OUTLAST_TEST_FOLDER"])) if "OUTLAST_TEST_FOLDER" in os.environ else None


def test_runs_of_a_killed_server_all_come_to_an_end_in_order(store_url: str, tmp_path: Path) -> None:
    # BR-05
    server = ServerProcess.serving(
        f"{__file__}:served", store_url, log=tmp_path / "log", env={"OUTLAST_TEST_FOLDER": str(tmp_path)}
    )
    effects = EffectsLog(tmp_path / "effects")
    (tmp_path / "hold").touch()
    runs = [(str(uuid.uuid4()), text, session) for text, session in (("1", "s"), ("2", "s"), ("3", "s"), ("4", "t"))]
    with server:
        for id, text, session in runs:
            body = {"id": id, "input": text, "session_id": session, "background": True}
            assert httpx.post(f"{server.url}/api/invocations", json=body, timeout=60).status_code == 202
        give_up = time.monotonic() + 60
        while len(effects.read()) < 2:
            assert time.monotonic() < give_up
            time.sleep(0.02)
        server.kill()
        (tmp_path / "hold").unlink()
        server.start()
        bodies = [{"id": id, "input": text, "session_id": session} for id, text, session in runs]
        ends = [httpx.post(f"{server.url}/api/invocations", json=body, timeout=60).json() for body in bodies]
    assert [one["status"] for one in ends] == ["completed"] * 4
    assert [line for line in effects.read() if line != "pay 4"] == ["pay 1", "pay 2", "pay 3"]
    assert [one["attempt"] for one in ends] == [2, 1, 1, 2]


async def paid(url: str, folder: str) -> Any:
    async with open_store(url) as store:
        try:
            reply = await gated(Path(folder)).session("s", store=store).run("it", id=ID)
        except SessionBusy:
            return None
        record = await (await store.store()).read.invocation("local", ID)
        assert record is not None
        return [reply.text, record.attempt]


def test_processes_that_notice_the_same_dead_run_go_on_with_it_once(
    harness: KillHarness, store_url: str, tmp_path: Path
) -> None:
    # BR-06
    where = {"url": store_url, "folder": str(tmp_path)}
    assert harness.run(paid, where, kill=KillAt("tool.after_body")).killed
    results = [case.wait().result for case in [harness.start(paid, where) for _ in range(3)]]
    assert ["Done.", 2] in results
    assert all(result in (["Done.", 2], None) for result in results)
    assert EffectsLog(tmp_path / "effects").read() == ["pay it"]


async def test_runs_that_wait_all_end_in_spite_of_the_garbage_collector(running: Any, make_request: Any) -> None:
    # BR-10
    waiting: list[asyncio.Future[None]] = []

    @tool
    async def wait() -> str:
        """Wait."""
        waiting.append(asyncio.get_running_loop().create_future())
        await waiting[-1]
        return "waited"

    agent = agent_with([wait], Say("", [ScriptedCall("wait", {})]), "Done.")
    async with running(agents={"a": agent.handlers()}) as engine:
        engine.settings = replace(engine.settings, concurrency=50)
        accepted = [await engine.accept(make_request(input="go")) for _ in range(50)]
        async with asyncio.timeout(60):
            while len(waiting) < 50:
                await asyncio.sleep(0.01)
        for number, future in enumerate(waiting):
            if number % 10 == 0:
                gc.collect()
            future.set_result(None)
        finals = await asyncio.wait_for(asyncio.gather(*(engine.wait(run) for run in accepted)), 60)
    assert {run.status for run in finals} == {Status.COMPLETED}


@contextmanager
def shop(folder: Path, port: int) -> Iterator[None]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(Path(__file__).with_name("mcp_shop.py")), str(folder), str(port)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + 30
        while True:
            assert time.monotonic() < give_up
            try:
                httpx.get(f"http://127.0.0.1:{port}/")
                break
            except httpx.TransportError:
                time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


async def test_mcp_server_may_be_gone_for_a_turn(local: LocalStore, tmp_path: Path) -> None:
    # BR-21
    client = pytest.importorskip("mcp").Client
    port = free_port()

    @tool
    async def pay(x: int) -> str:
        """Pay, in a session of the call's own, as the tools of langchain-mcp-adapters do."""
        async with client(f"http://127.0.0.1:{port}/mcp") as server:
            return str((await server.call_tool("pay", {"x": x})).content[0].text)

    heard: list[History] = []
    said = (Say("", [ScriptedCall("pay", {"x": 1})]), "Done.")
    chat = agent_with([pay], *said, on_call=heard.append).session("s", store=local)
    with shop(tmp_path, port):
        assert (await chat.run("pay")).text == "Done."
    with pytest.raises(RunFailed):
        await asyncio.wait_for(chat.run("pay"), 30)
    with shop(tmp_path, port):
        assert (await chat.run("pay")).text == "Done."
    assert EffectsLog(tmp_path / "effects").read() == ["pay 1"] * 2
    asked = [call["id"] for message in heard[-1] for call in message.get("tool_calls", ())]
    answered = [message["tool_call_id"] for message in heard[-1] if message["role"] == "tool"]
    assert (len(asked), sorted(asked)) == (3, sorted(answered))


async def test_result_whose_commit_was_lost_is_stored_once(local: LocalStore, lost_once: Any) -> None:
    # BR-13
    ran: list[int] = []

    @tool
    async def pay(x: int) -> str:
        """Pay."""
        ran.append(x)
        return "paid"

    chat = agent_with([pay], Say("", [ScriptedCall("pay", {"x": 1})]), "Done.").session("s", store=local)
    with lost_once("journal.done.after_commit"):
        reply = await chat.run("pay")
    assert (reply.text, results(reply.messages), ran) == ("Done.", ["paid"], [1])


async def test_answer_that_was_cut_is_continued(local: LocalStore) -> None:
    # BR-15
    heard: list[list[str]] = []
    said = (Say("The three rea", stop_reason="length"), "sons are these.")

    def note(history: History) -> None:
        heard.append([message["content"] for message in history])

    chat = agent_with([], *said, on_call=note).session("s", store=local)
    assert (await chat.run("Why?")).stop_reason == "length"
    point = await chat.resume_point()
    assert point is not None and point.kind is ResumeKind.CONTINUE_RESPONSE
    await chat.resume()
    assert heard[-1] == ["Why?", "The three rea", CONTINUE_TEXT]


async def test_approval_that_comes_twice_lets_the_tool_run_once(local: LocalStore) -> None:
    # BR-58
    ran: list[int] = []

    @tool
    async def delete(x: int) -> str:
        """Delete."""
        ran.append(x)
        return "deleted"

    asking = HumanInTheLoopMiddleware(interrupt_on={"delete": True})
    agent = agent_with([delete], Say("", [ScriptedCall("delete", {"x": 5})]), "Done.", middleware=[asking])
    asked = await agent.session("s", store=local).run("delete")
    (approval,) = asked.interrupt["approvals"]
    decision = {"resume": {"decisions": [{"id": approval["id"], "type": "approve"}]}}
    async with open_store(local.url) as elsewhere:
        ends = await asyncio.gather(
            *(agent.session("s", store=store).run(decision, wait=20) for store in (local, elsewhere)),
            return_exceptions=True,
        )
    codes = sorted(getattr(end, "code", "completed") for end in ends)
    assert codes in (["approval_already_decided", "completed"], ["completed", "nothing_to_answer"])
    assert ran == [5]
    with pytest.raises((RunFailed, SessionBusy)):
        await agent.session("s", store=local).run(decision)
    assert ran == [5]


@dataclass
class Tenant:
    name: str = "nobody"


async def test_approval_after_a_restart_meets_the_context_of_its_own_request(store_url: str) -> None:
    # BR-59
    ran: list[str] = []

    def made() -> Any:
        @tool
        async def pay(x: int) -> str:
            """Pay."""
            ran.append(get_runtime(Tenant).context.name)
            return "paid"

        asking = HumanInTheLoopMiddleware(interrupt_on={"pay": True})
        said = (Say("", [ScriptedCall("pay", {"x": 1})]), "Done.")
        return agent_with([pay], *said, middleware=[asking], context_schema=Tenant)

    async with open_store(store_url) as store:
        asked = await made().session("s", store=store).run("pay", config={"name": "one"})
        (approval,) = asked.interrupt["approvals"]
    async with open_store(store_url) as store:
        decision = {"resume": {"decisions": [{"id": approval["id"], "type": "approve"}]}}
        reply = await made().session("s", store=store).run(decision, config={"name": "two"})
    assert (reply.text, ran) == ("Done.", ["two"])


async def test_two_tools_that_pause_in_one_step_get_their_own_answers(local: LocalStore) -> None:
    # BR-60
    ran: list[str] = []

    def asking(name: str) -> Any:
        @tool(name)
        async def ask() -> str:
            """Ask."""
            return f"{name} heard {interrupt(name)}"

        return ask

    @tool
    async def quick() -> str:
        """Do not ask."""
        ran.append("quick")
        return "quick"

    calls = [ScriptedCall(name) for name in ("tool_a", "tool_b", "quick")]
    chat = agent_with([asking("tool_a"), asking("tool_b"), quick], Say("", calls), "Done.").session("s", store=local)
    asked = await chat.run("go")
    ids = {question["value"]: question["id"] for question in asked.interrupt["questions"]}
    assert set(ids) == {"tool_a", "tool_b"}
    asked = await chat.run({"resume": {"answers": {ids["tool_b"]: "no"}}})
    (left,) = asked.interrupt["questions"]
    reply = await chat.run({"resume": {"answers": {left["id"]: "yes"}}})
    history = results(await chat.messages())
    assert sorted(history) == ["quick", "tool_a heard yes", "tool_b heard no"]
    assert (reply.text, ran) == ("Done.", ["quick"])
