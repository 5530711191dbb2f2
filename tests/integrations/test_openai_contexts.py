"""The context object of an agent of the OpenAI Agents SDK: made for each attempt, and what tools change in it is kept."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import Agent, RunContextWrapper, function_tool, set_tracing_disabled
from pydantic import BaseModel, SecretStr

from outlast import open_store
from outlast.adapters import LocalStore
from outlast.sessions import SessionStore
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillAt, KillHarness
from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast_openai import OpenAIAgent
from outlast_openai.testing import ScriptModel

pytestmark = pytest.mark.anyio

set_tracing_disabled(True)

ID = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11"


@pytest.fixture
async def local(store_url: str) -> AsyncIterator[LocalStore]:
    async with open_store(store_url) as opened:
        yield opened


class Item(BaseModel):
    name: str
    on: date


@dataclass
class Basket:
    owner: str
    items: list[Item] = field(default_factory=list)
    count: int = 0
    key: str = field(default="k-1", repr=False)
    handle: Any = None


class Cart(BaseModel):
    owner: str
    items: list[Item] = []
    count: int = 0
    key: SecretStr = SecretStr("k-1")
    handle: Any = None


class Plain:
    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.items: list[Item] = []
        self.count = 0
        self.key = "k-1"
        self.handle: Any = None


def shop(make: Callable[[Any], Any], seen: list[Any], **options: Any) -> OpenAIAgent:
    @function_tool
    def put(context: RunContextWrapper[Any], name: str) -> str:
        """Put something into the basket."""
        basket = context.context
        basket.items.append(Item(name=name, on=date(2026, 1, 2)))
        basket.count += 1
        seen.append((basket.owner, [item.name for item in basket.items], basket.count))
        return f"{basket.count} items"

    script = Script(Say("", [ScriptedCall("put", {"name": "pear"}, "call_a")]), "Done.")
    return OpenAIAgent(Agent(name="shop", model=ScriptModel(script), tools=[put]), context_factory=make, **options)


def to_json(basket: Plain) -> Any:
    return {"items": [item.model_dump(mode="json") for item in basket.items], "count": basket.count}


def from_json(kept: Any, made: Plain) -> Plain:
    made.items, made.count = [Item.model_validate(item) for item in kept["items"]], kept["count"]
    return made


@pytest.mark.parametrize(
    ("make", "options"),
    [(Basket, {}), (Cart, {}), (Plain, {"context_to_json": to_json, "context_from_json": from_json})],
)
async def test_what_tools_change_is_there_in_the_next_turn_and_the_rest_is_new(
    local: LocalStore, make: Any, options: dict[str, Any]
) -> None:
    seen: list[Any] = []
    for number in (1, 2, 3):
        owner = f"ann {number}"
        chat = shop(lambda context, owner=owner: make(owner=owner), seen, **options)  # type: ignore[misc]
        await chat.session("s", store=local).run("a pear")
    assert seen == [
        ("ann 1", ["pear"], 1), ("ann 2", ["pear", "pear"], 2), ("ann 3", ["pear", "pear", "pear"], 3),
    ]  # fmt: skip


@pytest.mark.parametrize("make", [Basket, Cart])
async def test_secrets_and_what_did_not_change_are_not_stored(local: LocalStore, make: Any) -> None:
    await shop(lambda context: make(owner="ann"), []).session("s", store=local).run("a pear")
    stored = [item.content async for item in SessionStore(local).items("s")]
    (kept,) = [item["context"] for item in stored if "context" in item]
    assert kept == {"items": [{"name": "pear", "on": "2026-01-02"}], "count": 1}


async def test_fork_has_the_context_of_its_place(local: LocalStore) -> None:
    seen: list[Any] = []
    desk = shop(lambda context: Basket(owner="ann"), seen)
    await desk.session("s", store=local).run("a pear")
    await SessionStore(local).fork("s", "copy")
    await desk.session("s", store=local).run("a pear")
    await desk.session("copy", store=local).run("a pear")
    assert [count for _, _, count in seen] == [1, 2, 2]


@pytest.mark.parametrize("make", [lambda owner: Basket(owner, handle=object()), Plain, lambda owner: {"owner": owner}])
async def test_change_of_what_cannot_be_kept_is_named_once(
    local: LocalStore, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @function_tool
    def swap(context: RunContextWrapper[Any]) -> str:
        """Change something."""
        if isinstance(context.context, dict):
            context.context["more"] = 1
        else:
            context.context.handle = object()
        return "swapped"

    script = Script(
        Say("", [ScriptedCall("swap", {}, "call_a")]), Say("", [ScriptedCall("swap", {}, "call_b")]), "Done."
    )
    agent = Agent[Any](name="shop", model=ScriptModel(script), tools=[swap])
    desk = OpenAIAgent(agent, name="desk", context_factory=lambda context: make("ann"))
    for _ in range(2):
        await desk.session("s", store=local).run("go")
    assert [record.message.split(" of the context")[0] for record in caplog.records] in (
        ["agent desk: a tool changed handle"], ["agent desk: a tool changed something"],
    )  # fmt: skip


async def test_context_that_tools_leave_alone_is_no_reason_to_warn(
    local: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    agent = OpenAIAgent(Agent(name="a", model=ScriptModel(Script("Hi."))), context_factory=lambda context: Plain("ann"))
    await agent.session("s", store=local).run("hi")
    assert not caplog.records


def test_functions_come_together() -> None:
    with pytest.raises(TypeError, match="together"):
        OpenAIAgent(Agent(name="a"), context_to_json=to_json)


# Killed ---------------------------------------------------------------------------------------------------------------


def killed_shop(folder: str) -> OpenAIAgent:
    counts = EffectsLog(Path(folder) / "counts")

    @function_tool
    async def put(context: RunContextWrapper[Any], name: str) -> str:
        """Put something into the basket."""
        context.context.count += 1
        counts.append(f"{name} {context.context.count}")
        await asyncio.sleep(0.01)
        return name

    puts = [Say("", [ScriptedCall("put", {"name": name}, f"call_{name}_of_a_long_name")]) for name in ("pear", "plum")]
    agent = Agent[Any](name="shop", model=ScriptModel(Script(*puts, "Done.")), tools=[put])
    return OpenAIAgent(agent, context_factory=lambda context: Basket(owner="ann"))


async def scenario(url: str, folder: str) -> dict[str, Any]:
    async with open_store(url) as store:
        reply = await killed_shop(folder).session("s", store=store).run("go", id=ID)
        stored = [item.content async for item in SessionStore(store).items("s")]
        return {"text": reply.text, "contexts": [item["context"] for item in stored if "context" in item]}


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__], timeout_seconds=30) as harness:
        yield harness


@pytest.mark.parametrize(
    "place",
    [KillAt("journal.done.after_commit"), KillAt("items.after_commit", 3), KillAt("tool.before_body", 2)],
    ids=str,
)
def test_context_goes_on_with_the_results_that_are_stored(
    harness: KillHarness, store_url: str, tmp_path: Path, place: KillAt
) -> None:
    where = {"url": store_url, "folder": str(tmp_path)}
    harness.run(scenario, where, kill=place)
    result = harness.run(scenario, where).result
    assert result["text"] == "Done."
    assert result["contexts"][0] == {"count": 1}
    effects = EffectsLog(tmp_path / "counts").read()
    assert effects in (["pear 1", "plum 2"], ["pear 1"])
    assert result["contexts"][-1] == {"count": len(effects)}
