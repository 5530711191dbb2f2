"""Durable OpenAI Agents SDK agents, and the SDK's `Session` on the store of outlast."""

try:
    import agents  # noqa: F401 - looked for once, at the door
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("outlast_openai needs the OpenAI Agents SDK: pip install 'outlast[openai]'") from error

from outlast_openai.session import StoreSession

__all__ = ["StoreSession"]
