"""The agent as a graph; any other compiled graph will do."""

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import BaseChatModel
from langgraph.graph.state import CompiledStateGraph

from agent.prompt import PROMPT
from agent.tools import NEED_APPROVAL, TOOLS
from outlast.tools import Tools


def make_graph(model: BaseChatModel, declared: Tools) -> CompiledStateGraph:
    # Without a checkpointer: outlast keeps the state, in its own store.
    asking = HumanInTheLoopMiddleware(interrupt_on=NEED_APPROVAL | dict.fromkeys(declared.needs_approval, True))
    return create_agent(model, [*TOOLS, *declared], system_prompt=PROMPT, middleware=[asking])
