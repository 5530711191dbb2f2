"""The agent; handoffs to others go here too."""

from agents import Agent
from agents.models.interface import Model

from agent.prompt import PROMPT
from agent.tools import TOOLS


def make_agent(model: str | Model) -> Agent[None]:
    return Agent(name="desk", instructions=PROMPT, model=model, tools=TOOLS)
