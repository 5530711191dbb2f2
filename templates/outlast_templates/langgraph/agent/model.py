"""The model. For another provider change `make_model`, and KEY to the variable that has its key."""

from langchain_core.language_models import BaseChatModel

MODEL = "gpt-5-mini"
KEY = "OPENAI_API_KEY"


def make_model() -> BaseChatModel:
    # Here, so that tests need no package of a provider.
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=MODEL)
