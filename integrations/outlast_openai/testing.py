"""A model of the SDK for tests and offline examples that says what a script tells it."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from agents.items import ModelResponse
from agents.models.interface import Model
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from agents.usage import Usage

from outlast_openai.messages import Row, entries


class ScriptModel(Model):
    """Says the answers of an `outlast.testing.scripted.Script`, with made-up token counts."""

    def __init__(self, script: Any) -> None:
        self.script = script

    async def get_response(
        self, system_instructions: str | None, input: Any, *more: Any, **options: Any
    ) -> ModelResponse:
        await asyncio.sleep(self.script.delay_seconds)
        return await self._once(input).get_response(system_instructions, input, *more, **options)

    async def stream_response(self, system_instructions: str | None, input: Any, *more: Any, **options: Any) -> AsyncIterator[Any]:  # fmt: skip
        async for event in self._once(input).stream_response(system_instructions, input, *more, **options):
            if event.type == "response.output_text.delta":
                await asyncio.sleep(self.script.delay_seconds)
            yield event

    def _once(self, input: Any) -> ScriptedModel:
        items = [{"role": "user", "content": input}] if isinstance(input, str) else input
        said = self.script.answer(_seen(items))
        output = [assistant_message(said.text, item_id=f"msg_{uuid.uuid4().hex}")] if said.text else []
        for call, id in zip(said.calls, said.call_ids(), strict=True):
            output.append(function_call(call.name, dict(call.arguments), call_id=id, item_id=f"fc_{uuid.uuid4().hex}"))
        usage = Usage(requests=1, input_tokens=1, output_tokens=1, total_tokens=2)
        return ScriptedModel([ModelStep(output=output, usage=usage, response_id=f"resp_{uuid.uuid4().hex}")])


def _seen(items: Sequence[Any]) -> list[dict[str, Any]]:
    """Return what a model was sent as messages."""
    return [entry.message.as_json() for entry in entries([Row(str(at), item) for at, item in enumerate(items)])]
