"""Research: a lead that has agents as tools, side by side: two that look things up and one that writes. No network, no keys.

    outlast serve examples/openai/research.py:agent

Each of them is one call of the lead: it runs once, and its answer is kept, whatever is killed. There is no code of outlast in
it but the scripted models; put the name of a real one in their place.
"""

from agents import Agent, function_tool

from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast_openai.testing import ScriptModel


@function_tool
def search(words: str) -> str:
    """Search the library."""
    return f"Three books about {words}."


def says(*answers: Say | str) -> ScriptModel:
    return ScriptModel(Script(*answers))


def calls(text: str, **arguments: dict[str, str]) -> Say:
    return Say(text, [ScriptedCall(name, given, f"call_{name}") for name, given in arguments.items()])


historian = Agent(
    name="historian", model=says(calls("", search={"words": "old tea"}), "Tea is old, say three books."), tools=[search]
)
botanist = Agent(
    name="botanist",
    model=says(calls("", search={"words": "tea plants"}), "Tea is a plant, say three books."),
    tools=[search],
)
writer = Agent(name="writer", model=says("Tea is an old plant."))

agent = Agent(
    name="lead",
    model=says(
        calls("I ask those who know.", historian={"input": "How old is tea?"}, botanist={"input": "What is tea?"}),
        calls("And who writes.", writer={"input": "Old; a plant."}),
        "Tea is an old plant: six books say so.",
    ),
    tools=[
        historian.as_tool("historian", "Knows what was."),
        botanist.as_tool("botanist", "Knows what grows."),
        writer.as_tool("writer", "Makes one sentence of many."),
    ],
)
