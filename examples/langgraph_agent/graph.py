"""An agent with tools, as LangChain's `create_agent` makes it. Nothing here knows of outlast but the model, which needs no key.

outlast serve examples/langgraph_agent/graph.py:graph
"""

from langchain.agents import create_agent
from langchain_core.tools import tool

from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast_langgraph.testing import ScriptedChatModel

FORECASTS = {"Lisbon": "sunny, 24 degrees", "Bergen": "rain, 11 degrees"}


@tool
async def forecast(city: str) -> str:
    """Say how the weather will be."""
    return FORECASTS[city]


model = ScriptedChatModel(
    script=Script(
        Say("I look at both.", [ScriptedCall("forecast", {"city": city}) for city in FORECASTS]),
        Say("Take the flight to Lisbon: sunny, 24 degrees."),
    )
)

graph = create_agent(model, [forecast], system_prompt="You help people to choose where to go.")
