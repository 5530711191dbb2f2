"""Cases of public bug reports that no other test of this adapter tells: each names the id of its case."""

import asyncio
import gc
import json
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("agents")

from agents import Agent, OpenAIResponsesModel, RunContextWrapper, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call
from openai import AsyncOpenAI

from outlast import AgentResumeError, RunFailed, open_store
from outlast.adapters import LocalStore
from outlast.core import faults
from outlast.core.errors import SessionBusy
from outlast.core.records import Request, Status
from outlast.core.resume import INTERRUPTED_RESULT, NOT_APPROVED_RESULT, REJECTED_RESULT, ResumeKind
from outlast.engine import Engine
from outlast.store.statements import DatabaseError, Lost, Refused
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillAt, KillHarness
from outlast.testing.scripted import History, Say, Script, ScriptedCall
from outlast.testing.serving import ServerProcess
from outlast_openai import OpenAIAgent, StoreSession
from outlast_openai.provider import Provider
from outlast_openai.testing import ScriptModel

pytestmark = pytest.mark.anyio

ID = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11"
Running = Callable[..., AbstractAsyncContextManager[Engine]]
Make = Callable[..., Request]

set_tracing_disabled(True)


def script(*answers: Say | str, views: list[History] | None = None) -> ScriptModel:
    return ScriptModel(Script(*answers, on_call=None if views is None else views.append))


def asks(name: str, id: str = "call_1", **arguments: Any) -> Say:
    return Say("", [ScriptedCall(name, arguments, id)])


def one_tool(tool: Any, *answers: Say | str, **options: Any) -> OpenAIAgent:
    return OpenAIAgent(
        Agent[Any](name="a", model=script(*(answers or (asks(tool.name), "Done."))), tools=[tool]), name="a", **options
    )


async def items(local: LocalStore, id: str = "s") -> list[Any]:
    return list(await StoreSession(id, local).get_items())


async def outputs(local: LocalStore, id: str = "s") -> list[Any]:
    return [item["output"] for item in await items(local, id) if "output" in item]


# A. Crash and recovery ------------------------------------------------------------------------------------------------


@function_tool
async def long() -> str:
    """Take five times as long as a dead worker is waited for."""
    await asyncio.sleep(5 * 0.5)
    return "long"


@function_tool
async def blocking() -> str:
    """Block the loop."""
    time.sleep(4 * 0.5)  # noqa: ASYNC251 - that it does is the case
    return "blocked"


@function_tool
def in_a_thread() -> str:
    """Block a thread."""
    time.sleep(4 * 0.5)
    return "blocked"


@pytest.mark.parametrize("tool", [long, blocking, in_a_thread], ids=lambda tool: tool.name)
async def test_tool_that_takes_long_or_blocks_does_not_look_dead(
    running: Running, make_request: Make, tool: Any
) -> None:
    # BR-02, BR-03
    agents = {"a": one_tool(tool).handlers()}
    async with running(agents=agents) as engine, running(agents=agents):
        final = await engine.wait(await engine.accept(make_request("s", input="go")))
        assert (final.status, final.attempt) == (Status.COMPLETED, 1)


async def poisoned(url: str, folder: str, message: str) -> Any:
    def die(history: History) -> None:
        EffectsLog(Path(folder) / "calls").append("called")
        if history[-1]["content"] == "poison":
            os._exit(9)

    agent = OpenAIAgent(Agent(name="a", model=ScriptModel(Script("Fine.", on_call=die))))
    async with open_store(url) as store:
        try:
            return (await agent.session(message, store=store).run(message, id=ID if message == "poison" else None)).text
        except RunFailed as failed:
            return failed.code


def test_run_that_kills_its_process_each_time_is_given_up(harness: KillHarness, store_url: str, tmp_path: Path) -> None:
    # BR-04
    where = {"url": store_url, "folder": str(tmp_path), "message": "poison"}
    # The first one stored the message, which is progress.
    ends = [harness.start(poisoned, where).wait() for _ in range(7)]
    assert [ended.exit_code for ended in ends] == [9] * 6 + [0]
    assert ends[-1].result == "attempts_exhausted"
    assert len(EffectsLog(tmp_path / "calls").read()) == 6
    assert harness.run(poisoned, {**where, "message": "ok"}).result == "Fine."


