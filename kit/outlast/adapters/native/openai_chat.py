"""A model behind any address that speaks OpenAI's chat completions (extra `outlast[openai]`)."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any

import httpx

try:
    import openai
except ImportError as error:
    raise ImportError("OpenAIChatModel needs the client of OpenAI: pip install 'outlast[openai]'") from error

from outlast.adapters.native.model import (
    CallDelta,
    Delta,
    ProviderError,
    ProviderRateLimited,
    ProviderRefused,
    ProviderTimeout,
    ProviderUnavailable,
    ReasoningDelta,
    Stopped,
    TextDelta,
    ToolSpec,
)
from outlast.core.transcript import Message, Role, StopReason

_REASONS = {
    "stop": StopReason.STOP,
    "tool_calls": StopReason.TOOL_CALLS,
    "function_call": StopReason.TOOL_CALLS,
    "length": StopReason.MAX_OUTPUT,
    "content_filter": StopReason.CONTENT_FILTER,
}


class OpenAIChatModel:
    """A chat model by its name at the provider.

    `client` is an `openai.AsyncOpenAI`; without one, the client reads OPENAI_API_KEY and OPENAI_BASE_URL. Build your own
    with `max_retries=0`, for the agent repeats failed calls itself. `options` go into every request, such as
    `temperature`.
    """

    def __init__(self, name: str, *, client: openai.AsyncOpenAI | None = None, **options: Any) -> None:
        self.name = name
        self._client = client or openai.AsyncOpenAI(max_retries=0)
        self._options = options

    async def stream(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> AsyncGenerator[Delta, None]:
        """Answer a conversation. Raises ProviderError and its kinds."""
        request: dict[str, Any] = {
            "model": self.name, "messages": [_sent(message) for message in messages], "stream": True,
            "stream_options": {"include_usage": True}, **self._options,
        }  # fmt: skip
        if tools:
            request["tools"] = [_described(tool) for tool in tools]
        try:
            async with await self._client.chat.completions.create(**request) as chunks:
                async for delta in _deltas(chunks):
                    yield delta
        except (openai.OpenAIError, httpx.HTTPError) as error:
            if getattr(error, "code", None) != "context_length_exceeded":
                raise _translated(error) from error
            yield Stopped(StopReason.CONTEXT_FULL)


async def _deltas(chunks: AsyncIterator[Any]) -> AsyncGenerator[Delta, None]:
    reason, refused, usage = None, False, dict[str, int]()
    async for chunk in chunks:
        if chunk.usage is not None:
            usage = {"input_tokens": chunk.usage.prompt_tokens, "output_tokens": chunk.usage.completion_tokens}
        for choice in chunk.choices[:1]:
            reason = choice.finish_reason or reason
            refused = refused or bool(choice.delta.refusal)
            for delta in _of(choice.delta):
                yield delta
    # A stream that ends without a reason was cut, and says so by having no end.
    if reason is not None:
        known = _REASONS.get(reason, StopReason.UNKNOWN)
        yield Stopped(StopReason.REFUSED if refused else known, usage)


def _of(delta: Any) -> list[Delta]:
    found: list[Delta] = []
    if thought := getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None):
        found.append(ReasoningDelta(str(thought)))
    if text := delta.content or delta.refusal:
        found.append(TextDelta(text))
    for call in delta.tool_calls or ():
        function = call.function
        found.append(CallDelta(call.index, function.arguments or "", call.id, function.name))
    return found


def _sent(message: Message) -> dict[str, Any]:
    """Return a message as the provider takes it."""
    role = "user" if message.role is Role.INTERNAL else message.role.value
    content = message.content if isinstance(message.content, str) else [dict(part) for part in message.content]
    if message.role is Role.TOOL:
        return {"role": role, "content": content, "tool_call_id": message.call_id}
    if not message.calls:
        return {"role": role, "content": content}
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.calls
    ]
    return {"role": role, "content": content or None, "tool_calls": calls}


def _described(tool: ToolSpec) -> Mapping[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _translated(error: Exception) -> ProviderError:
    """Return what an error means to a run. The text of the provider may name a key, so that only its own code is kept."""
    match error:
        case openai.APITimeoutError() | httpx.TimeoutException():
            return ProviderTimeout("the provider did not answer in time")
        case openai.RateLimitError():
            return ProviderRateLimited("the provider asks for fewer requests")
        case openai.APIConnectionError() | httpx.HTTPError():
            return ProviderUnavailable("the connection to the provider failed")
        case openai.APIStatusError() if error.status_code >= 500:
            return ProviderUnavailable(f"the provider answered {error.status_code}")
        case openai.APIStatusError():
            return ProviderRefused(
                f"the provider answered {error.status_code} ({error.code or error.type or 'no code'})"
            )
        case _:
            return ProviderError(f"the provider failed: {type(error).__name__}")
