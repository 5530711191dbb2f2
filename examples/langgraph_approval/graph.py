"""An agent that asks a person before it pays, and before it says whom.

    outlast serve examples/langgraph_approval/graph.py:graph

The run ends `interrupted`; it goes on by another run of the session, whose input has the decision or the answer:
{"resume": {"decisions": [{"id": "…", "type": "approve"}]}} and then {"resume": "Ada"}.
"""

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import tool
from langgraph.types import interrupt

from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast_langgraph.testing import ScriptedChatModel


@tool
def pay(amount: int) -> str:
    """Pay somebody whom a person names."""
    payee = interrupt({"question": f"Who gets the {amount}?"})
    return f"{payee} got {amount}"


model = ScriptedChatModel(
    script=Script(Say("I would like to pay 40.", [ScriptedCall("pay", {"amount": 40})]), "It is paid.")
)

graph = create_agent(model, [pay], middleware=[HumanInTheLoopMiddleware(interrupt_on={"pay": True})])
