"""What a model is sent after a crash is what it would have been sent without one."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import (
    Agent,
    HandoffInputData,
    ModelSettings,
    RunConfig,
    function_tool,
    handoff,
    set_tracing_disabled,
)
from agents.run_config import CallModelData, ModelInputData

from outlast import RunFailed, open_store
from outlast.core.resume import INTERRUPTED_RESULT, NOT_RUN_RESULT
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillAt, KillHarness
from outlast.testing.scripted import History, Say, Script, ScriptedCall
from outlast_openai import OpenAIAgent
from outlast_openai.testing import ScriptModel

ID = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11"
SHAPES = ["filtered", "bare", "nested", "configured"]
"""How what the next agent sees is narrowed: a filter, one that leaves the calls out, nested history, or the config's filter."""

set_tracing_disabled(True)


class Watched(ScriptModel):
    """Notes what it is sent, and whether it must use a tool."""

    def __init__(self, log: EffectsLog, script: Script) -> None:
        super().__init__(script)
        self._log = log

    async def get_response(
        self, system_instructions: Any, input: Any, model_settings: ModelSettings, *more: Any, **options: Any
    ) -> Any:
        self._log.append(json.dumps({"choice": model_settings.tool_choice, "input": input}))
        return await super().get_response(system_instructions, input, model_settings, *more, **options)

    async def stream_response(self, system_instructions: Any, input: Any, model_settings: ModelSettings, *more: Any, **options: Any) -> Any:  # fmt: skip
        self._log.append(json.dumps({"choice": model_settings.tool_choice, "input": input}))
        async for event in super().stream_response(system_instructions, input, model_settings, *more, **options):
            yield event


class Cashier(Script):
    """Counts its payments, whatever else of the conversation it is shown."""

    def answer(self, history: History) -> Say:
        said = [one["arguments"] for message in history for one in message.get("tool_calls", ())]
        return self.answers[sum("1" in one or "2" in one for one in said)]


def say(text: str, name: str, id: str, **arguments: Any) -> Say:
    return Say(text, [ScriptedCall(name, arguments, id)])


def without_question(data: HandoffInputData) -> HandoffInputData:
    """Hide what the user said from the next agent."""
    return replace(data, input_history="filtered")


def nothing_but_a_note(data: HandoffInputData) -> HandoffInputData:
    return replace(data, input_history="filtered", pre_handoff_items=(), new_items=())


def loud(data: CallModelData[Any]) -> ModelInputData:
    """Change what every model sees, from what the SDK would send it."""
    items: list[Any] = data.model_data.input
    shouted: list[Any] = [
        {**item, "content": f"{item['content']}!"} if item.get("role") == "user" else item for item in items
    ]
    return ModelInputData(shouted, data.model_data.instructions)


def handing_over(folder: str, shape: str) -> OpenAIAgent:
    effects, sent = EffectsLog(Path(folder) / "effects"), EffectsLog(Path(folder) / "cashier")

    @function_tool
    async def pay(x: int) -> str:
        """Pay."""
        effects.append(f"pay {x}")
        return f"paid {x}"

    script = Cashier(say("1.", "pay", "call_number_1_of_cashier", x=1), say("2.", "pay", "call_2", x=2), "Paid.")
    cashier = Agent[Any](name="cashier", model=Watched(sent, script), tools=[pay])
    filters = {"filtered": without_question, "bare": nothing_but_a_note}
    to_cashier = handoff(cashier, input_filter=filters.get(shape), nest_handoff_history=shape == "nested" or None)
    desk = Agent[Any](
        name="desk",
        model=ScriptModel(
            Script(say("Wait.", "pay", "call_0", x=0), say("Over.", "transfer_to_cashier", "call_handing_over"))
        ),
        tools=[pay],
        handoffs=[to_cashier],
    )
    config = RunConfig(handoff_input_filter=without_question, call_model_input_filter=loud)
    return OpenAIAgent(desk, run_config=config if shape == "configured" else None)


async def run(url: str, folder: str, shape: str) -> Any:
    async with open_store(url) as store:
        chat = handing_over(folder, shape).session("s", store=store)
        reply = await chat.run("pay", id=ID)
        return {"text": reply.text, "messages": reply.messages}


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__], timeout_seconds=20) as harness:
        yield harness


def sent(folder: Path, name: str = "cashier") -> list[Any]:
    """Return what a model was sent, in its order, without the results of tools, which a crash may change."""
    views: list[Any] = []
    for line in EffectsLog(folder / name).read():
        view = [
            item.get("content") or (item["type"], item.get("name"))
            for item in json.loads(line)["input"]
            if "output" not in item
        ]
        if view not in views:
            views.append(view)
    return [re.sub(r"_[0-9a-f]{32}", "_id", json.dumps(view)) for view in views]


def started(folder: Path, shape: str) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    return {"url": f"sqlite:///{folder / 'state.db'}", "folder": str(folder), "shape": shape}


