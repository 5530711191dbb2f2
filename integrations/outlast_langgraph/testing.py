"""A chat model for tests and offline examples that says what a script tells it."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable

from outlast.core import jsontext
from outlast_langgraph.messages import as_json


class ScriptedChatModel(BaseChatModel):
    """Streams the answers of an `outlast.testing.scripted.Script`, with made-up token counts."""

    script: Any

    @property
    def _llm_type(self) -> str:
        return "outlast-scripted"

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Runnable[Any, AIMessage]:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> ChatResult:
        said = self.script.answer([as_json(message) for message in messages])
        calls = [
            tool_call(name=call.name, args=dict(call.arguments), id=id)
            for call, id in zip(said.calls, said.call_ids(), strict=True)
        ]
        message = AIMessage(
            said.text,
            id=_id(),
            tool_calls=calls,
            response_metadata=_metadata(said),
            usage_metadata=_usage(messages, said),
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in self._chunks(messages):
            time.sleep(self.script.delay_seconds)
            if run_manager is not None:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._chunks(messages):
            await asyncio.sleep(self.script.delay_seconds)
            if run_manager is not None:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    def _chunks(self, messages: list[BaseMessage]) -> Iterator[ChatGenerationChunk]:
        said, id = self.script.answer([as_json(message) for message in messages]), _id()
        for piece in said.pieces():
            yield ChatGenerationChunk(message=AIMessageChunk(content=piece, id=id))
        for index, (call, call_id) in enumerate(zip(said.calls, said.call_ids(), strict=True)):
            chunk = tool_call_chunk(
                name=call.name, args=jsontext.encode(dict(call.arguments)), id=call_id, index=index
            )  # fmt: skip
            yield ChatGenerationChunk(message=AIMessageChunk(content="", id=id, tool_call_chunks=[chunk]))
        yield ChatGenerationChunk(
            message=AIMessageChunk(
                content="", id=id, response_metadata=_metadata(said), usage_metadata=_usage(messages, said),
                chunk_position="last",
            )
        )  # fmt: skip


def _id() -> str:
    return f"scripted-{uuid.uuid4().hex}"


def _metadata(said: Any) -> dict[str, Any]:
    return {"finish_reason": said.stop_reason or ("tool_calls" if said.calls else "stop"), "model_name": "scripted"}


def _usage(messages: Sequence[BaseMessage], said: Any) -> Any:
    given = sum(len(message.text.split()) for message in messages)
    told = len(said.text.split()) + len(said.calls)
    return {"input_tokens": given, "output_tokens": told, "total_tokens": given + told}
