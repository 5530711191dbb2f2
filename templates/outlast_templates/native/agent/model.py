"""The model, behind any address that speaks OpenAI's chat completions. KEY is the variable that has its key.

For another provider implement `outlast.adapters.native.Model`.
"""

from outlast.adapters.native import Model
from outlast.adapters.native.openai_chat import OpenAIChatModel

MODEL = "gpt-5-mini"
KEY = "OPENAI_API_KEY"


def make_model() -> Model:
    return OpenAIChatModel(MODEL)
