"""What of a graph the journal knows to run once, what it does not, and what nobody can tell from outside."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from langgraph.constants import START
from langgraph.pregel import Pregel
from langgraph.pregel.remote import RemoteGraph

from outlast_langgraph import seams

State = Literal["covered", "not covered", "unknown"]

_TOOLS = "runs tools, each call at most once"
_MODEL = "calls the model, and nothing else"
_FUNCTION = (
    "a function, entered again after a crash in it: tools that it calls keep their results, and chat models what they "
    "had said before a tool; what it does by itself is done again unless it is @journaled"
)
_ELSEWHERE = "runs on another server, which is asked again after a crash"


@dataclass(frozen=True, slots=True)
class Coverage:
    """How a node is covered, and why. `node` has the names of the subgraphs it is in before its own."""

    node: str
    state: State
    reason: str


def coverage(graph: Pregel[Any, Any, Any, Any], path: str = "") -> Iterator[Coverage]:
    """Say of every node of a graph, and of the graphs in it, whether its side effects happen once."""
    for name, node in graph.nodes.items():
        where = f"{path}{name}"
        if name == START:
            continue
        if isinstance(node.bound, RemoteGraph):
            yield Coverage(where, "not covered", _ELSEWHERE)
        elif isinstance(node.bound, Pregel):
            yield from coverage(node.bound, f"{where}/")
        elif seams.holds_tool_node(node.bound):
            yield Coverage(where, "covered", _TOOLS)
        elif seams.is_model_node(node):
            yield Coverage(where, "covered", _MODEL)
        else:
            yield from _of_function(where, node.bound)


def _of_function(where: str, body: Any) -> Iterator[Coverage]:
    held = [seams.unbound(value) for value in seams.held(body)]
    if any(isinstance(value, RemoteGraph) for value in held):
        yield Coverage(where, "not covered", _ELSEWHERE)
    else:
        yield Coverage(where, "unknown", _FUNCTION)
    for value in held:
        if (function := seams.function_of_task(value)) is not None:
            yield from _of_function(f"{where}/{function.__name__}", function)
