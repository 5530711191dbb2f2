"""The agent made durable."""

from langchain_core.language_models import BaseChatModel

from agent.graph import make_graph
from outlast import DurableAgentServer, tools
from outlast.server import Config
from outlast_langgraph import LangGraphAgent


def make_server(model: BaseChatModel, config: Config | None = None) -> DurableAgentServer:
    # What `outlast tools add` declared. The tests give no configuration, and so need none of its servers.
    declared = tools.load("langgraph", config) if config else tools.Tools()
    # Looking an order up changes nothing: it may simply run again after a crash.
    agent = LangGraphAgent(make_graph(model, declared), rerun_safe={"look_up_order", *declared.rerun_safe})
    return DurableAgentServer(agent, config=config)
