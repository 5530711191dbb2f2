"""What the agent can do."""

from agent import shop
from outlast import Tool, current_tool_call


def look_up_order(order: str) -> str:
    """Look an order up by its number, such as A1."""
    return shop.find_order(order)


def refund(order: str, amount: float) -> str:
    """Pay a customer money back for an order."""
    shop.pay_back(order, amount, current_tool_call().idempotency_key)
    return f"{amount:.2f} paid back for {order}"


TOOLS = [look_up_order, Tool(refund, needs_approval=True)]
