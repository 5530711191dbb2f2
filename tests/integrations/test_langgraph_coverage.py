"""What `coverage()` says of graphs, and what is warned of when they are wrapped."""

import logging
from typing import Any

import pytest

pytest.importorskip("langchain")

from langchain.agents import create_agent
from langchain_core.tools import BaseTool, tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel.remote import RemoteGraph

from outlast.testing.scripted import Script
from outlast_langgraph import LangGraphAgent
from outlast_langgraph.testing import ScriptedChatModel


@tool
def look(x: int) -> int:
    """Look."""
    return x


MODEL = ScriptedChatModel(script=Script("Hello."))
TOOLS: dict[str, BaseTool] = {"look": look}


def states(graph: Any) -> dict[str, str]:
    return {one.node: one.state for one in LangGraphAgent(graph).coverage()}


def test_agents_and_tool_nodes_are_covered() -> None:
    agent = create_agent(MODEL, [look])
    outer = StateGraph(MessagesState).add_node("agent", agent).add_node("more", ToolNode([look]))
    outer.add_edge(START, "agent").add_edge("agent", "more")
    assert states(outer.compile()) == {"agent/model": "covered", "agent/tools": "covered", "more": "covered"}


def test_functions_are_unknown_whatever_they_hold() -> None:
    def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [ToolNode([look]).invoke(state)]}

    assert states(StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()) == {
        "node": "unknown"
    }


def test_what_runs_on_another_server_is_not_covered_and_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    remote = RemoteGraph("assistant", url="http://127.0.0.1:1")
    graph = StateGraph(MessagesState).add_node("far", remote).add_node("near", lambda state: {}).add_edge(START, "far")
    with caplog.at_level(logging.WARNING, "outlast.langgraph"):
        assert states(graph.compile()) == {"far": "not covered", "near": "unknown"}
    (record,) = caplog.records
    assert "far (runs on another server" in record.getMessage()
    assert "near" not in record.getMessage()


def test_tasks_of_a_workflow_are_listed() -> None:
    @task
    def one(x: int) -> int:
        return x

    @task
    def two(x: int) -> Any:
        return look.invoke({"x": x})

    @entrypoint()
    def workflow(x: int) -> Any:
        return one(x).result(), two(x).result()

    assert states(workflow) == {"workflow": "unknown", "workflow/one": "unknown", "workflow/two": "unknown"}
