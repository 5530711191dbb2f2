"""A workflow without messages: invoices are checked side by side, then booked, each once.

    outlast serve examples/langgraph_workflow/graph.py:graph

Send a state as the input: {"invoices": [{"number": "A1", "amount": 40}]}
"""

import os
from operator import add
from pathlib import Path
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy, Send

from outlast import journaled

BOOK = Path(os.environ.get("INVOICES_BOOK", "book.txt"))
LIMIT = 1000


class Invoice(TypedDict):
    number: str
    amount: int


class Books(TypedDict, total=False):
    invoices: list[Invoice]
    accepted: Annotated[list[str], add]
    refused: Annotated[list[str], add]
    summary: str


@journaled
def book(number: str, amount: int) -> str:
    """Write an invoice into the book; once, whatever happens to the node that calls this."""
    with BOOK.open("a") as lines:
        lines.write(f"{number} {amount}\n")
    return number


def distribute(state: Books) -> list[Send]:
    return [Send("check", invoice) for invoice in state["invoices"]]


def check(state: Invoice) -> Books:
    if state["amount"] > LIMIT:
        return {"refused": [state["number"]]}
    return {"accepted": [book(state["number"], state["amount"])]}


def summarise(state: Books) -> Books:
    accepted, refused = state.get("accepted", []), state.get("refused", [])
    return {"summary": f"{len(accepted)} booked, {len(refused)} refused"}


builder = StateGraph(Books)
builder.add_node("check", check, retry_policy=RetryPolicy())
builder.add_node("summarise", summarise)
builder.add_conditional_edges(START, distribute, ["check"])
builder.add_edge("check", "summarise")
builder.add_edge("summarise", END)
graph = builder.compile()
