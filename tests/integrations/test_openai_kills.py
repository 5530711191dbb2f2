"""An agent of the OpenAI Agents SDK killed at every durable boundary of a run."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import Agent, GuardrailFunctionOutput, function_tool, output_guardrail, set_tracing_disabled

from outlast import current_tool_call, open_store
from outlast.core.resume import INTERRUPTED_RESULT, NOT_RUN_RESULT
from outlast.sessions import SessionStore
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillAt, KillHarness
from outlast.testing.logs import check_log
from outlast.testing.scripted import History, Say, Script, ScriptedCall
from outlast_openai import OpenAIAgent, StoreSession
from outlast_openai.testing import ScriptModel

ID = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11"
SHAPES = ["plain", "handoff", "inner"]
SAMPLE = 9
"""Every n-th point in the quick test."""

set_tracing_disabled(True)


def call(name: str, id: str, **arguments: Any) -> ScriptedCall:
    return ScriptedCall(name, arguments, id)


def scripts(shape: str) -> list[Script]:
    """Return what the models of the agents say: `desk` answers, or hands over to `cashier`."""
    parallel = Say("First.", [call("pay", "call_a", x=1), call("pay", "call_b", x=2)])
    then = Say("Then.", [call("pay", "call_c", x=3)])
    if shape == "plain":
        return [Script(parallel, then, "All is paid."), Script("nobody asked")]
    if shape == "inner":
        return [
            Script(Say("Ask.", [call("ask", "call_b", input="pay")]), "All is paid."),
            Script(parallel, then, "Paid."),
        ]
    hand_over = Say("Over to the cashier.", [call("transfer_to_cashier", "call_h")])
    # Both count what was said since the user spoke, whoever said it. The desk hands over again where that was cut off.
    return [Script(hand_over), Script("?", parallel, then, "All is paid.")]


class CountsFromTheHandoff(Script):
    """Answers as the agent that was handed over to, however often the one before tried."""

    def answer(self, history: History) -> Say:
        tried = [place for place, message in enumerate(history) if _hands_over(message)]
        return super().answer([{"role": "user", "content": ""}, *history[tried[-1] :]] if tried else history)


def _hands_over(message: Mapping[str, Any]) -> bool:
    return any(one["name"] == "transfer_to_cashier" for one in message.get("tool_calls", ()))


def agent(folder: str, shape: str) -> OpenAIAgent:
    effects, keys = EffectsLog(Path(folder) / "effects"), EffectsLog(Path(folder) / "keys")

    @function_tool
    async def pay(x: int) -> str:
        """Pay."""
        effects.append(f"pay {x}")
        if shape != "inner":
            keys.append(current_tool_call().idempotency_key)
        await asyncio.sleep(0.02 * x)
        while x == 2 and (Path(folder) / "hold").exists():
            await asyncio.sleep(0.01)
        return f"paid {x}"

    first, second = scripts(shape)
    cashier = Agent(name="cashier", model=ScriptModel(CountsFromTheHandoff(*second.answers)), tools=[pay])
    if shape == "inner":
        ask = cashier.as_tool("ask", "Ask the cashier.")
        return OpenAIAgent(Agent(name="desk", model=ScriptModel(first), tools=[ask]))
    return OpenAIAgent(Agent(name="desk", model=ScriptModel(first), tools=[pay], handoffs=[cashier]))


async def run(url: str, folder: str, shape: str) -> dict[str, Any]:
    """Ask for the run by its id, as a client does that does not know whether it was accepted."""
    async with open_store(url) as store:
        chat = agent(folder, shape).session("s", store=store)
        events = [event async for event in chat.stream("pay", id=ID)]
        return await told(store, events)


async def resume(url: str, folder: str, shape: str) -> dict[str, Any]:
    """Leave the dead run as it is and go on with its session."""
    async with open_store(url) as store:
        chat = agent(folder, shape).session("s", store=store)
        events = [event async for event in chat.stream_resume()]
        return await told(store, events)


async def told(store: Any, events: list[dict[str, Any]]) -> dict[str, Any]:
    reply = events[-1]["reply"]
    stored = [item.content async for item in SessionStore(store).items("s")]
    return {
        "error": events[-1].get("error"),
        "text": reply and reply.text,
        "messages": reply and reply.messages,
        "events": events[:-1],
        "items": await StoreSession("s", store).get_items(),
        "agent": [item["agent"] for item in stored if item.get("type") == "outlast.note" and "agent" in item],
    }


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__], timeout_seconds=20) as harness:
        yield harness


@pytest.fixture(scope="module")
def places(harness: KillHarness, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[KillAt]]:
    found = {}
    for shape in SHAPES:
        folder = tmp_path_factory.mktemp("trace")
        where = {"url": f"sqlite:///{folder / 'state.db'}", "folder": str(folder), "shape": shape}
        found[shape] = harness.trace(run, where)
    return found


def check(result: Mapping[str, Any], folder: Path, shape: str) -> None:
    """Nothing ran twice, every call has one answer right behind its response, in order, and the user spoke once."""
    assert result["text"] == "All is paid.", result["error"]
    for name in ("effects", "keys"):
        found = EffectsLog(folder / name).read()
        assert len(found) == len(set(found)), found
    items = result["items"]
    assert [item["content"] for item in items if item.get("role") == "user"] == ["pay"]
    asked: list[str] = []
    for item in items[1:]:
        if item.get("type") == "function_call":
            asked.append(item["call_id"])
        elif item.get("type") == "function_call_output":
            assert item["call_id"] == asked.pop(0)
        else:
            assert not asked, items
    assert not asked
    assert sum(item.get("call_id") == "call_b" and "output" in item for item in items) == 1
    ids = [item["id"] for item in items if "id" in item]
    assert len(ids) == len(set(ids))
    assert result["agent"] == (["cashier"] if shape == "handoff" else [])


def kill(
    harness: KillHarness, folder: Path, place: KillAt, shape: str, url: str | None = None
) -> dict[str, str] | None:
    """Return where the killed run left its state; None when this time it did not come to the place."""
    folder.mkdir(exist_ok=True)
    where = {"url": url or f"sqlite:///{folder / 'state.db'}", "folder": str(folder), "shape": shape}
    return where if harness.start(run, where, kill=place).wait().killed else None


def kill_and_recover(harness: KillHarness, folder: Path, place: KillAt, shape: str, url: str | None = None) -> None:
    # Writes that come together are one transaction: a run may have one less than the run that was traced.
    if (where := kill(harness, folder, place, shape, url)) is not None:
        result = harness.run(run, where).result
        check(result, folder, shape)
        check_log(result["events"], result["messages"])


@pytest.mark.parametrize("shape", SHAPES)
def test_killed_here_and_there(
    harness: KillHarness, places: dict[str, list[KillAt]], tmp_path: Path, shape: str
) -> None:
    # BR-01, BR-07; BR-20: an agent in a tool that is cut off is answered, and what it did is not done again
    for number, place in enumerate(places[shape][::SAMPLE]):
        kill_and_recover(harness, tmp_path / str(number), place, shape)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_killed_everywhere(harness: KillHarness, places: dict[str, list[KillAt]], tmp_path: Path, shape: str) -> None:
    failures = {}
    for number, place in enumerate(places[shape]):
        try:
            kill_and_recover(harness, tmp_path / str(number), place, shape)
        except AssertionError as error:
            failures[place] = str(error)
    assert not failures


@pytest.mark.parametrize("shape", ["plain", "handoff"])
@pytest.mark.parametrize(
    "place",
    [
        KillAt("items.before_commit"),
        KillAt("items.after_commit", 2),
        KillAt("journal.started.after_commit"),
        KillAt("tool.after_body", 2),
        KillAt("items.before_commit", 3),
        KillAt("finish.before_commit"),
    ],
    ids=str,
)
def test_killed_on_both_databases(
    harness: KillHarness, tmp_path: Path, store_url: str, place: KillAt, shape: str
) -> None:
    where = kill(harness, tmp_path, place, shape, store_url)
    assert where is not None
    check(harness.run(run, where).result, tmp_path, shape)


@pytest.mark.parametrize(
    ("place", "answer"),
    [
        (KillAt("journal.started.begin"), NOT_RUN_RESULT),
        (KillAt("tool.before_body"), INTERRUPTED_RESULT),
        (KillAt("tool.after_body"), INTERRUPTED_RESULT),
    ],
    ids=str,
)
def test_resuming_says_of_a_call_what_is_known(
    harness: KillHarness, tmp_path: Path, place: KillAt, answer: str
) -> None:
    where = kill(harness, tmp_path, place, "plain")
    assert where is not None
    result = harness.run(resume, where).result
    check(result, tmp_path, "plain")
    assert answer in [item.get("output") for item in result["items"]]


def test_result_of_a_finished_tool_survives_while_its_sibling_is_lost(harness: KillHarness, tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    where = kill(harness, tmp_path, KillAt("journal.done.after_commit"), "plain")
    assert where is not None
    result = harness.run(run, where).result
    outputs = [item["output"] for item in result["items"] if item.get("type") == "function_call_output"]
    assert outputs[:2] == ["paid 1", INTERRUPTED_RESULT]
    check(result, tmp_path, "plain")


# Ends at the result of a tool ----------------------------------------------------------------------------------------


async def pay_and_stop(url: str, folder: str, behaviour: Any, amounts: list[int]) -> str:
    async with open_store(url) as store:
        desk = agent(folder, "plain").agent
        first = Say("", [call("pay", f"call_{x}", x=x) for x in amounts])
        desk.model, desk.tool_use_behavior = ScriptModel(Script(first, "Asked again.")), behaviour

        @output_guardrail
        def no_nines(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
            return GuardrailFunctionOutput(None, tripwire_triggered="9" in str(output))

        desk.output_guardrails = [no_nines]
        return (await OpenAIAgent(desk).session("s", store=store).run("pay", id=ID)).text


@pytest.mark.parametrize("behaviour", ["stop_on_first_tool", {"stop_at_tool_names": ["pay"]}], ids=str)
@pytest.mark.parametrize(
    ("place", "text"),
    [
        (KillAt("tool.after_body"), "Asked again."),
        (KillAt("journal.done.after_commit"), "paid 1"),
        (KillAt("items.after_commit", 3), "paid 1"),
        (KillAt("items.before_commit", 4), "paid 1"),
    ],
    ids=str,
)
def test_run_that_ends_at_the_result_of_a_tool_ends_there_after_a_crash(
    harness: KillHarness, tmp_path: Path, store_url: str, place: KillAt, behaviour: Any, text: str
) -> None:
    where = {"url": store_url, "folder": str(tmp_path), "behaviour": behaviour, "amounts": [1]}
    assert harness.run(pay_and_stop, where, kill=place).killed
    assert harness.run(pay_and_stop, where).result == text
    assert EffectsLog(tmp_path / "effects").read() == ["pay 1"]


def test_guardrail_sees_the_result_that_ends_a_run_after_a_crash(harness: KillHarness, tmp_path: Path) -> None:
    where = {"url": f"sqlite:///{tmp_path / 'state.db'}", "folder": str(tmp_path), "behaviour": "stop_on_first_tool"}
    assert harness.run(pay_and_stop, {**where, "amounts": [9]}, kill=KillAt("journal.done.after_commit")).killed
    assert "OutputGuardrail triggered" in str(harness.run(pay_and_stop, {**where, "amounts": [9]}).error)
