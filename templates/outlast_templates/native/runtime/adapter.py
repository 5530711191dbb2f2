"""The agent made durable. `outlast.Agent` has the loop: model, tools, model."""

from agent.prompt import PROMPT
from agent.tools import TOOLS
from outlast import Agent, DurableAgentServer, tools
from outlast.adapters.native import Model
from outlast.server import Config


def make_server(model: Model, config: Config | None = None) -> DurableAgentServer:
    # What `outlast tools add` declared. The tests give no configuration, and so need none of its servers.
    declared = tools.load("native", config) if config else tools.Tools()
    # Looking an order up changes nothing: it may simply run again after a crash.
    agent = Agent(
        model, tools=[*TOOLS, *declared], instructions=PROMPT, rerun_safe={"look_up_order", *declared.rerun_safe}
    )
    return DurableAgentServer(agent, config=config)
