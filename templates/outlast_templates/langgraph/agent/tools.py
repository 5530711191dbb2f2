"""What the agent can do."""

from langchain_core.tools import tool

from agent import shop
from outlast import current_tool_call


@tool
def look_up_order(order: str) -> str:
    """Look an order up by its number, such as A1."""
    return shop.find_order(order)


@tool
def refund(order: str, amount: float) -> str:
    """Pay a customer money back for an order."""
    shop.pay_back(order, amount, current_tool_call().idempotency_key)
    return f"{amount:.2f} paid back for {order}"


TOOLS = [look_up_order, refund]
NEED_APPROVAL = {"refund": True}
