"""The agent made durable."""

from agents.models.interface import Model

from agent.desk import make_agent
from outlast import DurableAgentServer
from outlast.server import Config
from outlast_openai import OpenAIAgent


def make_server(model: str | Model, config: Config | None = None) -> DurableAgentServer:
    # Looking an order up changes nothing: it may simply run again after a crash.
    agent = OpenAIAgent(make_agent(model), rerun_safe={"look_up_order"})
    return DurableAgentServer(agent, config=config)
