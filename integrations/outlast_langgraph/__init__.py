"""Durable LangGraph: wrap a compiled graph with `LangGraphAgent`."""

try:
    import langgraph.graph  # noqa: F401 - looked for once, at the door
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("outlast_langgraph needs LangGraph: pip install 'outlast[langgraph]'") from error

from outlast_langgraph.agent import LangGraphAgent, recognise
from outlast_langgraph.saver import StoreSaver
from outlast_langgraph.store import DurableStore

__all__ = ["DurableStore", "LangGraphAgent", "StoreSaver", "recognise"]