def gated(folder: Path) -> OpenAIAgent:
    """Return an agent that pays, and is held while there is a file that says so."""
    effects = EffectsLog(folder / "effects")

    @function_tool
    async def pay(run: str) -> str:
        """Pay."""
        effects.append(f"pay {run}")
        while (folder / "hold").exists():
            await asyncio.sleep(0.01)
        return f"paid {run}"

    class Pays(Script):
        def answer(self, history: History) -> Say:
            said = history[-1]
            return asks("pay", run=str(said["content"])) if said["role"] == "user" else Say("Done.")

    return OpenAIAgent(Agent[Any](name="a", model=ScriptModel(Pays("")), tools=[pay]), name="a")


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


async def test_error_after_a_finished_tool_is_the_end_of_the_run(local: LocalStore) -> None:
    # BR-08
    did: list[int] = []

    @function_tool
    async def pay() -> str:
        """Pay."""
        did.append(1)
        return "paid"

    def fail(history: History) -> None:
        if history[-1]["role"] == "tool":
            raise RuntimeError("x")

    model = ScriptModel(Script(asks("pay"), "Done.", on_call=fail))
    chat = OpenAIAgent(Agent(name="a", model=model, tools=[pay])).session("s", store=local)
    for _ in range(2):
        with pytest.raises(RunFailed, match="x"):
            await chat.run("pay", id=ID)
    assert did == [1]
    assert await outputs(local) == ["paid"]


@pytest.mark.parametrize("escapes", [False, True])
async def test_error_of_a_tool_is_told_to_the_model_or_fails_the_run_at_once(local: LocalStore, escapes: bool) -> None:
    # BR-09
    def find() -> str:
        """Find."""
        raise ValueError("404")

    tool = function_tool(find, failure_error_function=None) if escapes else function_tool(find)
    chat = one_tool(tool).session("s", store=local)
    if escapes:
        with pytest.raises(RunFailed, match="404"):
            await chat.run("find")
    else:
        assert (await chat.run("find")).text == "Done."
        assert "error" in (await outputs(local))[0]


async def test_runs_that_wait_all_end_in_spite_of_the_garbage_collector(running: Running, make_request: Make) -> None:
    # BR-10
    waiting: list[asyncio.Future[None]] = []

    @function_tool
    async def wait() -> str:
        """Wait."""
        waiting.append(asyncio.get_running_loop().create_future())
        await waiting[-1]
        return "waited"

    async with running(agents={"a": one_tool(wait).handlers()}) as engine:
        engine.settings = replace(engine.settings, concurrency=50)
        accepted = [await engine.accept(make_request(input="go")) for _ in range(50)]
        while len(waiting) < 50:
            await asyncio.sleep(0.01)
        gc.collect()
        for number, future in enumerate(waiting):
            if number % 10 == 0:
                gc.collect()
            future.set_result(None)
        finals = await asyncio.wait_for(asyncio.gather(*(engine.wait(run) for run in accepted)), 60)
    assert {run.status for run in finals} == {Status.COMPLETED}


# B. Tool calls and histories ------------------------------------------------------------------------------------------

CALL: Any = {"type": "function_call", "id": "fc_1", "call_id": "call_x", "name": "look", "arguments": "{}"}
THOUGHT: Any = {"type": "reasoning", "id": "rs_1", "summary": []}


def said(text: str) -> Any:
    return {"role": "user", "content": text}


async def test_new_message_over_an_open_call(local: LocalStore) -> None:
    # BR-11
    did: list[int] = []

    @function_tool
    async def look() -> str:
        """Look."""
        did.append(1)
        return "seen"

    await StoreSession("s", local).add_items([said("a"), CALL])
    views: list[History] = []
    agent = Agent(name="a", model=script("Done.", views=views), tools=[look])
    await OpenAIAgent(agent).session("s", store=local).run("b")
    assert [one["content"] for one in views[0]] == ["a", "", INTERRUPTED_RESULT, "b"]
    assert did == []


