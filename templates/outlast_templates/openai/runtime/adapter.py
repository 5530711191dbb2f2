"""The agent made durable."""

from agents.models.interface import Model

from agent.desk import make_agent
from outlast import DurableAgentServer, tools
from outlast.server import Config
from outlast_openai import OpenAIAgent


def make_server(model: str | Model, config: Config | None = None) -> DurableAgentServer:
    # What `outlast tools add` declared. The tests give no configuration, and so need none of its servers.
    declared = tools.load("openai", config) if config else tools.Tools()
    # Looking an order up changes nothing: it may simply run again after a crash.
    agent = OpenAIAgent(make_agent(model, declared), rerun_safe={"look_up_order", *declared.rerun_safe})
    return DurableAgentServer(agent, config=config)
