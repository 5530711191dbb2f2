"""The service with a scripted model."""

from agents import set_tracing_disabled

from outlast_openai.testing import ScriptModel
from runtime.adapter import make_server
from script import SCRIPT, make_bank_slow

set_tracing_disabled(True)
make_bank_slow()
app = make_server(ScriptModel(SCRIPT))