async def test_cancelled_error_of_a_tool_does_not_leave_the_run_running(local: LocalStore) -> None:
    # BR-12
    tries: list[int] = []

    @function_tool
    async def fetch() -> str:
        """Fetch."""
        tries.append(1)
        raise asyncio.CancelledError

    chat = one_tool(fetch).session("s", store=local)
    try:
        assert (await asyncio.wait_for(chat.run("fetch"), 30)).text == "Done."
    except RunFailed:
        assert (await chat.run("again?")).text == "Done."
    assert all(await outputs(local))
    assert len(tries) <= 2


class Breaking:
    """A tool that pays once; from then on the store refuses some writes."""

    def __init__(self, write: str, error: type[DatabaseError], times: int) -> None:
        self.paid, self._write, self._left = 0, write, [error("broken by a test")] * times

    @contextmanager
    def agent(self) -> Iterator[OpenAIAgent]:
        @function_tool
        async def pay() -> str:
            """Pay."""
            self.paid += 1
            faults.install(self._refuse)
            return "paid"

        try:
            yield one_tool(pay)
        finally:
            faults.install(None)

    def _refuse(self, point: str) -> None:
        if point == f"{self._write}.before_commit" and self._left:
            raise self._left.pop()


@pytest.mark.parametrize("write", ["items", "journal.done"])
async def test_result_that_could_not_be_stored_at_once_is_stored_later(local: LocalStore, write: str) -> None:
    # BR-13
    breaking = Breaking(write, Lost, 1)
    with breaking.agent() as agent:
        assert (await agent.session("s", store=local).run("pay")).text == "Done."
    assert (breaking.paid, await outputs(local)) == (1, ["paid"])


@pytest.mark.parametrize(
    ("write", "kind"), [("items", ResumeKind.RECOVER_TOOLS), ("journal.done", ResumeKind.CALL_MODEL)]
)
async def test_result_that_could_not_be_stored_is_told_by_the_next_run(
    local: LocalStore, write: str, kind: ResumeKind
) -> None:
    # BR-13
    breaking = Breaking(write, Refused, 99)
    with breaking.agent() as agent:
        chat = agent.session("s", store=local)
        with pytest.raises(RunFailed) as caught:
            await chat.run("pay")
    assert caught.value.code == "store_error"
    point = await chat.resume_point()
    assert point is not None
    assert point.kind is kind
    assert (await chat.resume()).text == "Done."
    assert (breaking.paid, await outputs(local)) == (1, ["paid"])


async def test_two_calls_of_one_id_in_a_history(local: LocalStore) -> None:
    # BR-14
    calls: list[Any] = [{**CALL, "id": f"fc_{of}", "arguments": json.dumps({"of": of})} for of in "AB"]
    await StoreSession("s", local).add_items([said("a"), *calls])
    views: list[History] = []
    chat = OpenAIAgent(Agent(name="a", model=script("Done.", views=views))).session("s", store=local)
    with pytest.raises(AgentResumeError) as caught:
        await chat.resume()
    assert caught.value.reason == "malformed"
    assert (await chat.run("go on")).text == "Done."
    asked = [call["id"] for message in views[0] for call in message.get("tool_calls", ())]
    assert len(set(asked)) == 2
    assert [message["tool_call_id"] for message in views[0] if message["role"] == "tool"] == asked


async def test_two_calls_of_one_id_in_a_response(local: LocalStore) -> None:
    # BR-14: the SDK does not take it; nothing of it is stored, and the model is asked again.
    calls = [function_call("get", {"of": of}, call_id="c1", item_id=f"fc_{of}") for of in "AB"]
    did: list[str] = []

    @function_tool
    async def get(of: str) -> str:
        """Get."""
        did.append(of)
        return of

    model = ScriptedModel([calls, [assistant_message("Done.")]])
    chat = OpenAIAgent(Agent(name="a", model=model, tools=[get])).session("s", store=local)
    with pytest.raises(RunFailed, match="reused a tool call ID"):
        await chat.run("get")
    assert (await chat.resume()).text == "Done."
    assert did == []


