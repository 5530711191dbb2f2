"""Kinds of agents, killed at every durable boundary, over both wires, on both databases, streamed and not.

A process runs one agent of each kind at once, each in a session of its own, and is killed at a boundary of one of them,
and so somewhere in the middle of the others. Another process asks for the same runs by their ids. The provider refuses
what OpenAI would refuse, so that a history that is not well formed fails its run.
"""

import asyncio
import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents")
pytest.importorskip("mcp")

from agents import (
    Agent,
    GuardrailFunctionOutput,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    function_tool,
    input_guardrail,
    output_guardrail,
    set_tracing_disabled,
)
from agents.mcp import MCPServerStdio
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pydantic import BaseModel

from outlast import RunFailed, current_tool_call, open_store
from outlast.adapters import LocalStore
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillAt, KillHarness
from outlast.testing.logs import check_log
from outlast.testing.scripted import History, Say, Script, ScriptedCall
from outlast_openai import OpenAIAgent, StoreSession
from outlast_openai.provider import Provider

MODELS = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}
SHAPES = ["plain", "parallel", "handoff", "inner", "approval", "structured", "guardrail"]
"""What costs little to start; `mcp` starts a process."""
SHOP = str(Path(__file__).with_name("mcp_shop.py"))
WARM = str(Path(__file__).with_name("openai_warm.py"))
WAYS = [(wire, streamed) for wire in MODELS for streamed in (False, True)]
PLACES = 4
"""Of the boundaries of a group, in the quick test, for each way and each database."""

set_tracing_disabled(True)


# What the models say --------------------------------------------------------------------------------------------------


class Lines(Script):
    """Says the answers of a script since the user spoke, or since the last handoff; thanks are answered with a word."""

    def __init__(self, *answers: Say | str, welcome: str = "You are welcome.") -> None:
        super().__init__(*answers)
        self._welcome = welcome

    def answer(self, history: History) -> Say:
        users = [place for place, message in enumerate(history) if message["role"] == "user"]
        if history[users[-1]]["content"] == "thanks":
            return Say(self._welcome)
        handed = [place for place, message in enumerate(history) if _hands_over(message)]
        behind = [{"role": "user", "content": ""}, *history[handed[-1] + 1 :]] if handed else history
        return super().answer(behind)


def _hands_over(message: Mapping[str, Any]) -> bool:
    return any(call["name"] == "transfer_to_cashier" for call in message.get("tool_calls", ()))


def pays(text: str, *numbers: int) -> Say:
    return Say(text, [ScriptedCall("pay", {"x": x}, f"call_{x}") for x in numbers])


def scripts() -> dict[str, Script]:
    parallel, then = pays("First.", 1, 2), pays("Then.", 3)
    ask = Say("I ask.", [ScriptedCall("ask", {"input": "pay"}, "call_a")])
    return {
        "plain": Lines(pays("", 1), "All is paid."),
        "parallel": Lines(parallel, then, "All is paid."),
        "handoff": Script(Say("Over.", [ScriptedCall("transfer_to_cashier", {}, "call_h")])),
        "cashier": Lines(parallel, "All is paid."),
        "inner": Lines(ask, "All is paid."),
        "asked": Lines(pays("", 1), pays("", 2), "Paid."),
        "approval": Lines(parallel, "All is paid."),
        "structured": Lines(pays("", 1), '{"paid": 1}', welcome='{"paid": 0}'),
        "guardrail": Lines(pays("", 1), "The secret."),
        "mcp": Lines(parallel, then, "All is paid."),
    }


# The agents -----------------------------------------------------------------------------------------------------------


class Paid(BaseModel):
    paid: int