@pytest.mark.parametrize("shape", SHAPES)
def test_agent_behind_a_handoff_sees_what_it_would_have_seen(harness: KillHarness, tmp_path: Path, shape: str) -> None:
    where = started(tmp_path / "whole", shape)
    places = harness.trace(run, where)
    whole = sent(tmp_path / "whole")
    assert "filtered" in str(whole) or shape == "nested"
    assert ("filtered!" in str(whole)) is (shape == "configured")
    behind = places[places.index(KillAt("items.after_commit", 5)) :]
    for number, place in enumerate(behind[::12]):
        where = started(tmp_path / str(number), shape)
        if harness.start(run, where, kill=place).wait().killed:
            result = harness.run(run, where).result
            assert result["text"] == "Paid."
            assert sent(tmp_path / str(number)) == whole, place
            effects = EffectsLog(tmp_path / str(number) / "effects").read()
            assert len(effects) == len(set(effects))
            failed = [one["content"] for one in result["messages"] if one["role"] == "tool" and one["failed"]]
            assert set(failed) <= {INTERRUPTED_RESULT, NOT_RUN_RESULT}
            handed = [one for one in result["messages"] if one.get("tool_call_id") == "call_handing_over"]
            assert [one["content"] for one in handed] == ['{"assistant":"cashier"}'] or shape != "bare"


@pytest.mark.anyio
async def test_next_message_is_answered_with_all_of_the_history(store_url: str, tmp_path: Path) -> None:
    async with open_store(store_url) as store:
        chat = handing_over(str(tmp_path), "bare").session("s", store=store)
        await chat.run("pay")
        await chat.run("thanks")
    assert "pay" in str(sent(tmp_path)[-1])
    assert [item for item in json.loads(EffectsLog(tmp_path / "cashier").read()[-1])["input"] if "output" in item][:2] == [
        {"type": "function_call_output", "call_id": "call_0_1", "output": "paid 0"},
        {"type": "function_call_output", "call_id": "call_handing_over", "output": '{"assistant":"cashier"}'},
    ]  # fmt: skip


@pytest.mark.anyio
async def test_handoff_before_too_many_turns_is_kept(store_url: str, tmp_path: Path) -> None:
    agent = handing_over(str(tmp_path), "filtered")
    limited = OpenAIAgent(agent.agent, max_turns=2)
    async with open_store(store_url) as store:
        chat = limited.session("s", store=store)
        with pytest.raises(RunFailed, match="2 times"):
            await chat.run("pay")
        assert (await agent.session("s", store=store).resume()).text == "Paid."
    assert "filtered" in str(sent(tmp_path)[0])


# `tool_choice` --------------------------------------------------------------------------------------------------------


def forced(folder: str, shape: str) -> OpenAIAgent:
    sent = EffectsLog(Path(folder) / "choices")

    @function_tool
    async def look(at: str) -> str:
        """Look."""
        return f"{at} seen"

    settings = ModelSettings(tool_choice="required")
    script = Script(say("", "look", "call_i", at="in"), "Inside.")
    inner = Agent[Any](
        name="inner", model=Watched(EffectsLog(Path(folder) / "inner"), script), tools=[look], model_settings=settings
    )  # fmt: skip
    ask = inner.as_tool("ask", "Ask.")
    script = Script(say("", "look", "call_a", at="sky"), say("", "ask", "call_b", input="?"), "Blue.")
    agent = Agent[Any](
        name="a", model=Watched(sent, script), tools=[look, ask], model_settings=ModelSettings() if shape == "config" else settings,
        reset_tool_choice=shape != "kept",
    )  # fmt: skip
    return OpenAIAgent(agent, run_config=RunConfig(model_settings=settings) if shape == "config" else None)


async def look(url: str, folder: str, shape: str) -> Any:
    async with open_store(url) as store:
        return (await forced(folder, shape).session("s", store=store).run("look", id=ID)).text


def choices(folder: Path, name: str) -> list[Any]:
    return [json.loads(line)["choice"] for line in EffectsLog(folder / name).read()]


@pytest.mark.parametrize("shape", ["agent", "config", "kept"])
def test_tool_is_not_forced_again_by_a_crash(harness: KillHarness, tmp_path: Path, shape: str) -> None:
    """`required` holds until a tool was used, in one run as in the attempts of one; and for an agent in a tool by itself."""
    where = started(tmp_path, shape)
    assert harness.run(look, where, kill=KillAt("items.after_commit", 3)).killed
    assert choices(tmp_path, "choices") == ["required"]
    assert harness.run(look, where).result == "Blue."
    again = {"agent": "auto", "config": "auto", "kept": "required"}[shape]
    then = {"agent": None, "config": None, "kept": "required"}[shape]
    assert choices(tmp_path, "choices") == ["required", again, then]
    assert choices(tmp_path, "inner") == ["required", None]
