"""The private names of LangGraph that the adapter builds on, pinned for the installed version."""

from typing import Any

import pytest

pytest.importorskip("langgraph")

from langchain.agents import create_agent
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel._loop import AsyncPregelLoop, SyncPregelLoop

from outlast.testing.scripted import Script
from outlast_langgraph import seams
from outlast_langgraph.testing import ScriptedChatModel

pytestmark = pytest.mark.anyio


def test_every_name_is_there() -> None:
    seams.check()


def test_missing_name_is_said_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ToolNode, "_execute_tool_sync")
    with pytest.raises(seams.UnknownLangGraph, match=r"ToolNode\._execute_tool_sync"):
        seams.check()


def around_one_without_checkpoints() -> Any:
    inner: Any = create_agent(ScriptedChatModel(script=Script("Yes.")), [], checkpointer=False)
    built = StateGraph(MessagesState).add_node("agent", inner).add_edge(START, "agent")
    return built.compile(checkpointer=InMemorySaver())


async def test_langgraph_waits_for_the_checkpoints_of_a_graph_that_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect that `wait_for_nothing` mends; when this fails, LangGraph has mended it, and we need not."""
    for loop in (SyncPregelLoop, AsyncPregelLoop):
        monkeypatch.delattr(loop, "_put_checkpoint_fut", raising=False)
    asked: Any = {"messages": [("user", "Well?")]}
    config = RunnableConfig(configurable={"thread_id": "t"})
    with pytest.raises(AttributeError, match="_put_checkpoint_fut"):
        await around_one_without_checkpoints().ainvoke(asked, config, durability="sync")
    with pytest.raises(AttributeError, match="_put_checkpoint_fut"):
        around_one_without_checkpoints().invoke(asked, config, durability="sync")


async def test_a_graph_without_checkpoints_runs_inside_one_that_has_them() -> None:
    seams.wait_for_nothing()
    asked: Any = {"messages": [("user", "Well?")]}
    config = RunnableConfig(configurable={"thread_id": "t"})
    graph = around_one_without_checkpoints()
    for found in (
        await graph.ainvoke(asked, config, durability="sync"),
        graph.invoke(asked, config, durability="sync"),
    ):
        assert found["messages"][-1].text == "Yes."
    assert len(list(graph.get_state_history(config))) == 6
