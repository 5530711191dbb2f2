"""The world outside: a stand-in for the shop's own services. Put yours in its place."""

import os
from pathlib import Path

LEDGER = Path(os.environ.get("LEDGER", "ledger.txt"))
ORDERS = {"A1": "one kettle, 39.00, delivered", "A2": "two cups, 12.00, on its way"}


def find_order(order: str) -> str:
    return ORDERS.get(order, f"there is no order {order}")


def pay_back(order: str, amount: float, key: str) -> None:
    """Pay a customer. A real service takes `key` as its idempotency key, and pays once for it."""
    with LEDGER.open("a") as ledger:
        ledger.write(f"{order} {amount:.2f} {key}\n")