@pytest.mark.parametrize("goes_on", ["resume", "message"])
async def test_reasoning_alone_at_the_end(local: LocalStore, goes_on: str) -> None:
    # BR-16
    await StoreSession("s", local).add_items([said("a"), THOUGHT])
    with Provider({"m": Script("Done.")}) as provider:
        async with AsyncOpenAI(api_key="none", base_url=provider.url, max_retries=0) as client:
            agent = Agent[Any](name="a", model=OpenAIResponsesModel("m", openai_client=client))
            chat = OpenAIAgent(agent).session("s", store=local)
            point = await chat.resume_point()
            assert point is not None
            assert point.kind is ResumeKind.RETRY_RESPONSE
            reply = await (chat.resume() if goes_on == "resume" else chat.run("b"))
    assert (reply.text, provider.problems) == ("Done.", [])


@pytest.mark.parametrize("retries", [0, 2])
async def test_model_call_that_fails_once_keeps_the_message(local: LocalStore, retries: int) -> None:
    # BR-17
    with Provider({"m": Script("Answer.")}) as provider:
        async with AsyncOpenAI(api_key="none", base_url=provider.url, max_retries=retries) as client:
            agent = Agent[Any](name="a", model=OpenAIResponsesModel("m", openai_client=client))
            chat = OpenAIAgent(agent).session("s", store=local)
            await chat.run("old")
            provider.failures = 1
            if retries:
                assert (await chat.run("q")).text == "Answer."
            else:
                with pytest.raises(RunFailed):
                    await chat.run("q")
                assert (await chat.resume()).text == "Answer."
    kept = await items(local)
    assert [item["content"] for item in kept if item.get("role") == "user"] == ["old", "q"]
    assert sum(item.get("role") == "assistant" for item in kept) == 2


async def test_looking_at_the_resume_point_changes_nothing(tmp_path: Path) -> None:
    # BR-19
    async with open_store(f"sqlite:///{tmp_path / 'state.db'}") as local:
        await StoreSession("s", local).add_items([said("a"), CALL])
        chat = one_tool(long).session("s", store=local)

        def rows() -> list[str]:
            with sqlite3.connect(tmp_path / "state.db") as connection:
                found = list(connection.iterdump())
            connection.close()
            return [line for line in found if '"beats"' not in line and '"workers"' not in line]

        before = rows()
        (point,) = {str(await chat.resume_point()) for _ in range(100)}
        assert "recover_tools" in point
        assert rows() == before


# I. Approvals ---------------------------------------------------------------------------------------------------------


@dataclass
class Who:
    name: str
    paid: int = 0


def shop(folder: str, name: str = "ann") -> OpenAIAgent:
    effects = EffectsLog(Path(folder) / "effects")

    @function_tool(needs_approval=True)
    async def delete(context: RunContextWrapper[Who], number: int) -> str:
        """Delete."""
        context.context.paid += 1
        effects.append(f"delete {number} for {context.context.name}")
        return f"deleted {number}"

    agent = Agent[Any](name="a", model=script(asks("delete", number=5), "Done."), tools=[delete])
    return OpenAIAgent(agent, context_factory=lambda context: Who(name))


async def ask(url: str, folder: str) -> Any:
    async with open_store(url) as store:
        reply = await shop(folder).session("s", store=store).run("delete")
        assert reply.interrupt is not None
        return reply.interrupt["approvals"][0]["id"]


async def approve(url: str, folder: str, approval: str, name: str = "bob", id: str | None = None) -> Any:
    async with open_store(url) as store:
        decision = {"resume": {"decisions": [{"id": approval, "type": "approve"}]}}
        try:
            return (await shop(folder, name).session("s", store=store).run(decision, wait=60, id=id)).text
        except RunFailed as failed:
            return failed.code


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__], timeout_seconds=60) as harness:
        yield harness


def test_approval_that_comes_twice_at_once_and_once_more(harness: KillHarness, store_url: str, tmp_path: Path) -> None:
    # BR-58
    where: dict[str, Any] = {"url": store_url, "folder": str(tmp_path)}
    where["approval"] = harness.run(ask, where).result
    cases = [harness.start(approve, where) for _ in range(2)]
    assert sorted(case.wait().result for case in cases) == ["Done.", "approval_already_decided"]
    assert harness.run(approve, where).result == "approval_already_decided"
    assert EffectsLog(tmp_path / "effects").read() == ["delete 5 for bob"]


