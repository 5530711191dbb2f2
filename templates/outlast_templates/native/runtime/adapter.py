"""The agent made durable. `outlast.Agent` has the loop: model, tools, model."""

from agent.prompt import PROMPT
from agent.tools import TOOLS
from outlast import Agent, DurableAgentServer
from outlast.adapters.native import Model
from outlast.server import Config


def make_server(model: Model, config: Config | None = None) -> DurableAgentServer:
    # Looking an order up changes nothing: it may simply run again after a crash.
    agent = Agent(model, tools=TOOLS, instructions=PROMPT, rerun_safe={"look_up_order"})
    return DurableAgentServer(agent, config=config)
