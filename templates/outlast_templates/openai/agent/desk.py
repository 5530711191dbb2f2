"""The agent; handoffs to others go here too."""

from collections.abc import Sequence

from agents import Agent, Tool
from agents.models.interface import Model

from agent.prompt import PROMPT
from agent.tools import TOOLS


def make_agent(model: str | Model, declared: Sequence[Tool] = ()) -> Agent[None]:
    return Agent(name="desk", instructions=PROMPT, model=model, tools=[*TOOLS, *declared])
