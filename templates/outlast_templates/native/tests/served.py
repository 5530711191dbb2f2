"""The service with a scripted model."""

from outlast.testing.scripted import ScriptedModel
from runtime.adapter import make_server
from script import SCRIPT, make_bank_slow

make_bank_slow()
app = make_server(ScriptedModel(SCRIPT))
