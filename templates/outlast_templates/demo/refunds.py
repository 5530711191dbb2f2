"""A LangGraph agent with tools that have effects in the world, and a scripted model, so that it needs no key.

    outlast serve refunds.py:app

Every tool call leaves a line in the ledger file. Kill the server while a refund is under way and start it again: the
refund is not made a second time. The model is told that its outcome is unknown, and looks into the ledger.
"""

import asyncio
import os
from pathlib import Path

from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from outlast import DurableAgentServer
from outlast.testing.scripted import History, Say, ScriptedCall
from outlast_langgraph import LangGraphAgent
from outlast_langgraph.testing import ScriptedChatModel

LEDGER = Path(os.environ.get("REFUNDS_LEDGER", "ledger.txt"))
REFUND_SECONDS = 3.0


def note(line: str) -> None:
    with LEDGER.open("a") as ledger:
        ledger.write(f"{line}\n")


@tool
async def look_up_order(order: int) -> str:
    """Look an order up."""
    note(f"look_up_order {order}")
    return f"Order {order}: one kettle, 39.00, paid"


@tool
async def refund(order: int, amount: str) -> str:
    """Pay an order back."""
    note(f"refund {order}")
    await asyncio.sleep(REFUND_SECONDS)
    return f"Refunded {amount}"


@tool
async def read_ledger(order: int) -> str:
    """Read what was done for an order."""
    lines = LEDGER.read_text().splitlines()
    note(f"read_ledger {order}")
    return "\n".join(line for line in lines if line == f"refund {order}") or "nothing"


class Clerk:
    """What the model says, decided from the conversation; a real model goes in its place."""

    delay_seconds = 0.03

    def answer(self, history: History) -> Say:
        last = history[-1]
        if last["role"] == "user":
            calls = [
                ScriptedCall("look_up_order", {"order": 1042}),
                ScriptedCall("refund", {"order": 1042, "amount": "39.00"}),
            ]
            return Say("I look the order up and pay it back.", calls)
        if last["name"] == "read_ledger":
            return Say("The ledger shows one refund for order 1042, so I do not repeat it. You get 39.00 back.")
        if last["status"] == "error":
            call = ScriptedCall("read_ledger", {"order": 1042}, id="call_3")
            return Say("The refund was cut off. Before I try again I look into the ledger.", [call])
        return Say("Order 1042 is paid back: you get 39.00.")


tools = [look_up_order, refund, read_ledger]
model = ScriptedChatModel(script=Clerk()).bind_tools(tools)


async def call_model(state: MessagesState) -> MessagesState:
    return {"messages": [await model.ainvoke(state["messages"])]}


graph = StateGraph(MessagesState)
graph.add_node("model", call_model)
graph.add_node("tools", ToolNode(tools))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")

app = DurableAgentServer(LangGraphAgent(graph.compile()))