@input_guardrail
async def passes(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(None, False)


@output_guardrail
async def keeps_secrets(context: Any, agent: Any, said: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(None, "secret" in said)


def agent(shape: str, folder: Path, wire: str, client: AsyncOpenAI) -> OpenAIAgent:
    effects = EffectsLog(folder / shape)

    @function_tool(needs_approval=shape == "approval")
    async def pay(x: int) -> str:
        """Pay."""
        effects.append(f"pay {x}")
        if shape != "inner":
            effects.append(current_tool_call().idempotency_key)
        await asyncio.sleep(0.01 * x)
        return f"paid {x}"

    def one(name: str, **more: Any) -> Agent[Any]:
        return Agent(name=name, model=MODELS[wire](name, openai_client=client), **more)

    match shape:
        case "handoff":
            made = one(shape, handoffs=[one("cashier", tools=[pay])])
        case "inner":
            made = one(shape, tools=[one("asked", tools=[pay]).as_tool("ask", "Ask.")])
        case "structured":
            made = one(shape, tools=[pay], output_type=Paid)
        case "guardrail":
            made = one(shape, tools=[pay], input_guardrails=[passes], output_guardrails=[keeps_secrets])
        case "mcp":
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            shop = MCPServerStdio(
                {"command": sys.executable, "args": [SHOP, str(folder)], "env": environment},
                client_session_timeout_seconds=30,
            )
            made = one(shape, mcp_servers=[shop])
        case _:
            made = one(shape, tools=[pay])
    return OpenAIAgent(made, name=shape)


# The runs -------------------------------------------------------------------------------------------------------------


async def run(url: str, folder: str, wire: str, streamed: bool, provider: str, shapes: list[str]) -> Any:
    """Ask for the runs by their ids, as clients do that do not know whether they were accepted."""
    http = DefaultAsyncHttpxClient(verify=False)
    client = AsyncOpenAI(api_key="k", base_url=provider, max_retries=0, http_client=http)
    async with client, open_store(url) as store:
        made = [Conversation(agent(shape, Path(folder), wire, client), store, folder, streamed) for shape in shapes]
        return dict(zip(shapes, await asyncio.gather(*(one.held() for one in made)), strict=True))


class Conversation:
    """A user who has something paid, agrees to what is asked, and says thanks."""

    def __init__(self, agent: OpenAIAgent, store: LocalStore, folder: str, streamed: bool) -> None:
        self._name = f"{Path(folder).name}-{agent.name}"
        self._chat, self._store, self._streamed = agent.session(self._name, store=store), store, streamed
        self.told: list[Any] = []

    async def held(self) -> dict[str, Any]:
        replies = [await self._said("pay")]
        while (interrupt := replies[-1].get("interrupt")) is not None:
            decisions = [{"id": one["id"], "type": "approve"} for one in interrupt["approvals"]]
            replies.append(await self._said({"resume": {"decisions": decisions}}))
        replies.append(await self._said("thanks"))
        return {"replies": replies, "items": await StoreSession(self._name, self._store).get_items()}

    async def _said(self, message: Any) -> dict[str, Any]:
        self.told.append(message)
        id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self._name}{len(self.told)}"))
        try:
            if not self._streamed:
                reply, events = await self._chat.run(message, id=id), []
            else:
                events = [event async for event in self._chat.stream(message, id=id)]
                if (error := events[-1].get("error")) is not None:
                    return {"error": error["code"]}
                reply = events[-1]["reply"]
        except RunFailed as failed:
            return {"error": failed.code}
        return {
            "text": reply.text, "interrupt": reply.interrupt, "final": (reply.output or {}).get("final_output"),
            "messages": reply.messages, "events": events[:-1],
        }  # fmt: skip


# What must hold -------------------------------------------------------------------------------------------------------


def check(shape: str, result: Mapping[str, Any], folder: Path) -> None:
    *before, paid, thanked = result["replies"]
    match shape:
        case "guardrail":
            assert paid == {"error": "guardrail_tripped"}
            assert thanked["text"] == "You are welcome."
        case "structured":
            assert (paid["final"], thanked["final"]) == ({"paid": 1}, {"paid": 0}), result["replies"]
        case _:
            said = [reply.get("text", reply.get("error")) for reply in (paid, thanked)]
            assert said == ["All is paid.", "You are welcome."]
    effects = EffectsLog(folder / ("effects" if shape == "mcp" else shape)).read()
    assert len(effects) == len(set(effects)), effects
    _check_items(result["items"])
    for reply in (*before, paid, thanked):
        if reply.get("events") and not reply["interrupt"] and not before:
            check_log(reply["events"], reply["messages"])


def _check_items(items: list[Any]) -> None:
    """Each item is there once, the user's words once each, and the results behind their calls in their order."""
    assert [item["content"] for item in items if item.get("role") == "user"] == ["pay", "thanks"]
    asked: list[str] = []
    for item in items:
        if item.get("type") == "function_call":
            asked.append(item["call_id"])
        elif item.get("type") == "function_call_output":
            assert item["call_id"] == asked.pop(0), items
        else:
            assert not asked, items
    assert not asked
    ids = [item["id"] for item in items if item.get("id", "__fake_id__") != "__fake_id__"]
    assert len(ids) == len(set(ids))
    said = [item["content"] for item in items if item.get("role") == "assistant"]
    assert len([text for text in said if "All is paid" in str(text)]) <= 1


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__, WARM], timeout_seconds=60) as harness:
        yield harness


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider(scripts()) as provider:
        yield provider


