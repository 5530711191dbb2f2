"""Approval: a refund that a person has to agree to. No network, no keys.

    outlast serve examples/openai/approval.py:agent

The run ends `interrupted`, and lists what it asks at `/api/approvals`; another run of the session brings the decision, today
or next week. There is no code of outlast in it but the scripted model; put the name of a real one in its place.
"""

from agents import Agent, function_tool

from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast_openai.testing import ScriptModel


@function_tool
def look_up(order: str) -> str:
    """Look an order up."""
    return f"{order} cost 20."


@function_tool(needs_approval=True)
def refund(order: str, amount: int) -> str:
    """Refund a part of an order."""
    return f"{amount} of {order} is refunded."


agent = Agent(
    name="desk",
    model=ScriptModel(
        Script(
            Say("I look it up.", [ScriptedCall("look_up", {"order": "A1"}, "call_look")]),
            Say("I ask somebody.", [ScriptedCall("refund", {"order": "A1", "amount": 20}, "call_refund")]),
            "Your money is on its way.",
        )
    ),
    tools=[look_up, refund],
)
