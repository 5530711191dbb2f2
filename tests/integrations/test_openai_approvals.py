"""Tool calls of an agent of the OpenAI Agents SDK that a person decides about: asked, decided, refused, forgotten."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import (
    Agent,
    RunContextWrapper,
    RunHooks,
    ToolGuardrailFunctionOutput,
    function_tool,
    set_tracing_disabled,
    tool_input_guardrail,
)
from fastapi.testclient import TestClient

from outlast import AgentResumeError, DurableAgentServer, Reply, RunFailed, current_tool_call, open_store
from outlast.adapters import ChatSession, LocalStore
from outlast.core.resume import INTERRUPTED_RESULT, NOT_APPROVED_RESULT, NOT_RUN_RESULT, REJECTED_RESULT, ResumeKind
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillAt, KillHarness
from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast_openai import OpenAIAgent, StoreSession
from outlast_openai.testing import ScriptModel

pytestmark = pytest.mark.anyio

set_tracing_disabled(True)

BOTH = [ScriptedCall("look", {"at": "stock"}, "call_a"), ScriptedCall("pay", {"amount": 5}, "call_b")]


@pytest.fixture
async def local(store_url: str) -> AsyncIterator[LocalStore]:
    async with open_store(store_url) as opened:
        yield opened


class Shop:
    """An agent that may look by itself, and pay when somebody agrees."""

    def __init__(self, *calls: ScriptedCall, path: Path | None = None, **options: Any) -> None:
        self.paid: list[int] = []
        self.looked: list[str] = []
        effects = None if path is None else EffectsLog(path)

        def pay(context: RunContextWrapper[Any], amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            if effects is not None:
                effects.append(f"pay {amount} {current_tool_call().idempotency_key}")
            return f"paid {amount} for {context.context}"

        @function_tool
        def look(at: str) -> str:
            """Look."""
            self.looked.append(at)
            return "5 left"

        model = ScriptModel(Script(Say("I will.", list(calls) or BOTH), "Done."))
        self.agent = Agent[Any](
            name="shop", model=model, tools=[look, function_tool(needs_approval=True, **options)(pay)]
        )

    def chat(self, local: LocalStore, **options: Any) -> ChatSession:
        return OpenAIAgent(self.agent, context_factory=lambda context: "ann", **options).session("s", store=local)


def asked(reply: Reply) -> list[dict[str, Any]]:
    assert reply.interrupt is not None
    assert reply.interrupt["reason"] == "approval_required"
    return list(reply.interrupt["approvals"])


def decided(*decisions: dict[str, Any]) -> dict[str, Any]:
    return {"resume": {"decisions": list(decisions)}}


async def results(local: LocalStore) -> list[str]:
    found: list[Any] = list(await StoreSession("s", local).get_items())
    return [item["output"] for item in found if item.get("type") == "function_call_output"]


async def test_run_stops_before_a_call_that_needs_approval_and_does_the_others(local: LocalStore) -> None:
    shop = Shop()
    reply = await shop.chat(local).run("buy")
    (approval,) = asked(reply)
    assert [(one["role"], one["content"]) for one in reply.messages] == [("assistant", "I will."), ("tool", "5 left")]
    assert (approval["name"], approval["arguments"]) == ("pay", {"amount": 5})
    assert (shop.looked, shop.paid) == (["stock"], [])
    point = await shop.chat(local).resume_point()
    assert point is not None
    assert (point.kind, point.cause, list(point.approvals)) == (ResumeKind.AWAIT_APPROVAL, None, [approval])
    with pytest.raises(AgentResumeError):
        await shop.chat(local).resume()


async def test_approved_call_runs_once_and_the_run_goes_on(local: LocalStore) -> None:
    shop = Shop()
    (approval,) = asked(await shop.chat(local).run("buy"))
    events = [event async for event in shop.chat(local).stream(decided({"id": approval["id"], "type": "approve"}))]
    assert events[-1]["reply"].text == "Done."
    assert (shop.paid, shop.looked) == ([5], ["stock"])
    assert [event["type"] for event in events][:3] == [
        "agent.approval.answered", "agent.tool.started", "agent.tool.finished",
    ]  # fmt: skip
    assert await results(local) == ["5 left", "paid 5 for ann"]
    assert await shop.chat(local).resume_point() is None


async def test_refused_call_does_not_run_and_the_model_hears_why(local: LocalStore) -> None:
    shop = Shop()
    (approval,) = asked(await shop.chat(local).run("buy"))
    no = {"id": approval["id"], "type": "reject", "message": "Too dear."}
    assert (await shop.chat(local).run(decided(no))).text == "Done."
    assert shop.paid == []
    assert (await results(local))[-1] == f"{REJECTED_RESULT} They said: Too dear."


async def test_edited_call_runs_with_the_arguments_of_the_person(local: LocalStore) -> None:
    shop = Shop()
    (approval,) = asked(await shop.chat(local).run("buy"))
    edit = {"id": approval["id"], "type": "edit", "arguments": {"amount": 3}}
    await shop.chat(local).run(decided(edit))
    assert shop.paid == [3]
    assert (await results(local))[-1].startswith('A person changed the arguments of this call to {"amount":3}')


async def test_calls_may_be_decided_one_after_the_other(local: LocalStore) -> None:
    shop = Shop(ScriptedCall("pay", {"amount": 1}, "call_a"), ScriptedCall("pay", {"amount": 2}, "call_b"))
    first, second = asked(await shop.chat(local).run("buy"))
    reply = await shop.chat(local).run(decided({"id": second["id"], "type": "approve"}))
    assert asked(reply) == [first]
    assert shop.paid == [2]
    await shop.chat(local).run(decided({"id": first["id"], "type": "approve"}))
    assert shop.paid == [2, 1]


@pytest.mark.parametrize(
    ("decision", "code"),
    [
        ({"id": "other", "type": "approve"}, "approval_mismatch"),
        ({"type": "approve", "arguments": {"amount": 6}}, "approval_mismatch"),
        ({"type": "edit", "arguments": "much"}, "invalid_input"),
    ],
)
async def test_decision_that_does_not_fit_runs_nothing_and_leaves_the_question_open(
    local: LocalStore, decision: dict[str, Any], code: str
) -> None:
    shop = Shop()
    (approval,) = asked(await shop.chat(local).run("buy"))
    with pytest.raises(RunFailed) as refused:
        await shop.chat(local).run(decided({"id": approval["id"], **decision}))
    assert refused.value.code == code
    await shop.chat(local).run(decided({"id": approval["id"], "type": "approve"}))
    assert shop.paid == [5]
    with pytest.raises(RunFailed) as twice:
        await shop.chat(local).run(decided({"id": approval["id"], "type": "approve"}))
    assert twice.value.code == "approval_already_decided"
    assert shop.paid == [5]


async def test_new_message_closes_the_question(local: LocalStore) -> None:
    shop = Shop()
    await shop.chat(local).run("buy")
    assert asked(await shop.chat(local).run("buy after all"))
    assert shop.paid == []
    assert (await results(local))[:2] == ["5 left", NOT_APPROVED_RESULT]


async def test_approval_needs_a_session(local: LocalStore) -> None:
    shop = Shop()
    with TestClient(DurableAgentServer(OpenAIAgent(shop.agent), store=local.url)) as client:
        body = {"id": "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11", "input": "buy"}
        answer = client.post("/api/invocations", json=body).json()
    assert answer["error"]["code"] == "approval_needs_session"
    assert shop.paid == []


async def test_guardrails_and_hooks_of_an_approved_call_are_called(local: LocalStore) -> None:
    heard: list[str] = []

    class Hooks(RunHooks[Any]):
        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            heard.append(tool.name)

    @tool_input_guardrail
    def small(data: Any) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.reject_content("too much")

    shop = Shop(tool_input_guardrails=[small])
    (approval,) = asked(await shop.chat(local, hooks=Hooks()).run("buy"))
    await shop.chat(local, hooks=Hooks()).run(decided({"id": approval["id"], "type": "approve"}))
    assert (shop.paid, (await results(local))[-1]) == ([], "too much")
    assert heard == ["look", "pay"]


# Killed ---------------------------------------------------------------------------------------------------------------

FIRST, SECOND = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11", "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b12"
SAMPLE = 5


async def ask(url: str, folder: str) -> Any:
    async with open_store(url) as store:
        return asked(await Shop(path=Path(folder) / "effects").chat(store).run("buy", id=FIRST))


async def approve(url: str, folder: str) -> Any:
    async with open_store(url) as store:
        chat = Shop(path=Path(folder) / "effects").chat(store)
        reply = await chat.run("buy", id=FIRST)
        approval = reply.interrupt["approvals"][0]["id"] if reply.interrupt else ""
        reply = await chat.run(decided({"id": approval, "type": "approve"}), id=SECOND)
        return [reply.text, await results(store)]


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__], timeout_seconds=20) as harness:
        yield harness


@pytest.fixture(scope="module")
def places(harness: KillHarness, tmp_path_factory: pytest.TempPathFactory) -> list[KillAt]:
    folder = tmp_path_factory.mktemp("trace")
    return harness.trace(approve, {"url": f"sqlite:///{folder / 'state.db'}", "folder": str(folder)})


def kill_and_approve(harness: KillHarness, folder: Path, place: KillAt, url: str | None = None) -> None:
    folder.mkdir(exist_ok=True)
    where = {"url": url or f"sqlite:///{folder / 'state.db'}", "folder": str(folder)}
    if not harness.start(approve, where, kill=place).wait().killed:
        return
    ended = harness.start(approve, where).wait()
    effects = EffectsLog(folder / "effects").read()
    assert len(effects) <= 1, (place, effects)
    assert ended.error is None, (place, ended.error)
    text, found = ended.result
    assert text == "Done.", place
    assert len(found) in (2, 4), (place, found)


def test_killed_here_and_there(harness: KillHarness, places: list[KillAt], tmp_path: Path) -> None:
    for number, place in enumerate(places[::SAMPLE]):
        kill_and_approve(harness, tmp_path / str(number), place)


@pytest.mark.slow
def test_killed_everywhere(harness: KillHarness, places: list[KillAt], tmp_path: Path) -> None:
    for number, place in enumerate(places):
        kill_and_approve(harness, tmp_path / str(number), place)


@pytest.mark.parametrize(
    "place",
    [KillAt("approval.decided.after_commit"), KillAt("tool.before_body", 2), KillAt("tool.after_body", 2)],
    ids=str,
)
def test_killed_on_both_databases(harness: KillHarness, tmp_path: Path, store_url: str, place: KillAt) -> None:
    kill_and_approve(harness, tmp_path, place, store_url)


# A function decides --------------------------------------------------------------------------------------------------


async def buy_twice(url: str, folder: str, resumes: bool = False) -> Any:
    """Pay 5 and 500, of which a person is asked about what is much."""

    async def much(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        return bool(arguments["amount"] > 100)

    calls = [ScriptedCall("pay", {"amount": amount}, f"call_{amount}") for amount in (5, 500)]
    effects = EffectsLog(Path(folder) / "effects")

    @function_tool(needs_approval=much)
    def pay(amount: int) -> str:
        """Pay."""
        effects.append(f"pay {amount}")
        return f"paid {amount}"

    model = ScriptModel(Script(Say("I will.", calls), "Done."))
    async with open_store(url) as store:
        chat = OpenAIAgent(Agent[Any](name="shop", model=model, tools=[pay])).session("s", store=store)
        reply = await (chat.resume() if resumes else chat.run("buy", id=FIRST))
        approvals = asked(reply)
        reply = await chat.run(decided(*({"id": one["id"], "type": "approve"} for one in approvals)))
        return [[one["arguments"] for one in approvals], reply.text, await results(store)]


@pytest.mark.parametrize("resumes", [False, True], ids=["recovers", "resumes"])
@pytest.mark.parametrize(
    ("place", "first"),
    [
        (KillAt("items.after_commit", 2), NOT_RUN_RESULT),
        (KillAt("tool.after_body"), INTERRUPTED_RESULT),
        (KillAt("journal.done.after_commit"), "paid 5"),
    ],
    ids=str,
)
def test_function_that_decides_is_asked_again_after_a_crash(
    harness: KillHarness, tmp_path: Path, store_url: str, place: KillAt, first: str, resumes: bool
) -> None:
    where = {"url": store_url, "folder": str(tmp_path)}
    assert harness.run(buy_twice, where, kill=place).killed
    shown, text, found = harness.run(buy_twice, {**where, "resumes": resumes}).result
    assert (shown, text, found) == ([{"amount": 500}], "Done.", [first, "paid 500"])
    assert EffectsLog(tmp_path / "effects").read() == [*(["pay 5"] if first != NOT_RUN_RESULT else []), "pay 500"]