@pytest.mark.parametrize("place", [KillAt("approval.decided.after_commit"), KillAt("tool.before_body")], ids=str)
def test_crash_behind_an_approval_does_not_lose_it(
    harness: KillHarness, store_url: str, tmp_path: Path, place: KillAt
) -> None:
    # BR-58
    where: dict[str, Any] = {"url": store_url, "folder": str(tmp_path)}
    where |= {"approval": harness.run(ask, where).result, "id": ID}
    assert harness.run(approve, where, kill=place).killed
    assert harness.run(approve, where).result == "Done."
    # Once started, nobody knows whether it ran: it is answered, not run again.
    expected = ["delete 5 for bob"] if place.point.startswith("approval") else []
    assert EffectsLog(tmp_path / "effects").read() == expected


def test_approval_in_another_process_with_a_context(harness: KillHarness, store_url: str, tmp_path: Path) -> None:
    # BR-59
    where: dict[str, Any] = {"url": store_url, "folder": str(tmp_path)}
    where["approval"] = harness.run(ask, where).result
    assert harness.run(approve, {**where, "name": "eve"}).result == "Done."
    assert EffectsLog(tmp_path / "effects").read() == ["delete 5 for eve"]


async def test_two_questions_of_one_step_are_answered_each_by_its_own(local: LocalStore) -> None:
    # BR-60
    did: list[str] = []

    def named(name: str, asks_first: bool) -> Any:
        async def tool() -> str:
            """Do."""
            did.append(name)
            return f"{name} did"

        return function_tool(tool, name_override=name, needs_approval=asks_first)

    calls = [ScriptedCall(f"tool_{one}", {}, f"call_{one}") for one in "abc"]
    tools = [named("tool_a", True), named("tool_b", True), named("tool_c", False)]
    agent = Agent[Any](name="a", model=script(Say("", calls), "Done."), tools=tools)
    chat = OpenAIAgent(agent).session("s", store=local)
    reply = await chat.run("go")
    assert reply.interrupt is not None
    ids = {one["name"]: one["id"] for one in reply.interrupt["approvals"]}
    for name, decision in (("tool_b", "reject"), ("tool_a", "approve")):
        reply = await chat.run({"resume": {"decisions": [{"id": ids[name], "type": decision}]}})
    assert reply.text == "Done."
    assert did == ["tool_c", "tool_a"]
    results = {item["call_id"]: item["output"] for item in await items(local) if "output" in item}
    assert results == {"call_a": "tool_a did", "call_b": REJECTED_RESULT, "call_c": "tool_c did"}


async def test_new_message_while_a_question_is_open(local: LocalStore, tmp_path: Path) -> None:
    # BR-61
    chat = shop(str(tmp_path)).session("s", store=local)
    await chat.run("delete")
    agent = OpenAIAgent(Agent(name="a", model=script("Noon.")))
    assert (await agent.session("s", store=local).run("Forget it, what time is it?")).text == "Noon."
    assert await outputs(local) == [NOT_APPROVED_RESULT]


async def test_message_that_waited_when_the_question_was_asked(running: Running, make_request: Make) -> None:
    # BR-61
    entered, go = asyncio.Event(), asyncio.Event()

    @function_tool
    async def look() -> str:
        """Look."""
        entered.set()
        await go.wait()
        return "looked"

    @function_tool(needs_approval=True)
    async def delete() -> str:
        """Delete."""
        raise AssertionError

    agent = Agent[Any](name="a", model=script(asks("look"), asks("delete", "call_2"), "Done."), tools=[look, delete])
    async with running(agents={"a": OpenAIAgent(agent).handlers()}) as engine:
        first = await engine.accept(make_request("s", input="delete"))
        await entered.wait()
        second = await engine.accept(make_request("s", input="and then?"))
        go.set()
        ends = [await engine.wait(one) for one in (first, second)]
    assert [one.status for one in ends] == [Status.INTERRUPTED, Status.FAILED]
    assert "approval_open" in str(ends[1])
