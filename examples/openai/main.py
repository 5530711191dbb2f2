"""Customer service: a desk that answers, and hands over to somebody who may refund. No network, no keys.

    outlast serve examples/openai/main.py:agent

There is no code of outlast in it but the scripted models; put the name of a real one in their place.
"""

from agents import Agent, function_tool

from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast_openai.testing import ScriptModel


@function_tool
def refund(order: str) -> str:
    """Refund an order."""
    return f"{order} is refunded."


refunds = Agent(
    name="refunds",
    model=ScriptModel(
        Script(
            "What can I do for you?",
            Say("One moment.", [ScriptedCall("refund", {"order": "A1"}, "call_refund")]),
            "Your money is on its way.",
        )
    ),
    tools=[refund],
)
agent = Agent(
    name="desk",
    model=ScriptModel(Script(Say("I hand you over.", [ScriptedCall("transfer_to_refunds", {}, "call_handoff")]))),
    handoffs=[refunds],
)
