"""What the adapter needs of the SDK, pinned for the installed version, and what it refuses to make durable."""

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import (
    Agent,
    FunctionTool,
    Handoff,
    ProgrammaticToolCallingTool,
    RunHooks,
    Runner,
    ShellTool,
    function_tool,
    handoff,
    set_tracing_disabled,
)
from agents.run_internal import tool_execution
from agents.testing import ScriptedModel, assistant_message, function_call

from outlast_openai import CannotBeDurable, OpenAIAgent, seams


def test_every_name_is_there() -> None:
    seams.check()


def test_missing_name_is_said_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(tool_execution, "_execute_tool_input_guardrails")
    monkeypatch.delitem(FunctionTool.__dataclass_fields__, "_agent_instance")
    with pytest.raises(seams.UnknownSDK, match=r"_execute_tool_input_guardrails, FunctionTool\._agent_instance"):
        OpenAIAgent(Agent(name="a"))


async def hooks_order() -> list[str]:
    heard: list[str] = []
    named: ContextVar[str] = ContextVar("named", default="nobody")

    @function_tool
    async def look(at: str) -> str:
        """Look."""
        heard.append(f"body {named.get()}")
        return at

    class Hooks(RunHooks[Any]):
        async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
            await asyncio.sleep(0)
            heard.append("response")

        def on_tool_start(self, context: Any, agent: Any, tool: Any) -> Coroutine[Any, Any, None]:
            named.set(context.tool_call_id)
            return super().on_tool_start(context, agent, tool)

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            heard.append(f"end {result}")

    calls = [function_call("look", {"at": one}, call_id=f"call_{one}") for one in "ab"]
    model = ScriptedModel([calls, [assistant_message("done")]])
    result = Runner.run_streamed(Agent(name="a", model=model, tools=[look]), "hi", hooks=Hooks())
    async for _ in result.stream_events():
        pass
    return heard


def test_hooks_have_their_place_and_the_context_of_the_tool() -> None:
    set_tracing_disabled(True)
    heard = asyncio.run(hooks_order())
    assert heard[0] == "response"
    assert sorted(heard[1:3]) == ["body call_a", "body call_b"]
    assert sorted(heard[3:5]) == ["end a", "end b"]


def test_agents_that_hand_over_to_each_other_are_all_found() -> None:
    first, second = Agent[Any](name="first"), Agent[Any](name="second")
    first.handoffs, second.handoffs = [second], [handoff(first)]
    OpenAIAgent(first)


async def lead(context: Any, arguments: str) -> Agent[Any]:
    return Agent[Any](name="b")


BY_HAND = Handoff[Any, Any]("go", "Go.", {}, on_invoke_handoff=lead, agent_name="b")


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        (Agent[Any](name="a", handoffs=[Agent[Any](name="a")]), "two agents are named 'a'"),
        (Agent[Any](name="a", handoffs=[BY_HAND]), "make it with `handoff"),
        (Agent[Any](name="a", tools=[ProgrammaticToolCallingTool()]), "ProgrammaticToolCallingTool"),
        (Agent[Any](name="a", tools=[ShellTool(environment={"type": "container_auto"})]), "with an executor"),
        (Agent[Any](name="a", tools=[ShellTool(lambda request: "", needs_approval=True)]), "function tools"),
    ],
)
def test_what_would_break_the_promise_is_refused_with_the_way_out(agent: Agent[Any], reason: str) -> None:
    with pytest.raises(CannotBeDurable, match=reason):
        OpenAIAgent(agent)
