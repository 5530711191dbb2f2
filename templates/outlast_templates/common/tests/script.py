"""What the model says in the tests, and a bank that may be slow."""

import os
import threading
from pathlib import Path

from agent import shop
from outlast.testing.scripted import Say, Script, ScriptedCall

SCRIPT = Script(
    Say("I look it up.", [ScriptedCall("look_up_order", {"order": "A1"}, "call_look")]),
    Say("I ask somebody.", [ScriptedCall("refund", {"order": "A1", "amount": 39.0}, "call_refund")]),
    "Your money is on its way.",
)


def make_bank_slow() -> None:
    """Let a payment never return while the file SLOW is there, so that a test can kill the service in the middle."""
    pay = shop.pay_back

    def pay_back(order: str, amount: float, key: str) -> None:
        pay(order, amount, key)
        if Path(os.environ["SLOW"]).exists():
            threading.Event().wait()

    shop.pay_back = pay_back
