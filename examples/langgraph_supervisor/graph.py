"""A supervisor that hands work to two agents, each a subgraph with tools of its own.

outlast serve examples/langgraph_supervisor/graph.py:graph
"""

from typing import Any, Literal

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast_langgraph.testing import ScriptedChatModel


@tool
async def search(query: str) -> str:
    """Search the archive."""
    return "The bridge was opened in 1932."


@tool
async def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


researcher = create_agent(
    ScriptedChatModel(script=Script(Say("", [ScriptedCall("search", {"query": "bridge"})]), "It was opened in 1932.")),
    [search],
    name="researcher",
)
DRAFT = "The bridge, opened in 1932, still stands."
writer = create_agent(
    ScriptedChatModel(script=Script(Say("", [ScriptedCall("count_words", {"text": DRAFT})]), DRAFT)),
    [count_words],
    name="writer",
)


async def supervise(state: MessagesState) -> Command[Literal["researcher", "writer", "__end__"]]:
    """Decide who is next. A model that is asked for a route goes in this place."""
    said = {message.name for message in state["messages"] if isinstance(message, AIMessage)}
    for name in ("researcher", "writer"):
        if name not in said:
            return Command(goto=name)
    return Command(goto="__end__")


async def research(state: MessagesState) -> dict[str, Any]:
    """Give the researcher the question alone, and keep only what it found."""
    answer = await researcher.ainvoke({"messages": [HumanMessage(state["messages"][0].text)]})
    return {"messages": [AIMessage(answer["messages"][-1].text, name="researcher")]}


async def write(state: MessagesState) -> dict[str, Any]:
    found = state["messages"][-1].text
    answer = await writer.ainvoke({"messages": [HumanMessage(f"Write one sentence: {found}")]})
    return {"messages": [AIMessage(answer["messages"][-1].text, name="writer")]}


builder = StateGraph(MessagesState)
builder.add_node("supervisor", supervise)
builder.add_node("researcher", research)
builder.add_node("writer", write)
builder.add_edge(START, "supervisor")
builder.add_edge("researcher", "supervisor")
builder.add_edge("writer", "supervisor")
graph = builder.compile()
