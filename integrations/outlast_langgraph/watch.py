"""What a run hears of its graph through LangChain's callbacks."""

from typing import Any

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.runnables import RunnableConfig

from outlast_langgraph import places
from outlast_langgraph.observer import Observer


class Watch(AsyncCallbackHandler):
    """Notes where models are called in a way that nothing else sees, and lets a task begin only when those that ended before it are stored."""

    raise_error = True
    run_inline = True

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    async def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[Any], *, metadata: dict[str, Any] | None = None, **details: Any
    ) -> None:
        self._observer.lose(metadata)

    async def on_llm_start(
        self, serialized: dict[str, Any], prompts: list[str], *, metadata: dict[str, Any] | None = None, **details: Any
    ) -> None:
        self._observer.lose(metadata)

    async def on_chain_start(
        self, serialized: dict[str, Any], inputs: Any, *, metadata: dict[str, Any] | None = None, **details: Any
    ) -> None:
        if places.is_called(RunnableConfig(metadata=metadata or {})):
            await self._observer.stored()
