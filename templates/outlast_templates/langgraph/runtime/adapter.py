"""The agent made durable."""

from langchain_core.language_models import BaseChatModel

from agent.graph import make_graph
from outlast import DurableAgentServer
from outlast.server import Config
from outlast_langgraph import LangGraphAgent


def make_server(model: BaseChatModel, config: Config | None = None) -> DurableAgentServer:
    # Looking an order up changes nothing: it may simply run again after a crash.
    agent = LangGraphAgent(make_graph(model), rerun_safe={"look_up_order"})
    return DurableAgentServer(agent, config=config)
