"""The service with a scripted model."""

from outlast_langgraph.testing import ScriptedChatModel
from runtime.adapter import make_server
from script import SCRIPT, make_bank_slow

make_bank_slow()
app = make_server(ScriptedChatModel(script=SCRIPT))