class Group:
    """Runs of some shapes in one process, killed together."""

    def __init__(self, harness: KillHarness, provider: Provider, **way: Any) -> None:
        self._harness, self._provider, self._way = harness, provider, way

    def places(self, folder: Path, url: str) -> list[KillAt]:
        return self._harness.trace(run, self._where(folder, url))

    def killed(self, place: KillAt, folder: Path, url: str) -> int:
        """Kill the runs at a place and see them come to their ends; return how many were killed."""
        where = self._where(folder, url)
        ended = self._harness.start(run, where, kill=place).wait()
        result = ended.result if not ended.killed else self._harness.run(run, where).result
        for shape in self._way["shapes"]:
            check(shape, result[shape], folder)
        assert self._provider.problems == []
        return len(self._way["shapes"]) if ended.killed else 0

    def surely_killed(self, place: KillAt, folder: Path, url: str) -> int:
        """Kill the runs at a place, or, where they came to their ends before it this time, at an earlier one."""
        for nth in (place.nth, place.nth * 2 // 3, 1):
            if killed := self.killed(KillAt(place.point, max(1, nth)), Path(f"{folder}-{nth}"), url):
                return killed
        return 0

    def _where(self, folder: Path, url: str) -> dict[str, Any]:
        folder.mkdir(exist_ok=True)
        return {"url": url, "folder": str(folder), "provider": self._provider.url, **self._way}


def spread(places: list[KillAt], count: int, offset: int) -> list[KillAt]:
    """Return some places, evenly apart, other ones for each offset."""
    step = max(1, len(places) // count)
    return places[offset % step :: step][:count]


@pytest.fixture(scope="module")
def places(harness: KillHarness, provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> list[KillAt]:
    folder = tmp_path_factory.mktemp("trace")
    group = Group(harness, provider, wire="responses", streamed=True, shapes=SHAPES)
    found = group.places(folder, f"sqlite:///{folder / 'state.db'}")
    return [place for place in found if not place.point.startswith("migrate.")]  # the runs find their tables made


@pytest.mark.parametrize(("wire", "streamed"), WAYS)
def test_killed_here_and_there(
    harness: KillHarness, provider: Provider, places: list[KillAt], tmp_path: Path, store_url: str, wire: str, streamed: bool
) -> None:  # fmt: skip
    """Over all ways and databases at least 200 runs are killed."""
    # BR-01, BR-05, BR-07
    group = Group(harness, provider, wire=wire, streamed=streamed, shapes=SHAPES)
    offset = 2 * WAYS.index((wire, streamed)) + store_url.startswith("sqlite")
    chosen = spread(places, PLACES, offset * len(places) // PLACES // (2 * len(WAYS)))
    killed = sum(group.surely_killed(place, tmp_path / str(number), store_url) for number, place in enumerate(chosen))
    assert killed == PLACES * len(SHAPES)


def test_mcp_server_over_stdio(harness: KillHarness, provider: Provider, tmp_path: Path, store_url: str) -> None:
    group = Group(harness, provider, wire="responses", streamed=True, shapes=["mcp"])
    assert group.killed(KillAt("journal.started.after_commit", 2), tmp_path, store_url) == 1


@pytest.mark.slow
@pytest.mark.parametrize("shape", [*SHAPES, "mcp"])
@pytest.mark.parametrize(("wire", "streamed"), WAYS)
def test_killed_everywhere(
    harness: KillHarness, provider: Provider, tmp_path: Path, store_url: str, wire: str, streamed: bool, shape: str
) -> None:
    group = Group(harness, provider, wire=wire, streamed=streamed, shapes=[shape])
    failures = {}
    for number, place in enumerate(group.places(tmp_path / "trace", store_url)):
        try:
            group.killed(place, tmp_path / str(number), store_url)
        except AssertionError as error:
            failures[place] = str(error)[:500]
    assert not failures
