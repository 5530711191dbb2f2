"""Calls of agents that are tools of other agents, which a person decides about: the agent stops inside, and goes on inside."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import Agent, RunContextWrapper, function_tool, set_tracing_disabled

from outlast import Reply, RunFailed, open_store
from outlast.adapters import LocalStore
from outlast.core.resume import INTERRUPTED_RESULT, REJECTED_RESULT, ResumeKind
from outlast.sessions import SessionStore
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillAt, KillHarness
from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast_openai import OpenAIAgent, StoreSession
from outlast_openai.testing import ScriptModel

set_tracing_disabled(True)

FIRST, SECOND = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11", "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b12"
SAMPLE = 5
SECRET = "sk-never-stored"


def pay(amount: int, id: str = "call_a") -> ScriptedCall:
    # The ids of the agent inside are those of the agent around it, as those of providers that count are.
    return ScriptedCall("pay", {"amount": amount}, id)


def desk(folder: Path, *answers: Say | str, deep: bool = False, **options: Any) -> OpenAIAgent:
    """Make an agent that has one as a tool that looks by itself, and pays when somebody agrees."""
    effects = EffectsLog(folder / "effects")

    def pays(context: RunContextWrapper[Any], amount: int) -> str:
        """Pay."""
        effects.append(f"pay {amount} for {context.context['name']}")
        return f"paid {amount}"

    @function_tool
    def look(at: str) -> str:
        """Look."""
        effects.append(f"look {at}")
        return "5 left"

    script = Script(*(answers or (Say("", [ScriptedCall("look", {"at": "stock"}, "call_l"), pay(5)]), "Paid.")))
    paying = function_tool(pays, name_override="pay", needs_approval=True)
    inner = Agent[Any](name="cashier", model=ScriptModel(script), tools=[look, paying])
    if deep:
        ask = ScriptedCall("ask", {"input": "pay"}, "call_a")
        inner = Agent[Any](
            name="clerk", model=ScriptModel(Script(Say("", [ask]), "Paid.")), tools=[inner.as_tool("ask", "Ask.")]
        )
    calls = [ScriptedCall("look", {"at": "sky"}, "call_b"), ScriptedCall("ask", {"input": "pay"}, "call_a")]
    outer = Agent[Any](
        name="desk",
        model=ScriptModel(Script(Say("I ask.", calls), "Done.")),
        tools=[inner.as_tool("ask", "Ask."), look],
    )
    return OpenAIAgent(outer, context_factory=lambda context: {"name": "ann", "key": SECRET}, **options)


@pytest.fixture
async def local(store_url: str) -> AsyncIterator[LocalStore]:
    async with open_store(store_url) as opened:
        yield opened


def asked(reply: Reply) -> list[dict[str, Any]]:
    assert reply.interrupt is not None
    return list(reply.interrupt["approvals"])


def decided(approvals: list[dict[str, Any]], type: str = "approve", **more: Any) -> dict[str, Any]:
    return {"resume": {"decisions": [{"id": one["id"], "type": type, **more} for one in approvals]}}


def effects(folder: Path) -> list[str]:
    return EffectsLog(folder / "effects").read()


async def results(local: LocalStore) -> list[str]:
    found: list[Any] = list(await StoreSession("s", local).get_items())
    return [item["output"] for item in found if item.get("type") == "function_call_output"]


@pytest.mark.anyio
@pytest.mark.parametrize("deep", [False, True], ids=["tool", "tool of a tool"])
async def test_agent_in_a_tool_goes_on_inside_when_its_call_is_approved(
    local: LocalStore, tmp_path: Path, deep: bool
) -> None:
    # BR-20: what ran inside before the pause does not run again.
    (approval,) = asked(await desk(tmp_path, deep=deep).session("s", store=local).run("buy"))
    assert (approval["name"], approval["arguments"]) == ("pay", {"amount": 5})
    assert sorted(effects(tmp_path)) == ["look sky", "look stock"]
    chat = desk(tmp_path, deep=deep).session("s", store=local)
    point = await chat.resume_point()
    assert point is not None
    assert (point.kind, list(point.approvals)) == (ResumeKind.AWAIT_APPROVAL, [approval])
    assert (await chat.run(decided([approval]))).text == "Done."
    assert sorted(effects(tmp_path)) == ["look sky", "look stock", "pay 5 for ann"]
    assert await results(local) == ["5 left", "Paid."]
    assert await chat.resume_point() is None


@pytest.mark.anyio
async def test_model_inside_hears_why_its_call_was_refused(local: LocalStore, tmp_path: Path) -> None:
    class Repeats(Script):
        def answer(self, history: Any) -> Say:
            return Say(history[-1]["content"]) if history[-1]["role"] == "tool" else self.answers[0]

    agent = desk(tmp_path)
    inside: Any = agent.agent.tools[0]
    inside._agent_instance.model = ScriptModel(Repeats(Say("", [pay(5)])))
    chat = agent.session("s", store=local)
    approvals = asked(await chat.run("buy"))
    assert (await chat.run(decided(approvals, "reject", message="Too dear."))).text == "Done."
    assert (await results(local))[1] == f"{REJECTED_RESULT} They said: Too dear."
    assert effects(tmp_path) == ["look sky"]


@pytest.mark.anyio
async def test_questions_one_after_the_other_and_two_at_once(local: LocalStore, tmp_path: Path) -> None:
    twice = Say("", [pay(1, "call_1"), pay(2, "call_2")])
    chat = desk(tmp_path, twice, Say("", [pay(3, "call_3")]), "Paid.").session("s", store=local)
    both = asked(await chat.run("buy"))
    assert asked(await chat.run(decided(both[1:]))) == both[:1]
    assert effects(tmp_path) == ["look sky"]
    (third,) = asked(await chat.run(decided(both[:1])))
    assert sorted(effects(tmp_path)[1:]) == ["pay 1 for ann", "pay 2 for ann"]
    assert (await chat.run(decided([third]))).text == "Done."
    assert effects(tmp_path)[3:] == ["pay 3 for ann"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("decision", "code"),
    [
        ({"type": "approve", "arguments": {"amount": 6}}, "approval_mismatch"),
        ({"type": "edit", "arguments": {"amount": 6}}, "invalid_input"),
    ],
)
async def test_decision_with_other_arguments_runs_nothing(
    local: LocalStore, tmp_path: Path, decision: dict[str, Any], code: str
) -> None:
    chat = desk(tmp_path).session("s", store=local)
    approvals = asked(await chat.run("buy"))
    with pytest.raises(RunFailed) as refused:
        await chat.run(decided(approvals, **decision))
    assert refused.value.code == code
    await chat.run(decided(approvals))
    with pytest.raises(RunFailed) as twice:
        await chat.run(decided(approvals))
    assert twice.value.code == "approval_already_decided"
    assert effects(tmp_path).count("pay 5 for ann") == 1


@pytest.mark.anyio
async def test_new_message_closes_the_question_inside(local: LocalStore, tmp_path: Path) -> None:
    chat = desk(tmp_path).session("s", store=local)
    await chat.run("buy")
    assert asked(await chat.run("buy after all"))
    assert (await results(local))[1] == INTERRUPTED_RESULT
    assert "pay 5 for ann" not in effects(tmp_path)


@pytest.mark.anyio
async def test_nothing_of_the_context_is_stored_with_the_question(local: LocalStore, tmp_path: Path) -> None:
    await desk(tmp_path, deep=True).session("s", store=local).run("buy")
    stored = [item.content async for item in SessionStore(local).items("s")]
    assert any("parked" in item for item in stored)
    assert SECRET not in str(stored)


# Killed ---------------------------------------------------------------------------------------------------------------


async def approve(url: str, folder: str) -> Any:
    async with open_store(url) as store:
        chat = desk(Path(folder)).session("s", store=store)
        reply = await chat.run("buy", id=FIRST)
        if reply.interrupt is None:
            return [reply.text, await results(store)]
        reply = await chat.run(decided(asked(reply)), id=SECOND)
        return [reply.text, await results(store)]


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__], timeout_seconds=20) as harness:
        yield harness


@pytest.fixture(scope="module")
def places(harness: KillHarness, tmp_path_factory: pytest.TempPathFactory) -> list[KillAt]:
    folder = tmp_path_factory.mktemp("trace")
    return harness.trace(approve, {"url": f"sqlite:///{folder / 'state.db'}", "folder": str(folder)})


def kill_and_approve(harness: KillHarness, folder: Path, place: KillAt, url: str | None = None) -> list[str]:
    """Kill the runs at a place, have them asked for again, and return the results of the calls."""
    folder.mkdir(exist_ok=True)
    where = {"url": url or f"sqlite:///{folder / 'state.db'}", "folder": str(folder)}
    if not harness.start(approve, where, kill=place).wait().killed:
        return []
    ended = harness.start(approve, where).wait()
    assert ended.error is None, (place, ended.error)
    text, found = ended.result
    assert text == "Done.", place
    assert len(found) == 2, (place, found)
    assert len(effects(folder)) == len(set(effects(folder))), (place, effects(folder))
    assert found[1] != "Paid." or "pay 5 for ann" in effects(folder), place
    return list(found)


def test_killed_here_and_there(harness: KillHarness, places: list[KillAt], tmp_path: Path) -> None:
    for number, place in enumerate(places[::SAMPLE]):
        kill_and_approve(harness, tmp_path / str(number), place)


@pytest.mark.slow
def test_killed_everywhere(harness: KillHarness, places: list[KillAt], tmp_path: Path) -> None:
    for number, place in enumerate(places):
        kill_and_approve(harness, tmp_path / str(number), place)


@pytest.mark.parametrize(
    ("place", "answer"),
    [
        (KillAt("approval.asked.before_commit"), INTERRUPTED_RESULT),
        (KillAt("approval.asked.after_commit"), "Paid."),
        (KillAt("approval.decided.before_commit"), "Paid."),
        (KillAt("approval.decided.after_commit"), "Paid."),
        (KillAt("tool.before_body", 3), INTERRUPTED_RESULT),
        (KillAt("tool.after_body", 2), INTERRUPTED_RESULT),
    ],
    ids=str,
)
def test_killed_around_the_question_and_the_decision(
    harness: KillHarness, tmp_path: Path, store_url: str, place: KillAt, answer: str
) -> None:
    assert kill_and_approve(harness, tmp_path, place, store_url)[1] == answer


async def answer(url: str, folder: str, asks: bool) -> Any:
    """Ask for the payment, or go on with the run that decided about it."""
    async with open_store(url) as store:
        chat = desk(Path(folder), rerun_safe={"ask"}).session("s", store=store)
        if asks:
            return asked(await chat.run("buy", id=FIRST))
        decisions = [{"id": one["id"], "type": "approve"} for one in json.loads((Path(folder) / "asked").read_text())]
        return asked(await chat.run({"resume": {"decisions": decisions}}, id=SECOND))


def test_agent_that_may_run_again_begins_anew_after_a_crash_and_asks_anew(harness: KillHarness, tmp_path: Path) -> None:
    where = {"url": f"sqlite:///{tmp_path / 'state.db'}", "folder": str(tmp_path)}
    (first,) = harness.run(answer, {**where, "asks": True}).result
    (tmp_path / "asked").write_text(json.dumps([first]))
    assert harness.run(answer, {**where, "asks": False}, kill=KillAt("tool.before_body")).killed
    (second,) = harness.run(answer, {**where, "asks": False}).result
    assert second["id"] != first["id"]
    assert "pay 5 for ann" not in effects(tmp_path)
