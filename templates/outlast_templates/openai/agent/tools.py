"""What the agent can do."""

from agents import Tool, function_tool

from agent import shop
from outlast import current_tool_call


@function_tool
def look_up_order(order: str) -> str:
    """Look an order up by its number, such as A1."""
    return shop.find_order(order)


@function_tool(needs_approval=True)
def refund(order: str, amount: float) -> str:
    """Pay a customer money back for an order."""
    shop.pay_back(order, amount, current_tool_call().idempotency_key)
    return f"{amount:.2f} paid back for {order}"


TOOLS: list[Tool] = [look_up_order, refund]
