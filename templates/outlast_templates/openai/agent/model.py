"""The model, by its name at OpenAI, or at the address of OPENAI_BASE_URL. KEY is the variable that has its key."""

MODEL = "gpt-5-mini"
KEY = "OPENAI_API_KEY"


def make_model() -> str:
    return MODEL
