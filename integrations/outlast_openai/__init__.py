"""Durable OpenAI Agents SDK: wrap an agent with `OpenAIAgent`, or keep only its conversations with `StoreSession`."""

try:
    import agents  # noqa: F401 - looked for once, at the door
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("outlast_openai needs the OpenAI Agents SDK: pip install 'outlast[openai]'") from error

from outlast_openai.agent import OpenAIAgent, recognise
from outlast_openai.graph import CannotBeDurable
from outlast_openai.session import StoreSession

__all__ = ["CannotBeDurable", "OpenAIAgent", "StoreSession", "recognise"]
