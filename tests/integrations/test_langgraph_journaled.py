"""Plain functions that nodes call: their effects happen once, whatever happens to the node."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import RetryPolicy, interrupt

from outlast import OutcomeUnknown, RunFailed, journaled, open_store
from outlast.adapters import LocalStore
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillAt, KillHarness
from outlast_langgraph import LangGraphAgent

pytestmark = pytest.mark.anyio

ID = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11"


def around(node: Any, *, retry_policy: RetryPolicy | None = None) -> LangGraphAgent:
    builder = StateGraph(MessagesState).add_node("node", node, retry_policy=retry_policy)
    return LangGraphAgent(builder.add_edge(START, "node").compile())


class Charges:
    """Functions that note what they did."""

    def __init__(self) -> None:
        self.done: list[int] = []

        @journaled
        def charge(amount: int) -> str:
            self.done.append(amount)
            return f"charged {amount}, number {len(self.done)}"

        @journaled
        async def charge_async(amount: int) -> str:
            return charge.__wrapped__(amount)  # type: ignore[attr-defined, no-any-return]

        self.charge, self.charge_async = charge, charge_async


async def test_a_node_that_starts_over_after_an_answer_gets_what_it_had_done(local: LocalStore) -> None:
    charges = Charges()

    def node(state: MessagesState) -> dict[str, Any]:
        first, second = charges.charge(5), charges.charge(amount=7)
        return {"messages": [AIMessage(f"{first}; {second}; {interrupt('sure?')}")]}

    chat = around(node).session("s", store=local)
    await chat.run("go")
    assert (await chat.run({"resume": "yes"})).text == "charged 5, number 1; charged 7, number 2; yes"
    assert charges.done == [5, 7]


async def test_equal_calls_are_calls_of_their_own_in_each_turn(local: LocalStore) -> None:
    charges = Charges()

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{await charges.charge_async(5)}; {await charges.charge_async(5)}")]}

    chat = around(node).session("s", store=local)
    assert (await chat.run("go")).text == "charged 5, number 1; charged 5, number 2"
    assert (await chat.run("go")).text == "charged 5, number 3; charged 5, number 4"


async def test_a_node_that_is_tried_again_does_not_charge_again(local: LocalStore) -> None:
    charges, failures = Charges(), [ConnectionError("no")]

    def node(state: MessagesState) -> dict[str, Any]:
        charged = charges.charge(5)
        if failures:
            raise failures.pop()
        return {"messages": [AIMessage(charged)]}

    policy = RetryPolicy(initial_interval=0, max_attempts=2, jitter=False)
    reply = await around(node, retry_policy=policy).session("s", store=local).run("go")
    assert (reply.text, charges.done) == ("charged 5, number 1", [5])


async def test_an_argument_that_is_no_json_is_refused_before_anything_happens(local: LocalStore) -> None:
    charges = Charges()

    def node(state: MessagesState) -> dict[str, Any]:
        charges.charge(object())  # type: ignore[arg-type]
        return {}

    with pytest.raises(RunFailed):
        await around(node).session("s", store=local).run("go")
    assert charges.done == []


async def test_without_a_run_the_function_is_called_as_it_is() -> None:
    charges = Charges()
    assert charges.charge(5) == "charged 5, number 1"
    assert await charges.charge_async(5) == "charged 5, number 2"


async def pay(url: str, folder: str) -> str:
    effects = EffectsLog(Path(folder) / "effects")

    @journaled
    def charge(amount: int) -> int:
        effects.append(f"charge {amount}")
        return amount

    def node(state: MessagesState) -> dict[str, Any]:
        try:
            return {"messages": [AIMessage(f"{charge(1)} and {charge(2)}")]}
        except OutcomeUnknown:
            return {"messages": [AIMessage("unknown")]}

    async with open_store(url) as store:
        return (await around(node).session("s", store=store).run("pay", id=ID)).text


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__], timeout_seconds=20) as harness:
        yield harness


def test_killed_between_two_effects(harness: KillHarness, tmp_path: Path, store_url: str) -> None:
    where = {"url": store_url, "folder": str(tmp_path)}
    assert harness.run(pay, where, kill=KillAt("journal.started.begin", 2)).killed
    assert harness.run(pay, where).result == "1 and 2"
    assert EffectsLog(tmp_path / "effects").read() == ["charge 1", "charge 2"]


def test_killed_inside_an_effect(harness: KillHarness, tmp_path: Path, store_url: str) -> None:
    where = {"url": store_url, "folder": str(tmp_path)}
    assert harness.run(pay, where, kill=KillAt("tool.after_body")).killed
    assert harness.run(pay, where).result == "unknown"
    assert EffectsLog(tmp_path / "effects").read() == ["charge 1"]
